"""Loops over tiles compute what the whole steps compute: attention and heads of odd sizes, with masks, dropout and
extreme values, on the CPU and by the definition."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from plan_runs import cpu, run_plan

from paren.ir.graph import Graph
from paren.ir.op import Array
from paren.lang.elaborate import elaborate
from paren.passes.assemble import accumulation
from paren.pipeline import prepare
from paren.plan.check import check_plan
from paren.plan.lower import lower
from paren.plan.memory import place
from paren.plan.plan import Launch, Loop, Plan, Product
from paren.plan.schedule import schedule
from paren.plan.tile import tile
from paren.plan.traits import TileSizes
from paren.runtime.device import open_device

SMALL = TileSizes(smallest=1, parallel=256, sequential=256, least_rows=3)

ATTENTION = """
(defdata pairs (python "p.py" pairs :fields ((x float32 [{seq} 8]) (y float32 [{seq} 8])) :split ((train 1.0))))
(defmodel net ((x float32 [{seq} 8])) {body})
(defrun :data pairs :loss (mean-squared-error (net x) y) :optimizer (sgd :rate 0.1) :batch {rows} :steps 1 :seed 1)
"""
HEAD = """
(defdata pairs (python "p.py" pairs :fields ((x float32 [{seq} 4]) (y int32 [{seq}])) :split ((train 1.0))))
(defmodel net ((x float32 [{seq} 4])) (let ((table (param table [{vocab} 4] :init (normal 0.5))))
  (matmul (tanh (linear x 4)) (transpose table))))
(defrun :data pairs :loss (cross-entropy (net x) y{extra}) :optimizer (sgd :rate 0.1) :batch {rows} :steps 1 :seed 1)
"""


def graph_of(tmp_path: Path, text: str, adding: bool = True) -> Graph:
    (tmp_path / "net.paren").write_text(text)
    return accumulation(elaborate(tmp_path / "net.paren"), adding=adding)


@dataclass(frozen=True)
class Plans:
    plain: Plan
    tiled: Plan

    @property
    def loops(self) -> list[Loop]:
        return [step for step in self.tiled.steps if isinstance(step, Loop)]


def plans_of(graph: Graph, sizes: TileSizes = SMALL) -> Plans:
    unplaced = schedule(lower(prepare(graph)))
    plans = Plans(place(unplaced), place(tile(unplaced, sizes)))
    check_plan(plans.tiled)
    return plans


def values_of(graph: Graph, scale: float = 1.0) -> dict[str, Array]:
    generator = np.random.default_rng(0)
    values: dict[str, Array] = {}
    for node in graph.inputs:
        name = str(node.attrs["name"])
        if name.startswith("gradient:"):
            values[name] = np.asarray(generator.standard_normal(node.shape)).astype(node.dtype.numpy)
        elif node.dtype.numpy.kind == "f":
            array = generator.standard_normal(node.shape) * (scale if name == "x" else 1.0)
            values[name] = np.asarray(np.ones(node.shape) if name == "$valid" else array).astype(node.dtype.numpy)
        else:
            values[name] = generator.integers(0, 3, node.shape).astype(node.dtype.numpy)
    return values


def assert_equal_results(plans: Plans, graph: Graph, scale: float = 1.0, tolerance: float = 2e-5) -> None:
    values = values_of(graph, scale)
    plain = run_plan(cpu(), plans.plain, values)
    for device in (cpu(), cpu(1), open_device("reference")):
        tiled = run_plan(device, plans.tiled, values)
        for name, wanted in plain.items():
            bound = tolerance * max(1e-3, float(np.abs(wanted).max(initial=0.0)))
            np.testing.assert_allclose(tiled[name], wanted, rtol=0, atol=bound, err_msg=name)


@pytest.mark.parametrize("seq", [1, 2, 7, 16, 33])
@pytest.mark.parametrize("rows", [1, 3])
def test_causal_attention_in_tiles(tmp_path: Path, seq: int, rows: int) -> None:
    graph = graph_of(tmp_path, ATTENTION.format(seq=seq, rows=rows, body="(causal-attention x :heads 2)"))
    plans = plans_of(graph)
    if seq >= 7:
        assert [loop.name for loop in plans.loops] == ["causal tiles", "causal tiles"]
    assert_equal_results(plans, graph)


BODIES = {
    "every position sees every other": "(multi-head-attention x :heads 2)",
    "fewer key heads": "(causal-attention x :heads 4 :key-heads 2)",
    "rotated positions": "(causal-attention x :heads 2 :rotary true)",
    "dropout": "(causal-attention x :heads 2 :dropout-rate 0.3)",
    "a window": "(multi-head-attention x :heads 2 :mask "
    "(<= (abs (- (iota [11 11] :axis 0) (iota [11 11] :axis 1))) 2))",
    "one head": "(causal-attention x :heads 1)",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_kinds_of_attention_in_tiles(tmp_path: Path, body: str) -> None:
    graph = graph_of(tmp_path, ATTENTION.format(seq=11, rows=2, body=body))
    plans = plans_of(graph)
    assert plans.loops
    assert_equal_results(plans, graph)


@pytest.mark.parametrize(("scale", "tolerance"), [(1e-6, 2e-5), (30.0, 2e-2), (1e4, 2e-2)])
def test_extreme_scores(tmp_path: Path, scale: float, tolerance: float) -> None:
    """Scores up to 1e10: an error of one unit in the last place of a score is an error of its exponential."""
    graph = graph_of(tmp_path, ATTENTION.format(seq=13, rows=2, body="(causal-attention x :heads 2)"))
    assert_equal_results(plans_of(graph), graph, scale, tolerance)


@pytest.mark.parametrize(("seq", "vocab", "rows"), [(1, 50, 1), (7, 11, 2), (10, 130, 3)])
@pytest.mark.parametrize(
    ("extra", "adding"), [("", True), ("", False), (" :smoothing 0.1", True), (" :ignore 1", False)]
)
def test_the_head_in_chunks(tmp_path: Path, seq: int, vocab: int, rows: int, extra: str, adding: bool) -> None:
    """Into gradients that are added to, and into those that the first chunk begins."""
    graph = graph_of(tmp_path, HEAD.format(seq=seq, vocab=vocab, rows=rows, extra=extra), adding)
    plans = plans_of(graph, TileSizes(smallest=1, parallel=64, sequential=vocab * 4 * 3, least_rows=3))
    if seq > 1:
        assert any(loop.sizes == () for loop in plans.loops)
    assert_equal_results(plans, graph)


@pytest.mark.parametrize("scale", [1e-3, 100.0, 1e5])
def test_extreme_logits(tmp_path: Path, scale: float) -> None:
    graph = graph_of(tmp_path, HEAD.format(seq=9, vocab=40, rows=2, extra=""))
    assert_equal_results(plans_of(graph), graph, scale)


def test_whole_scores_are_never_in_memory(tmp_path: Path) -> None:
    """Forward and backward: no buffer of the plan has positions times positions elements for every head."""
    graph = graph_of(tmp_path, ATTENTION.format(seq=64, rows=2, body="(causal-attention x :heads 2)"))
    plans = plans_of(graph, TileSizes(smallest=1, parallel=2048, sequential=2048, least_rows=8))
    whole = 2 * 2 * 64 * 64 * 4
    assert any(buffer.type.bytes == whole for buffer in plans.plain.buffers)
    assert all(buffer.type.bytes < whole for buffer in plans.tiled.buffers)


def test_columns_that_the_mask_removes_are_not_computed(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, ATTENTION.format(seq=64, rows=1, body="(causal-attention x :heads 2)"))
    plans = plans_of(graph, TileSizes(smallest=1, parallel=2048, sequential=2048, least_rows=8))
    for loop in plans.loops:
        for number, step in enumerate(loop.steps):
            pieces = loop.body[number :: len(loop.steps)]
            if isinstance(step, Product):
                done = sum(p.step.m * p.step.n * p.step.k for p in pieces if isinstance(p.step, Product))
                assert done <= 0.6 * step.m * step.n * step.k
            else:
                ends = [p.step.kernel.axes[-1] for p in pieces if isinstance(p.step, Launch)]
                assert ends == [64, 56, 48, 40, 32, 24, 16, 8]
