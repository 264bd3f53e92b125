"""The compiled engine computes what the loop is promised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import paren
from paren.data.loader import GlobalBatch, Microbatch
from paren.engine import CompiledEngine
from paren.forecast.plans import make_plans
from paren.runtime.device import open_device
from paren.runtime.native_call import MEETS, NativeCall

HEAD = """
(defdata points
  (python "data.py" rows :fields ((x float32 [2]) (y float32 [])) :split ((train 0.5) (validation 0.5))))
"""
TAIL = "(defrun :data points :loss {loss} :optimizer (adam :rate 1e-2) :batch 8 :steps 4 :seed 1{more})\n"
LINE = "(defmodel line ((x float32 [2])) (linear x 1))\n"


def _engine(folder: Path, body: str, loss: str, more: str = "") -> CompiledEngine:
    path = folder / "net.paren"
    path.write_text(HEAD + body + TAIL.format(loss=loss, more=more))
    program = paren.load(path).program
    engine = CompiledEngine(program, make_plans(program), open_device("cpu", 1))
    engine.initialize(1)
    return engine


def _microbatch(rows: int, y: float = 1.0) -> Microbatch:
    x = np.random.default_rng(0).normal(size=(rows, 2)).astype(np.float32)
    fields = {"x": x, "y": np.full(rows, y, np.float32)}
    return Microbatch(fields, np.arange(rows, dtype=np.uint32), np.ones(rows, np.float32))


def _batch(*microbatches: Microbatch) -> GlobalBatch:
    return GlobalBatch(0, 0, np.arange(8), microbatches)


def test_threads_of_a_small_network_meet_where_they_have_to(tmp_path: Path) -> None:
    """Its rows stay with their threads, the loss and the sums over them included, until the gradients are added: they
    meet there, at the norm, at what it gives, at the flag, and at the rate of the update."""
    path = tmp_path / "net.paren"
    net = "(defmodel net ((x float32 [2])) (mlp x [64 64 64 64] 1))\n"
    text = HEAD + net + TAIL.format(loss="(sigmoid-cross-entropy (reshape (net x) []) y)", more="")
    path.write_text(text.replace(":batch 8", ":batch 128"))
    program = paren.load(path).program
    engine = CompiledEngine(program, make_plans(program), open_device("cpu", 2))
    engine.initialize(1)
    engine.step(_batch(_microbatch(128)), 1)
    assert isinstance(engine._step, NativeCall)
    assert int(engine._step._records[:, MEETS].sum()) == 5


@pytest.mark.parametrize(("reduce", "value"), [("mean", 3.0), ("sum", 24.0), ("max", 3.0), ("min", 3.0)])
def test_a_diagnostic_is_reduced_over_the_microbatch(tmp_path: Path, reduce: str, value: float) -> None:
    diagnostic = f"(defdiagnostic level (+ (* 0.0 (line x)) 3.0) :every 1 :reduce {reduce})\n"
    engine = _engine(tmp_path, LINE + diagnostic, "(mean-squared-error (line x) y)")
    assert engine.diagnose("level", _microbatch(8), 0) == (value, 8.0)


def test_the_microbatch_that_is_not_finite_is_the_one_that_is_named(tmp_path: Path) -> None:
    loss = "(+ (mean-squared-error (line x) y) (log y))"
    engine = _engine(tmp_path, LINE, loss, " :microbatches 2")
    good, bad = _microbatch(4), _microbatch(4, 0.0)
    sums = engine.step(_batch(good, bad), 1)
    assert not np.isfinite(sums.loss)
    assert engine.locate_nonfinite(good, 0) is None
    found = engine.locate_nonfinite(bad, 0)
    assert found is not None
    assert found[0] == "log"
    line, _ = found[1].source.position(found[1].start)
    assert "(log y)" in found[1].source.line(line)


@pytest.mark.parametrize("size", [1e20, 1e-24, 1.0])
def test_the_gradient_norm_of_any_size_is_true(tmp_path: Path, size: float) -> None:
    engine = _engine(tmp_path, LINE, "(mean-squared-error (line x) y)")
    engine.step(_batch(_microbatch(8)), 1)
    gradients = np.concatenate(
        [array.ravel() for name, array in engine._training_state.items() if name.startswith("gradient:")]
    ).astype(np.float64)
    scale = np.float32(size)
    engine._gradients *= scale
    expected = np.linalg.norm(gradients) * float(scale) / 8
    assert engine._finish_step() == 1
    assert engine._sums().norm == pytest.approx(expected, rel=1e-5)


def test_kernels_that_would_wait_for_each_other_are_kept_apart(tmp_path: Path) -> None:
    body = """
(defmodel net ((x float32 [2]))
  (let ((a (linear x 32)) (b (scope other (linear x 32)))
        (h1 (sum (sin a)))
        (g  (sum (scope third (linear (reshape h1 [1]) 1))))
        (t  (sum (sin b)))
        (h2 (sum (* (sin a) (cos t))))
        (n  (sum (* (sin b) (cos g)))))
    (+ h2 n)))
"""
    engine = _engine(tmp_path, body, "(mean-squared-error (net x) y)")
    batch = _microbatch(8)
    p = engine.slots()
    x = batch.fields["x"]
    a = x @ p["linear.weight"] + p["linear.bias"]
    b = x @ p["other.linear.weight"] + p["other.linear.bias"]
    h1 = np.sin(a).sum(1)
    g = h1 * p["third.linear.weight"][0, 0] + p["third.linear.bias"][0]
    h2 = (np.sin(a) * np.cos(np.sin(b).sum(1))[:, None]).sum(1)
    n = (np.sin(b) * np.cos(g)[:, None]).sum(1)
    expected = ((h2 + n - batch.fields["y"]) ** 2).sum()
    assert engine.step(_batch(batch), 1).loss == pytest.approx(expected, rel=1e-4)


def test_numbers_of_numpy_are_settings(tmp_path: Path) -> None:
    path = tmp_path / "net.paren"
    path.write_text("(def rate 0.1)\n(def width 2)\n" + HEAD + LINE + TAIL.format(loss="(* rate (line x))", more=""))
    loaded = paren.load(path, set={"rate": np.float64(0.5), "width": np.int64(3)})
    assert loaded.check()["settings"] == {"rate": 0.5, "width": 3}
