"""A study that is nothing like those of the examples, written from docs/experiments.md and docs/data.md alone: digits,
a sweep over the width, confusion matrices over the sweep."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import paren
from paren.cli.app import main

pytest.importorskip("sklearn")

STUDY = """
(def width 24)
(def classes 10)
(def replica 0)

(defsweep (width 2 8))
(defcohort (replica 0 1))

(defdata images (digits :split ((train 0.8) (test 0.2))))

(defmodel guess ((image float32 [1 8 8]))
  (mlp (/ (reshape image [64]) 16.0) [width] classes))

(defrun
  :data      images
  :loss      (cross-entropy (guess image) label)
  :optimizer (adam :rate 0.02)
  :batch     128
  :epochs    6
  :seed      replica)

(defproduct confusion  (python "confusion.py" confusion :classes classes) :needs (model data))
(defmetric  accuracy   (python "confusion.py" accuracy)                   :needs (confusion))
(defmetric  hardest    (python "confusion.py" hardest)                    :needs (confusion))
(defplot    matrix     (python "confusion.py" draw-matrix)                :needs (confusion))
(defplot    confusions (python "confusion.py" draw-confusions)            :needs (confusion) :over sweep)
"""
PYTHON = """
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from tables import per_row


def confusion(model, data, classes):
    test = data["test"]
    guessed = model(test["image"]).argmax(axis=1)
    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (test["label"], guessed), 1)
    return {"counts": counts, "images": len(guessed)}


def accuracy(confusion):
    return np.trace(confusion["counts"]) / confusion["images"]


def hardest(confusion):
    shares = per_row(confusion["counts"])
    wrong = shares - np.diag(np.diag(shares))
    truth, guess = np.unravel_index(wrong.argmax(), wrong.shape)
    return {"truth": truth, "guess": guess, "share": wrong[truth, guess]}


def draw_matrix(confusion):
    figure, axes = plt.subplots()
    axes.imshow(per_row(confusion["counts"]), vmin=0, vmax=1)
    axes.set(xlabel="guessed", ylabel="truth")
    return figure


def draw_confusions(confusion, jobs):
    widths = sorted({job.settings["width"] for job in jobs})
    figure, panels = plt.subplots(1, len(widths), squeeze=False)
    for width, axes in zip(widths, panels[0]):
        same = [each["counts"] for each, job in zip(confusion, jobs) if job.settings["width"] == width]
        found = [job.metrics["accuracy"] for job in jobs if job.settings["width"] == width]
        axes.imshow(per_row(np.sum(same, axis=0)))
        axes.set(title=f"width {width}: {np.mean(found):.2f}")
    accuracies, figure_of_accuracies = plt.subplots()[::-1]
    accuracies.plot([job.settings["width"] for job in jobs], [job.metrics["accuracy"] for job in jobs], "o")
    Path(__file__).with_name("order.json").write_text(json.dumps([[job.changed, job.member] for job in jobs]))
    return {"matrices": figure, "accuracies": figure_of_accuracies}
"""
TABLES = """
def per_row(counts):
    return counts / counts.sum(axis=1, keepdims=True)
"""

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`paren` in a folder with the study: exit code and what went to stdout."""
    monkeypatch.chdir(tmp_path)
    Path("digits.paren").write_text(STUDY)
    Path("confusion.py").write_text(PYTHON)
    Path("tables.py").write_text(TABLES)

    def call(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(list(words))
        return code, capsys.readouterr().out

    return call


def test_a_study_of_digits(command: Command) -> None:
    out = Path("outputs/digits")
    code, planned = command("plan", "digits.paren", "--json")
    jobs = json.loads(planned)["jobs"]
    assert code == 0
    assert [job["name"] for job in jobs] == [
        f"{width}replica {replica}" for width in ("", "width 2, ", "width 8, ") for replica in (0, 1)
    ]
    assert all(job["analyses"] == ["confusion", "accuracy", "hardest", "matrix"] for job in jobs)
    assert not out.exists()

    assert command("run", "digits.paren", "--threads", "1") == (0, f"{out}\n")
    order = [[{}, {"replica": 0}], [{}, {"replica": 1}]]
    order += [[{"width": width}, {"replica": replica}] for width in (2, 8) for replica in (0, 1)]
    assert json.loads(Path("order.json").read_text()) == order
    drawn = sorted(path.name for path in (out / "plots" / "confusions").glob("*.p[dn]*"))
    assert drawn == ["accuracies.pdf", "accuracies.png", "matrices.pdf", "matrices.png"]
    assert len(list(out.glob("runs/*/*/plots/matrix/matrix.png"))) == 6

    code, table = command("results", str(out), "width", "replica", "accuracy", "hardest.share", "--csv")
    rows = list(csv.DictReader(io.StringIO(table)))
    found = {(row["width"], row["replica"]): float(row["accuracy"]) for row in rows}
    assert code == 0
    assert len(found) == 6
    assert min(found["24", "0"], found["24", "1"]) > 0.85
    assert max(found["2", "0"], found["2", "1"]) < min(found["24", "0"], found["24", "1"])

    (job,) = out.glob("runs/width-8-*/replica-1")
    model = paren.restore(job)
    assert isinstance(model, paren.RestoredJob)
    counts = np.asarray(model.products["confusion"]["counts"])
    assert counts.shape == (10, 10)
    assert counts.sum() == model.products["confusion"]["images"]
    assert np.trace(counts) / counts.sum() == model.results["accuracy"] == found["8", "1"]


def test_its_analysis_grows_and_changes_without_training(command: Command) -> None:
    out = Path("outputs/digits")
    assert command("train", "digits.paren", "--threads", "1", "--set", "width=8")[0] == 0
    models = sorted(out.glob("store/model/*"))
    assert len(models) == 2
    assert command("analyze", "digits.paren", "--threads", "1", "--set", "width=8")[0] == 0
    Path("tables.py").write_text(TABLES.replace("counts /", "100 * counts /"))
    jobs = json.loads(command("plan", "digits.paren", "--json", "--set", "width=8")[1])["jobs"]
    assert [job["analyses"] for job in jobs] == [["hardest", "matrix"]] * 2, "the product does not use that file"
    assert command("analyze", "digits.paren", "--threads", "1", "--set", "width=8")[0] == 0
    assert sorted(out.glob("store/model/*")) == models
    assert command("verify", str(out))[0] == 0
    assert command("analyze", "digits.paren")[0] == 1, "the other widths are not trained"
