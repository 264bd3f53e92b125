"""How a product is divided: the table that `paren.codegen.product` reads, from the sizes and strides alone.

Nothing here depends on the number of threads, and bits depend on the blocks of k alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt

from paren.codegen.product_table import HEADER, Packing, Word
from paren.codegen.tile import Shape, sums_of
from paren.ir.types import DType
from paren.plan.plan import Matrix, Product
from paren.text.errors import InternalError

LINES = 64  # lines of cells that C is divided into at most, more or less
LINE = 4  # cells in a line at most
LEAST_ROWS = 16  # of a cell
NEAR = 32768  # bytes of B that are read in place, because the first-level cache holds them


@dataclass(frozen=True)
class Blocks:
    """The largest blocks: panels of A's rows, panels of B's columns, steps of a tile along k."""

    a_panels: int
    b_panels: int
    steps: int


@dataclass(frozen=True)
class Division:
    """A product bound to a tile: the function's table and byte offsets, its units, whether A and B (and m and n) have
    changed places, and the bytes of their elements and C's."""

    table: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    units: int
    swapped: bool
    items: tuple[int, int, int]


@dataclass(frozen=True)
class _Workspace:
    """Where the parts of a workspace begin after B's panels, and where it ends."""

    a: int
    sums: int
    end: int


def blocks_of(shape: Shape, dtype: DType) -> Blocks:
    """Blocks for a processor: B's panels and A's rows share the second-level cache (bench/NOTES.md)."""
    steps = 384 if shape.bits == 512 else 256
    if sums_of(dtype) is DType.FLOAT64:
        steps //= 2
    if dtype is DType.BFLOAT16:  # A's rows are packed, too
        return Blocks(8, 8, steps) if shape.bits == 512 else Blocks(16, 8, steps)
    return Blocks(17, 8, steps) if shape.bits == 512 else Blocks(24, 16, steps)


def workspace_bytes(shape: Shape) -> int:
    """The room of one thread for any product."""
    return max(_workspace(shape, dtype).end for dtype in (DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16))


def touched_bytes(products: Iterable[tuple[Product, Sequence[DType]]], shape: Shape) -> int:
    """What products, given with the types of their A, B and C, touch of a thread's workspace, at most."""
    distinct = {form_of(*each): each for each in products}
    parts = [_touched(product, dtypes, shape) for product, dtypes in distinct.values()]
    return sum(map(max, zip(*parts, strict=True)), HEADER) if parts else 0


def _touched(product: Product, dtypes: Sequence[DType], shape: Shape) -> tuple[int, int, int]:
    """Bytes of a product's packed panels of B and of A, and of its sums on their way to bfloat16."""
    product, a_type, b_type, _ = _upright(product, dtypes)
    dtype = arithmetic(product, dtypes[2])
    blocks, vector, lanes = blocks_of(shape, dtype), shape.bits // 8, shape.lanes(dtype)
    steps = block_k(product.k, dtype, shape)

    def line(depth: int) -> int:  # bytes of one vector of a panel
        return _ceil(_ceil(depth, 2 if shape.paired(dtype) else 1), lanes) * lanes * vector

    deep = line(min(product.k, steps))
    panels = min(blocks.b_panels, _ceil(product.n, shape.columns(dtype))) * deep
    if _packing_of_b(product, b_type, shape) is Packing.DIRECT:
        # Only the last panel is packed, behind where the others would be: a last block of k, which is less deep, has it
        # at another place.
        panels = deep + line(product.k % steps) * (product.k > steps) if product.n % shape.columns(dtype) else 0
    rows = min(blocks.a_panels, _ceil(product.m, shape.rows))
    packs_a = _packing_of_a(product, a_type, shape) is not Packing.DIRECT
    sums = 0
    if dtypes[2] is DType.BFLOAT16:
        sums = min(blocks.a_panels * shape.rows, product.m) * blocks.b_panels * shape.columns(dtype)
    return (
        panels * shape.vectors,
        rows * deep * _ceil(shape.rows, lanes) if packs_a else 0,
        sums * sums_of(dtype).bytes,
    )


def _workspace(shape: Shape, dtype: DType) -> _Workspace:
    blocks, vector = blocks_of(shape, dtype), shape.bits // 8
    a = HEADER + blocks.b_panels * blocks.steps * shape.vectors * vector
    if dtype is not DType.BFLOAT16:
        return _Workspace(a, a, a)
    sums = a + blocks.a_panels * blocks.steps * _ceil(shape.rows, shape.lanes(dtype)) * vector
    rows, columns = blocks.a_panels * shape.rows, blocks.b_panels * shape.columns(dtype)
    return _Workspace(a, sums, sums + rows * columns * sums_of(dtype).bytes)


def divide(product: Product, dtypes: Sequence[DType], shape: Shape, workspaces: int) -> Division:
    """The division of a product whose A, B and C are of these types; `workspaces` is how many of `workspace_bytes`
    there are."""
    if product.c.transposed:
        raise InternalError("codegen", "the result of a product is transposed")
    product, a_type, b_type, swapped = _upright(product, dtypes)
    c_type = dtypes[2]
    dtype = arithmetic(product, c_type)
    m, n, k, columns = product.m, product.n, product.k, shape.columns(dtype)
    blocks, workspace = blocks_of(shape, dtype), _workspace(shape, dtype)
    a_row, a_k = _strides(product.a, a_type.bytes)
    b_k, b_column = _strides(product.b, b_type.bytes)
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
        Word.C_ROW: product.c.leading * c_type.bytes,
        Word.ACCUMULATE: int(product.accumulate),
        Word.ROUNDED: int(c_type is DType.BFLOAT16),
        Word.A_PACKING: _packing_of_a(product, a_type, shape),
        Word.B_PACKING: _packing_of_b(product, b_type, shape),
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
        Word.A_PLACE: workspace.a,
        Word.SUMS_PLACE: workspace.sums,
    }
    table = np.zeros(len(Word), np.int64)
    for word, value in values.items():
        table[word] = value
    items = (a_type.bytes, b_type.bytes, c_type.bytes)
    offsets = batch_offsets(product, items)
    return Division(table, offsets, count_m * count_n * len(offsets), swapped, items)


def form_of(product: Product, dtypes: Sequence[DType]) -> Hashable:
    """All that a division follows from. The layers of a network have products of few forms."""
    matrices = [
        (each.offset, each.leading, each.transposed, each.batch_strides) for each in (product.a, product.b, product.c)
    ]
    return product.m, product.n, product.k, product.batch, product.accumulate, product.rounded, *dtypes, *matrices


def _upright(product: Product, dtypes: Sequence[DType]) -> tuple[Product, DType, DType, bool]:
    """A product whose C is a column that lies like a row with A and B exchanged, others as they are; the types of A and
    B; whether they were exchanged."""
    if product.n != 1 or product.m == 1 or product.c.leading != 1:
        return product, dtypes[0], dtypes[1], False
    a, b = _turned(product.b), _turned(product.a)
    row = replace(product, a=a, b=b, m=1, n=product.m, c=replace(product.c, leading=product.m))
    return row, dtypes[1], dtypes[0], True


def arithmetic(product: Product, result: DType) -> DType:
    """The type that a product's operands are multiplied in, which chooses the function."""
    return DType.BFLOAT16 if product.rounded else result


def block_k(k: int, dtype: DType, shape: Shape) -> int:
    """The size of all blocks of k but the last: as even as multiples of 32 allow."""
    most = blocks_of(shape, dtype).steps * (2 if shape.paired(dtype) else 1)
    return _ceil(_ceil(k, _ceil(k, most)), 32) * 32


def batch_offsets(product: Product, items: Sequence[int]) -> npt.NDArray[np.int64]:
    """Byte offsets of A, B and C, whose elements have `items` bytes, for each matrix of the batch in the order of its
    loops: int64[count 3]."""
    count, loops = prod(product.batch), len(product.batch)
    indices = np.indices(product.batch, dtype=np.int64).reshape(loops, count).T
    operands = (product.a, product.b, product.c)
    columns = [matrix.offset + indices @ np.array(matrix.batch_strides, np.int64).reshape(loops) for matrix in operands]
    return np.ascontiguousarray(np.stack(columns, axis=1) * np.array(items))


def _packing_of_a(product: Product, dtype: DType, shape: Shape) -> Packing:
    """A is read in place, except where it has to be rounded, widened or made pairs of."""
    in_pairs = not product.a.transposed and product.k % 2 == 0 and dtype is DType.BFLOAT16
    if not product.rounded or (shape.pairs and in_pairs):
        return Packing.DIRECT
    return _kind(dtype, not product.a.transposed)


def _packing_of_b(product: Product, dtype: DType, shape: Shape) -> Packing:
    """B is read in place if it is small and dense, or read only once or twice."""
    turned = product.b.transposed and product.n > 1
    near = product.k * product.b.leading * dtype.bytes <= NEAR
    if not product.rounded and not turned and (near or product.m <= 2 * shape.rows):
        return Packing.DIRECT
    return _kind(dtype, turned)


def _kind(dtype: DType, turned: bool) -> Packing:
    """How a panel is packed; `turned` says that its elements lie side by side along k."""
    if dtype is DType.BFLOAT16:
        return Packing.TRANSPOSE_HALVES if turned else Packing.COPY_HALVES
    return Packing.TRANSPOSE if turned else Packing.COPY


def _turned(matrix: Matrix) -> Matrix:
    return replace(matrix, transposed=not matrix.transposed)


def _strides(matrix: Matrix, item: int) -> tuple[int, int]:
    """Bytes from row to row and from column to column of an operand after its transposition."""
    strides = (matrix.leading * item, item)
    return (strides[1], strides[0]) if matrix.transposed else strides


def _ceil(size: int, piece: int) -> int:
    return -(-size // piece)
