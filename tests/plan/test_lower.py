"""A lowered and placed plan computes what the graph means."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_runs import run_on_cpu
from random_graphs import graphs, values_for

from paren.ir.evaluate import evaluate
from paren.ir.graph import Graph
from paren.ir.types import DType


def _close(graph: Graph, seed: int) -> None:
    values = values_for(graph, seed)
    expected = evaluate(graph, values)
    found = run_on_cpu(graph, values)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_allclose(found[name].reshape(array.shape), array, rtol=2e-4, atol=2e-5, err_msg=name)


@settings(max_examples=60)
@given(graphs(dtype=DType.FLOAT32), st.integers(0, 10))
def test_random_graphs_keep_their_value(graph: Graph, seed: int) -> None:
    _close(graph, seed)
