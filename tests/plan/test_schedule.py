"""Steps that only change state or outputs move ahead of others, and never ahead of what they need."""

from __future__ import annotations

from pathlib import Path

import pytest

from paren.lang.elaborate import elaborate
from paren.passes.assemble import accumulation
from paren.pipeline import prepare
from paren.plan.lower import lower
from paren.plan.schedule import dependencies, schedule

EXAMPLE = Path(__file__).parents[2] / "examples" / "gpt.paren"
SMALL = ["layers=2", "heads=2", "width=16", "seq=8", "vocab=320", "batch=2", "microbatches=1", "held-out=2"]


@pytest.mark.parametrize("precision", ["off", "bfloat16"])
@pytest.mark.parametrize("adding", [True, False])
def test_every_step_follows_what_it_needs(adding: bool, precision: str) -> None:
    """The table that the embedding shares with the head is filled by one step and added to by a later one."""
    program = elaborate(EXAMPLE, overrides=[*SMALL, f'precision="{precision}"'])
    plan = lower(prepare(accumulation(program, adding=adding)))
    moved = schedule(plan)
    assert len(moved.steps) == len(plan.steps)
    place = {id(step): number for number, step in enumerate(moved.steps)}
    order = [place[id(step)] for step in plan.steps]
    assert order != sorted(order)
    for number, needs in enumerate(dependencies(plan.steps)):
        assert all(order[need] < order[number] for need in needs)
