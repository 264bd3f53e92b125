"""Values computed a second time where they are used late, so that they need not be kept in between.

The steps that made a value are run again, with their results in new buffers: the same kernels on the same operands, so
the bits are the same. A kernel that ran for several results is cut down to those that are wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paren.plan.kernel import Accumulate, Compute, Kernel, Load, Parameter, Reduce, Stage, Statement, Store
from paren.plan.memory import reads_of, substitute, writes_of
from paren.plan.plan import Buffer, Launch, Place, Plan, Product


@dataclass(frozen=True)
class Again:
    """Buffer `value` made again for the step `before` and all later ones, by running `steps` (numbers) once more."""

    value: int
    before: int
    steps: tuple[int, ...]


def find_chain(plan: Plan, value: int, before: int, kept: Sequence[int]) -> Again | None:
    """How `value` can be made again ahead of step `before`. `kept` are buffers that are alive there; what else the
    steps read is made again too. None where that needs what is gone, or steps that change state."""
    buffers = {buffer.id: buffer for buffer in plan.buffers}
    writers: dict[int, list[int]] = {}
    for number, step in enumerate(plan.steps):
        for id in writes_of(step):
            writers.setdefault(id, []).append(number)
    wanted, steps, seen = [value], [], set()
    while wanted:
        id = wanted.pop()
        if id in seen:
            continue
        seen.add(id)
        made = writers.get(id, [])
        if len(made) != 1 or made[0] >= before:
            return None
        step = plan.steps[made[0]]
        if not isinstance(step, Launch | Product) or (isinstance(step, Product) and step.accumulate):
            return None
        if any(buffers[other].place is not Place.ARENA for other in writes_of(step)):
            return None
        steps.append(made[0])
        for read in reads_of(step):
            source = buffers[read]
            if source.place is Place.ARENA and read not in kept:
                wanted.append(read)
            elif source.place is Place.STATE and any(made[0] < number < before for number in writers.get(read, ())):
                return None
    return Again(value, before, tuple(sorted(set(steps))))


def compute_again(plan: Plan, again: Again) -> Plan:
    """The plan in which step `again.before` and later ones read a second copy of the value."""
    buffers = list(plan.buffers)
    by_id = {buffer.id: buffer for buffer in buffers}
    renamed: dict[int, int] = {}
    copies: list[Launch | Product] = []
    wanted = _needed(plan, again)
    for number in again.steps:
        step = plan.steps[number]
        assert isinstance(step, Launch | Product)
        if isinstance(step, Launch):
            step = only_results(step, wanted)
        for id in writes_of(step):
            if id not in renamed:
                old = by_id[id]
                renamed[id] = max(buffer.id for buffer in buffers) + 1
                buffers.append(Buffer(renamed[id], f"{old.name} again", old.type, Place.ARENA, 0, 0, 0, old.span))
        for old_id, new_id in renamed.items():
            step = substitute(step, old_id, new_id)
        copies.append(step)
    late = tuple(substitute(step, again.value, renamed[again.value]) for step in plan.steps[again.before :])
    return replace(plan, buffers=tuple(buffers), steps=(*plan.steps[: again.before], *copies, *late))


def _needed(plan: Plan, again: Again) -> set[int]:
    """The buffers that the repeated steps have to fill: the value, and what they read of one another."""
    written = {id for number in again.steps for id in writes_of(plan.steps[number])}
    read = {id for number in again.steps for id in reads_of(plan.steps[number])}
    return {again.value} | (written & read)


def only_results(launch: Launch, wanted: set[int]) -> Launch:
    """The launch without what it does for other buffers than `wanted` only."""
    kernel = launch.kernel
    kept = {i for i, id in enumerate(launch.buffers) if id in wanted or not kernel.parameters[i].writes}
    if len(kept) == len(launch.buffers):
        return launch
    needed = _values_for(kernel, kept)
    if any(
        isinstance(s, Load) and s.result in needed and s.access.parameter not in kept
        for stage in kernel.stages
        for s in stage.body
    ):
        return launch  # a later stage loads what an earlier one stored for another result
    stages = []
    for stage in kernel.stages:
        body = tuple(statement for statement in stage.body if _is_kept(statement, kept, needed))
        if body:
            stages.append((stage.axes, body))
    used = sorted({s.access.parameter for _, body in stages for s in body if isinstance(s, Load | Store | Accumulate)})
    number = {old: new for new, old in enumerate(used)}

    def renumber(statement: Statement) -> Statement:
        if isinstance(statement, Load | Store | Accumulate):
            return replace(statement, access=replace(statement.access, parameter=number[statement.access.parameter]))
        return statement

    parameters = tuple(_with_flags(kernel, i, [body for _, body in stages]) for i in used)
    cut = replace(
        kernel,
        parameters=parameters,
        stages=tuple(Stage(axes, tuple(map(renumber, body))) for axes, body in stages),
    )
    return replace(launch, kernel=cut, buffers=tuple(launch.buffers[i] for i in used))


def _with_flags(kernel: Kernel, parameter: int, bodies: Sequence[tuple[Statement, ...]]) -> Parameter:
    """The parameter with its flags; one whose content before the launch was read is still read if it is loaded."""
    loaded = any(isinstance(s, Load) and s.access.parameter == parameter for body in bodies for s in body)
    old = kernel.parameters[parameter]
    return replace(old, reads=old.reads and (loaded or old.writes))


def _is_kept(statement: Statement, parameters: set[int], needed: set[int]) -> bool:
    if isinstance(statement, Store | Accumulate):
        return statement.access.parameter in parameters
    return statement.result in needed


def _values_for(kernel: Kernel, parameters: set[int]) -> set[int]:
    """The values that the stores to these parameters need, found backwards."""
    needed: set[int] = set()
    for stage in reversed(kernel.stages):
        for statement in reversed(stage.body):
            if isinstance(statement, Store | Accumulate):
                if statement.access.parameter not in parameters:
                    continue
                needed.add(statement.value)
                access = statement.access
            elif statement.result not in needed:
                continue
            elif isinstance(statement, Compute):
                needed.update(statement.args)
                continue
            elif isinstance(statement, Reduce):
                needed.add(statement.value)
                continue
            elif isinstance(statement, Load):
                access = statement.access
            else:
                continue
            needed.update(index.value for index in access.indices if index.value is not None)
    return needed
