"""How a product is divided: the table that `paren.codegen.product` reads, from the sizes and strides alone.

Nothing here depends on the number of threads, and bits depend on the blocks of k alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt

from paren.codegen.product import HEADER, Packing, Word
from paren.codegen.tile import Shape
from paren.ir.types import DType
from paren.plan.plan import Matrix, Product
from paren.text.errors import InternalError

LINES = 64  # lines of cells that C is divided into at most, more or less
LINE = 4  # cells in a line at most
LEAST_ROWS = 16  # of a cell
NEAR = 32768  # bytes of B that are read in place, because the first-level cache holds them


@dataclass(frozen=True)
class Blocks:
    """The largest blocks: panels of A's rows, panels of B's columns, bytes of a row of A."""

    a_panels: int
    b_panels: int
    k_bytes: int


@dataclass(frozen=True)
class Division:
    """A product bound to a tile: the function's table and byte offsets, its units, and whether A and B (and m and n)
    changed places."""

    table: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    units: int
    swapped: bool


def blocks_of(shape: Shape) -> Blocks:
    """Blocks for a processor: B's panels and A's rows share the second-level cache (bench/NOTES.md)."""
    return Blocks(17, 8, 1536) if shape.bits == 512 else Blocks(24, 16, 1024)


def workspace_bytes(shape: Shape) -> int:
    """The room of one thread for packed panels of any product."""
    blocks = blocks_of(shape)
    return HEADER + blocks.b_panels * blocks.k_bytes * shape.bits // 8 * shape.vectors // 4


def divide(product: Product, dtype: DType, shape: Shape, workspaces: int) -> Division:
    """The division of a product; `workspaces` is how many of `workspace_bytes` there are."""
    if product.c.transposed:
        raise InternalError("codegen", "the result of a product is transposed")
    swapped = product.n == 1 and product.m > 1 and product.c.leading == 1
    if swapped:  # a column of C that lies like a row
        a, b = _turned(product.b), _turned(product.a)
        product = replace(product, a=a, b=b, m=1, n=product.m, c=replace(product.c, leading=product.m))
    item, columns = dtype.bytes, shape.columns(dtype)
    m, n, k = product.m, product.n, product.k
    blocks = blocks_of(shape)
    a_row, a_k = _strides(product.a, item)
    b_k, b_column = _strides(product.b, item)
    along_n = n >= m
    cell_m = max(LEAST_ROWS, _ceil(m, LINES if not along_n else LINE))
    panels = _ceil(n, columns)
    cell_n = columns * (max(1, panels // LINES) if along_n else _ceil(panels, LINE))
    count_m, count_n = _ceil(m, cell_m), _ceil(n, cell_n)
    values = {
        Word.M: m,
        Word.N: n,
        Word.K: k,
        Word.A_ROW: a_row,
        Word.A_K: a_k,
        Word.B_K: b_k,
        Word.B_COLUMN: b_column,
        Word.C_ROW: product.c.leading * item,
        Word.ACCUMULATE: int(product.accumulate),
        Word.PACKING: _packing(product, item, shape),
        Word.BLOCK_M: blocks.a_panels * shape.rows,
        Word.BLOCK_N: blocks.b_panels * columns,
        Word.BLOCK_K: block_k(k, dtype, shape),
        Word.CELL_M: cell_m,
        Word.CELL_N: cell_n,
        Word.ALONG_N: int(along_n),
        Word.LINE: count_m if along_n else count_n,
        Word.CELLS: count_m * count_n,
        Word.WORKSPACES: workspaces,
        Word.WORKSPACE_BYTES: workspace_bytes(shape),
    }
    table = np.zeros(len(Word), np.int64)
    for word, value in values.items():
        table[word] = value
    offsets = batch_offsets(product, item)
    return Division(table, offsets, count_m * count_n * len(offsets), swapped)


def block_k(k: int, dtype: DType, shape: Shape) -> int:
    """The size of all blocks of k but the last: as even as multiples of 16 allow."""
    most = blocks_of(shape).k_bytes // dtype.bytes
    return _ceil(_ceil(k, _ceil(k, most)), 16) * 16


def batch_offsets(product: Product, item: int) -> npt.NDArray[np.int64]:
    """Byte offsets of A, B and C for each matrix of the batch, in the order of its loops: int64[count 3]."""
    count, loops = prod(product.batch), len(product.batch)
    indices = np.indices(product.batch, dtype=np.int64).reshape(loops, count).T
    operands = (product.a, product.b, product.c)
    columns = [matrix.offset + indices @ np.array(matrix.batch_strides, np.int64).reshape(loops) for matrix in operands]
    return np.ascontiguousarray(np.stack(columns, axis=1) * item)


def _packing(product: Product, item: int, shape: Shape) -> Packing:
    """Whether B is packed: not if it is small and dense, or read only once or twice."""
    if product.b.transposed and product.n > 1:
        return Packing.TRANSPOSE
    near = product.k * product.b.leading * item <= NEAR
    return Packing.DIRECT if near or product.m <= 2 * shape.rows else Packing.COPY


def _turned(matrix: Matrix) -> Matrix:
    return replace(matrix, transposed=not matrix.transposed)


def _strides(matrix: Matrix, item: int) -> tuple[int, int]:
    """Bytes from row to row and from column to column of an operand after its transposition."""
    strides = (matrix.leading * item, item)
    return (strides[1], strides[0]) if matrix.transposed else strides


def _ceil(size: int, piece: int) -> int:
    return -(-size // piece)
