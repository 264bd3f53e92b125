"""Scaled dot-product attention as one operation, with what its gradient needs; `either`, which offers it to a target.

With B.. axes in front (examples), T queries, S keys, G groups of R heads that share keys, width D of keys and E of
values, the operands are q [B.. T G R D], k [B.. S G D], v [B.. S G E]: as a projection leaves them, positions before
heads. The result [B.. T G R E] is softmax(scale q k') v. With `causal` the last query sees all keys, the one before it
all but the last, and so on; every query must see a key.

`attention_statistics` [B.. G R T] is the logarithm of the sum of exp(scale q k') over the keys that a query sees, and
`attention_gradient` with `of` 0, 1 or 2 the gradient of q, k or v: from these, the result and its gradient (Dao et al.,
FlashAttention, 2022, section 3 and appendix B). Operands in bfloat16 are computed with in float32, and the result is
rounded once; statistics are in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from paren.ir.graph import Builder, Node
from paren.ir.op import Array, Attrs, Op, Sample, register
from paren.ir.ops import operands as need
from paren.ir.types import TensorType, TypeMismatch

Floats = npt.NDArray[np.floating]
MASKED = -1e30  # the score of a key that a query does not see, as in the formula of the prelude


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need.count(types, 3)
    q, k, v = types
    _check_keys(q, k, attrs)
    need.same_dtype(k, v)
    if v.rank != k.rank or v.shape[:-1] != k.shape[:-1]:
        raise TypeMismatch(f"the values are {v} for the keys {k}")
    return TensorType(q.dtype, (*q.shape[:-1], v.shape[-1]))


def _infer_statistics(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need.count(types, 2)
    q, k = types
    _check_keys(q, k, attrs)
    *batch, queries, groups, repeat, _ = q.shape
    return TensorType(q.gradient.dtype, (*batch, groups, repeat, queries))


def _infer_gradient(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need.count(types, 6)
    q, k, v, result, statistics, g = types
    for found, wanted in (
        (result, _infer((q, k, v), attrs)),
        (statistics, _infer_statistics((q, k), attrs)),
        (g, result),
    ):
        need.same(found, wanted)
    of = need.integer(attrs, "of")
    if not 0 <= of <= 2:
        raise TypeMismatch(f"of is {of}, 0, 1 or 2 is needed")
    return types[of]


def _check_keys(q: TensorType, k: TensorType, attrs: Attrs) -> None:
    need.member(q, need.FACTORS)
    need.same_dtype(q, k)
    if (
        q.rank < 4
        or k.rank != q.rank - 1
        or (*q.shape[:-4], q.shape[-3], q.shape[-1]) != (*k.shape[:-3], *k.shape[-2:])
    ):
        raise TypeMismatch(f"the keys are {k} for the queries {q}")
    if _causal(attrs) and q.shape[-4] > k.shape[-3]:
        raise TypeMismatch(f"the first of {q.shape[-4]} causal queries would see none of {k.shape[-3]} keys")
    _scale(attrs)


def _causal(attrs: Attrs) -> bool:
    value = attrs.get("causal")
    if not isinstance(value, bool):
        raise TypeMismatch(f"causal is {value!r}, true or false is needed")
    return value


def _scale(attrs: Attrs) -> float:
    value = attrs.get("scale")
    if not isinstance(value, float):
        raise TypeMismatch(f"scale is {value!r}, a float is needed")
    return value


def _wide(x: Array) -> Floats:
    return x.astype(np.float32 if x.dtype.itemsize == 2 else x.dtype)


def _heads_first(q: Floats) -> Floats:
    """[B.. G R T D] of what lies as [B.. T G R D]."""
    return np.moveaxis(q, -4, -2)


def _groups_first(k: Floats) -> Floats:
    """[B.. G 1 S D] of what lies as [B.. S G D]."""
    return np.swapaxes(k, -3, -2)[..., None, :, :]


def _scores(q: Floats, k: Floats, attrs: Attrs) -> Floats:
    """[B.. G R T S], heads first already; `MASKED` where a query does not see a key."""
    scores: Floats = np.matmul(q, np.swapaxes(k, -1, -2)) * q.dtype.type(_scale(attrs))
    queries, keys = scores.shape[-2:]
    if not _causal(attrs):
        return scores
    seen = np.arange(keys) <= np.arange(queries)[:, None] + (keys - queries)
    masked: Floats = np.where(seen, scores, scores.dtype.type(MASKED))
    return masked


def _evaluate(arrays: Sequence[Array], attrs: Attrs) -> Array:
    q, k, v = (_wide(x) for x in arrays)
    scores = _scores(_heads_first(q), _groups_first(k), attrs)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = np.matmul(powers / powers.sum(-1, keepdims=True), _groups_first(v))
    return np.asarray(np.moveaxis(mixed, -2, -4).astype(arrays[0].dtype))


def _evaluate_statistics(arrays: Sequence[Array], attrs: Attrs) -> Array:
    q, k = (_wide(x) for x in arrays)
    scores = _scores(_heads_first(q), _groups_first(k), attrs)
    largest = scores.max(-1)
    return np.asarray(largest + np.log(np.exp(scores - largest[..., None]).sum(-1)))


def _evaluate_gradient(arrays: Sequence[Array], attrs: Attrs) -> Array:
    q, k, v, result, statistics, g = (_wide(x) for x in arrays)
    q, result, g = (_heads_first(x) for x in (q, result, g))
    k, v = (_groups_first(x) for x in (k, v))
    weights = np.exp(_scores(q, k, attrs) - statistics[..., None])
    of = need.integer(attrs, "of")
    if of == 2:
        made = np.matmul(np.swapaxes(weights, -1, -2), g)
    else:
        to_weights = np.matmul(g, np.swapaxes(v, -1, -2)) - np.sum(g * result, -1, keepdims=True)
        to_scores = weights * to_weights * q.dtype.type(_scale(attrs))
        made = np.matmul(to_scores, k) if of == 0 else np.matmul(np.swapaxes(to_scores, -1, -2), q)
    moved = np.moveaxis(made, -2, -4) if of == 0 else np.swapaxes(made.sum(-3), -3, -2)
    return np.asarray(moved.astype(arrays[of].dtype))


def _vjp(builder: Builder, node: Node, g: Node) -> Sequence[Node | None]:
    """Of operands in bfloat16 `g` is rounded, as what it is multiplied with is."""
    span = node.span
    statistics = builder.emit("attention_statistics", node.args[:2], node.attrs, span)
    operands = (*node.args, node, statistics, builder.cast(g, node.dtype, span))
    return [
        builder.cast(builder.emit("attention_gradient", operands, {**node.attrs, "of": of}, span), g.dtype, span)
        for of in range(3)
    ]


_CASES: tuple[tuple[tuple[int, ...], tuple[int, ...], Attrs], ...] = (
    ((2, 5, 2, 3, 8), (2, 5, 2, 8), {"causal": True, "scale": 0.35}),
    ((2, 4, 3, 1, 8), (2, 7, 3, 8), {"causal": False, "scale": 0.5}),
    ((3, 1, 2, 4), (6, 1, 4), {"causal": True, "scale": 1.0}),
    ((1, 1, 1, 4), (1, 1, 4), {"causal": True, "scale": 0.5}),
    ((2, 2, 1, 1, 1, 2), (2, 2, 7, 1, 2), {"causal": False, "scale": -0.5}),
)


def _samples(generator: np.random.Generator) -> list[Sample]:
    """The values have another width than the keys, where that is odd."""
    drawn = []
    for queries, keys, attrs in _CASES:
        values = (*keys[:-1], keys[-1] + len(keys) % 2)
        drawn.append(Sample(tuple(generator.normal(size=shape) for shape in (queries, keys, values)), attrs))
    return drawn


def _statistics_samples(generator: np.random.Generator) -> list[Sample]:
    return [Sample(sample.args[:2], sample.attrs) for sample in _samples(generator)]


def _gradient_samples(generator: np.random.Generator) -> list[Sample]:
    found = []
    for sample in _samples(generator):
        result, statistics = _evaluate(sample.args, sample.attrs), _evaluate_statistics(sample.args[:2], sample.attrs)
        operands = (*sample.args, result, statistics, generator.normal(size=result.shape))
        found += [Sample(operands, {**sample.attrs, "of": of}) for of in range(3)]
    return found


def _infer_either(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need.count(types, 2)
    need.same(*types)
    return types[0]


def _either_samples(generator: np.random.Generator) -> list[Sample]:
    """Two equal operands, as they are meant to be to rounding."""
    x = generator.normal(size=(2, 3))
    return [Sample((x, x), {})]


ATTENTION = register(Op("attention", "contract", _infer, _evaluate, _vjp, _samples))
# Gradients are taken once, so what makes a gradient has none.
STATISTICS = register(
    Op("attention_statistics", "contract", _infer_statistics, _evaluate_statistics, None, _statistics_samples)
)
GRADIENT = register(Op("attention_gradient", "contract", _infer_gradient, _evaluate_gradient, None, _gradient_samples))
# One value computed in two ways: by an operation that some targets have a step for, and written with others. The
# second is what it means, until a target takes the first (`paren.passes.alternatives`).
EITHER = register(
    Op("either", "shape", _infer_either, lambda a, _: a[1], lambda builder, node, g: [None, g], _either_samples)
)
