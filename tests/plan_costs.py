"""What whole plans move and compute, for tests of what reports say about them."""

from __future__ import annotations

from paren.plan.cost import Cost, step_cost
from paren.plan.plan import Plan


def plan_cost(plan: Plan) -> Cost:
    """The sum over all steps of a plan."""
    buffers = {buffer.id: buffer for buffer in plan.buffers}
    return sum((step_cost(step, buffers) for step in plan.steps), Cost())
