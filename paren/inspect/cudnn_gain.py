"""What cuDNN's own graphs would change on a card, for a report that is made without the card."""

from __future__ import annotations

from math import prod

from paren.forecast.plans import Plans
from paren.inspect.screen import show_seconds
from paren.ir.program import Program
from paren.ir.types import DType
from paren.plan.limits import Limits
from paren.plan.plan import Attention
from paren.text.size import show_bytes


def what_cudnn_changes(program: Program, plans: Plans, limits: Limits | None) -> tuple[str, ...]:
    """A sentence about the copies that a step is spared, none where no step attends: what torch computes is copied to
    where the plan wants it, cuDNN's graphs write it there. `limits` are the card's, if they are known."""
    steps = [step for step in plans.accumulate.steps if isinstance(step, Attention)]
    results = [step.size_of(number) for step in steps for number, made in enumerate(step.results) if made is not None]
    moved = 2 * DType.BFLOAT16.bytes * program.calls * sum(prod(size) for size in results)
    if not moved:
        return ()
    text = f"with the extra cudnn attention writes where the plan wants it: {show_bytes(moved)} of copies a step less"
    return (text if limits is None else f"{text}, {show_seconds(moved / limits.traffic)}",)
