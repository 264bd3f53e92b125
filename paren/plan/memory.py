"""Where every buffer of a plan lies: lifetimes, state written in place, shared bytes, offsets in the arena.

The order of the steps is the graph's; this pass adds only the copies that a state update may need.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from itertools import accumulate
from types import MappingProxyType
from typing import TypeVar

from paren.plan.epilogue import find_epilogues
from paren.plan.kernel import Kernel
from paren.plan.plan import Attention, Buffer, Copy, Heads, Launch, Loop, Matrix, Place, Plan, Product, Step
from paren.plan.sharing import may_share

ALIGNMENT = 64  # bytes; a cache line and the widest vector
SMALL = 1 << 11  # bytes of an allocation that shares its place with none
ALL_SMALL, SMALL_PART = 1 << 14, 32  # bytes of all of them at most, and the part of all others that they may take


@dataclass(frozen=True)
class Held:
    """A vector at the beginning of the arena of which outputs are parts: their offsets in bytes by name, and its size.

    Before an output is written other values may lie in its part, as in all of the arena; what lies between the parts
    is never touched.
    """

    offsets: Mapping[str, int]
    bytes: int


NOTHING_HELD = Held(MappingProxyType({}), 0)


def place(plan: Plan, written_slots: Collection[str] = (), held: Held = NOTHING_HELD, epilogues: bool = False) -> Plan:
    """The plan with state updates resolved, lifetimes and arena offsets filled in.

    Outputs named as a state input, or listed in `written_slots` (slots that the graph fills without reading, as an
    initializer does), end in that slot: written there directly where no later step reads the old content, else copied.
    Outputs that are `held` end in their part of the arena in the same way. With `epilogues`, a product and the launch
    after it that may be one step count as one: what either reads is there until both have ended, and what either
    writes takes nobody's bytes.
    """
    plan = _resolve_state(plan, written_slots, held)
    if epilogues:
        plan = replace(plan, epilogues=find_epilogues(plan.steps, {buffer.id: buffer for buffer in plan.buffers}))
    lifetimes = _lifetimes(plan)
    fixed = {plan.outputs[name]: offset for name, offset in held.offsets.items() if name in plan.outputs}
    allocations = _share(plan, lifetimes, fixed)
    offsets, arena_bytes = _assign(allocations, _reserve(plan, lifetimes, fixed, held.bytes))
    offsets |= fixed
    buffers = tuple(
        replace(
            buffer,
            first=lifetimes[buffer.id][0],
            last=lifetimes[buffer.id][1],
            offset=offsets.get(buffer.id, 0),
        )
        for buffer in plan.buffers
        if buffer.id in lifetimes
    )
    return replace(plan, buffers=buffers, arena_bytes=arena_bytes)


S = TypeVar("S", bound=Step)
Part = TypeVar("Part", Matrix, Heads)


def substitute(step: S, old: int, new: int) -> S:
    """The step with one buffer in place of another."""
    if old not in step.reads and old not in step.writes:
        return step
    match step:
        case Launch(buffers=buffers):
            return replace(step, buffers=tuple(new if b == old else b for b in buffers))
        case Product(a=a, b=b, c=c):
            renamed = [_renamed(matrix, old, new) for matrix in (a, b, c)]
            return replace(step, a=renamed[0], b=renamed[1], c=renamed[2])
        case Attention(operands=operands, results=results, statistics=statistics):
            return replace(
                step,
                operands=tuple(_renamed(heads, old, new) for heads in operands),
                results=tuple(heads and _renamed(heads, old, new) for heads in results),
                statistics=new if statistics == old else statistics,
            )
        case Copy(source=source, target=target):
            return replace(step, source=new if source == old else source, target=new if target == old else target)
        case Loop(body=body, steps=steps):
            pieces = tuple(replace(piece, step=substitute(piece.step, old, new)) for piece in body)
            inside = tuple(substitute(inner, old, new) for inner in steps)
            return replace(step, body=pieces, steps=inside, scratch=new if step.scratch == old else step.scratch)


def _renamed(part: Part, old: int, new: int) -> Part:
    return replace(part, buffer=new) if part.buffer == old else part


# State updates ------------------------------------------------------------------------------------------------------


def _resolve_state(plan: Plan, written_slots: Collection[str], held: Held) -> Plan:
    buffers = {buffer.id: buffer for buffer in plan.buffers}
    slots = {buffer.name: buffer.id for buffer in plan.buffers if buffer.place is Place.STATE}
    next_id = max(buffers, default=-1) + 1
    for name in plan.outputs:
        if (name in written_slots or name in held.offsets) and name not in slots:
            where = Place.ARENA if name in held.offsets else Place.STATE
            filled = buffers[plan.outputs[name]]
            buffers[next_id] = replace(filled, id=next_id, name=name, place=where)
            slots[name] = next_id
            next_id += 1
    outputs = dict(plan.outputs)
    updates = {name: slot for name, slot in slots.items() if name in outputs and outputs[name] != slot}
    steps: list[Step] = []
    for name, slot in updates.items():
        keepers = [key for key, id in outputs.items() if id == slot]
        if keepers:
            # Other outputs are the old content of this slot: keep it aside before anything else.
            buffers[next_id] = replace(buffers[slot], id=next_id, name=f"old {name}", place=Place.ARENA)
            steps.append(Copy(slot, next_id, (buffers[slot].span,), (f"keep {name}",)))
            outputs |= dict.fromkeys(keepers, next_id)
            next_id += 1
    steps += plan.steps
    touching: dict[int, list[int]] = {id: [] for id in buffers}
    for number, step in enumerate(steps):
        for id in {*step.reads, *step.writes}:
            touching[id].append(number)
    last_copies: list[Step] = []
    for name, slot in updates.items():
        result = outputs[name]
        if buffers[result].place is Place.ARENA and _writes_in_place(steps, touching, result, slot):
            for number in touching[result]:
                steps[number] = substitute(steps[number], result, slot)
            touching[slot] = sorted({*touching[slot], *touching[result]})
            outputs = {key: slot if value == result else value for key, value in outputs.items()}
            continue
        last_copies.append(Copy(result, slot, (buffers[result].span,), (f"update {name}",)))
        outputs[name] = slot
    return replace(plan, buffers=tuple(buffers.values()), steps=(*steps, *last_copies), outputs=outputs)


def _writes_in_place(steps: list[Step], touching: dict[int, list[int]], result: int, slot: int) -> bool:
    """Whether `result` may be the slot itself: the slot's old content is not needed once the result is begun."""
    begin = next((i for i in touching[result] if result in steps[i].writes), None)
    touches = touching[slot]
    if begin is None or (touches and touches[-1] > begin):
        return False
    if begin in touches:
        step = steps[begin]
        return isinstance(step, Launch) and _launch_may_share(step, slot, result)
    return True


def _launch_may_share(step: Launch, read: int, written: int) -> bool:
    reading = [i for i, b in enumerate(step.buffers) if b == read]
    writing = [i for i, b in enumerate(step.buffers) if b == written]
    return len(writing) == 1 and all(may_share(step.kernel, i, writing[0]) for i in reading)


# Lifetimes and sharing ----------------------------------------------------------------------------------------------


def _lifetimes(plan: Plan) -> dict[int, tuple[int, int]]:
    """First and last step that touches each buffer in use; outputs live to one past the last step, inputs from 0."""
    lifetimes: dict[int, tuple[int, int]] = {}
    pairs = frozenset(plan.epilogues)
    for i, step in enumerate(plan.steps):
        begin, end = _extent(i, pairs)
        for id in (*step.reads, *step.writes):
            first, _ = lifetimes.get(id, (begin, end))
            lifetimes[id] = (first, end)
    after = len(plan.steps)
    for id in plan.outputs.values():
        lifetimes[id] = (lifetimes.get(id, (0, 0))[0], after)
    for buffer in plan.buffers:
        if buffer.place is not Place.ARENA and buffer.id in lifetimes:
            lifetimes[buffer.id] = (0, after)
    return lifetimes


def _extent(number: int, pairs: Set[int]) -> tuple[int, int]:
    """The first and last of the steps that a step may be one with; `pairs` are numbers of products with epilogues."""
    return number - (number - 1 in pairs), number + (number in pairs)


@dataclass
class Allocation:
    """Bytes of the arena that one buffer, or a chain of buffers written over each other, occupies."""

    bytes: int
    first: int
    last: int
    buffers: list[int]


def _share(plan: Plan, lifetimes: dict[int, tuple[int, int]], fixed: Collection[int]) -> list[Allocation]:
    """One allocation per arena buffer that is not fixed, except that an output may take over the bytes of an input
    that ends with it."""
    by_id = {buffer.id: buffer for buffer in plan.buffers}
    allocation_of: dict[int, Allocation] = {}
    pairs = frozenset(plan.epilogues)
    for i, step in enumerate(plan.steps):
        begin, _ = _extent(i, pairs)
        for written in step.writes:
            buffer = by_id[written]
            if buffer.place is not Place.ARENA or lifetimes[written][0] != begin or written in allocation_of:
                continue
            if written in fixed:
                continue
            size = _aligned(buffer.type.bytes)
            shared = _ending_input(step, i, buffer, by_id, lifetimes, allocation_of) if begin == i else None
            if shared is None:
                allocation_of[written] = Allocation(size, begin, lifetimes[written][1], [written])
            else:
                shared.buffers.append(written)
                shared.last = lifetimes[written][1]
                allocation_of[written] = shared
    unique = {id(allocation): allocation for allocation in allocation_of.values()}
    return list(unique.values())


def _ending_input(
    step: Step,
    i: int,
    written: Buffer,
    by_id: dict[int, Buffer],
    lifetimes: dict[int, tuple[int, int]],
    allocation_of: dict[int, Allocation],
) -> Allocation | None:
    if not isinstance(step, Launch):
        return None
    for read in dict.fromkeys(step.reads):
        if read == written.id or by_id[read].place is not Place.ARENA or lifetimes[read][1] != i:
            continue
        allocation = allocation_of.get(read)
        # Only the last buffer of a chain can be taken over, and only once.
        if allocation is None or allocation.buffers[-1] != read:
            continue
        if allocation.bytes == _aligned(written.type.bytes) and _launch_may_share(step, read, written.id):
            return allocation
    return None


# Offsets ------------------------------------------------------------------------------------------------------------


Placed = tuple[int, int, Allocation]  # (offset, end, allocation)


def _reserve(plan: Plan, lifetimes: dict[int, tuple[int, int]], fixed: Mapping[int, int], size: int) -> list[Placed]:
    """The fixed buffers at their places, and what lies between them for the whole time, sorted by offset."""
    bytes_of = {buffer.id: buffer.type.bytes for buffer in plan.buffers}
    placed: list[Placed] = []
    end = 0
    for id, offset in sorted(fixed.items(), key=lambda item: item[1]):
        if offset > end:
            placed.append((end, offset, Allocation(offset - end, 0, len(plan.steps), [])))
        end = offset + bytes_of[id]
        placed.append((offset, end, Allocation(bytes_of[id], *lifetimes[id], [id])))
    if size > end:
        placed.append((end, size, Allocation(size - end, 0, len(plan.steps), [])))
    return placed


def _assign(allocations: list[Allocation], placed: list[Placed]) -> tuple[dict[int, int], int]:
    """Offsets by size, largest first: each allocation at the lowest gap among those alive at the same time. `placed`
    are there already, sorted by offset.

    Small ones lie behind all others, each for itself: where threads share the rows of large values, a sum over them
    written into what another thread still reads would let all threads meet.
    """
    offsets: dict[int, int] = {}
    total = max((end for _, end, _ in placed), default=0)
    ordered = sorted(allocations, key=lambda a: (-a.bytes, a.first, a.buffers[0]))
    large = [allocation for allocation in ordered if allocation.bytes > SMALL]
    for allocation in large:
        total = max(total, _put(allocation, 0, placed, offsets))
    room = total + min(ALL_SMALL, total // SMALL_PART)
    for allocation in ordered[len(large) :]:
        total = max(total, _put(allocation, total if total + allocation.bytes <= room else 0, placed, offsets))
    return offsets, total


def _put(allocation: Allocation, offset: int, placed: list[Placed], offsets: dict[int, int]) -> int:
    """Places an allocation at the lowest gap from `offset` on. Gives its end."""
    for start, end, other in placed:
        if other.last < allocation.first or allocation.last < other.first:
            continue
        if start - offset >= allocation.bytes:
            break
        offset = max(offset, end)
    insort(placed, (offset, offset + allocation.bytes, allocation), key=lambda entry: entry[:2])
    offsets |= dict.fromkeys(allocation.buffers, offset)
    return offset + allocation.bytes


def _aligned(bytes: int) -> int:
    return -(-bytes // ALIGNMENT) * ALIGNMENT


def busiest_step(plan: Plan, among: Collection[int] | None = None) -> int:
    """The step of a placed plan, one of those `among` if they are given, at which most bytes of the arena are alive; 0
    for a plan without steps."""
    changes = [0] * (len(plan.steps) + 2)  # of the bytes alive from one step to the next
    counted: dict[int, int] = {}  # offset -> last step counted: a chain's buffers share one place, and meet in a step
    for buffer in sorted(plan.buffers, key=lambda each: each.first):
        if buffer.place is Place.ARENA:
            last = min(buffer.last, len(plan.steps))
            first = max(buffer.first, counted.get(buffer.offset, -1) + 1)
            if first <= last:
                changes[first] += buffer.type.bytes
                changes[last + 1] -= buffer.type.bytes
            counted[buffer.offset] = last
    live = list(accumulate(changes))
    return max(range(len(plan.steps)) if among is None else among, key=lambda i: live[i], default=0)


def top_steps(plan: Plan) -> list[int]:
    """The steps of a placed plan while which a buffer is alive that reaches the end of the arena."""
    arena = [buffer for buffer in plan.buffers if buffer.place is Place.ARENA]
    end = max((buffer.offset + buffer.type.bytes for buffer in arena), default=0)
    top = [buffer for buffer in arena if buffer.offset + buffer.type.bytes == end]
    return sorted({step for each in top for step in range(each.first, min(each.last, len(plan.steps) - 1) + 1)})


def kernels_of(plan: Plan) -> dict[str, Kernel]:
    """The distinct kernels of a plan by digest, in order of first use."""
    return {launch.kernel.digest: launch.kernel for launch in launches_of(plan.steps)}


def launches_of(steps: Iterable[Step]) -> Iterator[Launch]:
    """All launches among the steps and in the loops."""
    for step in steps:
        if isinstance(step, Launch):
            yield step
        elif isinstance(step, Loop):
            yield from launches_of(piece.step for piece in step.body)
