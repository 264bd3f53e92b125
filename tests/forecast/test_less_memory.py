"""A run under less and less memory: first as it is, then with values computed again and the same bits, then refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import paren
from paren.api import Experiment
from paren.plan.decision import Pattern
from paren.text.errors import ParenError
from paren.text.size import show_bytes

TEXT = """
(defdata text (python "d.py" tokens :fields ((tokens int32 [96]) (targets int32 [96])) :split ((train 1.0))))
(def (block x)
  (let ((x (+ x (scope attention (causal-attention (layer-norm x) :heads 4)))))
    (+ x (scope mlp (linear (gelu (linear (layer-norm x) 384)) 96)))))
(defmodel gpt ((tokens int32 [96]))
  (let ((table (param embedding [256 96] :init (normal 0.02)))
        (x     (fold (i 4) (x (take table tokens)) (scope (block i) (block x)))))
    (matmul (layer-norm x) (transpose table))))
(defrun :data text :loss (cross-entropy (gpt tokens) targets) :optimizer (adamw :rate 1e-3) :batch 8 :steps 3 :seed 4)
"""
DATA = """
import numpy as np

def tokens():
    t = np.random.default_rng(0).integers(0, 256, (24, 97)).astype(np.int32)
    return {"tokens": t[:, :-1], "targets": t[:, 1:]}
"""


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    monkeypatch.setenv("PAREN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "d.py").write_text(DATA)
    (tmp_path / "gpt.paren").write_text(TEXT)
    return paren.load(tmp_path / "gpt.paren")


def recomputed(experiment: Experiment) -> list[str]:
    report = experiment.explain(device="cpu")
    rows = report.data["patterns"]
    return [
        row["reason"] for row in rows if row["pattern"] == Pattern.RECOMPUTATION.value and "to fit" in row["reason"]
    ]


def result(experiment: Experiment, out: Path, **options: bool) -> tuple[bytes, bytes]:
    run = experiment.run(out, **options)  # type: ignore[arg-type]
    parameters = b"".join(array.tobytes() for array in run.restore().parameters().values())
    return run.metrics()["loss"].tobytes(), parameters


def test_from_generous_to_impossible(experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = experiment.explain(device="cpu").data["memory"]
    planned, live = memory["planned"], memory["parts"]["live"]
    monkeypatch.setenv("PAREN_MEMORY", str(planned))
    assert recomputed(experiment) == []
    wanted = result(experiment, tmp_path / "all")
    monkeypatch.setenv("PAREN_MEMORY", str(planned - live // 4))
    (reason,) = recomputed(experiment)
    assert " steps run again to fit, about " in reason
    found = result(experiment, tmp_path / "less")
    assert found == wanted
    monkeypatch.setenv("PAREN_MEMORY", str(planned - live + 4096))
    with pytest.raises(ParenError) as caught:
        experiment.run(tmp_path / "none")
    assert caught.value.code == "E-MEM-001"
    assert f"and {show_bytes(planned - live + 4096)} are free" in caught.value.message
    assert any("steps run again to fit" in note.message for note in caught.value.notes)
    assert not (tmp_path / "none").exists()


def test_without_patterns_results_agree_to_rounding(experiment: Experiment, tmp_path: Path) -> None:
    plain = experiment.explain(device="cpu", patterns=False)
    assert plain.data["memory"]["planned"] > experiment.explain(device="cpu").data["memory"]["planned"]
    with_patterns = experiment.run(tmp_path / "on").metrics()["loss"]
    without = experiment.run(tmp_path / "off", patterns=False).metrics()["loss"]
    assert without == pytest.approx(with_patterns, rel=1e-5)


def test_a_resume_with_other_patterns_is_not_exact_and_says_so(experiment: Experiment, tmp_path: Path) -> None:
    experiment.run(tmp_path / "run", steps=2)
    with pytest.raises(ParenError) as caught:
        experiment.run(tmp_path / "run", resume="latest", patterns=False)
    assert "patterns" in str(caught.value)
