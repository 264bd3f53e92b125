"""Values computed a second time where they are used late, so that they need not be kept in between.

The steps that made a value are run again, with their results in new buffers: the same kernels on the same operands, so
the bits are the same. A kernel that ran for several results is cut down to those that are wanted; what it stored and is
still kept, it reads.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from paren.plan.kernel import (
    Access,
    Accumulate,
    Compute,
    Kernel,
    Load,
    Parameter,
    Stage,
    Statement,
    Store,
)
from paren.plan.kernel_values import equal_values, is_needed, needed_values
from paren.plan.memory import substitute
from paren.plan.plan import Buffer, Launch, Loop, Place, Plan, Product

LONGEST = 8  # steps that may be run again for one value

Repeatable = Launch | Product | Loop


@dataclass(frozen=True)
class Again:
    """Buffer `value` made again for the step `before` and all later ones, by running `steps` ahead of it."""

    value: int
    before: int
    steps: tuple[Repeatable, ...]


@dataclass(frozen=True)
class Uses:
    """Of an unplaced plan: the buffers by id, and the steps (numbers) that write and that touch each."""

    buffers: dict[int, Buffer]
    writers: dict[int, list[int]]
    touching: dict[int, list[int]]


def uses_of(plan: Plan) -> Uses:
    writers: dict[int, list[int]] = {}
    touching: dict[int, list[int]] = {}
    for number, step in enumerate(plan.steps):
        written = step.writes
        for id in written:
            writers.setdefault(id, []).append(number)
        for id in {*step.reads, *written}:
            touching.setdefault(id, []).append(number)
    return Uses({buffer.id: buffer for buffer in plan.buffers}, writers, touching)


def find_chain(plan: Plan, uses: Uses, value: int, before: int) -> Again | None:
    """How `value` can be made again ahead of step `before`. What the steps read must be alive there, else it is made
    again too, by at most `LONGEST` steps in all. None where that needs what is gone, or steps that change state."""
    wanted: dict[int, set[int]] = {}  # number of a step -> its results that are needed
    cut: dict[int, Repeatable] = {}
    pending = [value]
    while pending:
        id = pending.pop()
        made = uses.writers.get(id, [])
        if len(made) != 1 or made[0] >= before or id in plan.outputs.values():
            return None
        number = made[0]
        if id in wanted.setdefault(number, set()):
            continue
        wanted[number].add(id)
        step = plan.steps[number]
        if len(wanted) > LONGEST or not _is_repeatable(step, uses):
            return None
        if isinstance(step, Launch):
            alive = {other for other in step.buffers if other != value and uses.touching[other][-1] >= before}
            step = only_results(step, wanted[number], alive)
        assert isinstance(step, Launch | Product | Loop)
        cut[number] = step
        for read in step.reads:
            source = uses.buffers[read]
            if source.place is Place.STATE:
                if any(number < other < before for other in uses.writers.get(read, ())):
                    return None
            elif source.place is Place.ARENA and (uses.touching[read][-1] < before or read == value):
                pending.append(read)
    return Again(value, before, tuple(cut[number] for number in sorted(cut)))


def _is_repeatable(step: object, uses: Uses) -> bool:
    if not isinstance(step, Launch | Product | Loop) or (isinstance(step, Product) and step.accumulate):
        return False
    return all(uses.buffers[id].place is Place.ARENA for id in step.writes)


def compute_again(plan: Plan, again: Again) -> tuple[Plan, int]:
    """The plan in which step `again.before` and later ones read a second copy of the value, and the copy's buffer."""
    buffers = list(plan.buffers)
    by_id = {buffer.id: buffer for buffer in buffers}
    last = max(by_id)
    renamed: dict[int, int] = {}
    copies: list[Repeatable] = []
    for step in again.steps:
        for id in step.writes:
            last += 1
            renamed[id] = last
            buffers.append(replace(by_id[id], id=last, name=f"{by_id[id].name} again"))
        for old, new in renamed.items():
            step = substitute(step, old, new)
        copies.append(step)
    late = tuple(substitute(step, again.value, renamed[again.value]) for step in plan.steps[again.before :])
    steps = (*plan.steps[: again.before], *copies, *late)
    return replace(plan, buffers=tuple(buffers), steps=steps), renamed[again.value]


def only_results(launch: Launch, wanted: Collection[int], alive: Collection[int]) -> Launch:
    """The launch without what it does for other buffers than `wanted` only. What it stored to `alive` buffers is still
    there: it loads that instead. Unchanged where a stage loads what an earlier one stored to a buffer that is gone."""
    kernel = launch.kernel
    written = {i for i, parameter in enumerate(kernel.parameters) if parameter.writes}
    stored = {i for i in written if launch.buffers[i] in wanted}
    if stored == written:
        return launch
    kernel = _load_what_is_kept(kernel, {i for i in written - stored if launch.buffers[i] in alive})
    needed = needed_values(kernel, stored)
    loaded = {
        s.access.parameter for stage in kernel.stages for s in stage.body if isinstance(s, Load) and s.result in needed
    }
    if any(launch.buffers[i] not in alive for i in (loaded & written) - stored):
        return launch
    stages = [(stage.axes, tuple(s for s in stage.body if is_needed(s, stored, needed))) for stage in kernel.stages]
    stages = [(axes, body) for axes, body in stages if body]
    used = sorted(loaded | stored)
    number = {old: new for new, old in enumerate(used)}

    def renumber(statement: Statement) -> Statement:
        if isinstance(statement, Load | Store | Accumulate):
            return replace(statement, access=replace(statement.access, parameter=number[statement.access.parameter]))
        return statement

    def flags(i: int) -> Parameter:
        if i in stored:
            return kernel.parameters[i]
        return replace(kernel.parameters[i], reads=True, writes=False)

    cut = replace(
        kernel,
        parameters=tuple(map(flags, used)),
        stages=tuple(Stage(axes, tuple(map(renumber, body))) for axes, body in stages),
    )
    return replace(launch, kernel=cut, buffers=tuple(launch.buffers[i] for i in used))


def _load_what_is_kept(kernel: Kernel, kept: Collection[int]) -> Kernel:
    """The kernel with a load in place of every value that equals one which it stores to a `kept` parameter, at the
    same place of the same loop."""
    classes = equal_values(kernel)
    found: dict[tuple[int, tuple[int, ...]], Access] = {}
    for stage in kernel.stages:
        for s in stage.body:
            if isinstance(s, Store) and s.access.parameter in kept:
                found.setdefault((classes[s.value], stage.axes), s.access)
    stages = []
    for stage in kernel.stages:
        body: list[Statement] = []
        for s in stage.body:
            if isinstance(s, Compute):
                access = found.get((classes[s.result], stage.axes))
                if access is not None and kernel.parameters[access.parameter].dtype is s.dtype:
                    body.append(Load(s.result, access, s.dtype))
                    continue
            body.append(s)
        stages.append(Stage(stage.axes, tuple(body)))
    return replace(kernel, stages=tuple(stages))
