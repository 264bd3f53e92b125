"""Every operation that a kernel after a product may have is one of cuDNN's graph, and means the same there."""

from __future__ import annotations

import numpy as np
import pytest
from activated import HIDDEN, ROWS, WIDTH, constant, on_cards
from fake_cudnn import Package
from joined import join
from networks import batch, matmul, state
from test_cuda_epilogues import buffers_of, cudnn_of

from paren.ir.graph import Builder, Node
from paren.passes.precision import set_precision
from paren.plan.epilogue import COMPARISONS, OPERATIONS, epilogues_of
from paren.plan.plan import Plan
from paren.runtime.cuda.epilogue_graphs import EpilogueGraphs

BINARY = frozenset({"add", "sub", "mul", "div"})
EXTREMES = frozenset({"maximum", "minimum"})  # of a value and a constant
EVERYWHERE = {"where", "cast"}  # by which comparisons choose, and what bfloat16 brings; graphs leave out casts


def plan_with(operation: str) -> Plan:
    """Of a product and a kernel with that operation on its result; comparisons choose between two values."""
    builder = Builder("product")
    product = matmul(builder, batch(builder, "x", ROWS, WIDTH), state(builder, "w", WIDTH, HIDDEN))
    result = _applied(builder, operation, product)
    return on_cards(set_precision(builder.graph({"y": result}), "bfloat16"))


def _applied(builder: Builder, operation: str, product: Node) -> Node:
    if operation in BINARY:
        return builder.apply(operation, product, batch(builder, "other", ROWS, HIDDEN))
    half = constant(builder, product, 0.5)
    if operation in COMPARISONS:
        return builder.apply("where", builder.apply(operation, product, half), product, builder.apply("neg", product))
    return builder.apply(operation, product, half) if operation in EXTREMES else builder.apply(operation, product)


@pytest.mark.parametrize("operation", sorted(OPERATIONS - EVERYWHERE | EXTREMES))
def test_a_graph_has_the_operation(operation: str) -> None:
    plan = plan_with(operation)
    (epilogue,) = epilogues_of(plan).values()
    drawn, defined = buffers_of(plan, epilogue), buffers_of(plan, epilogue)
    graphs = EpilogueGraphs(cudnn_of(Package()))
    graphs.prepare(epilogue)
    graphs.run(epilogue, {id: int(array.ctypes.data) for id, array in drawn.items()})
    join(epilogue, lambda id, size, dtype: defined[id][:size])
    (result,) = epilogue.launch.writes
    assert np.isfinite(defined[result]).any()
    np.testing.assert_allclose(drawn[result], defined[result], rtol=1e-3, atol=1e-4)
