"""`contract`: sums of products over paired axes; every matrix product is one.

Operands in bfloat16 give a result in float32: their products are exact in it, and the sums are float32's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from paren.ir.graph import Builder, Node
from paren.ir.op import Array, Attrs, Op, Sample, register
from paren.ir.ops import operands as need
from paren.ir.types import DType, TensorType, TypeMismatch

Axes = tuple[int, ...]


@dataclass(frozen=True)
class Roles:
    """The axes of both operands by what `contract` does with them. The result has `batch`, `free_a`, `free_b`."""

    batch_a: Axes
    batch_b: Axes
    contracting_a: Axes
    contracting_b: Axes
    free_a: Axes
    free_b: Axes


def roles_of(attrs: Attrs, rank_a: int, rank_b: int) -> Roles:
    """Reads the attributes `batch` and `contracting`; free axes are the others, ascending."""
    batch_a, batch_b = need.pairs(attrs, "batch")
    contracting_a, contracting_b = need.pairs(attrs, "contracting")
    free_a = tuple(axis for axis in range(rank_a) if axis not in batch_a + contracting_a)
    free_b = tuple(axis for axis in range(rank_b) if axis not in batch_b + contracting_b)
    return Roles(batch_a, batch_b, contracting_a, contracting_b, free_a, free_b)


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need.count(types, 2)
    a, b = types
    need.member(a, need.FACTORS)
    need.same_dtype(a, b)
    roles = roles_of(attrs, a.rank, b.rank)
    for type_, axes in ((a, roles.batch_a + roles.contracting_a), (b, roles.batch_b + roles.contracting_b)):
        for axis in axes:
            need.axis_of(type_, axis)
        if len(set(axes)) != len(axes):
            raise TypeMismatch(f"the axes {need.words(axes)} of {type_} are not all different")
    _matched(a, b, roles.batch_a, roles.batch_b)
    _matched(a, b, roles.contracting_a, roles.contracting_b)
    shape = [a.shape[axis] for axis in roles.batch_a + roles.free_a] + [b.shape[axis] for axis in roles.free_b]
    return TensorType(DType.FLOAT32 if a.dtype.is_short else a.dtype, tuple(shape))


def _matched(a: TensorType, b: TensorType, axes_a: Axes, axes_b: Axes) -> None:
    if len(axes_a) != len(axes_b):
        raise TypeMismatch(f"the axes {need.words(axes_a)} and {need.words(axes_b)} are not pairs")
    for i, j in zip(axes_a, axes_b, strict=True):
        if a.shape[i] != b.shape[j]:
            raise TypeMismatch(f"axis {i} of {a} has size {a.shape[i]}, axis {j} of {b} has size {b.shape[j]}")


def _evaluate(arrays: Sequence[Array], attrs: Attrs) -> Array:
    a, b = (x.astype(np.float32) if x.dtype.itemsize == 2 else x for x in arrays)
    roles = roles_of(attrs, a.ndim, b.ndim)
    batch = [a.shape[axis] for axis in roles.batch_a]
    rows = [a.shape[axis] for axis in roles.free_a]
    columns = [b.shape[axis] for axis in roles.free_b]
    inner = prod(a.shape[axis] for axis in roles.contracting_a)
    left = a.transpose(roles.batch_a + roles.free_a + roles.contracting_a).reshape((*batch, prod(rows), inner))
    right = b.transpose(roles.batch_b + roles.contracting_b + roles.free_b).reshape((*batch, inner, prod(columns)))
    return np.asarray(np.matmul(left, right)).reshape((*batch, *rows, *columns))


def _vjp(builder: Builder, node: Node, g: Node) -> Sequence[Node | None]:
    """Of short operands the gradients are products too: `g` is rounded to be one of their operands."""
    a, b = node.args
    if a.dtype.is_short:
        g = builder.emit("cast", (g,), {"dtype": a.dtype}, node.span)
    roles = roles_of(node.attrs, len(a.shape), len(b.shape))
    batch = tuple(range(len(roles.batch_a)))
    rows = tuple(range(len(batch), len(batch) + len(roles.free_a)))
    columns = tuple(range(len(batch) + len(rows), len(g.shape)))
    # The contracting axes of the other operand come out ascending; these are the wanted operand's in that order.
    inner_a = tuple(i for _, i in sorted(zip(roles.contracting_b, roles.contracting_a, strict=True)))
    inner_b = tuple(j for _, j in sorted(zip(roles.contracting_a, roles.contracting_b, strict=True)))
    to_a = _operand_gradient(
        builder, node, g, b, batch, roles.batch_b, (columns, roles.free_b), (roles.batch_a, roles.free_a, inner_a)
    )
    to_b = _operand_gradient(
        builder, node, g, a, batch, roles.batch_a, (rows, roles.free_a), (roles.batch_b, roles.free_b, inner_b)
    )
    return [to_a, to_b]


def _operand_gradient(
    builder: Builder,
    node: Node,
    g: Node,
    other: Node,
    batch: Axes,
    batch_other: Axes,
    summed: tuple[Axes, Axes],
    wanted: tuple[Axes, Axes, Axes],
) -> Node:
    """The gradient of one operand: `g` and the other operand, contracted over the other's free axes (`summed`: in g,
    in other), put into the order of the operand. `wanted` are the operand's batch, free and contracting axes.

    Of the two orders of the factors it takes the one whose result needs no transposition, where there is one.
    """
    batch_axes, free, inner = wanted
    if inner and free and inner[0] < free[0]:
        attrs: Attrs = {"batch": (batch_other, batch), "contracting": (summed[1], summed[0])}
        product = builder.emit("contract", (other, g), attrs, node.span)
        made = batch_axes + inner + free
    else:
        attrs = {"batch": (batch, batch_other), "contracting": summed}
        product = builder.emit("contract", (g, other), attrs, node.span)
        made = batch_axes + free + inner
    order = tuple(made.index(axis) for axis in range(len(made)))
    if order == tuple(range(len(order))):
        return product
    return builder.emit("transpose", (product,), {"axes": order}, node.span)


def _samples(generator: np.random.Generator) -> list[Sample]:
    cases: list[tuple[tuple[int, ...], tuple[int, ...], Attrs]] = [
        ((3, 4), (4, 2), {"batch": ((), ()), "contracting": ((1,), (0,))}),
        ((3, 4), (2, 4), {"batch": ((), ()), "contracting": ((1,), (1,))}),
        ((2, 3, 4), (2, 4, 5), {"batch": ((0,), (0,)), "contracting": ((2,), (1,))}),
        ((4, 2, 3, 5), (5, 3, 6, 4), {"batch": ((0,), (3,)), "contracting": ((3, 2), (0, 1))}),
        ((2, 3, 4), (3, 5, 2), {"batch": ((1, 0), (0, 2)), "contracting": ((), ())}),
        ((4,), (4,), {"batch": ((), ()), "contracting": ((0,), (0,))}),
        ((2,), (3,), {"batch": ((), ()), "contracting": ((), ())}),
        ((1, 4), (4, 1), {"batch": ((), ()), "contracting": ((1,), (0,))}),
        ((), (3,), {"batch": ((), ()), "contracting": ((), ())}),
    ]
    drawn = [Sample((generator.normal(size=a), generator.normal(size=b)), attrs) for a, b, attrs in cases]
    short = [
        Sample(tuple(arg.astype(dtype.numpy) for arg in s.args), s.attrs) for dtype in need.SHORT for s in drawn[:5]
    ]
    return drawn + short


CONTRACT = register(Op("contract", "contract", _infer, _evaluate, _vjp, _samples))
