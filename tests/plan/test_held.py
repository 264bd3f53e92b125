"""Outputs that lie at given places of the arena: other values share their bytes before, nothing ever lies between."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from plan_runs import cpu, run_plan

from paren.ir.op import Array
from paren.lang.elaborate import elaborate
from paren.passes.assemble import accumulation, gradient_slot
from paren.pipeline import Planning, plan_graph
from paren.plan.check import check_plan
from paren.plan.memory import Held
from paren.plan.plan import Place, Plan
from paren.runtime.executor import Executable

TEXT = """
(defdata pairs (python "p.py" pairs :fields ((x float32 [50]) (y float32 [3])) :split ((train 1.0))))
(defmodel net ((x float32 [50])) (linear (relu (linear (relu (linear x 33)) 31)) 3))
(defrun :data pairs :loss (mean-squared-error (net x) y) :optimizer (sgd :rate 0.1) :batch 40 :steps 1 :seed 1)
"""


@pytest.fixture
def plans(tmp_path: Path) -> tuple[Plan, Plan, Held]:
    """A training graph with gradients as states, and held in the arena with gaps between them."""
    (tmp_path / "net.paren").write_text(TEXT)
    graph = accumulation(elaborate(tmp_path / "net.paren"), adding=False)
    names = [name for name in graph.outputs if name.startswith(gradient_slot(""))]
    offsets, end = {}, 128
    for name in names:
        offsets[name] = end
        end += -(-graph.outputs[name].type.bytes // 64) * 64 + 64
    held = Held(offsets, end)
    planning = Planning(patterns=False)
    return plan_graph(graph, (), planning), plan_graph(graph, (), planning, held), held


def aligned(array: Array) -> Array:
    copy = cpu().allocate(max(64, array.nbytes))[: array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def test_results_are_the_same_and_gaps_stay_as_they_were(plans: tuple[Plan, Plan, Held]) -> None:
    plain, plan, held = plans
    check_plan(plan)
    generator = np.random.default_rng(0)
    values = {
        buffer.name: (generator.standard_normal(buffer.type.shape)).astype(buffer.type.dtype.numpy)
        for buffer in plain.buffers
        if buffer.place is not Place.ARENA
    }
    wanted = run_plan(cpu(), plain, values)
    found = run_plan(cpu(), plan, values)
    for name, array in wanted.items():
        assert found[name].tobytes() == array.tobytes()
    arena = cpu().allocate(plan.arena_bytes)
    arena[...] = 0xA5
    state = {name: aligned(array) for name, array in values.items()}
    outputs = Executable(cpu(), plan).run(state, state, arena)
    gaps = np.ones(held.bytes, bool)
    for name, offset in held.offsets.items():
        gaps[offset : offset + outputs[name].nbytes] = False
        part = arena[offset : offset + outputs[name].nbytes]
        assert part.tobytes() == wanted[name].tobytes()
    assert gaps.sum() > 128
    assert (arena[: held.bytes][gaps] == 0xA5).all()


def test_values_lie_where_gradients_will_be(plans: tuple[Plan, Plan, Held]) -> None:
    plain, plan, held = plans
    before = [
        buffer
        for buffer in plan.buffers
        if buffer.place is Place.ARENA and buffer.name not in held.offsets and buffer.offset < held.bytes
    ]
    assert before
    assert plan.arena_bytes < held.bytes + plain.arena_bytes
