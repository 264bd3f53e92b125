"""What cuDNN's own graphs would change on a card, for a report that is made without the card."""

from __future__ import annotations

from math import prod

from paren.forecast.plans import Plans
from paren.inspect.screen import show_seconds
from paren.ir.program import Program
from paren.ir.types import DType
from paren.plan.epilogue import epilogues_of
from paren.plan.limits import Limits
from paren.plan.plan import Attention
from paren.text.size import count_of, show_bytes


def what_cudnn_changes(program: Program, plans: Plans, limits: Limits | None) -> tuple[str, ...]:
    """Sentences about what a step is spared, none where it is nothing. `limits` are the card's, if they are known.

    What torch computes of attention is copied to where the plan wants it, cuDNN's graphs write it there. What a kernel
    does with a product element by element need not go through memory."""
    epilogues = epilogues_of(plans.accumulate).values()
    spared = program.calls * sum(epilogue.spared_bytes for epilogue in epilogues)
    found = []
    if moved := _copied_bytes(program, plans):
        text = "with the extra cudnn attention writes where the plan wants it"
        found.append(f"{text}: {show_bytes(moved)} of copies a step less{_seconds(moved, limits)}")
    if spared:
        one, several = (
            "product of a call is one step with the kernel after it",
            "products of a call are one step with the kernel after them",
        )
        text = count_of(len(epilogues), one, several)
        less = f"{show_bytes(spared)} less to move a step{_seconds(spared, limits)}"
        found.append(f"with the extra cudnn {text}, if that is faster: {less}")
    return tuple(found)


def _seconds(moved: int, limits: Limits | None) -> str:
    return "" if limits is None else f", {show_seconds(moved / limits.traffic)}"


def _copied_bytes(program: Program, plans: Plans) -> int:
    steps = [step for step in plans.accumulate.steps if isinstance(step, Attention)]
    results = [step.size_of(number) for step in steps for number, made in enumerate(step.results) if made is not None]
    return 2 * DType.BFLOAT16.bytes * program.calls * sum(prod(size) for size in results)
