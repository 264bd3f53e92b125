"""Operations that move elements without changing them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from paren.ir.graph import Builder, Node
from paren.ir.op import Array, Attrs, Op, Sample, register
from paren.ir.ops import operands as need
from paren.ir.types import TensorType, TypeMismatch

Gradients = Sequence[Node | None]


# reshape: row-major order of the elements stays.


def _infer_reshape(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need.count(types, 1)
    result = TensorType(types[0].dtype, need.integers(attrs, "shape"))
    need.sizes(result.shape)
    if result.size != types[0].size:
        raise TypeMismatch(
            f"{types[0]} has {types[0].size} elements, the shape {need.words(result.shape)} has {result.size}"
        )
    return result


def _reshape_vjp(builder: Builder, node: Node, g: Node) -> Gradients:
    return [builder.emit("reshape", (g,), {"shape": node.args[0].shape}, node.span)]


# transpose: dimension i of the result is dimension axes[i] of the operand.


def _infer_transpose(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need.count(types, 1)
    axes = need.integers(attrs, "axes")
    if sorted(axes) != list(range(types[0].rank)):
        raise TypeMismatch(f"the axes {need.words(axes)} are not an order of the axes of {types[0]}")
    return TensorType(types[0].dtype, tuple(types[0].shape[axis] for axis in axes))


def _transpose_vjp(builder: Builder, node: Node, g: Node) -> Gradients:
    axes = need.integers(node.attrs, "axes")
    inverse = tuple(axes.index(axis) for axis in range(len(axes)))
    return [builder.emit("transpose", (g,), {"axes": inverse}, node.span)]


# broadcast: dimension i of the operand becomes dimension axes[i] of the result; sizes are equal, axes ascend.


def _infer_broadcast(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need.count(types, 1)
    axes = need.integers(attrs, "axes")
    result = TensorType(types[0].dtype, need.integers(attrs, "shape"))
    need.sizes(result.shape)
    need.per_dimension("axes", axes, types[0])
    need.ascending_axes(result, axes)
    if tuple(result.shape[axis] for axis in axes) != types[0].shape:
        raise TypeMismatch(f"{types[0]} does not fit the axes {need.words(axes)} of {result}")
    return result


def _evaluate_broadcast(arrays: Sequence[Array], attrs: Attrs) -> Array:
    shape, axes = need.integers(attrs, "shape"), need.integers(attrs, "axes")
    kept = [shape[axis] if axis in axes else 1 for axis in range(len(shape))]
    return np.broadcast_to(arrays[0].reshape(kept), shape)


def _broadcast_vjp(builder: Builder, node: Node, g: Node) -> Gradients:
    axes = need.integers(node.attrs, "axes")
    new = tuple(axis for axis in range(len(node.shape)) if axis not in axes)
    return [builder.emit("sum", (g,), {"axes": new}, node.span)]


# slice: elements start, start + step, ... before stop, in each dimension.


def _infer_slice(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need.count(types, 1)
    bounds = [need.integers(attrs, name) for name in ("start", "stop", "step")]
    for name, values in zip(("start", "stop", "step"), bounds, strict=True):
        need.per_dimension(name, values, types[0])
    shape = []
    for size, start, stop, step in zip(types[0].shape, *bounds, strict=True):
        if not (0 <= start < stop <= size and step >= 1):
            raise TypeMismatch(f"the slice from {start} to {stop} by {step} is not within {types[0]}")
        shape.append(-(-(stop - start) // step))
    return TensorType(types[0].dtype, tuple(shape))


def _evaluate_slice(arrays: Sequence[Array], attrs: Attrs) -> Array:
    bounds = (need.integers(attrs, name) for name in ("start", "stop", "step"))
    return arrays[0][tuple(slice(*bound) for bound in zip(*bounds, strict=True))]


def _slice_vjp(builder: Builder, node: Node, g: Node) -> Gradients:
    """Zeros between the elements (a dimension of size step, padded and merged), then zeros around them."""
    start, step = need.integers(node.attrs, "start"), need.integers(node.attrs, "step")
    target = node.args[0].shape
    for axis, distance in enumerate(step):
        if distance > 1:
            g = _spread(builder, node, g, axis, distance)
    # The last gap may reach over the end of the operand.
    fit = tuple(min(size, whole - low) for size, whole, low in zip(g.shape, target, start, strict=True))
    if fit != g.shape:
        none = (0,) * len(fit)
        g = builder.emit("slice", (g,), {"start": none, "stop": fit, "step": (1,) * len(fit)}, node.span)
    high = tuple(whole - low - size for size, whole, low in zip(fit, target, start, strict=True))
    return [builder.emit("pad", (g,), {"low": start, "high": high, "value": 0.0}, node.span)]


def _spread(builder: Builder, node: Node, g: Node, axis: int, distance: int) -> Node:
    shape = g.shape
    apart = (*shape[: axis + 1], 1, *shape[axis + 1 :])
    g = builder.emit("reshape", (g,), {"shape": apart}, node.span)
    high = tuple(distance - 1 if i == axis + 1 else 0 for i in range(len(apart)))
    g = builder.emit("pad", (g,), {"low": (0,) * len(apart), "high": high, "value": 0.0}, node.span)
    merged = (*shape[:axis], shape[axis] * distance, *shape[axis + 1 :])
    return builder.emit("reshape", (g,), {"shape": merged}, node.span)


# pad: `value` in front (low) and behind (high) in each dimension.


def _infer_pad(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need.count(types, 1)
    (type_,) = types
    low, high = need.integers(attrs, "low"), need.integers(attrs, "high")
    need.per_dimension("low", low, type_)
    need.per_dimension("high", high, type_)
    if min((*low, *high), default=0) < 0:
        raise TypeMismatch(f"the padding {need.words(low)} {need.words(high)} has a negative entry")
    value = attrs.get("value")
    kind: type = float if type_.dtype.is_float else int if type_.dtype.is_integer else bool
    if type(value) is not kind:
        raise TypeMismatch(f"the padding value {value!r} is not a {type_.dtype}")
    return TensorType(type_.dtype, tuple(a + b + c for a, b, c in zip(low, type_.shape, high, strict=True)))


def _evaluate_pad(arrays: Sequence[Array], attrs: Attrs) -> Array:
    (x,) = arrays
    low, high = need.integers(attrs, "low"), need.integers(attrs, "high")
    shape = tuple(a + b + c for a, b, c in zip(low, x.shape, high, strict=True))
    result = np.full(shape, attrs["value"], x.dtype)
    result[tuple(slice(a, a + b) for a, b in zip(low, x.shape, strict=True))] = x
    return result


def _pad_vjp(builder: Builder, node: Node, g: Node) -> Gradients:
    low, shape = need.integers(node.attrs, "low"), node.args[0].shape
    stop = tuple(a + b for a, b in zip(low, shape, strict=True))
    return [builder.emit("slice", (g,), {"start": low, "stop": stop, "step": (1,) * len(low)}, node.span)]


# concat: operands one behind the other along an axis.


def _infer_concat(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    if not types:
        raise TypeMismatch("concat needs at least one operand")
    axis = need.integer(attrs, "axis")
    first = types[0]
    need.axis_of(first, axis)
    for other in types[1:]:
        need.same_dtype(first, other)
        if other.rank != first.rank or any(
            a != b for i, (a, b) in enumerate(zip(first.shape, other.shape, strict=True)) if i != axis
        ):
            raise TypeMismatch(f"the shapes {first} and {other} differ besides axis {axis}")
    total = sum(type_.shape[axis] for type_ in types)
    return TensorType(first.dtype, (*first.shape[:axis], total, *first.shape[axis + 1 :]))


def _concat_vjp(builder: Builder, node: Node, g: Node) -> Gradients:
    axis = need.integer(node.attrs, "axis")
    position, parts = 0, []
    for arg in node.args:
        start = tuple(position if i == axis else 0 for i in range(len(g.shape)))
        stop = tuple(a + b for a, b in zip(start, arg.shape, strict=True))
        attrs: Attrs = {"start": start, "stop": stop, "step": (1,) * len(start)}
        parts.append(builder.emit("slice", (g,), attrs, node.span))
        position += arg.shape[axis]
    return parts


# Samples: floats of a shape, and the attributes.


def _on(*cases: tuple[tuple[tuple[int, ...], ...], Attrs]) -> Callable[[np.random.Generator], list[Sample]]:
    return lambda generator: [
        Sample(tuple(generator.normal(size=shape) for shape in shapes), attrs) for shapes, attrs in cases
    ]


_reshapes = _on(
    (((2, 6),), {"shape": (3, 4)}),
    ((((),)), {"shape": (1, 1)}),
    (((2, 1, 3),), {"shape": (6,)}),
    (((1,),), {"shape": ()}),
)
_transposes = _on((((2, 3, 4),), {"axes": (2, 0, 1)}), (((3, 1),), {"axes": (1, 0)}), (((),), {"axes": ()}))
_broadcasts = _on(
    (((3,),), {"shape": (2, 3), "axes": (1,)}),
    (((3,),), {"shape": (3, 2), "axes": (0,)}),
    (((),), {"shape": (2, 2), "axes": ()}),
    (((2, 4),), {"shape": (2, 3, 4, 1), "axes": (0, 2)}),
)
_slices = _on(
    (((5, 4),), {"start": (1, 0), "stop": (4, 4), "step": (1, 1)}),
    (((7, 3),), {"start": (1, 0), "stop": (7, 3), "step": (2, 2)}),
    (((7,),), {"start": (0,), "stop": (7,), "step": (3,)}),
    (((7,),), {"start": (2,), "stop": (6,), "step": (5,)}),
)
_pads = _on(
    (((2, 3),), {"low": (1, 0), "high": (0, 2), "value": 0.0}),
    (((1,),), {"low": (2,), "high": (3,), "value": -1.5}),
    (((2, 2),), {"low": (0, 0), "high": (0, 0), "value": 0.0}),
)
_concats = _on((((2, 3), (2, 1), (2, 3)), {"axis": 1}), (((1, 2), (3, 2)), {"axis": 0}), (((4,),), {"axis": 0}))

RESHAPE = register(
    Op(
        "reshape",
        "shape",
        _infer_reshape,
        lambda arrays, attrs: arrays[0].reshape(need.integers(attrs, "shape")),
        _reshape_vjp,
        _reshapes,
    )
)
TRANSPOSE = register(
    Op(
        "transpose",
        "shape",
        _infer_transpose,
        lambda arrays, attrs: arrays[0].transpose(need.integers(attrs, "axes")),
        _transpose_vjp,
        _transposes,
    )
)
BROADCAST = register(Op("broadcast", "shape", _infer_broadcast, _evaluate_broadcast, _broadcast_vjp, _broadcasts))
SLICE = register(Op("slice", "shape", _infer_slice, _evaluate_slice, _slice_vjp, _slices))
PAD = register(Op("pad", "shape", _infer_pad, _evaluate_pad, _pad_vjp, _pads))
CONCAT = register(
    Op(
        "concat",
        "shape",
        _infer_concat,
        lambda arrays, attrs: np.concatenate(arrays, axis=need.integer(attrs, "axis")),
        _concat_vjp,
        _concats,
    )
)
