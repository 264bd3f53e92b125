"""Sums down few columns in two launches: of parts of the rows first, then of the parts.

Gradients of biases and of norms' weights are such sums. Neighbouring columns are read side by side, so a kernel that
sums whole columns runs on as many threads as there are columns, times those that share a column within a block; on a
card that is a small part of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from paren.ir.types import TensorType
from paren.plan.kernel import (
    Access,
    Accumulate,
    AxisIndex,
    Index,
    Kernel,
    Load,
    Parameter,
    Reduce,
    Stage,
    Statement,
    Store,
)
from paren.plan.kernel_values import is_needed, needed_values
from paren.plan.plan import Buffer, Launch, Place, Plan, Step
from paren.plan.product import contiguous

WITHIN = 4  # threads of a block that share a column, over the neighbouring columns that each of them takes
SHORTEST = 128  # elements of a part
COMBINED = ("sum", "max", "min")


def cut_column_sums(plan: Plan, fill: int) -> Plan:
    """The unplaced plan with sums down fewer than `fill` / `WITHIN` columns cut so that columns x parts are `fill` or
    more, as far as divisors of their length allow."""
    steps: list[Step] = []
    buffers = list(plan.buffers)
    for step in plan.steps:
        parts = _parts_of(step.kernel, fill) if isinstance(step, Launch) else None
        if parts is None or not isinstance(step, Launch):
            steps.append(step)
            continue
        first = max(buffer.id for buffer in buffers) + 1
        ids = tuple(range(first, first + len(parts.reduces)))
        for id, reduce in zip(ids, parts.reduces, strict=True):
            type_ = TensorType(reduce.dtype, (parts.count, parts.rows))
            buffers.append(Buffer(id, f"{step.kernel.name} parts", type_, Place.ARENA, 0, 0, 0, step.spans[0]))
        for kernel in (_partial_kernel(step.kernel, parts), _total_kernel(step.kernel, parts)):
            cut = replace(step, kernel=kernel, buffers=(*step.buffers, *ids))
            steps.append(_without_unused(cut))
    return replace(plan, buffers=tuple(buffers), steps=tuple(steps))


@dataclass(frozen=True)
class _Parts:
    """Stage `stage` of a kernel is cut: axis i of it into `outer[i]` parts. `rows` of the kernel."""

    stage: int
    outer: dict[int, int]
    rows: int
    reduces: tuple[Reduce, ...]

    @property
    def count(self) -> int:
        return prod(self.outer.values())


def _parts_of(kernel: Kernel, fill: int) -> _Parts | None:
    """How a kernel is cut, or None: it must have one loop, which only reduces, over neighbouring columns."""
    rows = prod(kernel.axes[: kernel.rows])
    loops = [number for number, stage in enumerate(kernel.stages) if stage.axes]
    if rows * WITHIN >= fill or len(loops) != 1:
        return None
    stage = kernel.stages[loops[0]]
    reduces = tuple(s for s in stage.body if isinstance(s, Reduce))
    loads = [s for s in stage.body if isinstance(s, Load)]
    if not reduces or any(reduce.kind not in COMBINED for reduce in reduces):
        return None
    if any(isinstance(s, Store | Accumulate) for s in stage.body):
        return None
    if any(kernel.parameters[load.access.parameter].writes for load in loads):
        return None
    if not any(load.access.is_affine and load.access.steps.get(kernel.rows - 1) == 1 for load in loads):
        return None
    outer = _outer(kernel, stage.axes, -(-fill // rows))
    return _Parts(loops[0], outer, rows, reduces) if prod(outer.values()) > 1 else None


def _outer(kernel: Kernel, axes: tuple[int, ...], wanted: int) -> dict[int, int]:
    """For each axis of a loop into how many parts it is cut: the first ones wholly, one by a divisor of its size."""
    sizes = [kernel.axes[axis] for axis in axes]
    wanted = min(wanted, prod(sizes) // SHORTEST)
    outer: dict[int, int] = {}
    for axis, size in zip(axes, sizes, strict=True):
        missing = -(-wanted // max(1, prod(outer.values())))
        if missing <= 1:
            outer[axis] = 1
            continue
        divisors = [d for d in range(1, size + 1) if size % d == 0]
        enough = [d for d in divisors if missing <= d < 4 * missing]
        outer[axis] = enough[0] if enough else max(d for d in divisors if d <= missing)
    return outer


def _partial_kernel(kernel: Kernel, parts: _Parts) -> Kernel:
    """The kernel that stores each part of each reduction; behind the parameters of `kernel` one for each reduction.

    Its rows are the parts, then the columns, so that neighbouring rows read and write neighbours.
    """
    stage = kernel.stages[parts.stage]
    cut = [axis for axis in stage.axes if parts.outer[axis] > 1]
    part_of = {axis: number for number, axis in enumerate(cut)}
    sizes = [parts.outer[axis] for axis in cut] + list(kernel.axes[: kernel.rows])
    place = {axis: len(cut) + axis for axis in range(kernel.rows)}
    rows = len(sizes)
    for axis in stage.axes:
        place[axis] = len(sizes)
        sizes.append(kernel.axes[axis] // parts.outer[axis])

    def moved(index: Index) -> Index:
        terms = {place[axis]: coefficient for axis, coefficient in index.terms}
        for axis, coefficient in index.terms:
            if axis in part_of:
                terms[part_of[axis]] = coefficient * sizes[place[axis]]
        return replace(index, terms=tuple(sorted(terms.items())))

    def rewritten(statement: Statement) -> Statement:
        match statement:
            case Load(access=access):
                return replace(statement, access=replace(access, indices=tuple(map(moved, access.indices))))
            case AxisIndex(index=index):
                return replace(statement, index=moved(index))
            case _:
                return statement

    before = [Stage((), tuple(map(rewritten, each.body))) for each in kernel.stages[: parts.stage]]
    loop = Stage(tuple(place[axis] for axis in stage.axes), tuple(map(rewritten, stage.body)))
    count = len(kernel.parameters)
    stores = [
        Store(_whole(count + number, tuple(sizes[:rows]), tuple(range(rows))), reduce.result)
        for number, reduce in enumerate(parts.reduces)
    ]
    parameters = [replace(parameter, writes=False) for parameter in kernel.parameters]
    parameters += [Parameter(reduce.dtype, parts.count * parts.rows, False, True) for reduce in parts.reduces]
    stages = (*before, loop, Stage((), tuple(stores)))
    return Kernel(f"parts_{kernel.name}", tuple(sizes), rows, tuple(parameters), stages)


def _total_kernel(kernel: Kernel, parts: _Parts) -> Kernel:
    """The kernel that combines the parts and does all else, with the same parameters. Its rows are the old ones."""
    columns = kernel.axes[: kernel.rows]
    count = len(kernel.parameters)
    results = [s.result for stage in kernel.stages for s in stage.body if not isinstance(s, Store | Accumulate)]
    body: list[Statement] = []
    for number, reduce in enumerate(parts.reduces):
        fresh = 1 + max(results) + number
        access = _whole(count + number, (parts.count, *columns), (kernel.rows, *range(kernel.rows)))
        body += [Load(fresh, access, reduce.dtype), replace(reduce, value=fresh)]
    before, after = kernel.stages[: parts.stage], kernel.stages[parts.stage + 1 :]
    parameters = [Parameter(reduce.dtype, parts.count * parts.rows, True, False) for reduce in parts.reduces]
    return replace(
        kernel,
        axes=(*columns, parts.count),
        parameters=(*kernel.parameters, *parameters),
        stages=(*before, Stage((kernel.rows,), tuple(body)), *after),
    )


def _whole(parameter: int, shape: tuple[int, ...], axes: tuple[int, ...]) -> Access:
    """An element of a contiguous parameter at one axis for each of its dimensions."""
    return Access(parameter, tuple(Index(((axis, 1),)) for axis in axes), contiguous(shape), shape)


def _without_unused(launch: Launch) -> Launch:
    """The launch without values, stages and parameters that its stores do not need."""
    kernel = launch.kernel
    stored = {number for number, parameter in enumerate(kernel.parameters) if parameter.writes}
    needed = needed_values(kernel, stored)
    stages = [(stage.axes, [s for s in stage.body if is_needed(s, stored, needed)]) for stage in kernel.stages]
    accesses = [s.access for _, body in stages for s in body if isinstance(s, Load | Store | Accumulate)]
    used = sorted({access.parameter for access in accesses})

    def renumbered(s: Statement) -> Statement:
        if isinstance(s, Load | Store | Accumulate):
            return replace(s, access=replace(s.access, parameter=used.index(s.access.parameter)))
        return s

    cut = replace(
        kernel,
        parameters=tuple(kernel.parameters[number] for number in used),
        stages=tuple(Stage(axes, tuple(map(renumbered, body))) for axes, body in stages if body),
    )
    return replace(launch, kernel=cut, buffers=tuple(launch.buffers[number] for number in used))
