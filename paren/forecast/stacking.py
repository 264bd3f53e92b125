"""Stacking: how many microbatches one call of the training graph takes.

It moves nothing of the training: neither data, nor their order, nor the schedule; only sums are taken in another order.
So it is free to choose, within what fits in memory, but it is an input to the bits of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from paren.forecast.memory import MemoryPlan, memory_of
from paren.forecast.plans import Plans, make_plans, shrink_plans
from paren.ir.program import Program
from paren.lang.elaborate import elaborate_again
from paren.pipeline import PLAIN, Planning
from paren.plan.limits import Limits, step_seconds
from paren.plan.plan import Plan
from paren.text.errors import ParenError
from paren.text.json import Json
from paren.text.size import count_of, show_bytes

CLOSE = 1.05  # predictions nearer than this do not decide
GOOD = 1.02  # what takes no longer than this, times the fastest, is as good: then the least memory decides
FLAT = 0.99  # a further degree is looked at as long as the one before brought the predicted time below this share

# Why a degree was taken. A stored one is that of the checkpoint; it is lowered if it no longer fits.
ONLY, FORCED, STORED, LOWERED = "the only one", "forced", "stored", "lowered"
ALONE = "the only one that fits"
REMEMBERED, PREDICTED, MEASURED = "remembered", "predicted", "measured"
UNTIMED = "as nothing is known about the speed"


@dataclass(frozen=True)
class Candidate:
    """A program evaluated and planned for one degree of stacking."""

    program: Program
    plans: Plans
    memory: MemoryPlan

    @property
    def stacking(self) -> int:
        """Microbatches in a call."""
        return self.program.stacking


def first_candidate(
    program: Program, planning: Planning, limit: int, plans: Callable[[], Plans] | None = None
) -> Candidate:
    """The plans for one microbatch a call, with values computed again if they need more than `limit` bytes. `plans`
    has those of an ordinary planning."""
    if plans is not None and planning == PLAIN:
        ordinary = plans()
        made = replace(ordinary, planning=replace(ordinary.planning, threads=planning.threads))
    else:
        made = make_plans(program, planning)
    return shrink(Candidate(program, made, memory_of(program, made)), limit)


@dataclass(frozen=True)
class Choice:
    """The candidate that a run takes, and why. `predicted` and `measured`: degree -> seconds of a step's calls. `most`:
    the highest degree that fits and the bytes it needs, where that was looked for."""

    candidate: Candidate
    reason: str
    predicted: Mapping[int, float] = field(default_factory=dict)
    measured: Mapping[int, float] = field(default_factory=dict)
    most: tuple[int, int] | None = None

    def describe(self) -> str:
        """`2 of 4 microbatches a call, measured: 1 takes 12.3 ms a step, 2 takes 11.8 ms`."""
        program = self.candidate.program
        text = f"{program.stacking} of {count_of(program.run.microbatches, 'microbatch')} a call, {self.reason}"
        seconds = self.measured or self.predicted
        times = [f"{degree} takes {_milliseconds(seconds[degree])}" for degree in seconds]
        text = f"{text}: {', '.join(times)}" if times else text
        return f"{text}; up to {self.most[0]} fit, in {show_bytes(self.most[1])}" if self.most else text

    @property
    def told(self) -> dict[str, Json]:
        """For the metrics and the report; nothing where there is nothing to stack. `chosen` says why, with times of a
        step in milliseconds by degree; `text` is all of it in words."""
        program = self.candidate.program
        if program.run.microbatches == 1:
            return {}
        chosen: dict[str, Json] = {"reason": self.reason}
        for name, times in (("predicted_ms", self.predicted), ("measured_ms", self.measured)):
            if times:
                chosen[name] = {str(degree): round(1e3 * seconds, 4) for degree, seconds in times.items()}
        if self.most is not None:
            chosen["most"], chosen["most_bytes"] = self.most
        return {
            "stacking": program.stacking,
            "microbatches": program.run.microbatches,
            "rows": program.rows,
            "chosen": chosen,
            "text": self.describe(),
        }


def degrees(program: Program) -> list[int]:
    """The numbers of microbatches that a call may take: the divisors of those of a rank; one, if the result is to be
    the same over several counts of devices."""
    if program.run.reproducible_over is not None:
        return [1]
    own = program.run.microbatches // program.ranks
    return [degree for degree in range(1, own + 1) if own % degree == 0]


def make_candidate(first: Candidate, stacking: int) -> Candidate:
    """The program for another degree of stacking, evaluated again from the texts it was read from, and planned in the
    same way."""
    program = first.program
    stacked = elaborate_again(program, microbatches=program.run.microbatches, stacking=stacking)
    plans = make_plans(stacked, replace(first.plans.planning, budget=None))
    return Candidate(stacked, plans, memory_of(stacked, plans))


def shrink(candidate: Candidate, limit: int) -> Candidate:
    """The candidate, if it needs more than `limit` bytes, with values computed again until it fits or until that helps
    no more."""
    memory = candidate.memory
    budget = limit - (memory.planned - memory.parts["live"])
    if memory.planned <= limit or budget <= 0:
        return candidate
    plans = shrink_plans(candidate.program, candidate.plans, budget)
    return Candidate(candidate.program, plans, memory_of(candidate.program, plans))


def check_degree(program: Program, stacking: int) -> None:
    """Raises E-MEM-003 for a degree that does not divide the microbatches."""
    run, known = program.run, degrees(program)
    if stacking not in known:
        why = (
            "is not 1, and :reproducible-over needs every microbatch alone"
            if run.reproducible_over is not None
            else f"does not divide the {count_of(run.microbatches // program.ranks, 'microbatch')} of "
            + ("a batch" if program.ranks == 1 else "each rank")
        )
        raise ParenError(
            "E-MEM-003",
            f"--stacking {stacking} {why}",
            run.spans.get("microbatches"),
            fix=f"use {_either(known)}, or leave it out",
        )


def forced_candidate(first: Candidate, stacking: int) -> Candidate:
    """The candidate of a degree that was asked for. Raises what `check_degree` raises."""
    check_degree(first.program, stacking)
    return first if stacking == 1 else make_candidate(first, stacking)


def choose(first: Candidate, most: int, limits: Limits, measure: Callable[[Candidate], float] | None = None) -> Choice:
    """The fastest degree, to about 2 %, whose plan needs at most `most` bytes; `first`, the degree 1, is taken to fit.

    Predictions decide, unless some are close to the least: then `measure`, if there is one, gives the seconds of a
    step's calls.
    """
    larger = _larger(first, most)
    fitting = [first]
    predicted = {1: step_time(first, limits)}
    for candidate in larger:
        before = predicted[fitting[-1].stacking]
        fitting.append(candidate)
        predicted[candidate.stacking] = step_time(candidate, limits)
        if predicted[candidate.stacking] > FLAT * before:
            break
    if len(fitting) == 1:
        return Choice(first, ALONE)
    least = min(predicted.values())
    close = [candidate for candidate in fitting if predicted[candidate.stacking] <= CLOSE * least]
    if len(close) == 1 or measure is None:
        return Choice(_smallest_good(close, predicted), PREDICTED, predicted)
    measured = {candidate.stacking: measure(candidate) for candidate in close}
    # What a call costs beyond its steps is not predicted: larger ones are tried as long as the last was the best.
    while _smallest_good(close, measured) is fitting[-1]:
        further = next(larger, None)
        if further is None:
            break
        fitting.append(further)
        close.append(further)
        predicted[further.stacking], measured[further.stacking] = step_time(further, limits), measure(further)
    return Choice(_smallest_good(close, measured), MEASURED, predicted, measured)


def _larger(first: Candidate, most: int) -> Iterator[Candidate]:
    """The degrees above 1, in ascending order, as long as they fit; each is made when it is asked for."""
    for degree in degrees(first.program)[1:]:
        candidate = make_candidate(first, degree)
        if candidate.memory.planned > most:
            return
        yield candidate


def _smallest_good(candidates: Sequence[Candidate], times: Mapping[int, float]) -> Candidate:
    """The candidate that needs least memory among those that are as good as the fastest."""
    least = min(times[candidate.stacking] for candidate in candidates)
    return next(candidate for candidate in candidates if times[candidate.stacking] <= GOOD * least)


def predict(first: Candidate, stacking: int | None, most: int, limits: Limits | None) -> Choice:
    """The choice of a run without its measurement: `stacking` if that was asked for, else what `limits` predict."""
    if stacking is not None:
        return Choice(forced_candidate(first, stacking), FORCED)
    if len(degrees(first.program)) == 1:
        return Choice(first, ONLY)
    if limits is None:
        return Choice(first, UNTIMED)
    return choose(first, most, limits)


def most_stacked(first: Candidate, most: int) -> tuple[int, int] | None:
    """The highest degree whose plan needs at most `most` bytes, and its bytes; None if not even `first` fits.

    Memory grows with the degree: as few of them are planned as a search by halves needs, the highest first.
    """
    if first.memory.planned > most:
        return None
    known = degrees(first.program)
    found = (1, first.memory.planned)
    low, high = 0, len(known)  # the degree at `low` fits, those from `high` on do not
    while high - low > 1:
        middle = len(known) - 1 if high == len(known) and low == 0 else (low + high) // 2
        needed = make_candidate(first, known[middle]).memory.planned
        if needed <= most:
            low, found = middle, (known[middle], needed)
        else:
            high = middle
    return found


def step_time(candidate: Candidate, limits: Limits) -> float:
    """Seconds of a step's calls of the training graph, by the limits of the machine."""
    return candidate.program.calls * _plan_seconds(candidate.plans.accumulate, limits)


def _plan_seconds(plan: Plan, limits: Limits) -> float:
    buffers = {buffer.id: buffer for buffer in plan.buffers}
    return sum(step_seconds(step, buffers, limits) for step in plan.steps)


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f} ms" if seconds >= 0.1 else f"{1e3 * seconds:.3g} ms"


def _either(numbers: list[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}" if first else last
