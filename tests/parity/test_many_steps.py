"""Steps that one call makes give what they give one by one, bit for bit, however many it makes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from metric_lines import without_measured

import paren
from paren.engine import CompiledEngine
from paren.run import Run
from paren.text.errors import ParenError
from paren.train import chunk

POINTS = """
(defdata points (arrays "points.npz"
  :fields ((x float32 [3]) (label int32 []) (kept float32 []) (flag bool [2])) {split}))
(defmodel net ((x float32 [3]) (flag bool [2]))
  (linear (dropout (tanh (linear (concat [x (where flag 1.0 0.5)]) 16)) 0.2) 5))
(defrun :data points :loss (cross-entropy (net x flag) label) :weight kept
  :optimizer (adamw :rate (warmup-cosine 0.05 :warmup 5 :until 60)) :clip 0.7 :average 0.9
  :batch 16 {run} :seed 7 {more})
{forms}
"""
TOKENS = """
(defdata text ({data} :length 9 :stride 4 {split}))
(defmodel m ((tokens int32 [9])) (linear (dropout (take (param table [300 8] :init (normal 1)) tokens) 0.3) 300))
(defrun :data text :loss (cross-entropy (m tokens) targets) :optimizer (muon :rate 0.02) :batch 7 {run} :seed 2 {more})
"""
CHECKED = ":evaluate-every 9 :checkpoint-every 8 :log-every 1 :keep-checkpoints 9"
LENGTHS = [2, 3, 5, 64]


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAREN_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def write_points(folder: Path, count: int = 200, **changes: np.ndarray) -> None:
    """In types that are not those of the fields: float64, int64, uint8."""
    random = np.random.default_rng(0)
    arrays = {
        "x": random.normal(size=(count, 3)),
        "label": random.integers(0, 5, count),
        "kept": random.integers(0, 4, count).astype(np.uint8),
        "flag": random.integers(0, 2, (count, 2)).astype(bool),
    }
    np.savez(folder / "points.npz", **(arrays | changes))


def write(folder: Path, text: str) -> Path:
    path = folder / "p.paren"
    path.write_text(text)
    return path


def points(folder: Path, run: str = ":epochs 3", more: str = CHECKED, forms: str = "", split: str = "") -> Path:
    split = split or ":split ((train 0.75) (validation 0.25))"
    return write(folder, POINTS.format(run=run, more=more, forms=forms, split=split))


def train(path: Path, out: str, length: int, monkeypatch: pytest.MonkeyPatch, **options: object) -> tuple[Run, int]:
    """The run with calls of up to `length` steps, and how many steps were made by calls of several."""
    made = 0
    original = CompiledEngine.steps

    def steps(engine: CompiledEngine, table: object, number: int) -> object:
        nonlocal made
        series = original(engine, table, number)  # type: ignore[arg-type]
        made += len(series.loss)
        return series

    with monkeypatch.context() as patch:
        patch.setattr(chunk, "_fitting", lambda seconds: length)
        patch.setattr(CompiledEngine, "steps", steps)
        run = paren.load(path).run(path.parent / out, threads=1, **options)  # type: ignore[arg-type]
    return run, made


def left(folder: Path) -> tuple[dict[str, str], list[dict[str, object]]]:
    """Digests of all tensors that a run left, and its lines without what is measured."""
    files = sorted(folder.rglob("*.safetensors"))
    digests = {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return digests, [without_measured(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("more", [CHECKED, CHECKED.replace("log-every 1", "log-every 4"), ":log-every 50"])
def test_any_length_of_calls_gives_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str) -> None:
    """Dropout, clipping, a schedule, an average, weights, values to convert, a short last batch in every epoch."""
    write_points(tmp_path)
    forms = "(defdiagnostic size (abs (net x flag)) :every 6 :reduce max)" if "evaluate" in more else ""
    path = points(tmp_path, more=more, forms=forms)
    _, made = train(path, "alone", 1, monkeypatch)
    assert made == 0
    wanted = left(tmp_path / "alone")
    for length in LENGTHS:
        run, made = train(path, f"calls-{length}", length, monkeypatch)
        assert run.step == 30
        assert made >= 10
        assert left(tmp_path / f"calls-{length}") == wanted


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int32", "int64"])
def test_windows_of_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    """Stored in any integer type; 16 bits are read as bytes."""
    tokens = np.random.default_rng(1).integers(0, 256 if dtype == "uint8" else 300, 400).astype(dtype)
    np.save(tmp_path / "t.npy", tokens)
    data = 'token-file "t.npy"'
    path = write(tmp_path, TOKENS.format(data=data, run=":steps 40", more=":log-every 1", split=""))
    train(path, "alone", 1, monkeypatch)
    _, made = train(path, "calls", 64, monkeypatch)
    assert made >= 30
    assert left(tmp_path / "calls") == left(tmp_path / "alone")


def test_windows_of_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("There are many windows in a text, and all of them are found. " * 20)
    data = 'text-files "a.txt" :tokenizer bytes'
    split = ":split ((train 0.8) (validation 0.2))"
    path = write(tmp_path, TOKENS.format(data=data, run=":epochs 2", more=CHECKED, split=split))
    train(path, "alone", 1, monkeypatch)
    _, made = train(path, "calls", 5, monkeypatch)
    assert made >= 20
    assert left(tmp_path / "calls") == left(tmp_path / "alone")


@pytest.mark.parametrize("stop", range(1, 12))
def test_a_run_goes_on_from_any_place_in_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int) -> None:
    write_points(tmp_path)
    path = points(tmp_path, run=":steps 12", more=":log-every 1", split=":split ((train 1.0))")
    train(path, "whole", 64, monkeypatch)
    train(path, "cut", 64, monkeypatch, steps=stop)
    train(path, "cut", 64, monkeypatch, resume="latest")
    wanted, found = left(tmp_path / "whole"), left(tmp_path / "cut")
    assert found[1] == wanted[1]
    last = [name for name in wanted[0] if "000012" in name]
    assert last
    assert {name: found[0][name] for name in last} == {name: wanted[0][name] for name in last}


def poisoned() -> dict[str, np.ndarray]:
    """Two values that overflow a tanh's input to NaN, in two batches of an epoch; and batches without weight."""
    x = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float64)
    x[[17, 90]] = 3e38
    kept = np.ones(200, np.uint8)
    return {"x": x, "kept": kept}


@pytest.mark.parametrize("length", LENGTHS)
def test_steps_that_are_not_finite_are_skipped_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    write_points(tmp_path, **poisoned())
    more = ":log-every 1 :on-nonfinite skip :checkpoint-every 10 :keep-checkpoints 9"
    path = points(tmp_path, more=more, split=":split ((train 1.0))")
    path.write_text(path.read_text().replace("(tanh (linear (concat [x ", "(tanh (linear (concat [(* x x) "))
    train(path, "alone", 1, monkeypatch)
    _, made = train(path, "calls", length, monkeypatch)
    wanted = left(tmp_path / "alone")
    skipped = [line for line in wanted[1] if line.get("annotation") == "skipped"]
    assert len(skipped) == 6  # two in each epoch
    assert made > 10
    assert left(tmp_path / "calls") == wanted


@pytest.mark.parametrize("length", [1, 3, 64])
def test_a_step_that_is_not_finite_stops_the_run_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    write_points(tmp_path, **poisoned())
    path = points(tmp_path, more=":log-every 1", split=":split ((train 1.0))")
    path.write_text(path.read_text().replace("(tanh (linear (concat [x ", "(tanh (linear (concat [(* x x) "))
    with pytest.raises(ParenError) as caught:
        train(path, "out", length, monkeypatch)
    assert caught.value.code == "E-NUM-001"
    lines = left(tmp_path / "out")[1]
    steps = [line["step"] for line in lines if "loss" in line]
    assert steps == list(range(1, len(steps) + 1))
    assert lines[-1]["loss"] in ("nan", "inf")
    assert f"the loss of step {steps[-1]} is " in caught.value.message


def test_batches_without_weight_are_padding_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = np.zeros(200, np.uint8)
    kept[:12] = 1
    write_points(tmp_path, kept=kept)
    path = points(tmp_path, more=":log-every 1", split=":split ((train 1.0))")
    train(path, "alone", 1, monkeypatch)
    _, made = train(path, "calls", 64, monkeypatch)
    wanted = left(tmp_path / "alone")
    padding = [line for line in wanted[1] if line.get("annotation") == "padding"]
    assert 3 <= len(padding) <= 33
    assert made > 0
    assert left(tmp_path / "calls") == wanted


def test_the_reference_device_makes_many_steps_too(tmp_path: Path) -> None:
    write_points(tmp_path, 40)
    path = points(tmp_path, run=":steps 6", more=":log-every 1", split=":split ((train 1.0))")
    losses = []
    for device in ("cpu", "reference"):
        run = paren.load(path).run(tmp_path / device, device=device)
        losses.append(run.metrics()["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
