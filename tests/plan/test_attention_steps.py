"""Attention as a step of a plan: what it reads and writes where, and that it computes what the formula does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from attended import AttendingDevice
from networks import SPAN
from plan_runs import run_plan

from paren.forecast.memory import memory_of
from paren.forecast.plans import make_plans, run_graphs
from paren.inspect.regions import region_of, report_graph
from paren.ir.evaluate import evaluate
from paren.ir.graph import Builder, Graph
from paren.ir.op import Array
from paren.ir.program import Program
from paren.ir.types import DType, TensorType
from paren.lang.elaborate import elaborate
from paren.pipeline import Planning, plan_graph, prepare
from paren.plan.check_attention import check_attention
from paren.plan.cost import library_bytes, step_cost
from paren.plan.decision import Pattern
from paren.plan.memory import substitute
from paren.plan.plan import Attention, Heads, Plan, Product
from paren.plan.traits import CPU, CUDA
from paren.runtime.cpu import CpuDevice
from paren.runtime.device import Device
from paren.runtime.reference import ReferenceDevice
from paren.text.errors import InternalError

PLANNING = Planning(traits=CUDA)
DEVICE = AttendingDevice()

TEXT = """
(def length 7)
(defdata d (python "f.py" g :fields ((x float32 [length 48]) (y float32 [length 48]))))
(defmodel m ((x float32 [length 48])) {model})
(defrun :data d :loss (mean-squared-error (m x) y) :optimizer (sgd :rate 0.1) :batch 2 :steps 1
  :precision "{precision}")
"""


def program(model: str, precision: str = "bfloat16", **settings: int) -> Program:
    text = TEXT.format(model=model, precision=precision)
    overrides = [f"{name}={value}" for name, value in settings.items()]
    return elaborate("test.paren", read_file=lambda _path: text.encode(), overrides=overrides)


def values_of(graph: Graph) -> dict[str, Array]:
    generator = np.random.default_rng(3)
    found: dict[str, Array] = {}
    for node in graph.inputs:
        name, scale = str(node.attrs["name"]), 0.2 if node.attrs["role"] == "state" else 1.0
        found[name] = (scale * generator.normal(size=node.shape)).astype(node.dtype.numpy)
    return found | {"$valid": np.ones(2, np.float32)}


def steps_of(plan: Plan) -> list[Attention]:
    return [step for step in plan.steps if isinstance(step, Attention)]


def distance(found: Array, wanted: Array) -> float:
    return float(np.linalg.norm(found - wanted) / max(float(np.linalg.norm(wanted)), 1e-6))


MODELS = {
    "causal": "(causal-attention x :heads 6)",
    "all see all": "(multi-head-attention x :heads 3)",
    "grouped": "(causal-attention x :heads 6 :key-heads 2)",
    "one key head": "(multi-head-attention x :heads 3 :key-heads 1 :bias false)",
    "turned": "(causal-attention x :heads 3 :rotary true)",
    "cross": "(join-heads (attention (split-heads (linear x 48) 2) (split-heads x 2) (split-heads (linear x 48) 2)))",
    "of one value": "(let ((s (split-heads (linear x 48) 2))) (join-heads (attention s s s :scale 0.2)))",
}


@pytest.mark.parametrize("length", [1, 7])
@pytest.mark.parametrize("name", MODELS)
def test_losses_and_gradients_are_those_of_the_formula(name: str, length: int) -> None:
    """In bfloat16, against the same graph by its definition, and in float32, against the formula."""
    made = program(MODELS[name], length=length)
    graph = run_graphs(made, CUDA)["accumulate"].graph
    prepared = prepare(graph, CUDA)
    plan = plan_graph(graph, (), PLANNING)
    assert {step.backward for step in steps_of(plan)} == {False, True}
    values = values_of(prepared)
    found, wanted = run_plan(DEVICE, plan, values), evaluate(prepared, values)
    exact = evaluate(run_graphs(program(MODELS[name], "off", length=length))["accumulate"].graph, values)
    for output, value in wanted.items():
        assert distance(found[output], value) < 2e-3, output
        if np.linalg.norm(exact[output]) > 1e-3:  # the bias of keys has no gradient
            assert distance(found[output], exact[output]) < 4e-2, output


def test_no_operand_of_a_projection_is_copied() -> None:
    """q, k and v are read from what the projection made, the next product reads the result, and the gradients are
    written side by side into what the backward of the projection reads."""
    plan = plan_graph(run_graphs(program(MODELS["grouped"]), CUDA)["accumulate"].graph, (), PLANNING)
    forward, backward = steps_of(plan)
    (qkv,) = {heads.buffer for heads in forward.operands}
    assert [heads.offset for heads in forward.operands] == [0, 48, 64]
    assert {heads.strides for heads in forward.operands} == {(7 * 80, 80, 8)}
    assert (forward.heads, forward.groups, forward.queries, forward.keys, forward.width) == (6, 2, 7, 7, 8)
    products = [step for step in plan.steps if isinstance(step, Product)]
    (result,) = forward.results
    assert result is not None
    assert any(step.a.buffer == result.buffer for step in products)
    assert backward.operands[:3] == forward.operands
    assert backward.operands[3] == result
    assert any(step.c.buffer == backward.operands[4].buffer for step in products)
    gradients = [heads for heads in backward.results if heads is not None]
    (whole,) = {heads.buffer for heads in gradients}
    assert [(heads.offset, heads.strides) for heads in gradients] == [
        (heads.offset, heads.strides) for heads in forward.operands
    ]
    assert any(whole in (step.a.buffer, step.b.buffer) for step in products)
    assert whole != qkv


def test_statistics_exist_where_a_gradient_reads_them() -> None:
    plans = make_plans(program(MODELS["causal"]), PLANNING)
    forward, backward = steps_of(plans.accumulate)
    assert forward.statistics is not None
    assert forward.statistics == backward.statistics
    assert forward.statistics in forward.writes
    assert forward.statistics in backward.reads
    (alone,) = steps_of(plans.evaluate)
    assert alone.statistics is None
    assert not alone.backward


def test_without_the_trait_there_is_no_step() -> None:
    for traits in (CPU, replace(CUDA, attends=False)):
        plans = make_plans(program(MODELS["causal"]), Planning(traits=traits))
        assert not any(steps_of(plan) for plan in plans.all.values())


def test_operands_that_do_not_lie_well_are_stored() -> None:
    """Heads whose elements lie apart, and heads that begin within 16 bytes, are read from a copy."""
    half = DType.BFLOAT16
    builder = Builder("apart")
    apart = builder.input("apart", TensorType(half, (2, 5, 8, 3, 1)), "batch", SPAN)
    odd = builder.input("odd", TensorType(half, (2, 6, 3, 9)), "batch", SPAN)
    q = builder.emit("transpose", (apart,), {"axes": (0, 1, 3, 4, 2)}, SPAN)
    cut = {"start": (0, 1, 0, 1), "stop": (2, 6, 3, 9), "step": (1, 1, 1, 1)}
    k = builder.emit("slice", (odd,), cut, SPAN)
    result = builder.emit("attention", (q, k, k), {"causal": True, "scale": 0.5}, SPAN)
    graph = builder.graph({"y": builder.cast(result, DType.FLOAT32)})
    plan = plan_graph(graph, (), PLANNING)
    (step,) = steps_of(plan)
    assert [heads.offset for heads in step.operands] == [0, 0, 0]
    assert step.operands[1] == step.operands[2]
    values: dict[str, Array] = {
        str(node.attrs["name"]): np.random.default_rng(1).normal(size=node.shape).astype(half.numpy)
        for node in graph.inputs
    }
    np.testing.assert_array_equal(run_plan(DEVICE, plan, values)["y"], evaluate(graph, values)["y"])


@pytest.mark.parametrize("device", [CpuDevice(1), ReferenceDevice()])
def test_devices_without_the_step_refuse_it(device: Device) -> None:
    step = steps_of(make_plans(program(MODELS["causal"]), PLANNING).evaluate)[0]
    with pytest.raises(InternalError, match=f"^internal error in runtime: {step.nodes[0]} has no step on this device$"):
        device.attend(step, {})


Spoil = Callable[[Attention], Attention]


def at(heads: Heads | None, **changes: object) -> Heads:
    assert heads is not None
    return replace(heads, **changes)  # type: ignore[arg-type]


SPOILED: dict[str, tuple[int, Spoil, str]] = {
    "groups": (0, lambda s: replace(s, groups=4), "{} has no kernel: 6 heads in 4 groups"),
    "causal": (0, lambda s: replace(s, keys=6), "{} has no kernel: 6 causal keys for 7 queries"),
    "type": (
        1,
        lambda s: replace(s, operands=(at(s.operands[0], buffer=s.statistics), *s.operands[1:])),
        "{} takes float32[2 2 3 7] for operand 0",
    ),
    "reach": (
        0,
        lambda s: replace(s, operands=(*s.operands[:2], at(s.operands[2], offset=72))),
        "{} touches element 1127 of bfloat16[2 7 80]",
    ),
    "gap": (
        1,
        lambda s: replace(s, results=(*s.results[:2], at(s.results[2], offset=48))),
        "{} does not fill bfloat16[2 7 80]",
    ),
    "missing": (1, lambda s: replace(s, results=(*s.results[:2], None)), "{} does not fill bfloat16[2 7 80]"),
    "stride": (
        0,
        lambda s: replace(s, results=(at(s.results[0], strides=(336, 48, 16)),)),
        "{} does not fill bfloat16[2 7 2 3 8]",
    ),
    "statistics": (
        0,
        lambda s: replace(s, statistics=s.operands[0].buffer),
        "{} takes bfloat16[2 7 80] for 84 statistics",
    ),
}


@pytest.mark.parametrize("name", SPOILED)
def test_the_check_finds_what_is_wrong(name: str) -> None:
    plan = make_plans(program(MODELS["grouped"]), PLANNING).accumulate
    number, spoil, message = SPOILED[name]
    step = steps_of(plan)[number]
    buffers = {buffer.id: buffer for buffer in plan.buffers}
    check_attention(step, buffers)
    with pytest.raises(InternalError) as caught:
        check_attention(spoil(step), buffers)
    assert str(caught.value) == f"internal error in plan: {message.format(step.nodes[0])}"


def test_a_renamed_buffer_is_renamed_everywhere() -> None:
    for step in steps_of(make_plans(program(MODELS["grouped"]), PLANNING).accumulate):
        for id in (*step.reads, *step.writes):
            other = substitute(step, id, 999)
            assert 999 in (*other.reads, *other.writes)
            assert id not in (*other.reads, *other.writes)
            assert substitute(other, 999, id) == step


def test_what_a_step_costs() -> None:
    forward, backward = steps_of(make_plans(program(MODELS["grouped"], length=64), PLANNING).accumulate)
    q, k, statistics = 2 * 2 * 64 * 48, 2 * 2 * 64 * 16, 4 * 2 * 6 * 64
    one = step_cost(forward, {})
    assert (one.read, one.written, one.flops) == (q + 2 * k, q + statistics, 2 * 2 * 2 * 6 * 64 * 64 * 8 // 2)
    other = step_cost(backward, {})
    assert (other.read, other.written) == (3 * q + 2 * k + statistics, q + 2 * k)
    assert other.flops == 5 * one.flops // 2


def test_memory_that_libraries_take() -> None:
    """The parts of a plan for a card hold what the backward allocates: gradients, sums and row sums in float32."""
    made = program(MODELS["causal"], length=200)
    plans = make_plans(made, PLANNING)
    forward, backward = steps_of(plans.accumulate)
    like_q = 2 * 2 * 200 * 48
    assert library_bytes(forward) == like_q + 4 * 2 * 6 * 200
    splits = -(-160 // 12)
    assert library_bytes(backward) == 3 * like_q + 4 * 12 * 256 * (1 + splits * 32)
    assert memory_of(made, plans).parts["attention"] == library_bytes(backward)
    shared = steps_of(make_plans(program(MODELS["grouped"], length=200), PLANNING).accumulate)[1]
    assert library_bytes(shared) == library_bytes(backward) - 2 * like_q * 2 // 3 + 2 * like_q


@pytest.mark.parametrize(
    ("model", "precision", "reason"),
    [
        ("causal", "bfloat16", None),
        ("causal", "off", "it is in float32, and the step of the library in bfloat16 or float16"),
    ],
)
def test_a_report_says_what_was_decided(model: str, precision: str, reason: str | None) -> None:
    made = program(MODELS[model], precision)
    plans = make_plans(made, PLANNING)
    (decision,) = (each for each in plans.decisions if each.pattern is Pattern.STEP)
    wanted = reason if reason is not None else "by the library, without scores in memory"
    assert (decision.fired, decision.reason) == (reason is None, wanted)
    assert decision.saved_bytes == 2 * 2 * 6 * 7 * 7
    assert not any(each.pattern is Pattern.STEP for each in make_plans(made).decisions)


def test_how_reports_name_it() -> None:
    plan = make_plans(program(MODELS["grouped"]), PLANNING).accumulate
    forward, backward = steps_of(plan)
    buffers = {buffer.id: buffer for buffer in plan.buffers}
    region = region_of(forward, buffers, None)
    assert (region.kind, region.name) == ("attention", "forward 7x7x8 for 2 6")
    assert region_of(backward, buffers, None).name == "backward 7x7x8 for 2 6"
    report = report_graph("accumulate", plan, 1, "microbatch", None)
    assert (report.tiles, report.count("attention"), report.data["attention"]) == (0, 2, 2)
