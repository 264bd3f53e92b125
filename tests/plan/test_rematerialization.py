"""Values that are computed again have the same bits: with any budget a plan computes what it computes with none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_graphs import training_graph, values_for
from plan_runs import cpu, run_plan

from paren.forecast.plans import run_graphs
from paren.ir.graph import Graph
from paren.ir.op import Array
from paren.lang.elaborate import elaborate
from paren.passes.assemble import accumulation
from paren.pipeline import Planning, plan_graph, prepare
from paren.plan.check import check_plan
from paren.plan.decision import Pattern
from paren.plan.lower import lower
from paren.plan.memory import kernels_of, place
from paren.plan.plan import Launch, Plan
from paren.plan.recompute import compute_again, find_chain, only_results, uses_of
from paren.plan.rematerialization import Kept, drop_cheap, fit
from paren.plan.schedule import schedule
from paren.plan.tile import tile
from paren.plan.traits import TileSizes
from paren.plan.verify_kernel import verify_kernel

GPT = Path(__file__).resolve().parents[2] / "examples" / "gpt.paren"
ALL = Kept(smallest=64, far=3)
SMALL = ("layers=3", "heads=2", "width=16", "seq=24", "vocab=256", "batch=2", "microbatches=1", "steps=9", "warmup=1")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return accumulation(elaborate(GPT, overrides=SMALL), adding=True)


@pytest.fixture(scope="module")
def values(graph: Graph) -> dict[str, Array]:
    generator = np.random.default_rng(1)
    values: dict[str, Array] = {}
    for node in graph.inputs:
        kind = node.dtype.numpy.kind
        array = generator.standard_normal(node.shape) if kind == "f" else generator.integers(0, 9, node.shape)
        values[str(node.attrs["name"])] = np.asarray(array).astype(node.dtype.numpy)
    return values


def checked(plan: Plan) -> Plan:
    for kernel in kernels_of(plan).values():
        verify_kernel(kernel)
    placed = place(plan)
    check_plan(placed)
    return placed


def assert_same_bits(found: dict[str, Array], wanted: dict[str, Array]) -> None:
    for name, array in wanted.items():
        assert found[name].tobytes() == array.tobytes(), name


def test_any_budget_gives_the_same_bits(graph: Graph, values: dict[str, Array]) -> None:
    unplaced = schedule(lower(prepare(graph)))
    plain = checked(unplaced)
    wanted = run_plan(cpu(), plain, values)
    sizes = []
    for part in (0.9, 0.7, 0.5, 0.3, 0.0):
        plan = checked(fit(unplaced, int(part * plain.arena_bytes), kept=ALL))
        sizes.append(plan.arena_bytes)
        assert_same_bits(run_plan(cpu(), plan, values), wanted)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] <= 0.9 * plain.arena_bytes
    assert sizes[-1] < 0.6 * plain.arena_bytes


def test_what_one_budget_reaches_a_larger_one_reaches_too() -> None:
    """With the gradients in the arena, where the most is often alive at a step at which nothing can be given up."""
    each = run_graphs(elaborate(GPT, overrides=("layers=6", *SMALL[1:4], "vocab=2000", *SMALL[5:])))["accumulate"]
    unplaced = schedule(lower(prepare(each.graph)))

    def size(budget: int) -> int:
        plan = fit(unplaced, budget, each.written, each.held, ALL)
        return place(plan, each.written, each.held).arena_bytes

    plain = place(unplaced, each.written, each.held).arena_bytes
    least = min(size(int(part * plain)) for part in (0.0, 0.5, 0.7))
    for number in range(0, 9, 2):
        budget = least + (plain - least) * number // 8
        assert size(budget) <= budget


def test_cheap_values_are_made_again_with_the_same_bits(graph: Graph, values: dict[str, Array]) -> None:
    unplaced = schedule(lower(prepare(graph)))
    plain, dropped = checked(unplaced), drop_cheap(unplaced, kept=ALL)
    plan = checked(dropped)
    assert plan.arena_bytes < 0.95 * plain.arena_bytes
    assert_same_bits(run_plan(cpu(), plan, values), run_plan(cpu(), plain, values))
    (decision,) = [d for d in dropped.decisions if d.pattern is Pattern.RECOMPUTATION]
    assert decision.saved_bytes == plain.arena_bytes - plan.arena_bytes


def test_loops_are_run_again_too(graph: Graph, values: dict[str, Array]) -> None:
    tiled = tile(schedule(lower(prepare(graph))), TileSizes(smallest=1, parallel=512, sequential=512, least_rows=8))
    wanted = run_plan(cpu(), checked(tiled), values)
    plan = fit(tiled, 0, kept=ALL)
    assert any(buffer.name == "tiles again" for buffer in plan.buffers)
    assert_same_bits(run_plan(cpu(), checked(plan), values), wanted)


def test_a_normalised_value_is_made_from_what_is_kept(graph: Graph) -> None:
    """The kernel that adds a residual and normalises it, cut down to the normalised value, loads the sum: it reads
    neither the projection nor its bias any more."""
    plan = schedule(lower(prepare(graph)))
    uses = uses_of(plan)
    found = 0
    for number, step in enumerate(plan.steps):
        if isinstance(step, Launch) and len(step.writes) > 2 and number > 2:
            *kept, last = step.writes
            cut = only_results(step, {last}, kept)
            if set(cut.reads) & set(kept):
                assert len(cut.reads) < len(step.reads) + len(kept)
                assert uses.buffers[last].id in cut.writes
                verify_kernel(cut.kernel)
                found += 1
    assert found


def test_what_changes_state_is_not_run_again(graph: Graph) -> None:
    plan = schedule(lower(prepare(graph)))
    uses = uses_of(plan)
    end = len(plan.steps)
    for id in plan.outputs.values():
        assert find_chain(plan, uses, id, end) is None


def test_a_copy_has_its_own_name_and_the_late_users(graph: Graph) -> None:
    plan = schedule(lower(prepare(graph)))
    uses = uses_of(plan)
    value = next(id for id, t in uses.touching.items() if len(t) > 1 and t[-1] - t[-2] > 10 and id in uses.writers)
    late = uses.touching[value][-1]
    again = find_chain(plan, uses, value, late)
    assert again is not None
    changed, copy = compute_again(plan, again)
    by_id = {buffer.id: buffer for buffer in changed.buffers}
    assert by_id[copy].name == f"{by_id[value].name} again"
    assert [n for n in uses_of(changed).touching[value] if n >= late + len(again.steps)] == []


@settings(max_examples=15, derandomize=True)
@given(st.integers(0, 10**6))
def test_random_training_graphs(seed: int) -> None:
    graph = training_graph(seed)
    values = values_for(graph, seed)
    unplaced = schedule(lower(prepare(graph)))
    wanted = run_plan(cpu(), checked(unplaced), values)
    assert_same_bits(run_plan(cpu(), checked(fit(unplaced, 0, kept=Kept(1, 2))), values), wanted)
    tiled = tile(unplaced, TileSizes(smallest=1, parallel=16, sequential=16, least_rows=1))
    found = run_plan(cpu(), checked(tiled), values)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=2e-4, atol=2e-4 * max(1.0, float(np.abs(array).max())))


def test_planning_takes_a_budget_and_can_leave_patterns_out(graph: Graph) -> None:
    plain = plan_graph(graph, planning=Planning(patterns=False))
    small = plan_graph(graph, planning=Planning(budget=plain.arena_bytes // 2))
    assert small.arena_bytes <= plain.arena_bytes
    assert not any(d.fired and d.pattern is Pattern.RECOMPUTATION for d in plain.decisions)
