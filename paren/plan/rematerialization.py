"""Which values are computed again instead of kept: always those that cost next to nothing, and, where a plan is larger
than its budget, more of them by cost per byte."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from paren.plan.cost import step_cost
from paren.plan.decision import Decision, Pattern
from paren.plan.memory import NOTHING_HELD, Held, busiest_step, place, top_steps
from paren.plan.plan import Launch, Place, Plan
from paren.plan.recompute import Again, Uses, compute_again, find_chain, uses_of
from paren.plan.traits import CPU, Prices
from paren.text.size import count_of

TO_FIT = "run again to fit"  # in the reason of a decision that a budget forced
WORTH = 0.01  # of the arena: less is not worth the work
ROUNDS = 64


@dataclass(frozen=True)
class Kept:
    """Which values count as kept: of at least `smallest` bytes, with at least `far` steps between two uses."""

    smallest: int = 1 << 20
    far: int = 16


@dataclass(frozen=True)
class Candidate:
    """A value that need not be kept, and the seconds that it costs to make it again."""

    again: Again
    bytes: int
    seconds: float


def drop_cheap(plan: Plan, written_slots: Collection[str] = (), held: Held = NOTHING_HELD, kept: Kept = Kept()) -> Plan:
    """The unplaced plan with every large value made again that one kernel makes from what is kept anyway: normalised
    values, activations. Only if that makes the arena smaller."""
    uses = uses_of(plan)
    found = [
        c
        for c in _candidates(plan, uses, kept, CPU.prices)
        if len(c.again.steps) == 1 and isinstance(c.again.steps[0], Launch)
    ]
    chosen = _compatible(found, sum(candidate.bytes for candidate in found))
    changed = _apply(plan, chosen)
    before, after = (place(each, written_slots, held).arena_bytes for each in (plan, changed))
    if before - after <= WORTH * before:
        return plan
    reason = f"{count_of(len(chosen), 'value')} that one kernel makes from what is kept anyway"
    return _decided(changed, reason, before - after)


def fit(
    plan: Plan,
    budget: int,
    written_slots: Collection[str] = (),
    held: Held = NOTHING_HELD,
    kept: Kept = Kept(),
    prices: Prices = CPU.prices,
) -> Plan:
    """The unplaced plan with values made again, the cheapest by byte first, until its arena takes at most `budget`
    bytes, or until there is nothing left that helps. `written_slots` and `held` as for `place`."""
    now = place(plan, written_slots, held)
    start, best = now.arena_bytes, plan
    seconds, more = 0.0, 1
    for _ in range(ROUNDS):
        excess = now.arena_bytes - budget
        if excess <= 0:
            break
        uses, busiest = uses_of(best), busiest_step(now, top_steps(now))
        candidates = _candidates(best, uses, kept, prices)
        found = [c for c in candidates if uses.touching[c.again.value][0] < busiest < c.again.before]
        chosen = _compatible(found, more * excess)
        changed = _apply(best, chosen)
        after = place(changed, written_slots, held)
        if after.arena_bytes < now.arena_bytes:
            seconds += sum(candidate.seconds for candidate in chosen)
            best, now = changed, after
        elif more * excess < sum(candidate.bytes for candidate in found):
            more *= 4  # as much as is missing may not be enough: another peak may take its place
        else:
            break
    if best is plan:
        return plan
    reason = f"{count_of(len(best.steps) - len(plan.steps), 'step')} {TO_FIT}, about {1e3 * seconds:.3g} ms a call"
    return _decided(best, reason, start - now.arena_bytes)


def _apply(plan: Plan, chosen: Sequence[Candidate]) -> Plan:
    # From the end of the plan to its beginning, so that the numbers of the steps before stay what they are.
    for candidate in sorted(chosen, key=lambda c: (-c.again.before, c.again.value)):
        plan, _ = compute_again(plan, candidate.again)
    return plan


def _decided(plan: Plan, reason: str, saved: int) -> Plan:
    decision = Decision(Pattern.RECOMPUTATION, True, reason, plan.steps[0].spans[0], saved)
    return replace(plan, decisions=(*plan.decisions, decision))


def _candidates(plan: Plan, uses: Uses, kept: Kept, prices: Prices) -> Iterator[Candidate]:
    for id, touching in uses.touching.items():
        buffer = uses.buffers[id]
        if buffer.place is not Place.ARENA or buffer.type.bytes < kept.smallest or len(touching) < 2:
            continue
        gap, late = max((after - before, after) for before, after in pairwise(touching))
        if gap < kept.far:
            continue
        again = find_chain(plan, uses, id, late)
        if again is not None:
            yield Candidate(again, buffer.type.bytes, _seconds(again, uses, prices))


def _seconds(again: Again, uses: Uses, prices: Prices) -> float:
    total = 0.0
    for step in again.steps:
        cost = step_cost(step, uses.buffers)
        total += cost.flops / prices.flops + max(cost.bytes / prices.traffic, cost.instructions / prices.instructions)
    return total


def _compatible(found: Iterable[Candidate], excess: int) -> list[Candidate]:
    """The cheapest by byte, as many as the excess takes. None reads what another one gives up."""
    chosen: list[Candidate] = []
    given_up: set[int] = set()
    needed: set[int] = set()
    for candidate in sorted(found, key=lambda c: (c.seconds / c.bytes, c.again.value)):
        if excess <= 0:
            break
        reads = {id for step in candidate.again.steps for id in step.reads}
        if reads & given_up or candidate.again.value in needed:
            continue
        chosen.append(candidate)
        given_up.add(candidate.again.value)
        needed |= reads
        excess -= candidate.bytes
    return chosen
