"""Which threads do what: how the loops of a kernel are spread over lanes, threads and blocks.

A *unit* is what a *group* of threads works on together; a block holds `per_block` groups. A thread works on several
*lanes* at once, which lie side by side in memory, so that they move in accesses of 16 bytes. Two skeletons cover all
kernels. In the first (`lane` None) a unit is a row, and lanes are neighbouring iterations of a stage. In the second
lanes are neighbouring rows along the axis `lane`, and the threads of a group take turns with the iterations of a stage:
elementwise kernels, reductions along a far axis, scatters.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from paren.codegen.cuda.one_hot import choose_elements
from paren.codegen.loops import accesses, choose_block, choose_lane, may_miss, merge_axes
from paren.plan.index import interval
from paren.plan.kernel import (
    Access,
    Accumulate,
    AxisIndex,
    Compute,
    Constant,
    Index,
    Kernel,
    Load,
    Reduce,
    Stage,
    Store,
)

WARP = 32
BLOCK = 256  # threads of a block of independent groups
MOST = 1024  # threads that a group may have
LONG = 768  # threads of a group whose row is longer than it holds: two such groups fit with 42 registers a thread
RAGGED = 4096  # iterations from which an odd end is worth a loop of its own
HELD = 4  # chunks that a thread keeps in registers from stage to stage
BUSY = 2 * 132 * 1024  # threads that keep a large card busy
SHARED = 40 * 1024  # bytes of shared memory that the partial results of a block may take
WIDE = 8  # lanes at most
WARPS = 8  # of a block that scatters
LISTED = 1024  # iterations that a warp of such a block looks through in a round
RANGES = 8 * 132  # blocks that scatter, at least if there are so many rows to add to


@dataclass(frozen=True)
class Mapping:
    """`kernel` has merged axes. `group` threads share a unit, `width` lanes lie side by side (in the first skeleton
    each stage has its own). `in_order` says that units are the kernel's rows one by one. `index` is the C type of
    places. With `ranges`, units are ranges of the rows that a kernel adds to (`paren.codegen.cuda.scatter`).
    `narrow`: lanes do not lie side by side, because parameters may not lie on 16 bytes.
    `across`: the axis that neighbouring threads run along, where it is not `lane`, in kernels that transpose."""

    kernel: Kernel
    lane: int | None
    in_order: bool
    width: int
    group: int
    per_block: int
    index: str
    ranges: int = 0
    narrow: bool = False
    across: int | None = None

    @property
    def threads(self) -> int:
        return self.group * self.per_block

    @property
    def units(self) -> int:
        rows = prod(self.kernel.axes[: self.kernel.rows]) // self.width
        if not self.ranges or self.lane is None:
            return rows
        lanes = self.kernel.axes[self.lane] // self.width
        return rows // lanes * -(-lanes // WARP) * self.ranges

    def blocks(self, units: int) -> int:
        return -(-units // self.per_block)


@dataclass(frozen=True)
class Strips:
    """How a group runs a stage of `count` iterations in the first skeleton: `width` lanes side by side, `held` times a
    group's width at once; `held` 0 is a loop, which is followed by one without neighbours for what is left of `count`
    divided by `width`."""

    count: int
    width: int
    held: int

    @property
    def lanes(self) -> int:
        return self.width * max(1, self.held)


def map_kernel(kernel: Kernel, in_order: bool) -> Mapping:
    """How a kernel is spread; with `in_order`, ranges of its rows can run alone, at any alignment."""
    merged = merge_axes(choose_elements(kernel))
    lane = choose_lane(merged)
    found = scattering(merged)
    if found is not None and merged.rows and not in_order:
        return _scatter(merged, merged.rows - 1 if lane is None else lane, found)
    if lane is None and any(stage.axes and _scatters(stage) for stage in merged.stages):
        return Mapping(merged, None if merged.rows == 0 else merged.rows - 1, in_order, 1, 1, BLOCK, _index(merged))
    if lane is None and merged.rows and all(not stage.axes for stage in merged.stages):
        lane = merged.rows - 1
    if lane is None:
        return _rows(merged, in_order)
    turned = None if in_order or any(stage.axes for stage in merged.stages) else choose_block(merged, lane)
    if turned is not None and (width := _lane_width(merged, turned)) > 1:
        return Mapping(merged, turned, False, width, 1, BLOCK, _index(merged), across=lane)
    width = 1 if in_order else _lane_width(merged, lane)
    units = prod(merged.axes[: merged.rows]) // width
    iterations = max((count(merged, stage) for stage in merged.stages), default=1)
    if iterations == 1 or any(map(_scatters, merged.stages)):
        return Mapping(merged, lane, in_order, width, 1, min(BLOCK, _power(units)), _index(merged))
    across = min(WARP if width == 1 else WARP // 2, _power(units))
    group = 1
    reduces = [s for stage in merged.stages for s in stage.body if isinstance(s, Reduce)]
    bytes = sum(16 if reduce.kind in ("argmax", "argmin") else reduce.dtype.bytes for reduce in reduces)
    while (
        2 * group * across <= MOST
        and 4 * group <= iterations
        and 2 * units * group <= BUSY
        and 2 * group * across * width * bytes <= SHARED
    ):
        group *= 2
    across = max(across, min(BLOCK // group, _power(units))) if group * across < BLOCK // 2 else across
    return Mapping(merged, lane, in_order, width, group, across, _index(merged))


def scattering(kernel: Kernel) -> tuple[Stage, Accumulate, Index] | None:
    """The stage that adds to rows that integers choose, what it adds, and the index that chooses; None where a kernel
    does more than that, or each lane chooses for itself."""
    if len(kernel.stages) != 1 or not kernel.stages[0].axes:
        return None
    stage = kernel.stages[0]
    sums = [s for s in stage.body if isinstance(s, Accumulate)]
    if len(sums) != 1 or any(isinstance(s, Reduce | Store) for s in stage.body):
        return None
    chosen = [index for index in sums[0].access.indices if index.value is not None]
    if len(chosen) != 1 or _depends_on_rows(kernel, stage, chosen[0]):
        return None
    return stage, sums[0], chosen[0]


def _depends_on_rows(kernel: Kernel, stage: Stage, chosen: Index) -> bool:
    known: dict[int, bool] = {}

    def rows(index: Index) -> bool:
        return any(axis < kernel.rows for axis, _ in index.terms) or known.get(index.value or -1, False)

    for statement in stage.body:
        match statement:
            case Load(result, access):
                known[result] = any(map(rows, access.indices))
            case AxisIndex(result, index):
                known[result] = rows(index)
            case Compute(result, _, args):
                known[result] = any(known[arg] for arg in args)
            case Constant(result):
                known[result] = False
    return known[chosen.value] if chosen.value is not None else False


def _scatter(kernel: Kernel, lane: int, found: tuple[Stage, Accumulate, Index]) -> Mapping:
    _, added, chosen = found
    rows = next(size for index, size in zip(added.access.indices, added.access.sizes, strict=True) if index == chosen)
    width = _lane_width(kernel, lane)
    strips = prod(kernel.axes[: kernel.rows]) // kernel.axes[lane] * -(-kernel.axes[lane] // (width * WARP))
    ranges = max(min(-(-RANGES // strips), -(-rows // WARPS)), -(-rows // 2**15))
    return Mapping(kernel, lane, False, width, WARPS * WARP, 1, _index(kernel), -(-rows // -(-rows // ranges)))


def _rows(kernel: Kernel, in_order: bool) -> Mapping:
    chunks = max((-(-s.count // s.width) for s in (_strips(kernel, stage) for stage in kernel.stages)), default=1)
    rows = prod(kernel.axes[: kernel.rows])
    group = _power(chunks)
    if group > WARP:
        held = 1 if rows * WARP < BUSY else HELD
        most = MOST if chunks <= HELD * MOST else LONG
        group = max(WARP, min(most, -(-chunks // (held * WARP)) * WARP))
    per_block = 1 if group > WARP else max(1, BLOCK // group)
    return Mapping(kernel, None, in_order, 1, group, per_block, _index(kernel))


def strips(mapping: Mapping, stage: Stage) -> Strips:
    """How the mapping's groups run a stage with axes, in the first skeleton."""
    found = Strips(count(mapping.kernel, stage), 1, 0) if mapping.narrow else _strips(mapping.kernel, stage)
    turns = -(-found.count // (found.width * mapping.group))
    held = turns * found.width <= HELD * WIDE and found.count % found.width == 0
    return Strips(found.count, found.width, turns if held else 0)


def _strips(kernel: Kernel, stage: Stage) -> Strips:
    """All stages over the same axes have the same lanes, so that what one loads serves another."""
    alike = [other for other in kernel.stages if other.axes == stage.axes]
    total = count(kernel, stage)
    ragged = len(stage.axes) == 1 and total > RAGGED
    return Strips(total, _width(kernel, alike, stage.axes[-1], ragged) if stage.axes else 1, 0)


def wide_parameters(mapping: Mapping) -> list[int]:
    """The parameters whose elements move in wide accesses in the first skeleton."""
    found = set()
    for stage in mapping.kernel.stages:
        width = strips(mapping, stage).width
        if width > 1:
            found |= {access.parameter for access in accesses(stage)
                      if moves_side_by_side(mapping.kernel, access, stage.axes[-1], width)}  # fmt: skip
    return sorted(found)


def count(kernel: Kernel, stage: Stage) -> int:
    """Iterations of a stage."""
    return prod(kernel.axes[axis] for axis in stage.axes)


def _scatters(stage: Stage) -> bool:
    return any(isinstance(statement, Accumulate) for statement in stage.body)


def _lane_width(kernel: Kernel, lane: int) -> int:
    return _width(kernel, kernel.stages, lane)


def _width(kernel: Kernel, stages: tuple[Stage, ...] | list[Stage], lane: int, ragged: bool = False) -> int:
    """Lanes that move in 16 bytes of the smallest elements that lie side by side along an axis; a power of two that
    divides the axis, unless it may be `ragged`."""
    sizes = [
        kernel.parameters[access.parameter].dtype.bytes
        for stage in stages
        for access in accesses(stage)
        if moves_side_by_side(kernel, access, lane, 1)
    ]
    width = min(WIDE, 16 // min(sizes)) if sizes else 1
    while width > 1 and ((kernel.axes[lane] % width and not ragged) or not any(
        moves_side_by_side(kernel, access, lane, width) for stage in stages for access in accesses(stage)
    )):  # fmt: skip
        width //= 2
    return width


def step(access: Access, axis: int) -> int:
    """Elements that an axis moves an access by; divisors are left out."""
    return access.steps.get(axis, 0)


def moves_side_by_side(kernel: Kernel, access: Access, lane: int, width: int) -> bool:
    """Whether `width` lanes from a multiple of `width` on touch as many neighbouring elements, from a multiple of
    `width` on, or none of them any."""
    if step(access, lane) != 1 or access.offset % width:
        return False
    for index, stride, size in zip(access.indices, access.strides, access.sizes, strict=True):
        if index.value is not None:
            if stride % width:
                return False
            continue
        terms = dict(index.terms)
        along = terms.pop(lane, 0)
        others = (*terms.values(), index.constant)
        if index.divisor != 1:
            if along or stride % width:
                return False
        elif along and access.guarded and may_miss(index, size, kernel.axes):
            if along != 1 or stride != 1 or size % width or any(other % width for other in others):
                return False
        elif any(other * stride % width for other in others):
            return False
    return True


def _power(count: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(0, count - 1).bit_length()


def _index(kernel: Kernel) -> str:
    """Whether all places and indices fit in 32 bits."""
    reach = prod(kernel.axes[: kernel.rows])
    for stage in kernel.stages:
        reach = max(reach, count(kernel, stage) + MOST * WIDE)
        for statement in stage.body:
            if isinstance(statement, AxisIndex):
                reach = max(reach, _magnitude(statement.index, kernel.axes))
            elif isinstance(statement, Load | Store | Accumulate):
                access = statement.access
                total = abs(access.offset)
                for index, stride, size in zip(access.indices, access.strides, access.sizes, strict=True):
                    most = size if index.value is not None else _magnitude(index, kernel.axes)
                    total += max(most, size) * max(1, abs(stride))
                reach = max(reach, total)
    return "int" if reach < 2**31 - 2**16 else "long long"


def _magnitude(index: Index, axes: tuple[int, ...]) -> int:
    reach = interval(index, axes)
    return max(
        abs(reach.low), abs(reach.high), abs(index.constant), *(abs(c) * axes[axis] for axis, c in index.terms), 1
    )
