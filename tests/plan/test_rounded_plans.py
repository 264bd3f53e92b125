"""Plans of graphs in bfloat16 give the bits of the graph's definition: all values are small integers, so that sums are
exact in any order, and rounding is what is left."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_graphs import mixed_graph, training_graph, values_for
from networks import F32, batch, emit, linear, matmul, state, total
from plan_runs import cpu, planned, run_on_cpu, run_plan
from rounded_graphs import integers, training
from unplaced import run_placed, unplaced

from paren.ir.evaluate import evaluate
from paren.ir.graph import Builder, Graph, Node
from paren.ir.types import DType
from paren.passes.precision import set_precision
from paren.plan.memory import place
from paren.plan.plan import Launch, Place, Product
from paren.plan.traits import CPU
from paren.runtime.reference import ReferenceDevice

HALF = DType.BFLOAT16
APART = replace(CPU, rounds_operands=False)


def check(graph: Graph) -> None:
    values = integers(graph)
    wanted = evaluate(graph, values)
    assert all(np.abs(value).max() < 2**24 for value in wanted.values())
    for found in (
        run_on_cpu(graph, values, 1),
        run_on_cpu(graph, values, 2),
        run_plan(ReferenceDevice(), planned(graph), values),
    ):
        for name, value in wanted.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)
    check_apart(graph)


def check_apart(graph: Graph) -> None:
    """Where products do not round what they read, kernels round it before: once for each value, with the same bits."""
    plan = planned(graph, APART)
    types = {buffer.id: buffer.type.dtype for buffer in plan.buffers}
    products = [step for step in plan.steps if isinstance(step, Product) and step.rounded]
    assert all(types[matrix.buffer] is HALF for step in products for matrix in (step.a, step.b))
    values = values_for(graph, 1)
    wanted, found = run_on_cpu(graph, values, 1), run_plan(cpu(1), plan, values)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("adding", [True, False])
@pytest.mark.parametrize(("rows", "width", "hidden"), [(1, 1, 1), (1, 7, 3), (7, 5, 33), (33, 130, 17), (64, 64, 64)])
def test_a_network(rows: int, width: int, hidden: int, adding: bool) -> None:
    builder = Builder("net")
    h = builder.apply("maximum", linear(builder, batch(builder, "x", rows, width), "first", hidden), 0.0)
    y = linear(builder, builder.apply("add", h, linear(builder, h, "inner", hidden)), "last", 2)
    check(training(builder, total(builder, builder.apply("abs", y)), adding=adding))


@pytest.mark.parametrize(("heads", "length", "width"), [(1, 1, 2), (2, 7, 3), (3, 33, 4)])
def test_heads(heads: int, length: int, width: int) -> None:
    """Queries, keys and values are slices and transposes of one projection, the result is joined again."""
    builder = Builder("net")
    whole = linear(builder, batch(builder, "x", length, 5), "qkv", 3 * heads * width)
    parts = [
        emit(builder, "slice", whole, start=(0, i * heads * width), stop=(length, (i + 1) * heads * width), step=(1, 1))
        for i in range(3)
    ]
    q, k, v = (
        emit(builder, "transpose", emit(builder, "reshape", part, shape=(length, heads, width)), axes=(1, 0, 2))
        for part in parts
    )
    scores = emit(builder, "contract", q, k, batch=((0,), (0,)), contracting=((2,), (2,)))
    kept = builder.apply("minimum", builder.apply("maximum", scores, -2.0), 2.0)
    mixed = emit(builder, "contract", kept, v, batch=((0,), (0,)), contracting=((2,), (1,)))
    joined = emit(builder, "reshape", emit(builder, "transpose", mixed, axes=(1, 0, 2)), shape=(length, heads * width))
    signs = builder.apply("sign", linear(builder, joined, "out", 3))
    y = builder.apply("mul", linear(builder, joined, "out", 3), signs)
    check(training(builder, total(builder, y)))


def test_a_table_that_the_head_shares() -> None:
    builder = Builder("net")
    table, ids = state(builder, "table", 11, 6), batch(builder, "ids", 9, dtype=DType.INT32)
    h = builder.apply("maximum", emit(builder, "take", table, ids), 0.0)
    logits = emit(builder, "contract", h, table, batch=((), ()), contracting=((1,), (1,)))
    for adding in (True, False):
        check(training(builder, total(builder, builder.apply("abs", logits)), adding=adding))


@pytest.mark.parametrize("stride", [1, 2])
def test_patches(stride: int) -> None:
    builder = Builder("net")
    image, weight = batch(builder, "image", 2, 3, 7, 5), state(builder, "weight", 4, 3, 3, 3)

    def convolved(x: Node) -> Node:
        windows = emit(
            builder, "patches", x, kernel=(3, 3), stride=(stride, stride), padding=((1, 1), (1, 1)), dilation=(1, 1)
        )
        product = emit(
            builder, "contract", windows, weight, batch=((), ()), contracting=((1, 2, 3), (1, 2, 3))
        )  # batch, height, width, channels
        return emit(builder, "transpose", product, axes=(0, 3, 1, 2))

    first = builder.apply("maximum", convolved(image), 0.0)
    narrow = emit(builder, "slice", first, start=(0, 0, 0, 0), stop=(2, 3, *first.shape[2:]), step=(1, 1, 1, 1))
    check(training(builder, total(builder, builder.apply("abs", convolved(narrow)))))


def test_products_read_masters_and_write_halves() -> None:
    """No step rounds a parameter, none widens a result: products do both. What the backward reads is in bfloat16."""
    builder = Builder("net")
    h = builder.apply("tanh", linear(builder, batch(builder, "x", 32, 16), "first", 24))
    graph = training(builder, total(builder, builder.apply("mul", *2 * (linear(builder, h, "last", 8),))))
    plan = planned(graph)
    buffers = {buffer.id: buffer for buffer in plan.buffers}
    products = [step for step in plan.steps if isinstance(step, Product)]
    assert all(step.rounded for step in products)
    masters = {buffer.id for buffer in plan.buffers if buffer.name in ("first.weight", "last.weight")}
    assert sum(matrix.buffer in masters for step in products for matrix in (step.a, step.b)) == 3
    assert not any(masters & set(step.buffers) for step in plan.steps if isinstance(step, Launch))
    for step in products:
        result = buffers[step.c.buffer]
        assert result.type.dtype is (HALF if result.place is Place.ARENA else F32)
    large = [buffer for buffer in plan.buffers if buffer.place is Place.ARENA and buffer.type.size >= 32 * 8]
    assert {buffer.type.dtype for buffer in large} == {HALF}


def test_an_input_that_several_products_round_is_rounded_by_each() -> None:
    """Also as a transposed view; a graph's own rounding of it, which something else reads, has its buffer."""
    builder = Builder("net")
    x, w = batch(builder, "x", 6, 6), state(builder, "w", 6, 6)
    turned = emit(builder, "transpose", w, axes=(1, 0))
    y = matmul(builder, matmul(builder, x, w), turned)
    half = emit(builder, "cast", emit(builder, "cast", w, dtype=HALF), dtype=F32)
    graph = set_precision(builder.graph({"y": y, "rounded": half}), "bfloat16")
    check(graph)
    assert all(step.rounded for step in planned(graph).steps if isinstance(step, Product))


def test_parameters_are_rounded_once_where_products_do_not_round() -> None:
    """One launch for each of them, that the forward and the backward share; equal ones share a kernel."""
    builder = Builder("net")
    h = builder.apply("tanh", linear(builder, batch(builder, "x", 32, 16), "first", 16))
    graph = training(builder, total(builder, builder.apply("mul", *2 * (linear(builder, h, "last", 16),))))
    plan = planned(graph, APART)
    names = {buffer.id: buffer.name for buffer in plan.buffers}
    casts = [s for s in plan.steps if isinstance(s, Launch) and names[s.buffers[0]] in ("first.weight", "last.weight")]
    assert [names[step.buffers[0]] for step in casts] == ["first.weight", "last.weight"]
    assert casts[0].kernel.digest == casts[1].kernel.digest
    halves = {step.buffers[1] for step in casts}
    assert sum(m.buffer in halves for s in plan.steps if isinstance(s, Product) for m in (s.a, s.b)) == 3


@settings(derandomize=True, max_examples=60)
@given(st.integers(0, 10**9), st.booleans())
def test_random_graphs_keep_their_value(seed: int, trains: bool) -> None:
    """To what a rounding can move where another order of sums decides it."""
    plain = training_graph(seed) if trains else mixed_graph(seed)
    graph = set_precision(plain, "bfloat16", [name for name in plain.outputs if name.startswith("gradient")])
    values = values_for(graph, seed)
    found, wanted = run_placed(place(unplaced(graph)), values), evaluate(graph, values)
    for name, value in wanted.items():
        if value.dtype == np.float32:
            moved = np.linalg.norm((found[name] - value).astype(np.float64).ravel())
            assert moved <= 2e-2 * max(1e-3, np.linalg.norm(value.astype(np.float64).ravel())), name
