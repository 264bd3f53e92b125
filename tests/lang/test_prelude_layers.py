"""The layers of the prelude compute what torch's do, on random inputs and parameters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from small_programs import Arrays, call, parameters, program
from torch.nn import functional as F

generator = np.random.default_rng(7)


def normal(*shape: int) -> npt.NDArray[np.float32]:
    return generator.normal(size=shape).astype(np.float32)


def tensors(values: Arrays) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.asarray(value)) for name, value in values.items()}


Reference = Callable[[torch.Tensor, dict[str, torch.Tensor]], torch.Tensor]

X = normal(3, 5, 8)
IMAGE = normal(3, 4, 7, 9)

CASES: dict[str, tuple[str, npt.NDArray[np.float32], Reference]] = {
    "linear": ("(linear x 6)", X, lambda x, p: x @ p["linear.weight"] + p["linear.bias"]),
    "linear without bias": ("(linear x 6 :bias false)", X, lambda x, p: x @ p["linear.weight"]),
    "layer-norm": (
        "(layer-norm x)",
        X,
        lambda x, p: F.layer_norm(x, (8,), p["layer-norm.weight"], p["layer-norm.bias"]),
    ),
    "rms-norm": ("(rms-norm x)", X, lambda x, p: F.rms_norm(x, (8,), p["rms-norm.weight"], 1e-6)),
    "relu": ("(relu x)", X, lambda x, p: F.relu(x)),
    "leaky-relu": ("(leaky-relu x :slope 0.2)", X, lambda x, p: F.leaky_relu(x, 0.2)),
    "silu": ("(silu x)", X, lambda x, p: F.silu(x)),
    "sigmoid": ("(sigmoid x)", X, lambda x, p: torch.sigmoid(x)),
    "softplus": ("(softplus (* 30 x))", X, lambda x, p: F.softplus(30 * x)),
    "log-sigmoid": ("(log-sigmoid (* 30 x))", X, lambda x, p: F.logsigmoid(30 * x)),
    "gelu": ("(gelu x)", X, lambda x, p: F.gelu(x)),
    "gelu by tanh": ("(gelu x :approximate true)", X, lambda x, p: F.gelu(x, approximate="tanh")),
    "softmax": ("(softmax (* 50 x) :axis 0)", X, lambda x, p: F.softmax(50 * x, 1)),
    "log-softmax": ("(log-softmax (* 50 x))", X, lambda x, p: F.log_softmax(50 * x, -1)),
    "log-sum-exp": ("(log-sum-exp (* 50 x))", X, lambda x, p: torch.logsumexp(50 * x, -1)),
    "dropout outside training": ("(dropout x 0.5)", X, lambda x, p: x),
    "mlp": (
        "(mlp x [6 7] 2 :activation tanh)",
        X,
        lambda x, p: (
            torch.tanh(
                torch.tanh(x @ p["mlp.linear.weight"] + p["mlp.linear.bias"]) @ p["mlp.linear-1.weight"]
                + p["mlp.linear-1.bias"]
            )
            @ p["mlp.linear-2.weight"]
            + p["mlp.linear-2.bias"]
        ),
    ),
    "swiglu": (
        "(swiglu x 10)",
        X,
        lambda x, p: (F.silu(x @ p["swiglu.gate.weight"]) * (x @ p["swiglu.up.weight"])) @ p["swiglu.down.weight"],
    ),
    "flatten": ("(flatten x)", X, lambda x, p: x.flatten(1)),
    "conv2d": (
        "(conv2d x 6 :kernel 3)",
        IMAGE,
        lambda x, p: F.conv2d(x, p["conv2d.weight"], p["conv2d.bias"]),
    ),
    "conv2d with all options": (
        "(conv2d x 6 :kernel [3 2] :stride [2 1] :padding [1 2] :dilation [1 2] :groups 2)",
        IMAGE,
        lambda x, p: F.conv2d(x, p["conv2d.weight"], p["conv2d.bias"], (2, 1), (1, 2), (1, 2), 2),
    ),
    "conv2d by channel": (
        "(conv2d x 4 :kernel 3 :padding 1 :groups 4 :bias false)",
        IMAGE,
        lambda x, p: F.conv2d(x, p["conv2d.weight"], None, 1, 1, 1, 4),
    ),
    "max-pool": ("(max-pool x :kernel 2)", IMAGE, lambda x, p: F.max_pool2d(x, 2)),
    "max-pool with stride": ("(max-pool x :kernel [3 2] :stride 1)", IMAGE, lambda x, p: F.max_pool2d(x, (3, 2), 1)),
    "average-pool": ("(average-pool x :kernel 3 :stride 2)", IMAGE, lambda x, p: F.avg_pool2d(x, 3, 2)),
    "global-average-pool": ("(global-average-pool x)", IMAGE, lambda x, p: x.mean((2, 3))),
}


@pytest.mark.parametrize("name", CASES)
def test_layer_is_torchs(name: str) -> None:
    text, x, reference = CASES[name]
    made = program(
        f"(x float32 [{' '.join(map(str, x.shape[1:]))}])", f"(* 1 (let ((_ (param unused [1] :init 0))) {text}))"
    )
    values = parameters(made)
    found = call(made, {"x": x}, values)
    wanted = reference(torch.from_numpy(x), tensors(values)).numpy()
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


def heads_of(x: torch.Tensor, count: int) -> torch.Tensor:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_with_grouped_heads(groups: int, causal: bool) -> None:
    """causal-attention and multi-head-attention are torch's scaled dot products between qkv and projection."""
    form = "causal-attention" if causal else "multi-head-attention"
    made = program("(x float32 [5 8])", f"({form} x :heads 4 :key-heads {groups})")
    values = parameters(made)
    p, x = tensors(values), torch.from_numpy(X)
    qkv = x @ p["qkv.weight"] + p["qkv.bias"]
    q, k, v = qkv.split([8, 2 * groups, 2 * groups], -1)
    mixed = F.scaled_dot_product_attention(
        heads_of(q, 4), heads_of(k, groups), heads_of(v, groups), is_causal=causal, enable_gqa=True
    )
    wanted = mixed.transpose(1, 2).flatten(2) @ p["projection.weight"] + p["projection.bias"]
    np.testing.assert_allclose(call(made, {"x": X}, values), wanted.numpy(), rtol=2e-5, atol=1e-5)


def test_attention_mask_and_longer_keys() -> None:
    """A mask of booleans hides keys; with more keys than queries the last query sees all of them."""
    q, k, v = normal(2, 2, 3, 4), normal(2, 2, 5, 4), normal(2, 2, 5, 6)
    mask = generator.random((2, 3, 5)) < 0.7
    mask[..., 0] = True
    fields = "(q float32 [2 3 4]) (k float32 [2 5 4]) (v float32 [2 5 6]) (mask bool [3 5])"
    inputs = {"q": q, "k": k, "v": v, "mask": mask}
    made = program(fields, "(+ (attention q k v :mask mask) (param zero [] :init 0))")
    found = call(made, inputs, {"zero": np.zeros((), np.float32)})
    wanted = F.scaled_dot_product_attention(
        *(torch.from_numpy(a) for a in (q, k, v)), attn_mask=torch.from_numpy(mask)[:, None]
    )
    np.testing.assert_allclose(found, wanted.numpy(), rtol=2e-5, atol=1e-5)
    made = program(fields, "(+ (attention q k v :causal true) (param zero [] :init 0))")
    found = call(made, inputs, {"zero": np.zeros((), np.float32)})
    seen = torch.ones(3, 5, dtype=torch.bool).tril(2)
    wanted = F.scaled_dot_product_attention(*(torch.from_numpy(a) for a in (q, k, v)), attn_mask=seen)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=2e-5, atol=1e-5)


def test_a_row_without_keys_is_finite() -> None:
    """A mask that hides every key gives the mean of the values, never NaN."""
    q = normal(1, 1, 2, 4)
    fields = "(q float32 [1 2 4]) (mask bool [2 2])"
    made = program(fields, "(+ (attention q q q :mask mask) (param zero [] :init 0))")
    found = call(made, {"q": q, "mask": np.zeros((1, 2, 2), bool)}, {"zero": np.zeros((), np.float32)})
    np.testing.assert_allclose(found, np.broadcast_to(q.mean(2, keepdims=True), q.shape), rtol=1e-6)


def test_rope_rotates_halves() -> None:
    """Element i and element i + width/2 turn by position x 10000^(-2i/width)."""
    x = normal(2, 3, 6, 8)
    made = program("(x float32 [3 6 8])", "(+ (rope x) (param zero [] :init 0))")
    found = call(made, {"x": x}, {"zero": np.zeros((), np.float32)})
    angle = np.arange(6)[:, None] * 10000.0 ** (-np.arange(4) / 4)
    low, high = x[..., :4].astype(np.float64), x[..., 4:].astype(np.float64)
    wanted = np.concatenate(
        [low * np.cos(angle) - high * np.sin(angle), high * np.cos(angle) + low * np.sin(angle)], -1
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-6)


def test_embedding_and_its_bound() -> None:
    """embedding takes rows of its table, and ids from the data are bounded by the table."""
    made = program("(ids int32 [4])", "(embedding ids 10 6)")
    values = parameters(made)
    ids = generator.integers(0, 10, (3, 4)).astype(np.int32)
    np.testing.assert_array_equal(call(made, {"ids": ids}, values), values["embedding.weight"][ids])
    assert [(b.field, b.low, b.high, b.ignore) for b in made.bounds] == [("ids", 0, 10, None)]
