"""Two runs on one machine give the same bits, and the reference device the same numbers to rounding."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import paren
from paren.train.metrics import without_measured

EXAMPLES = Path(__file__).parents[2] / "examples"
GPT = """
(defdata text (text-files "text.txt" :tokenizer bytes :length 16 :split ((train 0.8) (validation 0.2))))
(defmodel net ((tokens int32 [16]))
  (let ((x (dropout (embedding tokens 256 16) 0.2))
        (x (+ x (scope attention (causal-attention (layer-norm x) :heads 2)))))
    (linear (layer-norm x) 256)))
(defrun :data text :loss (cross-entropy (net tokens) targets) :optimizer (adamw :rate 1e-2)
        :batch 8 :microbatches 2 :steps 6 :clip 1.0 :evaluate-every 3 :seed 3)
"""


def _write(folder: Path) -> Path:
    (folder / "text.txt").write_text("".join(f"{i} times {i} is {i * i}\n" for i in range(200)))
    path = folder / "net.paren"
    path.write_text(GPT)
    return path


def test_two_processes_write_the_same_bytes(tmp_path: Path) -> None:
    path = _write(tmp_path)
    outs = [tmp_path / "first", tmp_path / "second"]
    for out in outs:
        subprocess.run(
            [sys.executable, "-m", "paren", "run", str(path), "--out", str(out)], check=True, capture_output=True
        )
    files = [sorted(out.glob("checkpoints/*/*.safetensors")) for out in outs]
    assert files[0]
    assert [file.relative_to(outs[0]) for file in files[0]] == [file.relative_to(outs[1]) for file in files[1]]
    for first, second in zip(*files, strict=True):
        assert first.read_bytes() == second.read_bytes()
    lines = [(out / "metrics.jsonl").read_text().splitlines() for out in outs]
    assert [without_measured(line) for line in lines[0]] == [without_measured(line) for line in lines[1]]


@pytest.mark.parametrize("example", ["net", "regression", "digits"])
def test_the_reference_device_computes_the_same(tmp_path: Path, example: str) -> None:
    path = _write(tmp_path) if example == "net" else EXAMPLES / f"{example}.paren"
    losses = []
    for device in ("cpu", "reference"):
        experiment = paren.load(path, variant=None if example == "net" else "smoke")
        run = experiment.run(out=tmp_path / device, device=device, steps=3)
        losses.append(run.metrics()["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=2e-5)
