"""Steps that only change state or outputs move ahead of others, and never ahead of what they need."""

from __future__ import annotations

from pathlib import Path

import pytest

from paren.lang.elaborate import elaborate
from paren.passes.assemble import accumulation
from paren.pipeline import prepare
from paren.plan.lower import lower
from paren.plan.plan import Place
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


def test_a_scatter_adds_to_what_a_product_filled() -> None:
    """The gradient of the shared table has one buffer: the head's product fills it, the embedding adds to it."""
    program = elaborate(EXAMPLE, overrides=SMALL)
    plan = lower(prepare(accumulation(program, adding=False)))
    tables = [buffer for buffer in plan.buffers if buffer.type.shape == (320, 16) and buffer.place is Place.ARENA]
    assert len(tables) == 1
    writers = [step for step in plan.steps if tables[0].id in step.writes]
    assert [type(step).__name__ for step in writers] == ["Product", "Launch"]
