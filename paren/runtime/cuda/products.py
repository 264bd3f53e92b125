"""Products as calls of cuBLAS, which counts elements column by column: pure translation, no call is made here.

A row-major matrix is the transpose of the column-major one in the same memory, so C = A B is computed as C' = B' A':
the library's left operand is the product's B, its right one A.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from math import prod

import numpy as np

from paren.ir.types import DType
from paren.plan.plan import Matrix, Product
from paren.text.errors import InternalError


@dataclass(frozen=True)
class Operand:
    """A column-major matrix: `leading` elements from column to column, `stride` from one matrix of the batch to the
    next, the first `offset` bytes behind the operand's address. `transposed`: the call uses the transpose."""

    dtype: DType
    leading: int
    stride: int
    offset: int
    transposed: bool


@dataclass(frozen=True)
class Gemm:
    """One call: `count` times result (m x n) = left (m x k) right (k x n), added to what is there if it `accumulates`.

    Sums are in float32, of float64 in float64. Sizes and strides are those of `cublasGemmStridedBatchedEx_64`.
    """

    m: int
    n: int
    k: int
    left: Operand
    right: Operand
    result: Operand
    count: int
    accumulates: bool


@dataclass(frozen=True)
class _Batch:
    """A loop over matrices: its size and the elements by which it moves A, B and C."""

    size: int
    strides: tuple[int, int, int]


def gemm_calls(product: Product, dtypes: Sequence[DType]) -> list[Gemm]:
    """The calls that compute a product whose A, B and C are of these types; `left` is at B's address, `right` at A's.

    Batch loops that one stride describes are one; the largest of the others is the batch of each call, and there is a
    call for each index of the rest. A product without elements needs none.
    """
    a, b, c = dtypes
    if product.c.transposed:
        raise InternalError("cuda", "the result of a product is transposed")
    if a is not b or not a.is_float:
        raise InternalError("cuda", f"a product of {a} and {b} has no call of cuBLAS")
    if a is not c and not (a.is_short and c is DType.FLOAT32):
        raise InternalError("cuda", f"a product of {a} with its result in {c} has no call of cuBLAS")
    if not product.m * product.n * prod(product.batch):
        return []
    inside, outside = _loops(product)
    left = _operand(product.b, product.k, product.n, b, inside.strides[1])
    right = _operand(product.a, product.m, product.k, a, inside.strides[0])
    result = _operand(product.c, product.m, product.n, c, inside.strides[2])
    first = Gemm(product.n, product.m, product.k, left, right, result, inside.size, product.accumulate)
    calls = []
    for index in np.ndindex(*(loop.size for loop in outside)):
        places = [
            sum(loop.strides[operand] * i for loop, i in zip(outside, index, strict=True)) for operand in range(3)
        ]
        calls.append(
            replace(
                first,
                left=_moved(left, places[1]),
                right=_moved(right, places[0]),
                result=_moved(result, places[2]),
            )
        )
    return calls


def _operand(matrix: Matrix, rows: int, columns: int, dtype: DType, stride: int) -> Operand:
    """An operand of rows x columns after its transposition. Where it lies in one row or column, the distance to the
    next one does not matter, but the library wants it large enough."""
    stored = rows if matrix.transposed else columns
    return Operand(dtype, max(matrix.leading, stored, 1), stride, matrix.offset * dtype.bytes, matrix.transposed)


def _moved(operand: Operand, elements: int) -> Operand:
    return replace(operand, offset=operand.offset + elements * operand.dtype.bytes)


def _loops(product: Product) -> tuple[_Batch, list[_Batch]]:
    """The batch of each call, and the loops of which each index is a call."""
    strides = zip(product.a.batch_strides, product.b.batch_strides, product.c.batch_strides, strict=True)
    loops = [_Batch(size, moves) for size, moves in zip(product.batch, strides, strict=True) if size > 1]
    while joined := _join(loops):
        loops = joined
    if not loops:
        return _Batch(1, (0, 0, 0)), []
    inside = max(loops, key=lambda loop: loop.size)
    return inside, [loop for loop in loops if loop is not inside]


def _join(loops: list[_Batch]) -> list[_Batch] | None:
    """The loops with two of them made one, where one stride moves every operand through both; else None."""
    for outer, inner in permutations(loops, 2):
        if all(far == inner.size * near for far, near in zip(outer.strides, inner.strides, strict=True)):
            rest = [loop for loop in loops if loop is not outer and loop is not inner]
            return [*rest, _Batch(outer.size * inner.size, inner.strides)]
    return None
