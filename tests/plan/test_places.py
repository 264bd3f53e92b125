"""Where buffers lie: lifetimes, slots written in place, bytes taken over, offsets; what lay there is not read."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_graphs import mixed_graph, training_graph
from networks import F32, batch, emit, matmul, softmax, state
from random_graphs import graphs, values_for
from unplaced import run_placed, unplaced

from paren.ir.evaluate import evaluate
from paren.ir.graph import Builder, Graph, Node
from paren.ir.op import Array
from paren.ir.types import DType
from paren.passes.simplify import simplify
from paren.plan.check import check_plan
from paren.plan.memory import ALIGNMENT, place
from paren.plan.plan import Buffer, Place, Plan

X, Y = np.arange(6, dtype=np.float32), np.arange(6, dtype=np.float32) * 10


def placed(graph: Graph, written_slots: Collection[str] = ()) -> Plan:
    plan = place(unplaced(graph), written_slots)
    check_plan(plan)
    return plan


def kinds(plan: Plan) -> list[str]:
    return [type(step).__name__ for step in plan.steps]


def two_slots(name: str) -> tuple[Builder, Node, Node]:
    builder = Builder(name)
    return builder, state(builder, "x", 6), state(builder, "y", 6)


def check_values(plan: Plan, **wanted: Array) -> None:
    found = run_placed(plan, {"x": X, "y": Y})
    assert set(found) == set(wanted)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


# State --------------------------------------------------------------------------------------------------------------


def test_a_slot_is_updated_in_place() -> None:
    builder, x, _ = two_slots("step")
    plan = placed(builder.graph({"x": builder.apply("add", x, 1.0)}))
    assert kinds(plan) == ["Launch"]
    assert plan.arena_bytes == 0
    assert [buffer.place for buffer in plan.buffers] == [Place.STATE]
    check_values(plan, x=X + 1)


def test_a_slot_that_is_read_later_is_updated_last() -> None:
    """x takes a value of y and y one of x: one of them has to wait, and takes one copy."""
    builder, x, y = two_slots("crossed")
    plan = placed(builder.graph({"x": builder.apply("add", y, 1.0), "y": builder.apply("mul", x, 2.0)}))
    assert kinds(plan) == ["Launch", "Launch", "Copy"]
    check_values(plan, x=Y + 1, y=X * 2)


def test_two_slots_are_swapped() -> None:
    builder, x, y = two_slots("swap")
    plan = placed(builder.graph({"x": y, "y": x}))
    assert kinds(plan) == ["Copy", "Copy", "Copy"]
    check_values(plan, x=Y, y=X)


def test_three_slots_are_rotated() -> None:
    builder, x, y = two_slots("rotation")
    z = state(builder, "z", 6)
    plan = placed(builder.graph({"x": y, "y": z, "z": x}))
    found = run_placed(plan, {"x": X, "y": Y, "z": X - Y})
    for name, wanted in {"x": Y, "y": X - Y, "z": X}.items():
        np.testing.assert_array_equal(found[name], wanted)


def test_an_output_that_is_the_old_content_of_a_slot_keeps_it() -> None:
    builder, x, _ = two_slots("old")
    plan = placed(builder.graph({"before": x, "x": builder.apply("add", x, 1.0)}))
    assert kinds(plan) == ["Copy", "Launch"]
    check_values(plan, before=X, x=X + 1)


def test_a_slot_can_take_the_old_content_of_another() -> None:
    builder, x, y = two_slots("history")
    plan = placed(builder.graph({"x": builder.apply("add", x, y), "y": x}))
    check_values(plan, x=X + Y, y=X)


def test_one_value_can_fill_several_slots_and_outputs() -> None:
    builder, x, y = two_slots("shared")
    total = builder.apply("add", x, y)
    plan = placed(builder.graph({"x": total, "y": total, "seen": total}))
    assert kinds(plan) == ["Launch", "Copy"]
    check_values(plan, x=X + Y, y=X + Y, seen=X + Y)


def test_outputs_that_are_inputs_need_no_step() -> None:
    builder, x, y = two_slots("inputs")
    plan = placed(builder.graph({"x": x, "seen": y}))
    assert kinds(plan) == []
    assert plan.arena_bytes == 0
    check_values(plan, x=X, seen=Y)


def test_a_slot_takes_an_input_of_the_caller() -> None:
    builder = Builder("given")
    state(builder, "x", 6)
    plan = placed(builder.graph({"x": batch(builder, "y", 6)}))
    assert kinds(plan) == ["Copy"]
    check_values(plan, x=Y)


def test_written_slots_are_filled_without_a_copy() -> None:
    """An initializer names slots that are none of its inputs."""
    builder = Builder("initialize")
    count = emit(builder, "iota", shape=(6,), axis=0, dtype=DType.INT32)
    plan = placed(builder.graph({"w": emit(builder, "cast", count, dtype=F32)}), ["w"])
    assert kinds(plan) == ["Launch"]
    assert [(buffer.name, buffer.place) for buffer in plan.buffers] == [("w", Place.STATE)]
    np.testing.assert_array_equal(run_placed(plan, {})["w"], X)


# Lifetimes and offsets ----------------------------------------------------------------------------------------------


def chain(builder: Builder, *widths: int) -> Graph:
    x = batch(builder, "x", 8, widths[0])
    for number, width in enumerate(widths[1:]):
        x = matmul(builder, x, state(builder, f"w{number}", x.shape[1], width))
    return builder.graph({"z": x})


def test_lifetimes_go_from_the_first_step_to_the_last_reader() -> None:
    plan = placed(chain(Builder("chain"), 16, 32, 64, 16))
    arena = [(b.type.shape, b.first, b.last) for b in plan.buffers if b.place is Place.ARENA]
    assert arena == [((8, 32), 0, 1), ((8, 64), 1, 2), ((8, 16), 2, 3)]
    assert {(b.first, b.last) for b in plan.buffers if b.place is not Place.ARENA} == {(0, 3)}


def test_a_chain_needs_its_two_largest_neighbours() -> None:
    """Rows of 8: a product of n columns takes 32 n bytes."""
    for widths in ([16, 32, 64, 16], [4, 2, 6, 4, 10, 2, 8, 8, 2], [16, 16], [64, 2, 64, 2, 64]):
        sizes = [32 * width for width in widths[1:]]
        plan = placed(chain(Builder("chain"), *widths))
        assert plan.arena_bytes == max(a + b for a, b in zip([0, *sizes], [*sizes, 0], strict=True))


def test_a_kernel_writes_over_an_input_that_ends_with_it() -> None:
    builder = Builder("softmax")
    scores = matmul(builder, batch(builder, "x", 8, 4), state(builder, "w", 4, 32))
    plan = placed(builder.graph({"y": softmax(builder, scores)}))
    assert kinds(plan) == ["Product", "Launch"]
    assert plan.arena_bytes == 8 * 32 * 4


def test_a_kernel_does_not_write_over_an_input_that_it_reads_elsewhere() -> None:
    """Each element of the result reads another row than its own."""
    builder = Builder("turned")
    scores = matmul(builder, batch(builder, "x", 8, 4), state(builder, "w", 4, 8))
    turned = emit(builder, "transpose", scores, axes=(1, 0))
    plan = placed(builder.graph({"y": builder.apply("add", scores, turned)}))
    assert plan.arena_bytes == 2 * 8 * 8 * 4


def test_an_input_that_is_read_later_is_not_written_over() -> None:
    builder = Builder("later")
    scores = matmul(builder, batch(builder, "x", 8, 4), state(builder, "w", 4, 32))
    plan = placed(builder.graph({"y": softmax(builder, scores), "scores": scores}))
    assert plan.arena_bytes == 2 * 8 * 32 * 4


def test_offsets_are_aligned() -> None:
    plan = placed(chain(Builder("odd"), 1, 3, 5, 7, 1))
    assert all(buffer.offset % ALIGNMENT == 0 for buffer in plan.buffers)
    assert plan.arena_bytes % ALIGNMENT == 0


# Random graphs ------------------------------------------------------------------------------------------------------


def sizes(buffers: Collection[Buffer]) -> int:
    return sum(-(-buffer.type.bytes // ALIGNMENT) * ALIGNMENT for buffer in buffers)


def between_bounds(plan: Plan) -> None:
    """The arena holds what is alive at once, where what one step ends and begins may share, and no more than all."""
    arena = [buffer for buffer in plan.buffers if buffer.place is Place.ARENA]
    assert plan.arena_bytes <= sizes(arena)
    for step in range(len(plan.steps)):
        assert plan.arena_bytes >= sizes([buffer for buffer in arena if buffer.first <= step < buffer.last])


@settings(max_examples=60)
@given(st.integers(0, 10**9), st.booleans())
def test_arenas_are_as_large_as_they_must(seed: int, training: bool) -> None:
    between_bounds(placed(simplify(training_graph(seed)) if training else mixed_graph(seed)))


@settings(max_examples=60)
@given(graphs(dtype=DType.FLOAT32), st.integers(0, 10))
def test_what_lies_in_the_arena_before_is_not_read(graph: Graph, seed: int) -> None:
    """Placed plans give the definition's values whatever bytes they find; the bits do not depend on them."""
    plan, values = placed(graph), values_for(graph, seed)
    between_bounds(plan)
    found, other = run_placed(plan, values), run_placed(plan, values, garbage=0x7B)
    for name, wanted in evaluate(graph, values).items():
        np.testing.assert_array_equal(found[name], other[name], err_msg=name)
        np.testing.assert_allclose(found[name], wanted, rtol=2e-4, atol=2e-5, err_msg=name)
