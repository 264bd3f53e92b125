"""First weights and batches, the same for every contestant, so that equal losses mean equal work.

This file is imported from here by contestants and from its own folder by `batches.py`: it needs NumPy only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]

DEVIATION = 0.02  # of the normal weights of a language model


def language_model_weights(layers: int, width: int, vocabulary: int, length: int) -> dict[str, Floats]:
    """The parameters of a GPT-2 by name; matrices are [outputs inputs], as torch has them, float32."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> Floats:
        return random.standard_normal(shape, dtype=np.float32) * np.float32(DEVIATION)

    def zeros(size: int) -> Floats:
        return np.zeros(size, np.float32)

    weights = {"embedding": normal(vocabulary, width), "position": normal(length, width)}
    for layer in range(layers):
        weights |= {
            f"{layer}.norm1.weight": zeros(width) + 1,
            f"{layer}.norm1.bias": zeros(width),
            f"{layer}.qkv.weight": normal(3 * width, width),
            f"{layer}.qkv.bias": zeros(3 * width),
            f"{layer}.projection.weight": normal(width, width),
            f"{layer}.projection.bias": zeros(width),
            f"{layer}.norm2.weight": zeros(width) + 1,
            f"{layer}.norm2.bias": zeros(width),
            f"{layer}.up.weight": normal(4 * width, width),
            f"{layer}.up.bias": zeros(4 * width),
            f"{layer}.down.weight": normal(width, 4 * width),
            f"{layer}.down.bias": zeros(width),
        }
    return weights | {"norm.weight": zeros(width) + 1, "norm.bias": zeros(width)}


def token_batches(vocabulary: int, length: int, batch: int, count: int) -> tuple[Integers, Integers]:
    """`count` batches of random tokens: tokens and targets, int32[count batch length]."""
    tokens = np.random.default_rng(1).integers(0, vocabulary, (count, batch, length + 1), dtype=np.int32)
    return np.ascontiguousarray(tokens[:, :, :-1]), np.ascontiguousarray(tokens[:, :, 1:])


def network_weights(layers: Sequence[tuple[int, int]]) -> list[tuple[Floats, Floats]]:
    """(weight [outputs inputs], bias [outputs]) of each (inputs, outputs), drawn as `torch.nn.Linear` does."""
    random = np.random.default_rng(0)

    def uniform(inputs: int, *shape: int) -> Floats:
        limit = inputs**-0.5
        return random.uniform(-limit, limit, shape).astype(np.float32)

    return [(uniform(inputs, outputs, inputs), uniform(inputs, outputs)) for inputs, outputs in layers]


def labelled_pairs(rows: int) -> tuple[Floats, Floats]:
    """Pairs of a parameter and what was seen of it or of another: x float32[rows 4], label float32[rows 1]."""
    random = np.random.default_rng(1)
    parameter = random.standard_normal((rows, 2)).astype(np.float32)
    label = (random.random((rows, 1)) < 0.5).astype(np.float32)
    seen = np.where(label > 0, parameter, random.permutation(parameter))
    seen = seen + 0.3 * random.standard_normal(parameter.shape)
    return np.concatenate([parameter, seen], 1).astype(np.float32), label
