"""`:precision float16`: gradients of a scaled loss, the order of a step, what a step without update leaves, resumed and
on two ranks."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import paren
from paren.ir.op import Array
from paren.passes import assemble
from paren.train import chunk
from paren.train.read_run import read_weights

ROWS, WIDTH, BATCH, STEPS = 96, 5, 24, 16

DATA = """
import numpy as np


def rows(count, size, seed=0):
    random = np.random.default_rng(seed)
    x = random.standard_normal((count, 5)).astype(np.float32)
    return {"train": {"x": x, "y": (size * x[:, :1] + size).astype(np.float32)}}
"""

PROGRAM = """
(def size 700.0)
(def microbatches 3)
(def steps 16)
(def over 0)
(defdata points (python "rows.py" rows :fields ((x float32 [5]) (y float32 [1])) :count 96 :size size))
(defmodel line ((x float32 [5]))
  (matmul (reshape x [1 5]) (param weight [5 1] :init zeros)))
(defrun
  :data points
  :loss (mean-squared-error (reshape (line x) [1]) y)
  :optimizer (sgd :rate (warmup-cosine 0.05 :warmup 4 :until 40))
  :clip 300.0
  :batch 24
  :microbatches microbatches
  :steps steps
  :checkpoint-every 3
  :log-every 1
  :precision float16)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "rows.py").write_text(DATA)
    (tmp_path / "line.paren").write_text(PROGRAM)
    return tmp_path / "line.paren"


def lines_of(out: Path) -> list[dict[str, float | str]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def losses(out: Path) -> list[float]:
    return [float(line["loss"]) for line in lines_of(out) if "loss" in line]


def lowered(out: Path) -> list[tuple[float, float]]:
    """(step, scale) of each time the scale was lowered."""
    return [(line["step"], line["scale"]) for line in lines_of(out) if line.get("annotation") == "loss-scale"]  # type: ignore[misc]


def scaler(out: Path) -> tuple[float, int]:
    from safetensors.numpy import load_file

    newest = max((out / "checkpoints").glob("[0-9]*"))
    slots = load_file(newest / "optimizer.safetensors")
    return float(slots["scaler/loss-scale"]), int(slots["scaler/steady"])


def half(values: Array) -> Array:
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float64)


def expected(batches: list[tuple[Array, Array]], microbatches: int) -> tuple[list[float], list[tuple[float, float]]]:
    """The losses, and (step, scale) where it is lowered, by a loop in float64 with what float16 rounds: sum over the
    microbatches, unscale, check, clip, step or skip, update the scale."""
    weight, scale, updates = np.zeros((WIDTH, 1)), 1024.0, 0
    found: list[float] = []
    changes: list[tuple[float, float]] = []
    for step, (x, y) in enumerate(batches, 1):
        total, gradient = 0.0, np.zeros_like(weight)
        for part, target in zip(np.split(x, microbatches), np.split(y, microbatches), strict=True):
            error = half(half(part) @ half(weight)) - target
            total += float((error**2).sum())
            with np.errstate(invalid="ignore"):
                gradient += half(part).T @ half(2 * error * scale)
        found.append(total / len(x))
        gradient /= scale * len(x)
        norm = np.sqrt((gradient**2).sum())
        if not np.isfinite(norm):
            scale /= 2
            changes.append((step, scale))
            continue
        updates += 1
        cosine = 0.5 * (1 + np.cos(np.pi * (updates - 4) / (40 - 4)))
        rate = 0.05 * (updates / 4 if updates <= 4 else cosine)
        weight -= rate * gradient * min(1.0, 300.0 / norm)
    return found, changes


def batches_of(experiment: paren.Experiment, steps: int) -> list[tuple[Array, Array]]:
    from paren.run import open_program_data
    from paren.train.experiment import SplitData
    from paren.train.progress import Silent

    split = open_program_data(experiment.program, None, Silent()).splits["train"]
    with SplitData.of(experiment.program, split, None).batches(0, steps) as loader:
        indices = [loader.batch(position).indices for position in range(steps)]
    read = [split.read(each) for each in indices]
    return [(fields["x"].astype(np.float64), fields["y"].astype(np.float64)) for fields in read]


@pytest.mark.parametrize("microbatches", [1, 3])
def test_the_order_of_a_step(program: Path, tmp_path: Path, microbatches: int) -> None:
    """The first gradients are beyond 65504: those steps consume their batches, and neither the optimizer nor its
    schedule moves."""
    experiment = paren.load(program, set={"microbatches": microbatches})
    experiment.run(tmp_path / "out", threads=1)
    wanted, changes = expected(batches_of(experiment, STEPS), microbatches)
    assert len(changes) >= 4
    assert lowered(tmp_path / "out") == changes
    np.testing.assert_allclose(losses(tmp_path / "out"), wanted, rtol=2e-4)
    updates = STEPS - len(changes)
    assert scaler(tmp_path / "out") == (changes[-1][1], STEPS - changes[-1][0])
    rates = [float(line["rate"]) for line in lines_of(tmp_path / "out") if "rate" in line]
    assert len(rates) == updates
    assert rates[0] == pytest.approx(0.05 / 4)
    skipped = [line["skipped"] for line in lines_of(tmp_path / "out") if line.get("annotation") == "loss-scale"]
    assert skipped == list(range(1, len(changes) + 1))


def test_many_steps_in_a_call_are_the_same(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call ends before a step whose gradients are too large; the scale is lowered once."""
    experiment = paren.load(program, set={"microbatches": 1})
    for name, seconds in (("one", 0.0), ("many", 60.0)):
        monkeypatch.setattr(chunk, "SECONDS", seconds)
        experiment.run(tmp_path / name, threads=1)
    assert lowered(tmp_path / "one") == lowered(tmp_path / "many")
    assert losses(tmp_path / "one") == losses(tmp_path / "many")
    assert scaler(tmp_path / "one") == scaler(tmp_path / "many")


@pytest.mark.parametrize("cut", [3, 5, 8, 9, 12])
def test_a_resume_goes_on_with_the_scale(program: Path, tmp_path: Path, cut: int) -> None:
    experiment = paren.load(program)
    experiment.run(tmp_path / "whole", threads=1)
    without_update = pytest.raises(paren.ParenError, match="E-RUN-009") if cut < 8 else contextlib.nullcontext()
    with without_update:
        experiment.run(tmp_path / "cut", threads=1, steps=cut)
    experiment.run(tmp_path / "cut", threads=1, resume="latest")
    assert losses(tmp_path / "whole") == losses(tmp_path / "cut")
    assert lowered(tmp_path / "whole") == lowered(tmp_path / "cut")
    whole, other = (read_weights(tmp_path / name).parameters["weight"] for name in ("whole", "cut"))
    assert np.array(whole).tobytes() == np.array(other).tobytes()


def test_the_scale_grows_and_changes_nothing(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power of two: as long as nothing leaves the range, gradients are the same bits with any scale."""
    experiment = paren.load(program, set={"size": 0.5})
    experiment.run(tmp_path / "steady", threads=1)
    monkeypatch.setattr(assemble, "GROWS_AFTER", 5)
    paren.load(program, set={"size": 0.5}).run(tmp_path / "growing", threads=1)
    assert scaler(tmp_path / "steady") == (1024.0, 16)
    assert scaler(tmp_path / "growing") == (8192.0, 1)
    assert losses(tmp_path / "steady") == losses(tmp_path / "growing")


def test_a_loss_that_is_not_finite_is_no_matter_of_the_scale(program: Path, tmp_path: Path) -> None:
    """Predictions beyond 65504 are infinite in float16 whatever the scale."""
    with pytest.raises(paren.ParenError) as caught:
        paren.load(program, set={"size": 1e20}).run(tmp_path / "out", threads=1)
    assert caught.value.code == "E-NUM-001"
    assert "the loss of step" in caught.value.message


def test_two_ranks_lower_the_scale_together(program: Path, tmp_path: Path) -> None:
    outs = {}
    for ranks in ("0", "0,1"):
        out = tmp_path / f"ranks {len(ranks)}"
        environment = {**os.environ, "PAREN_DEVICES": ranks}
        command = [sys.executable, "-m", "paren", "run", str(program), "--out", str(out), "--set", "microbatches=2"]
        done = subprocess.run(
            [*command, "--threads", "1"], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        outs[ranks] = out
    one, two = outs.values()
    assert lowered(one) == lowered(two)
    assert len(lowered(one)) >= 4
    np.testing.assert_allclose(losses(one), losses(two), rtol=1e-5)
    assert scaler(one) == scaler(two)
