"""Two equal runs leave equal bytes; threads do not show in a kernel's bits; the reference device agrees to rounding."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from compiled_training import EXAMPLES, Trainer, assert_gradients_agree, examples
from metric_lines import without_measured

from paren.ir.program import Program
from paren.lang.elaborate import elaborate
from paren.passes.assemble import SQUARES
from paren.runtime import cpu, native_call

PROGRAM = """
(defdata d (python "points.py" points :fields ((x float32 [6]) (y float32 []))
  :split ((train 0.8) (validation 0.2)) :rows 50))
(defmodel m ((x float32 [6])) (linear (dropout (gelu (linear x 24)) 0.2) 1))
(defrun :data d :loss (mean-squared-error (m x) y) :optimizer {optimizer} :clip 1.0 :average 0.9
  :batch 12 :microbatches 3 :steps 11 :evaluate-every 4 :checkpoint-every 5 :log-every 1 :seed 6)
(defdiagnostic spread (abs (m x)) :every 2 :reduce max)
"""
POINTS = """\
import numpy as np


def points(rows):
    x = np.random.default_rng(0).normal(size=(rows, 6)).astype(np.float32)
    return {"x": x, "y": np.sin(x).sum(axis=1).astype(np.float32)}
"""


def run(folder: Path, out: str, hash_seed: str) -> None:
    """A process of its own, with its own order of sets and dictionaries, and no compiled kernels to begin with."""
    environment = os.environ | {"PAREN_CACHE": str(folder / f"cache-{out}"), "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "paren", "run", str(folder / "p.paren"), "--out", str(folder / out)]
    done = subprocess.run([*command, "--threads", "2"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def left_by(out: Path) -> tuple[dict[str, str], list[dict[str, object]]]:
    """Digests of all tensor files by path, and the metrics without what is measured."""
    files = sorted(out.rglob("*.safetensors"))
    digests = {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return digests, [without_measured(line) for line in lines]


@pytest.mark.parametrize("optimizer", ["(adamw :rate 0.01)", "(muon :rate 0.01)"])
def test_two_processes_leave_the_same_bytes(tmp_path: Path, optimizer: str) -> None:
    (tmp_path / "points.py").write_text(POINTS)
    (tmp_path / "p.paren").write_text(PROGRAM.format(optimizer=optimizer))
    run(tmp_path, "first", "1")
    run(tmp_path, "second", "2")
    files, lines = left_by(tmp_path / "first")
    assert (files, lines) == left_by(tmp_path / "second")
    assert len(files) >= 2
    assert sum("loss" in line for line in lines) == 11


SMALL = {"layers=2", "heads=2", "width=16", "seq=12", "vocab=256", "batch=6", "microbatches=2", "warmup=2", "steps=20"}


def smoke(name: str) -> Program:
    """The smoke variant; the language model smaller still, for a device that runs loops in Python."""
    overrides = sorted(SMALL) if name == "gpt" else []
    return elaborate(EXAMPLES / f"{name}.paren", variant="smoke", overrides=overrides)


@pytest.mark.parametrize("name", ["gpt", "digits", "regression"])
def test_the_reference_device_agrees_with_the_cpu(name: str, tmp_path: Path) -> None:
    """Losses, norms and parameters of three steps, and an evaluation after them; dropout draws the same numbers."""
    made = smoke(name)
    compiled, reference = Trainer(made), Trainer(made, device="reference")
    for slot, value in compiled.parameters.items():
        np.testing.assert_allclose(reference.parameters[slot], value, rtol=2e-6, atol=1e-7, err_msg=slot)
    given = examples(made, tmp_path, 3)
    for fields in given:
        reference.set(compiled.parameters)
        found, wanted = compiled.step(fields), reference.step(fields)
        assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
        assert found["gradient-norm"] == pytest.approx(wanted["gradient-norm"], rel=1e-4)
        assert_gradients_agree(compiled.gradients, reference.gradients)
    reference.set(compiled.parameters)
    for microbatch in compiled.batch(given[0]).microbatches:
        found_sums, wanted_sums = compiled.engine.evaluate(microbatch), reference.engine.evaluate(microbatch)
        assert found_sums["loss"] == pytest.approx(wanted_sums["loss"], rel=1e-5)
        assert {key: weight for key, (_, weight) in found_sums.items()} == {
            key: weight for key, (_, weight) in wanted_sums.items()
        }


@pytest.mark.parametrize("name", ["digits", "regression", "gpt"])
def test_threads_do_not_show_in_bits(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Initialisation, two whole steps with their gradients and norms give the same bytes for any threads, which share
    all kernels and products, however small."""
    monkeypatch.setattr(cpu, "LEAST_PART", 1)
    monkeypatch.setattr(native_call, "TEAM_WORK", 0)
    monkeypatch.setattr(native_call, "SHORT_WORK", 0)
    made = smoke(name)
    trainers = [Trainer(made, threads=threads) for threads in (1, 2, 3, 4)]
    states = [{slot: value.tobytes() for slot, value in each.parameters.items()} for each in trainers]
    assert all(state == states[0] for state in states)
    for fields in examples(made, tmp_path, 2):
        for each in trainers:
            each.step(fields)
        gradients = [{slot: value.tobytes() for slot, value in each.gradients.items()} for each in trainers]
        assert all(gradient == gradients[0] for gradient in gradients)
        assert len({float(each.engine._registers[SQUARES]) for each in trainers}) == 1
        states = [{slot: value.tobytes() for slot, value in each.engine.slots().items()} for each in trainers]
        assert all(state == states[0] for state in states)
