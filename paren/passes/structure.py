"""Simplifications that patterns cannot say, because they compute attributes or values. One function each.

Each is a `Rule`: it returns a node that stands for the operation asked for, or None. All keep the value;
`reduce_of_broadcast`, `softmax_gradient` and `add_to_scatter` to rounding: they multiply instead of adding, or compute
in another order.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isnan, prod

import numpy as np

from paren.ir.graph import Builder, Node, Rule
from paren.ir.op import OPS, Attrs
from paren.ir.ops import operands as read
from paren.ir.types import DType
from paren.passes.rules import uniform_value
from paren.text.source import Span

STRUCTURAL: dict[str, list[Rule]] = {}


def _on(*operations: str) -> Callable[[Rule], Rule]:
    """Registers a simplification for operations; they are tried in the order of this file."""

    def add(rule: Rule) -> Rule:
        for name in operations:
            STRUCTURAL.setdefault(name, []).append(rule)
        return rule

    return add


def apply_structure(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    """The replacement by the first simplification that fits, or None."""
    rules = STRUCTURAL.get(name, ())
    for rule in rules:
        replacement = rule(builder, name, args, attrs, span)
        if replacement is not None:
            return replacement
    if OPS[name].kind == "elementwise":
        return fold_constants(builder, name, args, attrs, span) or hoist_broadcast(builder, name, args, attrs, span)
    return None


def fold_constants(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    """An elementwise operation on constants is a constant, computed by its definition; NaN stays where it arises."""
    if not args or any(uniform_value(arg) is None for arg in args):
        return None
    scalars = [np.asarray(uniform_value(arg)).astype(arg.dtype.numpy) for arg in args]
    result = OPS[name].evaluate(scalars, attrs)
    value = result.item()
    if isinstance(value, float) and isnan(value):
        return None
    return builder.broadcast(builder.constant(value, DType(result.dtype.name), span), args[0].shape, span=span)


def hoist_broadcast(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    """An elementwise operation on operands that are all broadcast the same way works on them before the broadcast.

    Broadcast scalars may be among them.
    """
    if not args or any(arg.op.name != "broadcast" for arg in args):
        return None
    wide = [arg for arg in args if arg.args[0].shape != ()]
    axes = wide[0].attrs["axes"] if wide else ()
    if any(arg.attrs["axes"] != axes for arg in wide):
        return None
    shape = wide[0].args[0].shape if wide else ()
    sources = [builder.broadcast(arg.args[0], shape, span=span) for arg in args]
    inner = builder.emit(name, sources, attrs, span)
    return builder.emit("broadcast", (inner,), {"shape": args[0].shape, "axes": axes}, span)


@_on("add", "mul", "and", "or", "xor", "eq", "ne")
def order_operands(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    """Operands that may be exchanged stand in the order in which they were made, so that equal sums are one node."""
    if args[0].number <= args[1].number:
        return None
    return builder.emit(name, (args[1], args[0]), attrs, span)


@_on("add")
def add_to_scatter(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    """A sum with what was scattered into zeros is scattered into: a shared table's gradient needs no second table."""
    for scattered, other in (args, reversed(args)):
        if scattered.op.name == "scatter_add" and uniform_value(scattered.args[0]) == 0:
            return builder.emit("scatter_add", (other, *scattered.args[1:]), {}, span)
    return None


@_on("cast")
def cast_to_same(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    return args[0] if attrs["dtype"] is args[0].dtype else None


_EXACT = {
    DType.BOOL: frozenset(DType),
    DType.UINT8: frozenset(DType) - {DType.BOOL},
    DType.INT32: frozenset((DType.INT32, DType.INT64, DType.FLOAT64)),
    DType.UINT32: frozenset((DType.UINT32, DType.INT64, DType.FLOAT64)),
    DType.INT64: frozenset((DType.INT64,)),
    DType.BFLOAT16: frozenset((DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)),
    DType.FLOAT16: frozenset((DType.FLOAT16, DType.FLOAT32, DType.FLOAT64)),
    DType.FLOAT32: frozenset((DType.FLOAT32, DType.FLOAT64)),
    DType.FLOAT64: frozenset((DType.FLOAT64,)),
}


@_on("cast")
def cast_of_cast(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    """The inner cast vanishes where it is exact.

    An integer that goes to a narrower one through a float saturates, where directly it would wrap around: that stays.
    """
    (inner,) = args
    if inner.op.name != "cast":
        return None
    source, middle, target = inner.args[0].dtype, inner.dtype, attrs["dtype"]
    if middle not in _EXACT[source]:
        return None
    saturates = middle.is_float and not source.is_float and isinstance(target, DType) and target.is_integer
    if saturates and target not in _EXACT[source]:
        return None
    return builder.emit("cast", (inner.args[0],), attrs, span)


@_on("reshape")
def reshape_to_same(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    return args[0] if attrs["shape"] == args[0].shape else None


@_on("reshape")
def reshape_of_reshape(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    return builder.emit("reshape", args[0].args, attrs, span) if args[0].op.name == "reshape" else None


@_on("reshape")
def reshape_of_scalar(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    """Any shape of one scalar is a broadcast."""
    scalar = args[0].args[0] if args[0].op.name == "broadcast" else args[0]
    if scalar.shape != ():
        return None
    return builder.broadcast(scalar, read.integers(attrs, "shape"), span=span)


@_on("transpose")
def transpose_to_same(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    return args[0] if attrs["axes"] == tuple(range(len(args[0].shape))) else None


@_on("transpose")
def transpose_of_transpose(
    builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span
) -> Node | None:
    if args[0].op.name != "transpose":
        return None
    inner = read.integers(args[0].attrs, "axes")
    axes = tuple(inner[axis] for axis in read.integers(attrs, "axes"))
    return builder.emit("transpose", args[0].args, {"axes": axes}, span)


@_on("transpose")
def transpose_of_broadcast(
    builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span
) -> Node | None:
    """Where the order of the source's axes stays, the broadcast takes the transposed places."""
    if args[0].op.name != "broadcast":
        return None
    order = read.integers(attrs, "axes")
    places = tuple(order.index(axis) for axis in read.integers(args[0].attrs, "axes"))
    if list(places) != sorted(places):
        return None
    shape = tuple(args[0].shape[axis] for axis in order)
    return builder.emit("broadcast", args[0].args, {"shape": shape, "axes": places}, span)


@_on("transpose")
def transpose_of_contract(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    """A product whose two groups of free axes change places is the product of the exchanged factors."""
    (product,) = args
    if product.op.name != "contract":
        return None
    a, b = product.args
    batch, contracting = read.pairs(product.attrs, "batch"), read.pairs(product.attrs, "contracting")
    first = len(batch[0])
    second = len(a.shape) - len(contracting[0])
    rank = len(product.shape)
    if attrs["axes"] != (*range(first), *range(second, rank), *range(first, second)):
        return None
    exchanged: Attrs = {"batch": (batch[1], batch[0]), "contracting": (contracting[1], contracting[0])}
    return builder.emit("contract", (b, a), exchanged, span)


@_on("broadcast")
def broadcast_to_same(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    return args[0] if attrs["shape"] == args[0].shape else None


@_on("broadcast")
def broadcast_of_broadcast(
    builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span
) -> Node | None:
    if args[0].op.name != "broadcast":
        return None
    outer = read.integers(attrs, "axes")
    axes = tuple(outer[axis] for axis in read.integers(args[0].attrs, "axes"))
    return builder.emit("broadcast", args[0].args, {"shape": attrs["shape"], "axes": axes}, span)


@_on("broadcast")
def broadcast_of_insertion(
    builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span
) -> Node | None:
    """A reshape that only inserts dimensions of size 1 is part of the broadcast."""
    (inner,) = args
    if inner.op.name != "reshape":
        return None
    source = inner.args[0]
    kept: list[int] = []
    for axis, size in enumerate(inner.shape):
        if len(kept) < len(source.shape) and size == source.shape[len(kept)]:
            kept.append(axis)
        elif size != 1:
            return None
    if len(kept) < len(source.shape):
        return None
    outer = read.integers(attrs, "axes")
    axes = tuple(outer[axis] for axis in kept)
    return builder.emit("broadcast", (source,), {"shape": attrs["shape"], "axes": axes}, span)


@_on("slice")
def slice_to_same(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    steps = read.integers(attrs, "step")
    whole = attrs["stop"] == args[0].shape and not any(read.integers(attrs, "start"))
    return args[0] if whole and all(step == 1 for step in steps) else None


@_on("slice")
def slice_of_slice(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    if args[0].op.name != "slice":
        return None
    outer = [read.integers(attrs, part) for part in ("start", "stop", "step")]
    inner = [read.integers(args[0].attrs, part) for part in ("start", "stop", "step")]
    start = tuple(a + b * step for a, b, step in zip(inner[0], outer[0], inner[2], strict=True))
    stop = tuple(a + (b - 1) * step + 1 for a, b, step in zip(inner[0], outer[1], inner[2], strict=True))
    step = tuple(a * b for a, b in zip(inner[2], outer[2], strict=True))
    return builder.emit("slice", args[0].args, {"start": start, "stop": stop, "step": step}, span)


@_on("slice")
def slice_of_scalar(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    if args[0].op.name != "broadcast" or args[0].args[0].shape != ():
        return None
    shape = OPS["slice"].infer([args[0].type], attrs).shape
    return builder.broadcast(args[0].args[0], shape, span=span)


@_on("slice")
def slice_of_pad(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    """A slice within what was padded does not see the padding."""
    (padded,) = args
    if padded.op.name != "pad":
        return None
    source, low = padded.args[0], read.integers(padded.attrs, "low")
    start = tuple(a - b for a, b in zip(read.integers(attrs, "start"), low, strict=True))
    stop = tuple(a - b for a, b in zip(read.integers(attrs, "stop"), low, strict=True))
    if min(start, default=0) < 0 or any(a > size for a, size in zip(stop, source.shape, strict=True)):
        return None
    return builder.emit("slice", (source,), {"start": start, "stop": stop, "step": attrs["step"]}, span)


@_on("pad")
def pad_to_same(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    return None if any(read.integers(attrs, "low") + read.integers(attrs, "high")) else args[0]


@_on("pad")
def pad_of_pad(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    # The text tells 0.0 from -0.0.
    if args[0].op.name != "pad" or repr(args[0].attrs["value"]) != repr(attrs["value"]):
        return None
    low, high = (
        tuple(a + b for a, b in zip(read.integers(attrs, side), read.integers(args[0].attrs, side), strict=True))
        for side in ("low", "high")
    )
    return builder.emit("pad", args[0].args, {"low": low, "high": high, "value": attrs["value"]}, span)


@_on("concat")
def concat_of_one(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    return args[0] if len(args) == 1 else None


@_on("sum", "max", "min")
def reduce_nothing(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    return args[0] if attrs["axes"] == () else None


@_on("sum", "max", "min")
def reduce_of_reduce(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    """Two reductions of one kind are one over the axes of both."""
    (inner,) = args
    if inner.op.name != name:
        return None
    gone = read.integers(inner.attrs, "axes")
    kept = [axis for axis in range(len(inner.args[0].shape)) if axis not in gone]
    axes = tuple(sorted((*gone, *(kept[axis] for axis in read.integers(attrs, "axes")))))
    return builder.emit(name, inner.args, {"axes": axes}, span)


@_on("sum", "max", "min")
def reduce_of_broadcast(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    """Over axes that a broadcast made, a sum is a product with their size, and an extreme is the element itself."""
    (inner,) = args
    if inner.op.name != "broadcast":
        return None
    axes, places = read.integers(attrs, "axes"), read.integers(inner.attrs, "axes")
    made = tuple(axis for axis in axes if axis not in places)
    if not made:
        return None
    left = [axis for axis in range(len(inner.shape)) if axis not in made]
    moved = tuple(left.index(place) for place in places)
    shape = tuple(inner.shape[axis] for axis in left)
    count = prod(inner.shape[axis] for axis in made)
    value = inner.args[0]
    if value.dtype.is_integer and count > np.iinfo(value.dtype.value).max:
        return None
    smaller = builder.broadcast(value, shape, moved, span=span)
    rest = tuple(left.index(axis) for axis in axes if axis in places)
    result = builder.emit(name, (smaller,), {"axes": rest}, span)
    return builder.apply("mul", result, count, span=span) if name == "sum" else result


@_on("mul")
def softmax_gradient(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    """With p = e / s, where e is an exponential and s the sum of its row: e (g / s + r) = p (g + r s).

    The gradient of a softmax needs its result, which is kept for the product that takes it, and not its argument.
    """
    for power, factor in (args, reversed(args)):
        if power.op.name != "exp" or factor.op.name != "add":
            continue
        for share, rest in (factor.args, reversed(factor.args)):
            if share.op.name != "div" or rest.op.name != "broadcast" or share.args[1].op.name != "broadcast":
                continue
            g, total = share.args
            if total.args[0].op.name == "sum" and total.args[0].args[0] is power:
                moved = builder.apply("add", g, builder.apply("mul", rest, total, span=span), span=span)
                return builder.apply("mul", builder.apply("div", power, total, span=span), moved, span=span)
    return None


@_on("either")
def either_as_written(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    """Of the alternatives that nothing chose from: those of update rules and first values."""
    return args[1]


@_on("contract")
def contract_of_transpose(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    """A factor is taken before its transposition, where the order of its free axes stays."""
    batch, contracting = list(read.pairs(attrs, "batch")), list(read.pairs(attrs, "contracting"))
    for side, factor in enumerate(args):
        if factor.op.name != "transpose":
            continue
        order = read.integers(factor.attrs, "axes")
        free = [order[i] for i in range(len(order)) if i not in batch[side] + contracting[side]]
        if free != sorted(free):
            continue
        batch[side] = tuple(order[axis] for axis in batch[side])
        contracting[side] = tuple(order[axis] for axis in contracting[side])
        factors = [factor.args[0] if i == side else other for i, other in enumerate(args)]
        moved: Attrs = {"batch": tuple(batch), "contracting": tuple(contracting)}
        return builder.emit("contract", factors, moved, span)
    return None
