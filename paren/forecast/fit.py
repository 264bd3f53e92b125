"""Whether a run fits in memory, and the smallest change of its file with which it would."""

from __future__ import annotations

from paren.forecast.memory import memory_of
from paren.forecast.plans import Plans, make_plans
from paren.ir.program import Program
from paren.lang.elaborate import elaborate_kept
from paren.text.errors import Note, ParenError
from paren.train.size import show_bytes


def refuse_if_too_large(program: Program, plans: Plans, limit: int) -> None:
    """Raises E-MEM-001, at `:batch`, if the plan needs more than `limit` bytes: with its parts, where most is alive,
    and the fewest microbatches that would fit."""
    memory = memory_of(program, plans)
    planned = memory.planned
    if planned <= limit:
        return
    parts = ", ".join(f"{name} {show_bytes(size)}" for name, size in memory.parts.items() if size)
    raise ParenError(
        "E-MEM-001",
        f"the run needs {show_bytes(planned)}, and {show_bytes(limit)} are free",
        program.run.spans.get("batch"),
        notes=[Note(parts), Note(f"most is alive in the graph {memory.peak_graph} at {memory.peak_place}")],
        fix=_smallest_change(program, planned, limit),
    )


def _smallest_change(program: Program, planned: int, limit: int) -> str:
    """The fewest microbatches that fit. Memory grows about linearly with the rows of a call: the plan of one row gives
    the line, and what the line promises is planned before it is said."""
    batch, rows = program.run.batch, program.rows
    least = _planned_for(program, 1) if rows > 1 else planned
    if least > limit:
        return f"make the model smaller: one example a call needs {show_bytes(least)}"
    fitting = 1 + (limit - least) * (rows - 1) // max(1, planned - least)
    while fitting > 1:
        microbatches = -(-batch // fitting)
        needed = _planned_for(program, -(-batch // microbatches))
        if needed <= limit:
            return f"write :microbatches {microbatches}, which needs {show_bytes(needed)}"
        fitting -= max(1, fitting // 8)
    return f"write :microbatches {batch}, which needs {show_bytes(least)}"


def _planned_for(program: Program, rows: int) -> int:
    """What the run needs with so many rows in a call; the file is evaluated again, from the texts it was read from."""
    settings = {setting.name: setting.value for setting in program.settings}
    smaller = elaborate_kept(program.path, program.variant, settings, program.sources, rows=rows)
    return memory_of(smaller, make_plans(smaller)).planned
