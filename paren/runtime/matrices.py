"""The definition of a product: its operands as arrays of numpy, and numpy's product of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paren.ir.op import Array
from paren.ir.types import DType
from paren.plan.plan import Matrix, Product


def view(matrix: Matrix, rows: int, columns: int, array: Array, batch: Sequence[int]) -> Array:
    """An operand after its transposition as an array of shape batch + (rows, columns)."""
    item = array.itemsize
    inner = (item, matrix.leading * item) if matrix.transposed else (matrix.leading * item, item)
    strides = (*(stride * item for stride in matrix.batch_strides), *inner)
    flat = array.reshape(-1)[matrix.offset :]
    return np.lib.stride_tricks.as_strided(flat, (*batch, rows, columns), strides)


def operands(product: Product, a: Array, b: Array, c: Array) -> tuple[Array, Array, Array]:
    """The three operands as arrays with the batch loops in front."""
    m, n, k, batch = product.m, product.n, product.k, product.batch
    return view(product.a, m, k, a, batch), view(product.b, k, n, b, batch), view(product.c, m, n, c, batch)


def multiply(product: Product, a: Array, b: Array, c: Array) -> None:
    """The product by its definition: operands rounded if it says so, sums in their type (float32 for short ones)."""
    left, right, result = operands(product, a, b, c)
    if product.rounded:
        left, right = rounded(left), rounded(right)
    with np.errstate(all="ignore"):
        value = np.matmul(left, right)
        np.copyto(result, np.add(result, value) if product.accumulate else value.astype(result.dtype, copy=False))


def rounded(array: Array) -> Array:
    """The values in float32: those of float32 rounded to bfloat16, short ones as they are."""
    if array.dtype != np.float32:
        return array.astype(np.float32)
    with np.errstate(all="ignore"):
        return array.astype(DType.BFLOAT16.numpy).astype(np.float32)
