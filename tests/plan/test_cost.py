"""Bytes and operations of steps, counted by hand."""

from __future__ import annotations

from networks import batch, emit, linear, matmul, over_rows, softmax, state
from plan_costs import plan_cost

from paren.ir.graph import Builder, Graph
from paren.ir.types import DType
from paren.pipeline import plan_graph
from paren.plan.cost import Cost, step_cost
from paren.plan.plan import Copy, Launch


def cost(graph: Graph) -> Cost:
    return plan_cost(plan_graph(graph))


def test_a_product_reads_its_operands_once() -> None:
    builder = Builder("product")
    result = matmul(builder, batch(builder, "x", 8, 16), state(builder, "w", 16, 32))
    assert cost(builder.graph({"y": result})) == Cost(4 * (8 * 16 + 16 * 32), 4 * 8 * 32, 2 * 8 * 16 * 32)


def test_an_accumulating_product_reads_its_result_too() -> None:
    builder = Builder("gradient")
    w = state(builder, "w", 16, 32)
    added = builder.apply("add", w, matmul(builder, batch(builder, "x", 16, 8), batch(builder, "g", 8, 32)))
    expected = Cost(4 * (16 * 8 + 8 * 32 + 16 * 32), 4 * 16 * 32, 2 * 8 * 16 * 32)
    assert cost(builder.graph({"w": added})) == expected


def test_a_batch_of_products_reads_all_matrices() -> None:
    builder = Builder("batched")
    a, b = batch(builder, "a", 3, 8, 16), batch(builder, "b", 3, 16, 4)
    result = emit(builder, "contract", a, b, batch=((0,), (0,)), contracting=((2,), (1,)))
    assert cost(builder.graph({"y": result})) == Cost(4 * 3 * (8 * 16 + 16 * 4), 4 * 3 * 8 * 4, 2 * 3 * 8 * 16 * 4)


def test_a_kernel_reads_a_repeated_row_once() -> None:
    """A product and its bias: the kernel reads the product and one row, and adds once an element."""
    builder = Builder("layer")
    plan = plan_graph(builder.graph({"y": linear(builder, batch(builder, "x", 8, 16), "layer", 32)}))
    (kernel,) = [step for step in plan.steps if isinstance(step, Launch)]
    buffers = {buffer.id: buffer for buffer in plan.buffers}
    assert step_cost(kernel, buffers) == Cost(4 * (8 * 32 + 32), 4 * 8 * 32, 0, 8 * 32, 8 * 32)


def test_what_a_stage_loads_again_is_not_read_again() -> None:
    """A softmax loads its row three times and reads it once; each element is worth an exp of 12 instructions or two."""
    builder = Builder("softmax")
    found = cost(builder.graph({"y": softmax(builder, batch(builder, "x", 8, 32))}))
    assert (found.read, found.written) == (4 * 8 * 32, 4 * 8 * 32)
    assert found.instructions > found.operations + 8 * 32 * 11


def test_a_gather_reads_what_it_takes() -> None:
    builder = Builder("gather")
    table, rows = state(builder, "table", 1000, 16), batch(builder, "rows", 6, dtype=DType.INT32)
    found = cost(builder.graph({"y": emit(builder, "take", table, rows)}))
    assert (found.read, found.written) == (4 * (6 + 6 * 16), 4 * 6 * 16)


def test_a_scatter_reads_and_writes_what_it_adds_to() -> None:
    builder = Builder("scatter")
    table, rows = state(builder, "table", 1000, 16), batch(builder, "rows", 6, dtype=DType.INT32)
    values = batch(builder, "values", 6, 16)
    found = cost(builder.graph({"table": emit(builder, "scatter_add", table, rows, values)}))
    assert (found.read, found.written, found.operations) == (4 * (6 + 6 * 16 + 6 * 16), 4 * 6 * 16, 6 * 16)


def test_a_broadcast_is_written_whole() -> None:
    builder = Builder("broadcast")
    found = cost(builder.graph({"y": over_rows(builder, batch(builder, "x", 8), (8, 32))}))
    assert found == Cost(4 * 8, 4 * 8 * 32)


def test_a_copy_reads_and_writes() -> None:
    builder = Builder("given")
    state(builder, "w", 6)
    plan = plan_graph(builder.graph({"w": batch(builder, "x", 6)}))
    assert [type(step) for step in plan.steps] == [Copy]
    assert plan_cost(plan) == Cost(24, 24)


def test_costs_multiply_and_add() -> None:
    one = Cost(1, 2, 3, 4, 5)
    assert one.times(3) == one + one + one == Cost(3, 6, 9, 12, 15)
    assert one.times(3).bytes == 9
