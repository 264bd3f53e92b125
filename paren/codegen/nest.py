"""A nest of loops as text that is written at all its levels at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from paren.codegen.loops import BLOCK, Loops, stride
from paren.codegen.writer import Writer
from paren.plan.kernel import Accumulate, Reduce, Stage, Store

ENTRY = -1  # level of what depends on no axis: written once, before all units
STRIP = 4096  # iterations after which a long sum goes into an outer one, so that its rounding error stays small
LANE_STRIP = 256  # the same for sums with a lane, which add one by one

Parts = dict[int, list[tuple[int, str]]]  # axis -> the parts of its index: level and name


@dataclass(frozen=True)
class Loop:
    """A loop: its number of iterations (literal or name), and lines before and after its inner loops."""

    label: str
    count: str
    head: Writer
    tail: Writer


@dataclass
class Nest:
    """The loops of some stages inside a unit of work. Level 0 is the unit, level i is inside `loops[i - 1]`.

    `axes` says where the parts of each axis's index are: an axis that runs in strips or tiles has two. `loaded` names
    lane values of earlier nests that were read from the stack in this one. `parallel` says that the innermost loop's
    iterations touch different elements, apart from identical accesses.
    """

    number: int
    arranged: Loops
    entry: Writer
    axes: Parts
    parallel: bool = False
    loops: list[Loop] = field(default_factory=list)
    loaded: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.before = Writer(f"{self.label}b", block=self.label)
        self.after = Writer(f"{self.label}a")

    @property
    def label(self) -> str:
        return f"g{self.number}"

    @property
    def depth(self) -> int:
        return len(self.loops)

    @property
    def summing(self) -> int:
        """The level of the innermost loop over a stage axis."""
        return self.depth - (self.arranged.lane is not None)

    @property
    def index(self) -> str:
        """The index of the innermost loop: with a lane, the place in the tile."""
        return f"%{self.loops[-1].label}.i"

    def head(self, level: int) -> Writer:
        """Where lines of a level go that stand before its inner loops."""
        if level == ENTRY:
            return self.entry
        return self.before if level == 0 else self.loops[level - 1].head

    def tail(self, level: int) -> Writer:
        return self.after if level == 0 else self.loops[level - 1].tail

    def over_lanes(self, w: Writer, write: Callable[[str], None]) -> None:
        """A loop over the tile, written on the spot; `write` gets the name of its index."""
        label = w.fresh()
        w.put(f"br label %{label}.pre")
        w.begin(f"{label}.pre")
        w.put(f"br label %{label}")
        w.begin(label)
        w.put(f"%{label}.i = phi i64 [ 0, %{label}.pre ], [ %{label}.n, %{label} ]")
        write(f"%{label}.i")
        w.put(f"%{label}.n = add nuw nsw i64 %{label}.i, 1")
        w.put(f"%{label}.c = icmp slt i64 %{label}.n, {self.loops[-1].count}")
        w.put(f"br i1 %{label}.c, label %{label}, label %{label}.exit")
        w.begin(f"{label}.exit")

    # Metadata: four numbers for each nest.

    def note(self, level: int) -> str:
        """What marks a memory access of the innermost loop as independent of other iterations."""
        return f", !llvm.access.group !{4 * self.number}" if self.parallel and level == self.depth else ""

    def metadata(self) -> list[str]:
        if not self.parallel:
            return []
        first = 4 * self.number
        # A short loop over lanes must meet the vectoriser before the unroller.
        unroll = f", !{first + 3}" if self.arranged.lane is not None and self.depth > 1 else ""
        return [
            f"!{first} = distinct !{{}}",
            f"!{first + 1} = distinct !{{!{first + 1}, !{first + 2}{unroll}}}",
            f'!{first + 2} = !{{!"llvm.loop.parallel_accesses", !{first}}}',
            f'!{first + 3} = !{{!"llvm.loop.unroll.disable"}}',
        ]

    def lines(self) -> list[str]:
        """The blocks of the nest; it goes on to the block of the next number. Each loop runs at least once, so it tests
        at its end."""
        lines = [f"{self.label}:", *self.before.lines]
        for loop in self.loops:
            lines += [
                f"  br label %{loop.label}.pre",
                f"{loop.label}.pre:",
                f"  br label %{loop.label}",
                f"{loop.label}:",
                f"  %{loop.label}.i = phi i64 [ 0, %{loop.label}.pre ], [ %{loop.label}.n, %{loop.label}.latch ]",
                *loop.head.lines,
            ]
        for loop in reversed(self.loops):
            innermost = loop is self.loops[-1]
            note = f", !llvm.loop !{4 * self.number + 1}" if innermost and self.parallel else ""
            lines += [
                *loop.tail.lines,
                f"  br label %{loop.label}.latch",
                f"{loop.label}.latch:",
                f"  %{loop.label}.n = add nuw nsw i64 %{loop.label}.i, 1",
                f"  %{loop.label}.c = icmp slt i64 %{loop.label}.n, {loop.count}",
                f"  br i1 %{loop.label}.c, label %{loop.label}, label %{loop.label}.exit{note}",
                f"{loop.label}.exit:",
            ]
        return [*lines, *self.after.lines, f"  br label %g{self.number + 1}"]

    def _add(self, count: str) -> Loop:
        label = f"{self.label}l{self.depth + 1}"
        loop = Loop(label, count, Writer(f"{label}h", block=label), Writer(f"{label}t"))
        self.loops.append(loop)
        return loop

    def _add_strips(self, axis: int, size: int, strip: int) -> None:
        """Two loops for one axis: over strips, and within a strip."""
        outer = self._add(str(-(-size // strip)))
        start = outer.head.value(f"mul nuw nsw i64 %{outer.label}.i, {strip}")
        count = str(strip)
        if size % strip:
            left = outer.head.value(f"sub nsw i64 {size}, {start}")
            count = outer.head.value(f"call i64 @llvm.smin.i64(i64 {left}, i64 {strip})")
        self._add(count)
        self.axes[axis] = [(self.depth - 1, start), (self.depth, self.index)]


def group_stages(arranged: Loops) -> list[list[Stage]]:
    """Stages by nest: with a lane, neighbours without axes share one loop over the tile."""
    groups: list[list[Stage]] = []
    for stage in arranged.kernel.stages:
        if arranged.lane is not None and groups and not stage.axes and not groups[-1][-1].axes:
            groups[-1].append(stage)
        else:
            groups.append([stage])
    return groups


def open_nest(number: int, arranged: Loops, stages: list[Stage], entry: Writer, outer: Parts) -> Nest:
    """The empty loops of a group of stages.

    `outer` holds the indices of the unit; `%start` and `%lanes` are its tile, `%block` and `%blocked` its block, where
    those are not constants.
    """
    nest = Nest(number, arranged, entry, dict(outer))
    axes = stages[0].axes
    strip = STRIP if arranged.lane is None else LANE_STRIP
    for axis in axes:
        size = arranged.kernel.axes[axis]
        if axis == axes[-1] and size > strip and _has_float_sum(stages[0]):
            nest._add_strips(axis, size, strip)
        else:
            nest._add(str(size))
            nest.axes[axis] = [(nest.depth, nest.index)]
    if arranged.block is not None:
        size = arranged.kernel.axes[arranged.block]
        nest._add("%blocked" if size % BLOCK else str(BLOCK))
        nest.axes[arranged.block] = [(0, "%block"), (nest.depth, nest.index)]
    lane = arranged.lane
    if lane is not None:
        even = arranged.kernel.axes[lane] % arranged.tile == 0
        nest._add(str(arranged.tile) if even else "%lanes")
        nest.axes[lane] = [(nest.depth, nest.index)]
        if arranged.tiles > 1:
            nest.axes[lane].insert(0, (0, "%start"))
    nest.parallel = nest.depth > 0 and (lane is not None or _is_independent(stages))
    return nest


def _is_independent(stages: list[Stage]) -> bool:
    """Whether the last axis of the stages steps to another element at every store."""
    inner = stages[0].axes[-1]
    for stage in stages:
        for statement in stage.body:
            if isinstance(statement, Accumulate):
                return False
            if isinstance(statement, Store) and not stride(statement.access, inner):
                return False
    return True


def _has_float_sum(stage: Stage) -> bool:
    return any(
        isinstance(statement, Reduce) and statement.kind == "sum" and statement.dtype.is_float
        for statement in stage.body
    )
