"""Operations that combine the elements along axes; the axes vanish."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from paren.ir.graph import Builder, Node
from paren.ir.op import Array, Attrs, Op, Sample, register
from paren.ir.ops import operands as need
from paren.ir.types import DType, TensorType

Gradients = Sequence[Node | None]


def _infer_over_axes(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need.count(types, 1)
    need.member(types[0], need.NUMBERS)
    axes = need.integers(attrs, "axes")
    need.ascending_axes(types[0], axes)
    return TensorType(types[0].dtype, tuple(size for i, size in enumerate(types[0].shape) if i not in axes))


def _infer_position(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need.count(types, 1)
    need.member(types[0], need.NUMBERS)
    axis = need.integer(attrs, "axis")
    need.axis_of(types[0], axis)
    return TensorType(DType.INT32, tuple(size for i, size in enumerate(types[0].shape) if i != axis))


def kept_axes(node: Node) -> tuple[int, ...]:
    """The axes of the operand that a reduction over `axes` keeps."""
    axes = need.integers(node.attrs, "axes")
    return tuple(axis for axis in range(len(node.args[0].shape)) if axis not in axes)


def _sum_vjp(builder: Builder, node: Node, g: Node) -> Gradients:
    attrs: Attrs = {"shape": node.args[0].shape, "axes": kept_axes(node)}
    return [builder.emit("broadcast", (g,), attrs, node.span)]


def _extreme_vjp(builder: Builder, node: Node, g: Node) -> Gradients:
    """Equal parts to all elements that equal the extreme; nothing anywhere if it is NaN."""
    x, span = node.args[0], node.span
    spread: Attrs = {"shape": x.shape, "axes": kept_axes(node)}
    extreme = builder.emit("broadcast", (node,), spread, span)
    hit = builder.emit("eq", (x, extreme), {}, span)
    ones = builder.emit("cast", (hit,), {"dtype": x.dtype}, span)
    number = builder.emit("sum", (ones,), {"axes": node.attrs["axes"]}, span)
    share = builder.emit("broadcast", (builder.apply("div", g, number, span=span),), spread, span)
    return [builder.apply("where", hit, share, 0.0, span=span)]


def _samples(generator: np.random.Generator) -> list[Sample]:
    """Distinct elements at least 0.1 apart, so that an extreme stays one under small steps."""

    def distinct(*shape: int) -> Array:
        size = int(np.prod(shape))
        return (generator.permutation(size) * 0.1 - 1.0).reshape(shape)

    return [
        Sample((distinct(3, 4),), {"axes": (1,)}),
        Sample((distinct(2, 3, 4),), {"axes": (0, 2)}),
        Sample((distinct(5),), {"axes": (0,)}),
        Sample((distinct(2, 1, 3),), {"axes": (1,)}),
        Sample((distinct(2, 3),), {"axes": ()}),
        Sample((generator.integers(-9, 9, (4, 3)).astype(np.int32),), {"axes": (0,)}),
    ]


def _position_samples(generator: np.random.Generator) -> list[Sample]:
    ties = np.array([[1.0, 3.0, 3.0, 1.0], [2.0, 2.0, 2.0, 2.0]])
    undefined = np.array([[1.0, np.nan, 3.0, np.nan]])
    return [
        Sample((generator.normal(size=(3, 4, 2)),), {"axis": 1}),
        Sample((ties,), {"axis": 1}),
        Sample((undefined,), {"axis": 1}),
        Sample((generator.integers(-3, 3, (4, 3)).astype(np.int32),), {"axis": 0}),
    ]


def _over_axes(function: Callable[..., object]) -> Callable[[Sequence[Array], Attrs], Array]:
    return lambda arrays, attrs: np.asarray(function(arrays[0], axis=need.integers(attrs, "axes")))


def _position(function: Callable[..., Array]) -> Callable[[Sequence[Array], Attrs], Array]:
    return lambda arrays, attrs: np.asarray(function(arrays[0], axis=need.integer(attrs, "axis"))).astype(np.int32)


def _sum(x: Array, axis: tuple[int, ...]) -> object:
    """The sum in the operand's own element type; integers wrap around."""
    return np.sum(x, axis=axis, dtype=x.dtype)


SUM = register(Op("sum", "reduce", _infer_over_axes, _over_axes(_sum), _sum_vjp, _samples))
MAX = register(Op("max", "reduce", _infer_over_axes, _over_axes(np.max), _extreme_vjp, _samples))
MIN = register(Op("min", "reduce", _infer_over_axes, _over_axes(np.min), _extreme_vjp, _samples))
ARGMAX = register(Op("argmax", "reduce", _infer_position, _position(np.argmax), None, _position_samples))
ARGMIN = register(Op("argmin", "reduce", _infer_position, _position(np.argmin), None, _position_samples))
