"""Reverse mode over whole graphs: against central differences, and where nothing flows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_graphs import STEPS, graphs, values_for

from paren.ir.evaluate import evaluate
from paren.ir.graph import Builder, Graph, Node
from paren.ir.op import Array
from paren.ir.rebuild import rebuild
from paren.ir.types import DType, TensorType
from paren.ir.verify import verify
from paren.passes.gradient import differentiate
from paren.passes.simplify import simplify
from paren.text.errors import InternalError
from paren.text.source import Source, Span

SPAN = Span(Source("gradient.paren", "(loss (f x))"), 0, 12)
INNER = Span(SPAN.source, 6, 11)
SMOOTH = tuple(step for step in STEPS if step not in ("where", "flags", "position", "stopped"))
FLOAT = TensorType(DType.FLOAT64, (3,))


def total(builder: Builder, node: Node) -> Node:
    return builder.emit("sum", (node,), {"axes": tuple(range(len(node.shape)))}, SPAN)


def with_gradients(graph: Graph) -> Graph:
    """Outputs `loss`, the sum of all outputs' elements, and its gradient for each float input by name."""
    builder = Builder("gradient")
    nodes = rebuild(graph, builder)
    loss = builder.constant(0.0, DType.FLOAT64, SPAN)
    for node in graph.outputs.values():
        loss = builder.apply("add", loss, total(builder, builder.apply("sin", nodes[node])))
    floats = [node for node in builder.inputs if node.dtype.is_float]
    result = differentiate(builder, loss, floats)
    names = [str(node.attrs["name"]) for node in floats]
    return builder.graph({"loss": loss, **dict(zip(names, result, strict=True))})


@settings(max_examples=120)
@given(graphs(steps=SMOOTH, dtype=DType.FLOAT64), st.integers(0, 99))
def test_gradients_of_random_graphs_agree_with_central_differences(graph: Graph, seed: int) -> None:
    """In a random direction of all inputs; points where the slopes to both sides differ (kinks) are left out."""
    both = with_gradients(graph)
    verify(both, "gradient")
    values = values_for(graph, seed)
    result = evaluate(both, values)
    generator = np.random.default_rng(seed)
    names = [name for name in result if name != "loss"]
    direction = {name: generator.normal(size=result[name].shape) for name in names}

    def loss(step: float) -> float:
        moved = {name: value + step * direction[name] if name in direction else value for name, value in values.items()}
        return float(evaluate(both, moved)["loss"])

    step = 1e-6
    ahead, behind = (loss(step) - loss(0.0)) / step, (loss(0.0) - loss(-step)) / step
    scale = 1.0 + sum(float(np.abs(result[name] * direction[name]).sum()) for name in names)
    assume(abs(ahead - behind) < 1e-4 * scale)
    expected = sum(float((result[name] * direction[name]).sum()) for name in names)
    assert (ahead + behind) / 2 == pytest.approx(expected, abs=1e-5 * scale)


@settings(max_examples=60)
@given(graphs(dtype=DType.FLOAT64), st.integers(0, 99))
def test_simplified_gradients_are_the_same(graph: Graph, seed: int) -> None:
    both = with_gradients(graph)
    simple = simplify(both)
    verify(simple, "simplify")
    values = values_for(graph, seed)
    expected = evaluate(both, values)
    for name, value in evaluate(simple, values).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-8, atol=1e-8)


def gradient_of(build: str, value: Array) -> Array:
    """The gradient of the sum of `build`'s result, an operation on the input alone."""
    builder = Builder("one")
    x = builder.input("x", FLOAT, "batch", SPAN)
    (g,) = differentiate(builder, total(builder, builder.emit(build, (x,), {}, INNER)), [x])
    return evaluate(builder.graph({"g": g}), {"x": value})["g"]


@pytest.mark.parametrize("name", ["stop_gradient", "floor", "sign", "ceil"])
def test_operations_without_gradient_give_zeros(name: str) -> None:
    np.testing.assert_array_equal(gradient_of(name, np.array([0.3, -1.2, 2.5])), np.zeros(3))


def test_an_input_that_is_not_used_gets_zeros() -> None:
    builder = Builder("unused")
    x, y = builder.input("x", FLOAT, "batch", SPAN), builder.input("y", FLOAT, "batch", SPAN)
    to_x, to_y = differentiate(builder, total(builder, x), [x, y])
    found = evaluate(builder.graph({"x": to_x, "y": to_y}), {"x": np.ones(3), "y": np.ones(3)})
    assert found["x"].tolist() == [1, 1, 1]
    assert found["y"].tolist() == [0, 0, 0]


def test_gradients_for_nodes_within_the_graph_and_for_the_output_itself() -> None:
    builder = Builder("within")
    x = builder.input("x", FLOAT, "batch", SPAN)
    middle = builder.apply("mul", x, x)
    loss = total(builder, builder.apply("mul", middle, 3.0))
    to_middle, to_x, to_loss = differentiate(builder, loss, [middle, x, loss])
    found = evaluate(builder.graph({"m": to_middle, "x": to_x, "l": to_loss}), {"x": np.array([1.0, 2.0, 3.0])})
    assert found["m"].tolist() == [3, 3, 3]
    assert found["x"].tolist() == [6, 12, 18]
    assert found["l"].tolist() == 1.0


def test_gradient_nodes_stand_where_their_operation_stands() -> None:
    builder = Builder("places")
    x = builder.input("x", FLOAT, "batch", SPAN)
    loss = total(builder, builder.emit("tanh", (x,), {}, INNER))
    made = len(builder.nodes)
    differentiate(builder, loss, [x])
    spans = {node.op.name: node.span for node in builder.nodes[made:]}
    assert spans["broadcast"] in (SPAN, INNER)
    assert spans["sub"] == INNER
    assert all(node.span is SPAN or node.span is INNER for node in builder.nodes[made:])


def test_only_what_depends_on_the_wanted_nodes_is_made() -> None:
    """The gradient for y alone makes no gradient of the product's other factor."""
    builder = Builder("economy")
    x, y = builder.input("x", FLOAT, "batch", SPAN), builder.input("y", FLOAT, "batch", SPAN)
    loss = total(builder, builder.apply("mul", builder.apply("exp", x), y))
    (to_y,) = differentiate(builder, loss, [y])
    graph = builder.graph({"y": to_y})
    assert [node.op.name for node in graph.nodes].count("exp") == 1
    assert [node.op.name for node in graph.nodes].count("mul") == 1


def test_what_cannot_have_a_gradient_is_an_internal_error() -> None:
    builder = Builder("wrong")
    x = builder.input("x", FLOAT, "batch", SPAN)
    ids = builder.input("ids", TensorType(DType.INT32, (2,)), "batch", SPAN)
    with pytest.raises(InternalError) as caught:
        differentiate(builder, x, [x])
    assert str(caught.value) == (
        "internal error in gradient: %0:input:float64[3] at gradient.paren:1:1 is not a scalar float"
    )
    with pytest.raises(InternalError) as caught:
        differentiate(builder, total(builder, x), [ids])
    assert str(caught.value) == (
        "internal error in gradient: %1:input:int32[2] at gradient.paren:1:1 is not a float and has no gradient"
    )
