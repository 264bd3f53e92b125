"""What is said of gradients: added where they lie, or not, and why."""

from __future__ import annotations

from networks import batch, emit, matmul, state

from paren.ir.graph import Builder, Graph, Node
from paren.ir.types import DType
from paren.pipeline import plan_graph
from paren.plan.decision import Pattern

IN_PLACE = "products and scatters add to the gradient where it lies"


def gradient(builder: Builder, name: str) -> tuple[Node, Node]:
    """A state of [16 32] and a product of that shape."""
    return state(builder, name, 16, 32), matmul(builder, batch(builder, "x", 16, 8), batch(builder, "g", 8, 32))


def said(graph: Graph) -> list[tuple[bool, str, int]]:
    decisions = plan_graph(graph).decisions
    assert all(each.pattern is Pattern.ACCUMULATION for each in decisions)
    return [(each.fired, each.reason, each.saved_bytes) for each in decisions]


def test_a_product_that_is_added_in_place() -> None:
    builder = Builder("step")
    w, product = gradient(builder, "w")
    assert said(builder.graph({"w": builder.apply("add", w, product)})) == [(True, IN_PLACE, 4 * 16 * 32)]


def test_a_gradient_that_is_used_by_something_else() -> None:
    builder = Builder("step")
    w, product = gradient(builder, "w")
    total = builder.apply("add", w, product)
    graph = builder.graph({"w": total, "twice": builder.apply("mul", total, 2.0)})
    assert said(graph) == [(False, "the gradient is used by something else too", 4 * 16 * 32)]


def test_a_product_with_another_use() -> None:
    builder = Builder("step")
    w, product = gradient(builder, "w")
    graph = builder.graph({"w": builder.apply("add", w, product), "product": product})
    assert said(graph) == [(False, "a term of the sum has another use, or is neither a product nor a scatter", 2048)]


def test_a_scatter_into_a_table() -> None:
    builder = Builder("step")
    table, rows = state(builder, "table", 100, 16), batch(builder, "rows", 6, dtype=DType.INT32)
    added = emit(builder, "scatter_add", table, rows, batch(builder, "values", 6, 16))
    assert said(builder.graph({"table": added})) == [(True, IN_PLACE, 4 * 100 * 16)]


def test_sums_of_kernels_are_not_spoken_of() -> None:
    builder = Builder("step")
    bias = state(builder, "bias", 32)
    total = builder.apply("add", bias, emit(builder, "sum", batch(builder, "g", 8, 32), axes=(0,)))
    assert said(builder.graph({"bias": total})) == []
