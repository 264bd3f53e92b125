"""How launches and products are cut into parts along the rows of one large value.

A `Grid` says how the rows of a value are counted: loop axes outside, rows to cut inside, then columns. A step can be
cut if each index of the loop axes and each range of rows of the value concerns a part of the step of its own. Columns
that a mask removes are left out of both (`paren.plan.mask`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import prod

from paren.ir.types import DType
from paren.plan.index import Interval, interval
from paren.plan.kernel import Access, Accumulate, Kernel, Load, Stage, Store
from paren.plan.plan import Launch, Matrix, Piece, Product
from paren.plan.product import contiguous


@dataclass(frozen=True)
class Grid:
    """The elements of a value: `loops` (one iteration for each index), `rows`, which are cut, and `columns`."""

    loops: tuple[int, ...]
    rows: int
    columns: int

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements from one index of each loop axis to the next."""
        return tuple(stride * self.rows * self.columns for stride in contiguous(self.loops))


@dataclass(frozen=True)
class Tile:
    """Rows `first` up to `last`, columns up to `columns`. The `opening` tile is the first that runs."""

    first: int
    last: int
    columns: int
    opening: bool


@dataclass(frozen=True)
class ProductRoles:
    """Which dimension of a product, m, n or k, the rows and the columns of the value are, and which of its batch loops
    the loop axes are."""

    rows: str
    columns: str
    loops: tuple[int, ...]


ROLES = {  # operand -> (dimension of its rows, of its columns), before transposition
    "a": ("m", "k"),
    "b": ("k", "n"),
    "c": ("m", "n"),
}


def product_roles(product: Product, values: Collection[int], grid: Grid) -> ProductRoles | None:
    """The roles of the grid of the buffers `values`, which the product reads or writes; None where they do not fit."""
    found: set[ProductRoles] = set()
    for name, matrix in operands(product).items():
        if matrix.buffer in values:
            roles = _operand_roles(product, name, matrix, grid)
            if roles is None:
                return None
            found.add(roles)
    return found.pop() if len(found) == 1 else None


def operands(product: Product) -> dict[str, Matrix]:
    return {"a": product.a, "b": product.b, "c": product.c}


def _operand_roles(product: Product, name: str, matrix: Matrix, grid: Grid) -> ProductRoles | None:
    rows, columns = ROLES[name][::-1] if matrix.transposed else ROLES[name]
    sizes = {"m": product.m, "n": product.n, "k": product.k}
    if matrix.offset or matrix.leading != grid.columns:
        return None
    if sizes[rows] != grid.rows or sizes[columns] > grid.columns:  # columns at the end may be padding
        return None
    loops = []
    for size, stride in zip(grid.loops, grid.strides, strict=True):
        places = [i for i, s in enumerate(matrix.batch_strides) if s == stride and product.batch[i] == size]
        if len(places) != 1:
            return None
        loops.append(places[0])
    # A loop of the product that moves the value otherwise, or not at all, would meet its rows again.
    if len(loops) != len(product.batch):
        return None
    return ProductRoles(rows, columns, tuple(loops))


def cut_product(
    product: Product,
    roles: ProductRoles,
    tile: Tile,
    grid: Grid,
    places: Mapping[int, tuple[int, int]],
    types: Mapping[int, DType],
) -> Piece:
    """The part of a product for a tile. `places`: buffer of a value in the scratch -> (buffer, offset) of its tile;
    `types`: element types of all buffers."""
    sizes = {"m": product.m, "n": product.n, "k": product.k}
    sizes[roles.rows] = tile.last - tile.first
    sizes[roles.columns] = min(sizes[roles.columns], tile.columns)
    cut: dict[str, Matrix] = {}
    moves = []
    for name, matrix in operands(product).items():
        if matrix.buffer in places:
            buffer, offset = places[matrix.buffer]
            cut[name] = Matrix(buffer, offset, matrix.leading, matrix.transposed, ())
            moves.append((0,) * len(grid.loops))
            continue
        offset = matrix.offset
        if roles.rows in ROLES[name]:
            along_rows = (ROLES[name][0] == roles.rows) != matrix.transposed
            offset += tile.first * (matrix.leading if along_rows else 1)
        cut[name] = Matrix(matrix.buffer, offset, matrix.leading, matrix.transposed, ())
        moves.append(tuple(matrix.batch_strides[loop] for loop in roles.loops))
    accumulate = product.accumulate or (roles.rows == "k" and not tile.opening)
    step = replace(
        product,
        a=cut["a"],
        b=cut["b"],
        c=cut["c"],
        m=sizes["m"],
        n=sizes["n"],
        k=sizes["k"],
        batch=(),
        accumulate=accumulate,
    )
    dtypes = tuple(types[matrix.buffer] for matrix in operands(product).values())
    return Piece(step, dtypes, (0, 0, 0), tuple(moves))


# Kernels ------------------------------------------------------------------------------------------------------------


def rows_fit(kernel: Kernel, values: Collection[int], grid: Grid) -> bool:
    """Whether the kernel's rows are the grid's, one for one in order, and it touches the parameters `values` in the own
    row only."""
    if prod(kernel.axes[: kernel.rows]) != prod(grid.loops) * grid.rows:
        return False
    found = [
        (stage, s.access)
        for stage in kernel.stages
        for s in stage.body
        if isinstance(s, Load | Store | Accumulate) and s.access.parameter in values
    ]
    return all(_own_row(kernel, stage, access, grid.columns) for stage, access in found)


def _own_row(kernel: Kernel, stage: Stage, access: Access, columns: int) -> bool:
    """Whether the access lies at (row number) x columns + something in 0 .. columns."""
    if any(index.divisor != 1 for index in access.indices):
        return False
    expected = contiguous(kernel.axes[: kernel.rows])
    for axis in range(kernel.rows):
        if kernel.axes[axis] > 1 and access.steps.get(axis, 0) != expected[axis] * columns:
            return False
    sizes = [size if axis in stage.axes else 1 for axis, size in enumerate(kernel.axes)]  # in row 0
    low = high = access.offset
    for index, stride, size in zip(access.indices, access.strides, access.sizes, strict=True):
        reach = Interval(0, size - 1) if index.value is not None else interval(index, sizes)
        least, most = reach.low, reach.high
        if access.guarded:
            if (least < 0 or most >= size) and any(axis < kernel.rows for axis, _ in index.terms):
                return False
            least, most = max(least, 0), min(most, size - 1)
        ends = (least * stride, most * stride)
        low, high = low + min(ends), high + max(ends)
    return low >= 0 and high < columns


def row_form(kernel: Kernel, columns: int) -> Kernel | None:
    """A kernel whose last row axis are the columns, as one whose stages loop over them; other kernels as they are,
    None where that cannot be."""
    if any(stage.axes for stage in kernel.stages):
        return kernel
    last = kernel.rows - 1
    if kernel.rows < 2 or last != len(kernel.axes) - 1 or kernel.axes[last] != columns:
        return None
    return replace(kernel, rows=last, stages=tuple(Stage((last,), stage.body) for stage in kernel.stages))


def cut_launch(
    launch: Launch,
    kernel: Kernel,
    tile: Tile,
    grid: Grid,
    places: Mapping[int, tuple[int, int]],
    types: Mapping[int, DType],
) -> Piece:
    """The part of a launch for a tile, with `kernel` (as `row_form` or the mask made it) in place of its own."""
    offsets, moves, buffers = [], [], []
    for buffer in launch.buffers:
        if buffer in places:
            scratch, offset = places[buffer]
            buffers.append(scratch)
            # The kernel counts rows from the first of the whole value: the tile's address is moved back by as much.
            offsets.append(offset - tile.first * grid.columns)
            moves.append(tuple(-stride for stride in grid.strides))
        else:
            buffers.append(buffer)
            offsets.append(0)
            moves.append((0,) * len(grid.loops))
    row_moves = tuple(stride // grid.columns for stride in grid.strides)
    step = replace(launch, kernel=kernel, buffers=tuple(buffers))
    dtypes = tuple(types[buffer] for buffer in launch.buffers)
    return Piece(step, dtypes, tuple(offsets), tuple(moves), tile.first, tile.last - tile.first, row_moves)
