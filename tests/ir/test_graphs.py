"""Builders, the verifier, the definition and the text of graphs, on small graphs made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paren.ir.evaluate import evaluate
from paren.ir.graph import Builder, Graph, Node
from paren.ir.rebuild import rebuild
from paren.ir.show import show_graph
from paren.ir.types import DType, TensorType, TypeMismatch
from paren.ir.verify import verify
from paren.text.errors import InternalError
from paren.text.source import Source, Span

SOURCE = Source("graphs.paren", "(sum (mul x 2))\n(id y)")
OUTER, INNER = Span(SOURCE, 0, 15), Span(SOURCE, 5, 14)
VECTOR = TensorType(DType.FLOAT32, (3,))


def small() -> tuple[Builder, Graph]:
    builder = Builder("small")
    x = builder.input("x", VECTOR, "batch", OUTER)
    builder.input("unused", VECTOR, "state", OUTER)
    doubled = builder.apply("mul", x, 2.0, span=INNER)
    dead = builder.apply("exp", doubled, span=INNER)
    assert dead.number > doubled.number
    return builder, builder.graph({"y": builder.emit("sum", (doubled,), {"axes": (0,)}, OUTER), "d": doubled})


def test_a_graph_holds_what_its_outputs_need_and_all_inputs() -> None:
    _, graph = small()
    assert [node.op.name for node in graph.nodes] == ["input", "constant", "broadcast", "mul", "sum"]
    assert [node.attrs["name"] for node in graph.inputs] == ["x", "unused"]


def test_the_same_operation_is_one_node() -> None:
    builder = Builder("same")
    x = builder.input("x", VECTOR, "batch", OUTER)
    assert builder.apply("mul", x, 2, span=OUTER) is builder.apply("mul", x, 2.0, span=INNER)
    assert builder.input("x", VECTOR, "batch", INNER) is x
    assert builder.inputs == [x]


def test_a_broadcast_to_a_shape_that_is_too_short_is_refused() -> None:
    builder = Builder("short")
    x = builder.input("x", TensorType(DType.FLOAT32, (2, 3)), "batch", OUTER)
    with pytest.raises(TypeMismatch) as caught:
        builder.broadcast(x, (3,))
    assert str(caught.value) == "float32[2 3] does not fit the shape float32[3]"


def test_evaluation_gives_arrays_of_their_own() -> None:
    _, graph = small()
    x = np.array([1.0, 2.0, 3.0], np.float32)
    result = evaluate(graph, {"x": x, "something else": x})
    assert result["y"] == 12.0
    assert result["d"].tolist() == [2.0, 4.0, 6.0]
    builder = Builder("identity")
    node = builder.input("x", VECTOR, "batch", OUTER)
    same = evaluate(builder.graph({"x": node}), {"x": x})["x"]
    same[0] = 9.0
    assert x[0] == 1.0


def test_missing_and_mistyped_inputs_are_internal_errors() -> None:
    _, graph = small()
    with pytest.raises(InternalError) as caught:
        evaluate(graph, {})
    assert str(caught.value) == "internal error in evaluate: the input x has no value"
    with pytest.raises(InternalError) as caught:
        evaluate(graph, {"x": np.zeros(3)})
    assert str(caught.value) == (
        "internal error in evaluate: the value of %0:input:float32[3] at graphs.paren:1:1 is float64[3]"
    )


def test_the_text_of_a_graph() -> None:
    _, graph = small()
    assert show_graph(graph) == (
        "graph small (5 nodes)\n"
        '  %0 float32[3] input :name "x" :role "batch"  ; graphs.paren:1:1\n'
        "  %2 float32[] constant :value 2               ; graphs.paren:1:6\n"
        "  %3 float32[3] broadcast %2 :axes []          ; graphs.paren:1:6\n"
        "  %4 float32[3] mul %0 %3                      ; graphs.paren:1:6\n"
        "  %6 float32[] sum %4 :axes [0]                ; graphs.paren:1:1\n"
        "  output y = %6\n"
        "  output d = %4"
    )
    assert "; " not in show_graph(graph, spans=False)


def test_rebuilding_with_a_substitute_joins_graphs() -> None:
    _, graph = small()
    builder = Builder("joined")
    source = builder.apply("neg", builder.input("z", VECTOR, "batch", OUTER))
    nodes = rebuild(graph, builder, {"x": source})
    joined = builder.graph({"y": nodes[graph.outputs["y"]]})
    assert [node.attrs["name"] for node in joined.inputs] == ["z", "unused"]
    assert evaluate(joined, {"z": np.ones(3, np.float32)})["y"] == -6.0
    with pytest.raises(InternalError) as caught:
        rebuild(graph, builder, {"x": nodes[graph.outputs["y"]]})
    assert "input x is float32[3], its substitute is" in str(caught.value)


def broken(graph: Graph, change: str) -> Graph:
    """The small graph with one rule broken."""
    x, constant, spread, doubled, total = graph.nodes
    wrong = replace(doubled, type=TensorType(DType.FLOAT32, (4,)))
    foreign = replace(doubled, op=replace(doubled.op))
    unfit = replace(doubled, args=(x, constant))
    nodes: dict[str, tuple[Node, ...]] = {
        "order": (x, constant, doubled, spread, total),
        "twice": (x, constant, spread, spread, doubled, total),
        "type": (x, constant, spread, wrong),
        "operation": (x, constant, spread, foreign),
        "operands": (x, constant, unfit),
        "dead": graph.nodes,
        "output": (x, constant, spread, doubled),
        "input": graph.nodes,
        "two": graph.nodes,
        "no input": graph.nodes,
    }
    outputs = {"dead": {"d": doubled}, "output": {"y": total}}.get(change, {"y": nodes[change][-1]})
    inputs = {
        "input": graph.inputs[1:],
        "two": (*graph.inputs, graph.inputs[0]),
        "no input": (*graph.inputs, total),
    }
    return Graph(graph.name, inputs.get(change, graph.inputs), nodes[change], outputs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("order", "%4:mul:float32[3] uses %3:broadcast:float32[3], which does not stand before it in graph small"),
        ("twice", "%3:broadcast:float32[3] stands twice in graph small"),
        ("type", "%4:mul:float32[4] should be float32[3] in graph small"),
        ("operation", "%4:mul:float32[3] has an operation that is not registered in graph small"),
        (
            "operands",
            "%4:mul:float32[3] does not fit its operands: the shapes float32[3] and float32[] differ in graph small",
        ),
        ("dead", "%6:sum:float32[] is needed by no output in graph small"),
        ("output", "output y of graph small is %6:sum:float32[], which is not in the graph"),
        ("input", "%0:input:float32[3] is not among the inputs in graph small"),
        ("two", "graph small has two inputs named x"),
        ("no input", "%6:sum:float32[] is among the inputs of graph small"),
    ],
)
def test_the_verifier_finds_every_broken_rule(change: str, message: str) -> None:
    _, graph = small()
    verify(graph, "stage")
    with pytest.raises(InternalError) as caught:
        verify(broken(graph, change), "stage")
    assert str(caught.value).splitlines()[0] == f"internal error in stage: {message}"


def test_the_verifier_shows_the_nodes_around() -> None:
    _, graph = small()
    with pytest.raises(InternalError) as caught:
        verify(broken(graph, "type"), "stage")
    lines = str(caught.value).splitlines()
    assert lines[-1] == "> %4 float32[4] mul %0 %3  ; graphs.paren:1:6"
    assert lines[-2] == "  %3 float32[3] broadcast %2 :axes []  ; graphs.paren:1:6"
    assert len(lines) == 5
