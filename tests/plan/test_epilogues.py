"""Products with the kernel after them: which are found, that they may run as one step, and that this means the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from activated import (
    HIDDEN,
    ROWS,
    WIDTH,
    Activation,
    distance,
    gelu,
    network,
    on_cards,
    plan_of,
    relu,
    silu,
    tanh,
    values_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from joined import join
from networks import batch, emit, linear, matmul, over_rows, reduce_last, state
from plan_runs import run_plan

from paren.ir.evaluate import evaluate
from paren.ir.graph import Builder, Node
from paren.ir.op import Array
from paren.passes.precision import set_precision
from paren.pipeline import Planning, plan_graph
from paren.plan.check import check_plan
from paren.plan.epilogue import Epilogue, Reach, epilogues_of, find_epilogues
from paren.plan.plan import Place, Plan, Product
from paren.plan.traits import CUDA
from paren.runtime.reference import ReferenceDevice
from paren.runtime.task import Cell, Task
from paren.text.errors import InternalError


class JoiningDevice(ReferenceDevice):
    """The definition as a device that joins epilogues; `runs`: how often it did."""

    def __init__(self) -> None:
        self.runs = 0

    def join(self, epilogue: Epilogue, cells: Mapping[int, Cell]) -> tuple[Task, Task]:
        def run() -> None:
            self.runs += 1
            join(epilogue, lambda id, size, dtype: cells[id].values.reshape(-1)[:size])

        return Task(run), Task(lambda: None)


def run_both(plan: Plan, values: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array], int]:
    """The outputs by two steps each, by one, and how many were one."""
    joining, forms = JoiningDevice(), [epilogue.form for epilogue in epilogues_of(plan).values()]
    return run_plan(ReferenceDevice(), plan, values), run_plan(joining, plan, values, forms), joining.runs


@pytest.mark.parametrize("activation", [gelu, relu, silu, tanh])
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_the_kernels_of_activations_and_of_their_gradients_are_joined(activation: Activation, precision: str) -> None:
    """The two layers forward, and the gradient of the first; the last kernel sums as well, so it stays."""
    graph = network(activation, precision=precision)
    plan = on_cards(graph)
    found = epilogues_of(plan)
    assert len(found) == 2
    assert [epilogue.product.n for epilogue in found.values()] == [HIDDEN, HIDDEN]
    forward, backward = found.values()
    assert forward.reaches[forward.result] is backward.reaches[backward.result] is Reach.MATRIX
    assert Reach.COLUMNS in forward.reaches
    assert not backward.keeps
    values = values_of(graph)
    two, one, joined = run_both(plan, values)
    assert joined == 2
    exact = evaluate(network(activation, precision="off"), values)
    for name, value in two.items():
        assert distance(one[name], value) < 0.02, name
        assert distance(one[name], exact[name]) < 1.5 * distance(value, exact[name]) + 1e-3, name
    assert any(not np.array_equal(one[name], value) for name, value in two.items())


@settings(max_examples=25)
@given(st.integers(1, 40), st.integers(1, 5), st.sampled_from([gelu, relu, silu]), st.integers(0, 99))
def test_one_step_means_what_two_do_at_any_size(rows: int, eights: int, activation: Activation, seed: int) -> None:
    graph = network(activation, rows, 8 * eights)
    plan = on_cards(graph)
    two, one, joined = run_both(plan, values_of(graph, seed))
    assert joined == len(plan.epilogues) > 0
    for name, value in two.items():
        assert distance(one[name], value) < 0.1, name


def test_a_result_that_is_not_finite_stays_so() -> None:
    graph = network(relu)
    values = values_of(graph)
    values["x"][0, 3, :] = np.nan
    two, one, _ = run_both(on_cards(graph), values)
    assert np.isnan(two["loss"])
    assert np.isnan(one["loss"])


def test_forms_are_equal_for_layers_that_are_alike_and_for_no_others() -> None:
    builder = Builder("deep")
    x = batch(builder, "x", ROWS, WIDTH)
    for name in ("first", "second", "third"):
        x = gelu(builder, linear(builder, x, name, WIDTH))
    x = relu(builder, linear(builder, x, "fourth", WIDTH))
    x = gelu(builder, linear(builder, x, "fifth", HIDDEN))
    plan = on_cards(set_precision(builder.graph({"x": x}), "bfloat16"))
    forms = [epilogue.form for epilogue in epilogues_of(plan).values()]
    assert len(forms) == 5
    assert forms[0] == forms[1] == forms[2]
    assert len(set(forms)) == 3


def test_a_kernel_that_does_more_than_elements_is_not_joined() -> None:
    """One that sums over rows, and one with an operation that libraries do not have."""

    def normalised(builder: Builder, x: Node) -> Mapping[str, Node]:
        return {"y": builder.apply("sub", x, over_rows(builder, reduce_last(builder, "sum", x), x.shape))}

    def by_row(builder: Builder, x: Node) -> Mapping[str, Node]:
        return {"y": builder.apply("mul", x, over_rows(builder, batch(builder, "r", ROWS), x.shape))}

    def added(builder: Builder, x: Node) -> Mapping[str, Node]:
        return {"y": builder.apply("add", x, batch(builder, "other", ROWS, HIDDEN))}

    def whole(builder: Builder, x: Node) -> Mapping[str, Node]:
        return {"y": builder.apply("mul", x, builder.apply("floor", x))}

    assert [plan_of(work).epilogues for work in (normalised, whole)] == [(), ()]
    for work, reach in ((by_row, Reach.ROWS), (added, Reach.MATRIX)):
        (epilogue,) = epilogues_of(plan_of(work)).values()
        assert reach in [each for number, each in enumerate(epilogue.reaches) if number != epilogue.result]


def test_forms_tell_which_parameter_is_the_result() -> None:
    """A gate after either of its products: the same kernel, with the other of its two matrices from the product."""
    builder = Builder("gated")
    x = batch(builder, "x", ROWS, WIDTH)
    for number in range(2):
        first, second = (matmul(builder, x, state(builder, f"{name}{number}", WIDTH, WIDTH)) for name in "wv")
        gate, other = (first, second) if number else (second, first)
        x = builder.apply("mul", silu(builder, gate), other)
    last = matmul(builder, x, state(builder, "last", WIDTH, WIDTH))
    plan = on_cards(set_precision(builder.graph({"y": last}), "bfloat16"))
    first, second = list(epilogues_of(plan).values())[:2]
    assert first.launch.kernel.digest == second.launch.kernel.digest
    assert {first.result, second.result} == {0, 1}
    assert first.form != second.form


def test_what_depends_on_the_rounding_itself_is_not_joined() -> None:
    """Whether values are equal to one another, as to their maximum, which was taken of rounded ones."""

    def compared(builder: Builder, x: Node) -> Mapping[str, Node]:
        equal = builder.apply("eq", x, batch(builder, "other", ROWS, HIDDEN))
        return {"y": builder.apply("where", equal, x, 0.0)}

    def clipped(builder: Builder, x: Node) -> Mapping[str, Node]:
        return {"y": builder.apply("where", builder.apply("gt", x, 0.5), x, builder.apply("neg", x))}

    assert plan_of(compared).epilogues == ()
    assert len(plan_of(clipped).epilogues) == 1


def test_a_kernel_that_stores_what_libraries_do_not_have_is_not_joined() -> None:
    def flags(builder: Builder, x: Node) -> Mapping[str, Node]:
        return {"flags": builder.apply("gt", x, 0.5), "y": builder.apply("tanh", x)}

    assert plan_of(flags).epilogues == ()


def test_operands_that_do_not_lie_on_16_bytes_are_not_joined() -> None:
    """A part of the columns of another value."""

    def made(begin: int) -> Plan:
        builder = Builder("part")
        x = builder.apply("tanh", batch(builder, "x", ROWS, 3 * WIDTH))
        part = emit(builder, "slice", x, start=(0, begin), stop=(ROWS, begin + WIDTH), step=(1, 1))
        y = builder.apply("tanh", matmul(builder, part, state(builder, "w", WIDTH, HIDDEN)))
        return on_cards(set_precision(builder.graph({"x": x, "y": y}), "bfloat16"))

    for begin in (0, 8, 12):
        plan = made(begin)
        offsets = [step.a.offset * 2 for step in plan.steps if isinstance(step, Product)]
        assert len(plan.epilogues) == sum(offset % 16 == 0 for offset in offsets), (begin, offsets)


@pytest.mark.parametrize("rows", [ROWS, 4000])
def test_a_plan_that_is_short_of_memory_does_without(rows: int) -> None:
    """Nothing is computed again for them, and what fits without them still fits."""
    graph = network(gelu, rows, 4 * HIDDEN)
    joined = plan_graph(graph, planning=Planning(traits=CUDA))
    plain = plan_graph(graph, planning=Planning(traits=replace(CUDA, epilogues=False)))
    assert plain.arena_bytes < joined.arena_bytes
    for budget in (plain.arena_bytes, joined.arena_bytes - 1):
        assert plan_graph(graph, planning=Planning(budget=budget, traits=CUDA)) == plain
    assert plan_graph(graph, planning=Planning(budget=joined.arena_bytes, traits=CUDA)) == joined


def test_products_of_float32_and_sums_over_microbatches_are_not_joined() -> None:
    assert on_cards(network(gelu, precision="off")).epilogues == ()
    assert all(not each.product.accumulate for each in epilogues_of(on_cards(network(gelu))).values())


def test_without_patterns_there_are_none() -> None:
    assert on_cards(network(gelu), patterns=False).epilogues == ()


def test_nothing_of_an_epilogue_shares_bytes_with_the_rest_of_it() -> None:
    """Without them, the result lies where the product's was."""
    plan = on_cards(network(gelu))
    buffers = {buffer.id: buffer for buffer in plan.buffers}
    number, epilogue = next((n, each) for n, each in epilogues_of(plan).items() if not each.keeps)
    result = buffers[epilogue.launch.writes[0]]
    source = buffers[epilogue.product.c.buffer]
    assert result.place is source.place is Place.ARENA
    assert result.offset != source.offset
    assert result.first == source.first == number
    moved = tuple(replace(each, offset=source.offset) if each is result else each for each in plan.buffers)
    first, second = (f"buffer {each.id} ({each.name} {each.type} at {each.span})" for each in (source, result))
    with pytest.raises(InternalError) as caught:
        check_plan(replace(plan, buffers=moved))
    steps = f"steps {number} and {number + 1} are one"
    assert str(caught.value) == f"internal error in plan: {steps}, and {first} and {second} share bytes"
    check_plan(replace(plan, buffers=moved, epilogues=()))


def test_found_are_only_neighbours() -> None:
    plan = on_cards(network(gelu))
    buffers = {buffer.id: buffer for buffer in plan.buffers}
    assert find_epilogues(plan.steps, buffers) == plan.epilogues
    first = plan.epilogues[0]
    apart = (*plan.steps[: first + 1], plan.steps[first], *plan.steps[first + 1 :])
    assert first + 1 in find_epilogues(apart, buffers)
    assert first not in find_epilogues(apart, buffers)
