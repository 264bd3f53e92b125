"""Plans for another kind of device compute the same: here both kinds run on the CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from plan_runs import cpu, run_plan
from test_tile import values_of

import paren
from paren.forecast.plans import make_plans
from paren.ir.types import DType
from paren.passes.assemble import accumulation
from paren.pipeline import PLAIN, Planning, plan_graph
from paren.plan.decision import Pattern
from paren.plan.memory import kernels_of
from paren.plan.plan import Launch, Loop, Product
from paren.plan.traits import CPU, CUDA, Traits, traits_of

EXAMPLES = Path(paren.__file__).parents[1] / "examples"
SMALL = {"layers": 1, "vocab": 515, "seq": 40, "width": 64, "batch": 8}


def test_the_traits_of_a_device() -> None:
    assert [traits_of(name) for name in ("cpu", "reference", "cuda", "cuda:1")] == [CPU, CPU, CUDA, CUDA]
    assert PLAIN.traits is CPU


@pytest.mark.parametrize("precision", ["off", "bfloat16"])
def test_a_training_step(precision: str) -> None:
    program = paren.load(EXAMPLES / "gpt.paren", "smoke", set=SMALL | {"precision": precision}).program
    graph = accumulation(program, adding=False)
    # As on a card, but for sizes: sums cut into parts and the head in chunks of a few rows.
    traits = replace(CUDA, fill=1 << 13, tiles=replace(CUDA.tiles, smallest=100_000, sequential=40_000, least_rows=8))
    values = values_of(graph, 0.1)
    wanted, plan = run_plan(cpu(), plan_graph(graph), values), plan_graph(graph, planning=Planning(traits=traits))
    assert any(kernel.name.startswith("parts_") for kernel in kernels_of(plan).values())
    assert any(isinstance(step, Loop) for step in plan.steps)
    assert all(step.sizes == () for step in plan.steps if isinstance(step, Loop))
    for name, found in run_plan(cpu(), plan, values).items():
        moved = np.linalg.norm(np.ravel(found - wanted[name]))
        tolerance = 1e-5 if precision == "off" else 2e-2
        assert moved <= tolerance * np.linalg.norm(np.ravel(wanted[name])), name


def test_no_product_reads_float32_where_it_rounds() -> None:
    program = paren.load(EXAMPLES / "gpt.paren", "smoke", set=SMALL | {"precision": "bfloat16"}).program
    for plan in make_plans(program, Planning(traits=CUDA)).all.values():
        types = {buffer.id: buffer.type.dtype for buffer in plan.buffers}
        products = [step for step in plan.steps if isinstance(step, Product)]
        operands = {types[matrix.buffer] for step in products if step.rounded for matrix in (step.a, step.b)}
        assert operands <= {DType.BFLOAT16}


def test_the_gradient_of_padded_logits_lies_on_them() -> None:
    """A kernel may write wider rows than it read in its earlier stages, over the same rows."""
    program = paren.load(EXAMPLES / "gpt.paren", "smoke", set=SMALL | {"precision": "bfloat16"}).program
    plan = plan_graph(accumulation(program, adding=False), planning=Planning(patterns=False, traits=CUDA))
    wide = [buffer for buffer in plan.buffers if buffer.type.shape == (8, 40, 520)]
    assert len(wide) == 2
    assert wide[0].offset == wide[1].offset


@pytest.mark.parametrize("traits", [CPU, CUDA])
def test_a_budget_is_kept_on_both_kinds(traits: Traits) -> None:
    """What is made again has the same bits, whatever it was reckoned to cost."""
    settings = SMALL | {"layers": 4, "precision": "bfloat16", "batch": 96, "width": 128}
    graph = accumulation(paren.load(EXAMPLES / "gpt.paren", "smoke", set=settings).program, adding=False)
    plain = plan_graph(graph, planning=Planning(patterns=False, traits=traits))
    small = plan_graph(graph, planning=Planning(False, plain.arena_bytes * 3 // 4, traits))
    assert small.arena_bytes <= plain.arena_bytes * 3 // 4
    assert [d.pattern for d in small.decisions if d.fired and d.pattern is Pattern.RECOMPUTATION]
    values = values_of(graph, 0.1)
    wanted, found = (run_plan(cpu(), plan, values) for plan in (plain, small))
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("late", [True, False])
def test_the_gradient_of_logits_waits_for_no_sum_of_losses(late: bool) -> None:
    """The weight of each example goes into the gradient. In a kernel with the loss it would wait for the logits, and
    the gradient for both: a kernel of its own would read the logits again."""
    settings = SMALL | {"batch": 4, "vocab": 512, "precision": "off"}
    graph = accumulation(paren.load(EXAMPLES / "gpt.paren", "smoke", set=settings).program, adding=False)
    plan = plan_graph(graph, planning=Planning(patterns=False, traits=replace(CUDA, joins_late=late)))
    logits = {buffer.id for buffer in plan.buffers if buffer.type.shape == (4, 40, 512)}
    kernels = [step for step in plan.steps if isinstance(step, Launch) and logits.intersection(step.reads)]
    assert len(kernels) == (2 if late else 1)


def test_what_is_used_late_is_kept_whole_where_nothing_is_made_again() -> None:
    graph = accumulation(paren.load(EXAMPLES / "gpt.paren", "smoke", set=SMALL).program, adding=False)
    tiles = replace(CUDA.tiles, smallest=600_000, sequential=40_000, least_rows=8)
    for again in (True, False):
        # The two kernels that read the logits lie far apart.
        traits = replace(CUDA, joins_late=True, makes_again=again, tiles=tiles)
        found = [d for d in plan_graph(graph, planning=Planning(traits=traits)).decisions if d.pattern is Pattern.HEAD]
        assert {decision.fired for decision in found} == ({True} if again else {False})
