"""Sums down few columns are cut into parts, and give the sums that they gave."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from networks import F32, batch, emit, layer_norm
from plan_runs import cpu, run_plan
from rounded_graphs import integers

from paren.ir.evaluate import evaluate
from paren.ir.graph import Builder, Graph
from paren.ir.types import DType
from paren.plan.check import check_plan
from paren.plan.contractions import normalise_contractions
from paren.plan.lower import lower
from paren.plan.memory import place
from paren.plan.partial_sums import SHORTEST, cut_column_sums
from paren.plan.plan import Launch, Plan
from paren.plan.verify_kernel import verify_kernel


def cut(graph: Graph, fill: int) -> Plan:
    plan = cut_column_sums(lower(normalise_contractions(graph)), fill)
    for step in plan.steps:
        if isinstance(step, Launch):
            verify_kernel(step.kernel)
    placed = place(plan)
    check_plan(placed)
    return placed


def rows_of(plan: Plan) -> list[tuple[int, ...]]:
    return [step.kernel.axes[: step.kernel.rows] for step in plan.steps if isinstance(step, Launch)]


def column_sums(shape: tuple[int, ...], dtype: DType = F32, op: str = "sum") -> Graph:
    """Two sums, one of differences with a value of each row, and something that is made of them."""
    builder = Builder("net")
    x, y = batch(builder, "x", *shape, dtype=dtype), batch(builder, "y", *shape[:-1], dtype=dtype)
    axes = tuple(range(len(shape) - 1))
    widened = builder.broadcast(y, shape, axes)
    first = emit(builder, op, x, axes=axes)
    second = emit(builder, op, builder.apply("mul", x, builder.apply("sub", widened, 2.0)), axes=axes)
    return builder.graph({"first": first, "second": builder.apply("add", second, first)})


@pytest.mark.parametrize("op", ["sum", "max", "min"])
@pytest.mark.parametrize(
    ("shape", "parts"),
    [
        ((1024, 5), (8,)),
        ((3, 1024, 5), (3, 8)),
        ((4, 256, 33), (4, 2)),
        ((7, 300, 2), (7, 3)),
        ((2, 3, 500, 2), (2, 3, 4)),
        ((1000, 64), (8,)),
    ],
)
def test_sums_stay(shape: tuple[int, ...], parts: tuple[int, ...], op: str) -> None:
    graph = column_sums(shape, op=op)
    plan = cut(graph, 40 * shape[-1])
    columns = shape[-1:]
    assert rows_of(plan) == [(*parts, *columns), columns]
    values = integers(graph)
    wanted = evaluate(graph, values)
    for threads in (1, 2):
        for name, found in run_plan(cpu(threads), plan, values).items():
            np.testing.assert_array_equal(found, wanted[name], err_msg=name)


def test_neighbouring_rows_touch_neighbours() -> None:
    """The last row axis of both kernels has stride 1 in all that they read and write of each row of columns."""
    plan = cut(column_sums((16, 256, 8)), 1 << 12)
    for step in plan.steps:
        assert isinstance(step, Launch)
        kernel = step.kernel
        accesses = [s.access for stage in kernel.stages for s in stage.body if hasattr(s, "access")]
        assert {access.steps.get(kernel.rows - 1, 0) for access in accesses} <= {0, 1}


def test_parts_have_a_length() -> None:
    (first, _) = cut(column_sums((4096, 2)), 1 << 20).steps
    assert isinstance(first, Launch)
    assert prod(first.kernel.axes[first.kernel.rows :]) == SHORTEST


@pytest.mark.parametrize(
    ("shape", "fill"),
    [((1024, 4096), 1 << 14), ((100, 5), 1 << 14), ((1021, 5), 1 << 14)],
    ids=["many columns", "short", "a prime number of rows"],
)
def test_what_stays_whole(shape: tuple[int, ...], fill: int) -> None:
    graph = column_sums(shape)
    assert rows_of(cut(graph, fill)) == rows_of(place(lower(normalise_contractions(graph))))


def test_sums_along_rows_and_positions_stay_whole() -> None:
    builder = Builder("net")
    x = batch(builder, "x", 70, 1024)
    outputs = {
        "norm": layer_norm(builder, x, "norm"),
        "place": emit(builder, "argmax", emit(builder, "transpose", x, axes=(1, 0)), axis=1),
    }
    graph = builder.graph(outputs)
    assert rows_of(cut(graph, 1 << 20)) == rows_of(place(lower(normalise_contractions(graph))))
