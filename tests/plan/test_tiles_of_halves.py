"""Tiles in bfloat16: sums over tiles are float32's and rounded once, so that they are what whole products give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from plan_runs import cpu, run_plan
from test_tile import ATTENTION, BODIES, HEAD, SMALL, Plans, graph_of, plans_of, values_of

from paren.ir.graph import Graph
from paren.ir.types import DType
from paren.plan.plan import Product
from paren.plan.traits import TileSizes
from paren.runtime.device import open_device
from paren.text.errors import InternalError


def halves(tmp_path: Path, text: str, adding: bool = True) -> Graph:
    return graph_of(tmp_path, text.replace("(defrun", "(defrun :precision bfloat16"), adding)


def assert_close(plans: Plans, graph: Graph) -> None:
    """Up to values that another order of sums moves over the middle between two bfloat16, and what follows of them."""
    values = values_of(graph)
    plain = run_plan(cpu(), plans.plain, values)
    for device in (cpu(), cpu(1), open_device("reference")):
        tiled = run_plan(device, plans.tiled, values)
        for name, wanted in plain.items():
            start = values.get(name, np.zeros(1, np.float32)) if name.startswith("gradient:") else 0.0
            moved = np.linalg.norm(np.ravel(tiled[name] - wanted))
            assert moved <= 4e-3 * max(1e-3, np.linalg.norm(np.ravel(wanted - start))), name


@pytest.mark.parametrize("seq", [1, 7, 33])
@pytest.mark.parametrize("body", ["(causal-attention x :heads 2)", *BODIES.values()])
def test_attention(tmp_path: Path, seq: int, body: str) -> None:
    graph = halves(tmp_path, ATTENTION.format(seq=seq, rows=2, body=body.replace("11", str(seq))))
    plans = plans_of(graph)
    assert seq == 1 or plans.loops
    assert_close(plans, graph)


@pytest.mark.parametrize("adding", [True, False])
@pytest.mark.parametrize(("seq", "vocab", "rows"), [(1, 50, 1), (7, 11, 2), (10, 130, 3)])
def test_head(tmp_path: Path, seq: int, vocab: int, rows: int, adding: bool) -> None:
    graph = halves(tmp_path, HEAD.format(seq=seq, vocab=vocab, rows=rows, extra=""), adding)
    plans = plans_of(graph, TileSizes(smallest=1, parallel=64, sequential=vocab * 2 * 3, least_rows=3))
    assert seq == 1 or any(loop.sizes == () for loop in plans.loops)
    assert_close(plans, graph)


def test_sums_over_tiles_are_in_float32(tmp_path: Path) -> None:
    """The gradients of keys and values add up over the tiles of rows."""
    graph = halves(tmp_path, ATTENTION.format(seq=33, rows=2, body="(causal-attention x :heads 2)"))
    plans = plans_of(graph)
    added = [
        piece
        for loop in plans.loops
        for piece in loop.body
        if isinstance(piece.step, Product) and piece.step.accumulate
    ]
    assert added
    assert {piece.dtypes[2] for piece in added} == {DType.FLOAT32}
    assert sum(buffer.name.endswith(" summed") for buffer in plans.tiled.buffers) == 2


def test_a_piece_that_adds_to_rounded_sums_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paren.plan.tile.sum_in_float32", lambda plan, numbers: (plan, ()))
    graph = halves(tmp_path, ATTENTION.format(seq=33, rows=2, body="(causal-attention x :heads 2)"))
    with pytest.raises(InternalError) as caught:
        plans_of(graph, SMALL)
    assert "contract multiplies bfloat16 by bfloat16 and adds to bfloat16" in str(caught.value)
