"""Sums over the examples of a small graph are made in portions, whose number the shape decides."""

from __future__ import annotations

import numpy as np
import pytest
from networks import batch, emit, state

from paren.ir.evaluate import evaluate
from paren.ir.graph import Builder, Graph
from paren.ir.verify import verify
from paren.pipeline import prepare
from paren.plan.portions import is_small, sum_in_portions


def gradients(rows: int, width: int = 8) -> Graph:
    """The gradients of a weight and a bias: a product and a sum over the rows; and a product of rows, with no sum over
    them."""
    builder = Builder("gradients")
    x, g, w = batch(builder, "x", rows, width), batch(builder, "g", rows, 5), state(builder, "w", 5, width)
    weight = emit(builder, "contract", x, g, batch=((), ()), contracting=((0,), (0,)))
    bias = emit(builder, "sum", g, axes=(0,))
    total = emit(builder, "sum", g, axes=(0, 1))
    back = emit(builder, "contract", g, w, batch=((), ()), contracting=((1,), (0,)))
    return builder.graph({"weight": weight, "bias": bias, "total": total, "back": back})


def portions(graph: Graph) -> int:
    """The portions of the weight's gradient."""
    return max(node.shape[0] if node.type.rank == 3 else 1 for node in graph.nodes if node.op.name == "contract")


@pytest.mark.parametrize(
    ("rows", "count"), [(1, 1), (64, 1), (127, 1), (128, 2), (192, 2), (256, 4), (320, 4), (1024, 8), (4096, 8)]
)
def test_the_portions_are_equal_and_large(rows: int, count: int) -> None:
    graph = gradients(rows)
    cut = sum_in_portions(graph)
    verify(cut, "portions")
    assert portions(cut) == count
    assert (cut is graph) == (count == 1)
    generator = np.random.default_rng(0)
    values = {str(node.attrs["name"]): generator.normal(size=node.shape).astype(np.float32) for node in graph.inputs}
    wanted, got = evaluate(graph, values), evaluate(cut, values)
    assert wanted.keys() == got.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-4 * np.sqrt(rows), err_msg=name)
    np.testing.assert_array_equal(got["back"], wanted["back"])


def test_a_large_graph_keeps_its_sums() -> None:
    large = gradients(1 << 16, 64)
    assert not is_small(large)
    assert sum_in_portions(large) is large


def test_the_stages_include_it() -> None:
    assert portions(prepare(gradients(256))) == 4
