"""The order of a plan's steps: what only changes state runs as soon as it can, so that what it reads can be given up.

Graphs list sums into gradients last, because they are outputs; in that order every gradient of an activation would live
to the end. Where those are few bytes it is better that they do: threads that add what each of them summed then wait for
each other once, and not at each sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paren.plan.plan import Place, Plan, Step


def schedule(plan: Plan, *, late: bool = False) -> Plan:
    """The plan with each step that writes outputs and state only right behind the last step that it needs, or, if
    `late`, with all of them at the end. Other steps keep their order."""
    arena = {buffer.id for buffer in plan.buffers if buffer.place is Place.ARENA} - set(plan.outputs.values())
    needs = dependencies(plan.steps)
    if late:
        return _with_last(plan, needs, arena)
    behind: dict[int, int] = {}  # step that moves -> the last step that stays and has to be before it
    for number, step in enumerate(plan.steps):
        if not arena.intersection(step.writes):
            behind[number] = max((behind.get(need, need) for need in needs[number]), default=-1)
    ready: dict[int, list[int]] = {}
    for number, place in behind.items():
        ready.setdefault(place, []).append(number)
    order = ready.get(-1, [])
    for number in range(len(plan.steps)):
        if number not in behind:
            order += [number, *ready.get(number, ())]
    return replace(plan, steps=tuple(plan.steps[number] for number in order))


def _with_last(plan: Plan, needs: Sequence[set[int]], arena: set[int]) -> Plan:
    """The plan with the steps that write nothing of `arena` at its end, but for those that an other one needs."""
    staying: set[int] = set()
    for number in reversed(range(len(plan.steps))):
        if number in staying or arena.intersection(plan.steps[number].writes):
            staying |= {number, *needs[number]}
    order = sorted(range(len(plan.steps)), key=lambda number: (number not in staying, number))
    return replace(plan, steps=tuple(plan.steps[number] for number in order))


def dependencies(steps: Sequence[Step]) -> list[set[int]]:
    """For each step the earlier ones that must run before it: the last writer of what it touches, and the readers since
    then of what it writes."""
    writer: dict[int, int] = {}
    readers: dict[int, set[int]] = {}
    found: list[set[int]] = []
    for number, step in enumerate(steps):
        reads, writes = step.reads, step.writes
        needs = {writer[id] for id in (*reads, *writes) if id in writer}
        for id in writes:
            needs |= readers.get(id, set())
        needs.discard(number)
        found.append(needs)
        for id in reads:
            readers.setdefault(id, set()).add(number)
        for id in writes:
            writer[id] = number
            readers[id] = set()
    return found
