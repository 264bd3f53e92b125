"""Random graphs are well formed, and their meaning is what the operations say."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs, values_for

from paren.ir.evaluate import evaluate
from paren.ir.graph import Builder, Graph
from paren.ir.rebuild import rebuild
from paren.ir.show import show_graph
from paren.ir.verify import verify


@settings(max_examples=60)
@given(graphs(), st.integers(0, 99))
def test_random_graphs_verify_and_evaluate_to_finite_values(graph: Graph, seed: int) -> None:
    verify(graph, "test")
    for value in evaluate(graph, values_for(graph, seed)).values():
        assert np.isfinite(value).all()
    assert len(show_graph(graph).splitlines()) == 1 + len(graph.nodes) + len(graph.outputs)


@settings(max_examples=30)
@given(graphs(), st.integers(0, 99))
def test_rebuilding_a_graph_keeps_its_bits(graph: Graph, seed: int) -> None:
    builder = Builder("again")
    nodes = rebuild(graph, builder)
    again = builder.graph({name: nodes[node] for name, node in graph.outputs.items()})
    verify(again, "test")
    values = values_for(graph, seed)
    expected = evaluate(graph, values)
    for name, value in evaluate(again, values).items():
        np.testing.assert_array_equal(value, expected[name])
