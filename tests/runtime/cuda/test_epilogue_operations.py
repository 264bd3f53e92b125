"""Every operation that a kernel after a product may have is one of cuDNN's graph, and means the same there."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from activated import HIDDEN, ROWS, plan_of
from fake_cudnn import Package
from joined import join
from networks import batch
from test_cuda_epilogues import buffers_of, cudnn_of

from paren.ir.graph import Builder, Node
from paren.plan.epilogue import COMPARISONS, OPERATIONS, epilogues_of
from paren.runtime.cuda.epilogue_graphs import EpilogueGraphs

BINARY = frozenset({"add", "sub", "mul", "div"})
EXTREMES = frozenset({"maximum", "minimum"})  # of a value and a constant
EVERYWHERE = {"where", "cast"}  # by which comparisons choose, and what bfloat16 brings; graphs leave out casts


def applied(operation: str, builder: Builder, product: Node) -> dict[str, Node]:
    """An operation on a product's result; comparisons choose between two values."""
    if operation in BINARY:
        made = builder.apply(operation, product, batch(builder, "other", ROWS, HIDDEN))
    elif operation in COMPARISONS:
        made = builder.apply("where", builder.apply(operation, product, 0.5), product, builder.apply("neg", product))
    elif operation in EXTREMES:
        made = builder.apply(operation, product, 0.5)
    else:
        made = builder.apply(operation, product)
    return {"y": made}


@pytest.mark.parametrize("operation", sorted(OPERATIONS - EVERYWHERE | EXTREMES))
def test_a_graph_has_the_operation(operation: str) -> None:
    plan = plan_of(partial(applied, operation))
    (epilogue,) = epilogues_of(plan).values()
    drawn, defined = buffers_of(plan, epilogue), buffers_of(plan, epilogue)
    graphs = EpilogueGraphs(cudnn_of(Package()))
    graphs.prepare(epilogue)
    graphs.run(epilogue, {id: int(array.ctypes.data) for id, array in drawn.items()})
    join(epilogue, lambda id, size, dtype: defined[id][:size])
    (result,) = epilogue.launch.writes
    assert np.isfinite(defined[result]).any()
    np.testing.assert_allclose(drawn[result], defined[result], rtol=1e-3, atol=1e-4)
