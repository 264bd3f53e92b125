"""Contractions as matrix products over strided views, so that no operand has to be copied where strides allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import cast

from paren.ir.graph import Node
from paren.plan.index import matching_runs

Axes = tuple[int, ...]


@dataclass(frozen=True)
class View:
    """A node's elements inside the contiguous buffer of `base`: one stride per dimension and an offset, in elements."""

    base: Node
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Operand:
    """A matrix of a product without its buffer; fields as in `paren.plan.plan.Matrix`."""

    offset: int
    leading: int
    transposed: bool
    batch_strides: tuple[int, ...]


@dataclass(frozen=True)
class Shape:
    """A product C = A B, m x k times k x n over batch loops.

    `swapped` says that A and B changed places, so that C is the transpose of the contraction's result.
    """

    m: int
    n: int
    k: int
    batch: tuple[int, ...]
    a: Operand
    b: Operand
    c: Operand
    swapped: bool


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a row-major array."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def reshape_view(view: View, shape: Sequence[int], target: Sequence[int]) -> View | None:
    """The view of a reshaped node, or None where its elements do not lie at regular strides."""
    strides: list[int] = []
    for (i, i_end), (j, j_end) in matching_runs(shape, target):
        source = [k for k in range(i, i_end) if shape[k] != 1]
        wanted = [k for k in range(j, j_end) if target[k] != 1]
        for left, right in pairwise(source):
            if view.strides[left] != view.strides[right] * shape[right]:
                return None
        step = view.strides[source[-1]] if source else 1
        found: dict[int, int] = {}
        for k in reversed(wanted):
            found[k] = step
            step *= target[k]
        strides += [found.get(k, 1) for k in range(j, j_end)]
    return replace(view, strides=tuple(strides))


@dataclass(frozen=True)
class _Dimension:
    """A dimension of the contraction: its size and its stride in A, B and C (0 where it does not occur)."""

    size: int
    a: int
    b: int
    c: int


def axis_pairs(node: Node) -> tuple[Axes, Axes, Axes, Axes]:
    """Of a `contract` node: batch axes of a and b, contracted axes of a and b."""
    batch_a, batch_b = cast(tuple[Axes, Axes], node.attrs["batch"])
    inner_a, inner_b = cast(tuple[Axes, Axes], node.attrs["contracting"])
    return batch_a, batch_b, inner_a, inner_b


def free_axes(node: Node) -> tuple[Axes, Axes]:
    """Of a `contract` node: the axes of a and of b that go into the result, without batch axes."""
    batch_a, batch_b, inner_a, inner_b = axis_pairs(node)
    a, b = node.args
    free_a = tuple(i for i in range(a.type.rank) if i not in batch_a and i not in inner_a)
    free_b = tuple(i for i in range(b.type.rank) if i not in batch_b and i not in inner_b)
    return free_a, free_b


def product_of(node: Node, a: View, b: View, c: View) -> Shape | None:
    """The product that computes a `contract` node from views of its operands into a view of its result, if one does."""
    batch_a, batch_b, inner_a, inner_b = axis_pairs(node)
    free_a, free_b = free_axes(node)
    left, right = node.args[0].shape, node.args[1].shape
    n_batch, n_m = len(batch_a), len(free_a)
    batch = [
        _Dimension(left[i], a.strides[i], b.strides[j], c.strides[p])
        for p, (i, j) in enumerate(zip(batch_a, batch_b, strict=True))
    ]
    rows = [_Dimension(left[i], a.strides[i], 0, c.strides[n_batch + p]) for p, i in enumerate(free_a)]
    columns = [_Dimension(right[j], 0, b.strides[j], c.strides[n_batch + n_m + p]) for p, j in enumerate(free_b)]
    inner = [_Dimension(left[i], a.strides[i], b.strides[j], 0) for i, j in zip(inner_a, inner_b, strict=True)]
    straight = _shape(batch, rows, columns, inner, a.offset, b.offset, c.offset, False)
    if straight is not None:
        return straight
    flip = [[_Dimension(d.size, d.b, d.a, d.c) for d in group] for group in (batch, columns, rows, inner)]
    return _shape(flip[0], flip[1], flip[2], flip[3], b.offset, a.offset, c.offset, True)


def _shape(
    batch: list[_Dimension],
    rows: list[_Dimension],
    columns: list[_Dimension],
    inner: list[_Dimension],
    offset_a: int,
    offset_b: int,
    offset_c: int,
    swapped: bool,
) -> Shape | None:
    m, outer_m = _merge(rows)
    n, outer_n = _merge(columns)
    k, outer_k = _merge(inner)
    if outer_k:
        return None
    loops = [d for d in batch + outer_m + outer_n if d.size > 1]
    a = _operand(offset_a, m.size, k.size, m.a, k.a, tuple(d.a for d in loops))
    b = _operand(offset_b, k.size, n.size, k.b, n.b, tuple(d.b for d in loops))
    c = _operand(offset_c, m.size, n.size, m.c, n.c, tuple(d.c for d in loops))
    if a is None or b is None or c is None or c.transposed:
        return None
    return Shape(m.size, n.size, k.size, tuple(d.size for d in loops), a, b, c, swapped)


def _merge(dimensions: list[_Dimension]) -> tuple[_Dimension, list[_Dimension]]:
    """As many of the last dimensions as lie behind one another in all matrices as one, and the others as loops."""
    real = [d for d in dimensions if d.size > 1]
    if not real:
        return _Dimension(1, 0, 0, 0), []
    merged = real[-1]
    for position in range(len(real) - 2, -1, -1):
        outer = real[position]
        if (outer.a, outer.b, outer.c) != (merged.a * merged.size, merged.b * merged.size, merged.c * merged.size):
            return merged, real[: position + 1]
        merged = _Dimension(merged.size * outer.size, merged.a, merged.b, merged.c)
    return merged, []


def _operand(
    offset: int, rows: int, columns: int, row_stride: int, column_stride: int, batch: tuple[int, ...]
) -> Operand | None:
    """The matrix with these strides if it has a column or a row stride of 1, or None. The stride of a dimension of
    size 1 does not matter."""
    if columns == 1 or column_stride == 1:
        leading = columns if rows == 1 else row_stride
        if leading >= columns:
            return Operand(offset, leading, False, batch)
    if rows == 1 or row_stride == 1:
        leading = rows if columns == 1 else column_stride
        if leading >= rows:
            return Operand(offset, leading, True, batch)
    return None
