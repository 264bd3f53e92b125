"""Whether a run fits in memory, and the smallest change with which it would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from paren.forecast.memory import MemoryPlan, memory_of, state_parts
from paren.forecast.plans import lay_out, make_plans
from paren.forecast.stacking import Candidate
from paren.ir.program import Program
from paren.lang.elaborate import elaborate_again
from paren.pipeline import Planning
from paren.plan.decision import Pattern
from paren.plan.rematerialization import TO_FIT
from paren.runtime.memory import Available
from paren.text.errors import Note, ParenError
from paren.text.size import show_beside, show_bytes


def refuse_if_too_large(candidate: Candidate, free: Available) -> None:
    """Raises E-MEM-001, at `:batch`, if the plan needs more than is free: with its parts, where most is alive, and the
    smallest change that would fit."""
    program, memory = candidate.program, candidate.memory
    planned = memory.planned
    if planned <= free.bytes:
        return
    parts = ", ".join(f"{name} {show_bytes(size)}" for name, size in memory.parts.items() if size)
    raise ParenError(
        "E-MEM-001",
        f"the run needs {show_beside(planned, free.bytes)}, and {show_beside(free.bytes, planned)} are free",
        program.run.spans.get("batch"),
        notes=[
            Note(f"it would hold {parts}"),
            Note(f"most is alive in the graph {memory.peak_graph} at {memory.peak_place}"),
            Note(describe_limit(free)),
            *(Note(f"in {name} {reason}") for name, reason in _made_again(candidate)),
        ],
        fix=smallest_change(program, planned, free.bytes, candidate.plans.planning),
    )


def name_the_plan(error: ParenError, memory: MemoryPlan) -> ParenError:
    """An allocation that the system refused (E-MEM-002), with what was planned in all."""
    parts = ", ".join(f"{name} {show_bytes(size)}" for name, size in memory.parts.items() if size)
    planned = Note(f"the run's plan is {show_bytes(memory.planned)}: {parts}")
    return ParenError(error.code, error.message, error.span, notes=[*error.notes, planned], fix=error.fix)


def _made_again(candidate: Candidate) -> Iterator[tuple[str, str]]:
    """Graphs in which values are computed again to fit, and how much."""
    for name, plan in candidate.plans.all.items():
        for decision in plan.decisions:
            if decision.pattern is Pattern.RECOMPUTATION and TO_FIT in decision.reason:
                yield name, decision.reason


def describe_limit(free: Available) -> str:
    """Where the number of free bytes comes from, and who has the rest."""
    limit = f"the limit is the {free.limit}"
    used = free.total - free.bytes
    others = f"; {free.others}" if free.others else ""
    return f"{limit}: of {show_bytes(free.total)} in all, {show_bytes(used)} are in use{others}" if used else limit


def smallest_change(program: Program, planned: int, limit: int, planning: Planning) -> str:
    """A lower stacking if there is one; else the fewest microbatches that fit.

    Memory grows about linearly with the rows of a call: the plan of one row gives the line, and what the line promises
    is planned before it is said.
    """
    if program.stacking > 1:
        needed = _planned_for(program, program.run.microbatches, planning)
        if needed <= limit:
            return f"leave out --stacking: one microbatch a call needs {show_beside(needed, limit)}"
    batch, rows = program.run.batch, program.rows
    least = _planned_for(program, batch, planning) if rows > 1 else planned
    if least > limit:
        state = sum(state_parts(program, lay_out(program)).values())
        return (
            f"make the model smaller: one example a call needs {show_beside(least, limit)}, "
            f"{show_bytes(state)} of it for parameters and what goes with them"
        )
    fitting = 1 + (limit - least) * (rows - 1) // max(1, planned - least)
    while fitting > 1:
        microbatches = -(-batch // fitting)
        needed = _planned_for(program, microbatches, planning)
        if needed <= limit:
            return f"write :microbatches {microbatches}, which needs {show_beside(needed, limit)}"
        fitting -= max(1, fitting // 8)
    return f"write :microbatches {batch}, which needs {show_beside(least, limit)}"


def _planned_for(program: Program, microbatches: int, planning: Planning) -> int:
    """What the run needs with so many microbatches, each alone in a call; the file is evaluated again, from the texts
    it was read from."""
    smaller = elaborate_again(program, microbatches=microbatches)
    return memory_of(smaller, make_plans(smaller, replace(planning, budget=None))).planned
