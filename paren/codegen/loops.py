"""The shape of a kernel's loops: axes merged where accesses allow, and which axis the innermost loop runs over.

Two skeletons cover all kernels. With `lane` None (rows): one row after another, the innermost loop is a stage's last
axis. With a lane (a row axis): the innermost loop of every stage runs over a tile of that axis, so that neighbouring
rows fill the vector; kernels without stage axes, reductions along a far axis and scatters run this way. A kernel
without stage axes that transposes also loops over a block of the row axis whose elements lie side by side elsewhere, so
that a line of memory is used while it is in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from paren.codegen.positions import split_positions
from paren.plan.index import interval
from paren.plan.kernel import Access, Accumulate, AxisIndex, Index, Kernel, Load, Stage, Statement, Store

MAP_TILE = 8192  # lanes of a tile that keeps nothing between loops
LEAST_MAP_TILE = 64  # that it may be cut down to, where else there were less than `TILE_UNITS` units of work
WIDE_TILE = 256  # lanes that a tile with partial results on the stack aims at
NARROW_TILE = 128  # that it may be cut down to, likewise
TILE_UNITS = 4
BLOCK = 64  # indices of the other axis in a block of a transposition: some lines of memory
BLOCK_TILE = 16  # lanes of such a block: no more lines at once than one set of the cache holds
FULL_VECTOR = 16  # iterations from which an innermost loop is as good as a long one


@dataclass(frozen=True)
class Loops:
    """`kernel` with merged axes, the row axis of the innermost loop (or None), its tile, and the axis of a block.

    A unit of parallel work is one index of the other row axes, one tile and one block. All of it is decided by the
    kernel alone.
    """

    kernel: Kernel
    lane: int | None
    tile: int
    block: int | None = None

    @property
    def outer(self) -> tuple[int, ...]:
        """Row axes that a unit has one index of."""
        return tuple(axis for axis in range(self.kernel.rows) if axis not in (self.lane, self.block))

    @property
    def blocks(self) -> int:
        return 1 if self.block is None else -(-self.kernel.axes[self.block] // BLOCK)

    @property
    def tiles(self) -> int:
        return 1 if self.lane is None else -(-self.kernel.axes[self.lane] // self.tile)

    @property
    def units(self) -> int:
        return prod(self.kernel.axes[axis] for axis in self.outer) * self.tiles * self.blocks


@lru_cache(maxsize=4096)
def arrange(kernel: Kernel) -> Loops:
    """The loops of a kernel."""
    merged = merge_axes(kernel)
    lane = choose_lane(merged)
    if lane is None:
        return Loops(split_positions(merged), None, 1)
    if all(not stage.axes for stage in merged.stages):
        block = choose_block(merged, lane)
        tile = MAP_TILE if block is None else BLOCK_TILE
        return Loops(
            merged, lane, _map_tile(merged.axes[lane]) if block is None else min(tile, merged.axes[lane]), block
        )
    return Loops(merged, lane, _tile(merged.axes[lane], prod(merged.axes[: merged.rows]) // merged.axes[lane]))


@lru_cache(maxsize=4096)
def arrange_rows(kernel: Kernel) -> Loops:
    """The loops of a kernel whose units are its rows, in order, so that a range of them can run alone."""
    return Loops(split_positions(merge_axes(kernel)), None, 1)


def _map_tile(extent: int) -> int:
    """Lanes of a tile that keeps nothing: tiles of one size, some for the threads where they are long loops all the
    same."""
    pieces = max(-(-extent // MAP_TILE), min(TILE_UNITS, extent // LEAST_MAP_TILE), 1)
    even = -(-extent // pieces)
    return min(extent, -(-even // FULL_VECTOR) * FULL_VECTOR)


def _tile(extent: int, others: int) -> int:
    """Lanes of a tile: wide, because long rows of memory read fast, but some units of work for the threads."""
    pieces = max(-(-extent // WIDE_TILE), min(-(-TILE_UNITS // others), extent // NARROW_TILE))
    even = -(-extent // pieces)
    return min(extent, -(-even // FULL_VECTOR) * FULL_VECTOR)


def accesses(stage: Stage) -> Iterator[Access]:
    for statement in stage.body:
        if isinstance(statement, Load | Store | Accumulate):
            yield statement.access


def stride(access: Access, axis: int) -> int | None:
    """Elements from one index of the axis to the next, None where that is not a constant."""
    total = 0
    for index, size in zip(access.indices, access.strides, strict=True):
        for term, coefficient in index.terms:
            if term == axis:
                if index.divisor != 1:
                    return None
                total += coefficient * size
    return total


def work(kernel: Kernel) -> int:
    """Statements executed, counted over all loops: what decides whether threads pay."""
    rows = prod(kernel.axes[: kernel.rows])
    return rows * sum(prod(kernel.axes[axis] for axis in stage.axes) * len(stage.body) for stage in kernel.stages)


def choose_lane(kernel: Kernel) -> int | None:
    """The row axis that the innermost loops should run over, None where a stage's own axis serves better."""
    if kernel.rows == 0:
        return None
    if all(not stage.axes for stage in kernel.stages):
        return max(range(kernel.rows), key=lambda axis: (_value_of(kernel, axis), axis))
    best = max(range(kernel.rows), key=lambda axis: (_value_of(kernel, axis), axis))
    inner = sum(
        _weight(kernel, stage, access, stage.axes[-1]) for stage in kernel.stages if stage.axes
        for access in accesses(stage)
    )  # fmt: skip
    return best if _value_of(kernel, best) > inner else None


def choose_block(kernel: Kernel, lane: int) -> int | None:
    """The row axis along which an access steps from element to element while it jumps along the lane."""
    for stage in kernel.stages:
        for access in accesses(stage):
            if abs(stride(access, lane) or 0) <= 1:
                continue
            for axis in range(kernel.rows):
                if axis != lane and stride(access, axis) in (1, -1) and kernel.axes[axis] > 1:
                    return axis
    return None


def _value_of(kernel: Kernel, axis: int) -> float:
    """How well a row axis serves as innermost loop: accesses side by side, weighted by how often they happen."""
    return sum(_weight(kernel, stage, access, axis) for stage in kernel.stages for access in accesses(stage)
               if stage.axes or all(not other.axes for other in kernel.stages))  # fmt: skip


def _weight(kernel: Kernel, stage: Stage, access: Access, axis: int) -> float:
    step = stride(access, axis)
    quality = 1.0 if step in (1, -1) else 0.5 if step == 0 else 0.25
    times = prod(kernel.axes[other] for other in stage.axes)
    return quality * times * min(kernel.axes[axis], FULL_VECTOR)


def merge_axes(kernel: Kernel) -> Kernel:
    """The same kernel with axes of size 1 gone and neighbouring axes made one where every access steps evenly."""
    kernel = _simplify(kernel)
    axis = 0
    while axis + 1 < len(kernel.axes):
        if _mergeable(kernel, axis):
            kernel = _merge(kernel, axis)
        else:
            axis += 1
    return kernel


def _indices(kernel: Kernel) -> Iterator[Index]:
    for stage in kernel.stages:
        for statement in stage.body:
            if isinstance(statement, Load | Store | Accumulate):
                yield from statement.access.indices
            elif isinstance(statement, AxisIndex):
                yield statement.index


def may_miss(index: Index, size: int, axes: tuple[int, ...]) -> bool:
    """Whether a guarded index may lie outside its dimension or between multiples of its divisor."""
    if index.value is not None:
        return False
    if index.divisor != 1:
        return True
    reach = interval(index, axes)
    return reach.low < 0 or reach.high >= size


def _simplify(kernel: Kernel) -> Kernel:
    """Axes of size 1 removed, guards that always hold dropped, plain dimensions of an access folded into one."""
    kept = [axis for axis, size in enumerate(kernel.axes) if size != 1]
    number = {axis: position for position, axis in enumerate(kept)}

    def index_of(index: Index) -> Index:
        terms = tuple((number[axis], coefficient) for axis, coefficient in index.terms if axis in number)
        return replace(index, terms=terms)

    axes = tuple(kernel.axes[axis] for axis in kept)

    def access_of(access: Access) -> Access:
        indices = [index_of(index) for index in access.indices]
        special: list[tuple[Index, int, int]] = []
        terms: dict[int, int] = {}
        offset = access.offset
        for index, step, size in zip(indices, access.strides, access.sizes, strict=True):
            if index.value is not None or (access.guarded and may_miss(index, size, axes)) or index.divisor != 1:
                special.append((index, step, size))
                continue
            offset += index.constant * step
            for axis, coefficient in index.terms:
                terms[axis] = terms.get(axis, 0) + coefficient * step
        plain = Index(tuple(sorted((axis, step) for axis, step in terms.items() if step)))
        reach = interval(plain, axes)
        guarded = access.guarded and any(may_miss(index, size, axes) for index, _, size in special)
        # Never negative, so never out of range.
        special.append((replace(plain, constant=-reach.low), 1, reach.high - reach.low + 1))
        inner, steps, sizes = zip(*special, strict=True)
        return Access(access.parameter, inner, steps, sizes, guarded, offset + reach.low)

    def statement_of(statement: Statement) -> Statement:
        if isinstance(statement, Load | Store | Accumulate):
            return replace(statement, access=access_of(statement.access))
        if isinstance(statement, AxisIndex):
            return replace(statement, index=index_of(statement.index))
        return statement

    stages = tuple(
        Stage(tuple(number[axis] for axis in stage.axes if axis in number), tuple(map(statement_of, stage.body)))
        for stage in kernel.stages
    )
    return replace(kernel, axes=axes, rows=sum(axis < kernel.rows for axis in kept), stages=stages)


def _mergeable(kernel: Kernel, first: int) -> bool:
    """Whether axes `first` and `first + 1` can be one: side by side in every loop nest, steps of one size."""
    second = first + 1
    if first < kernel.rows <= second:
        return False
    for stage in kernel.stages:
        if (first in stage.axes) != (second in stage.axes):
            return False
        if first in stage.axes and stage.axes.index(second) != stage.axes.index(first) + 1:
            return False
    for index in _indices(kernel):
        steps = dict(index.terms)
        if steps.get(first, 0) != steps.get(second, 0) * kernel.axes[second]:
            return False
    return True


def _merge(kernel: Kernel, first: int) -> Kernel:
    second = first + 1

    def index_of(index: Index) -> Index:
        terms = tuple((axis - (axis > first), coefficient) for axis, coefficient in index.terms if axis != first)
        return replace(index, terms=terms)

    def statement_of(statement: Statement) -> Statement:
        if isinstance(statement, Load | Store | Accumulate):
            indices = tuple(map(index_of, statement.access.indices))
            return replace(statement, access=replace(statement.access, indices=indices))
        if isinstance(statement, AxisIndex):
            return replace(statement, index=index_of(statement.index))
        return statement

    axes = (*kernel.axes[:first], kernel.axes[first] * kernel.axes[second], *kernel.axes[second + 1 :])
    stages = tuple(
        Stage(
            tuple(axis - (axis > first) for axis in stage.axes if axis != first), tuple(map(statement_of, stage.body))
        )
        for stage in kernel.stages
    )
    return replace(kernel, axes=axes, rows=kernel.rows - (second < kernel.rows), stages=stages)
