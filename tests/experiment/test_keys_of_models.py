"""What a trained model is found by: all that decides about it changes its key, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from experiment.studies import edit, read_from_arrays, write_study

from paren import run
from paren.experiment import training
from paren.experiment.jobs import make_jobs
from paren.experiment.python.functions import Functions
from paren.experiment.store.recipe import Recipe, differences
from paren.experiment.store.store import Store
from paren.experiment.training import ONE_RANK, Trainer
from paren.lang.elaborate import elaborate
from paren.run import How

pytestmark = pytest.mark.usefixtures("own_cache")


def write(folder: Path) -> Path:
    path = write_study(folder, '(import "net.paren")')
    text = path.read_text()
    begin, end = text.index("(defmodel"), text.index("(defrun")
    (folder / "net.paren").write_text(text[begin:end].replace("tanh", "relu"))
    path.write_text(text[:begin] + text[end:])
    data = folder / "data.py"
    data.write_text("from helper import shift\n" + data.read_text().replace("x.sum(1)", "x.sum(1) + shift()"))
    (folder / "helper.py").write_text("def shift():\n    return 1.0\n")
    return path


CPU = How("cpu")


def recipe(path: Path, how: How = CPU, **changes: object) -> Recipe:
    trainer = Trainer(Store(path.parent), Functions.of(path.parent), how)
    trainer = replace(trainer, **changes)  # type: ignore[arg-type]
    (job,) = make_jobs(elaborate(path), ())
    return trainer.recipe(job, trainer.data_key(job))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (edit("study.paren", "(def rate 1e-2)", "(def rate 1e-3)"), "rate: 0.01 -> 0.001"),
        (edit("study.paren", "(def rows 40)", "(def rows 48)"), "data: changed"),
        (edit("study.paren", "(def replica 0)", "(def replica 1)"), "replica: 0 -> 1"),
        (edit("study.paren", ":steps 4", ":steps 4 :precision bfloat16"), "program: changed"),
        (edit("study.paren", ":steps 4", ":steps 5"), "program: changed"),
        (edit("net.paren", "relu", "tanh"), "program: changed"),
        (edit("helper.py", "1.0", "2.0"), "data: changed"),
        (edit("data.py", "default_rng(seed)", "default_rng(seed + 1)"), "data: changed"),
    ],
)
def test_what_changes_a_model(tmp_path: Path, change: Callable[[Path], None], said: str) -> None:
    path = write(tmp_path)
    before = recipe(path)
    change(tmp_path)
    after = recipe(path)
    assert before.key != after.key
    assert said in differences(before, after)


@pytest.mark.parametrize(
    "change",
    [
        edit("study.paren", "(def rate 1e-2)", "; a comment\n(def rate   0.01)"),
        edit("study.paren", '(def prior "uniform")', '(def prior "another")'),
        edit("study.paren", "\n", "\r\n"),
        edit("helper.py", "    return 1.0", "    # a comment\n    return 1.0"),
        edit("data.py", "def pairs", "\n\ndef pairs"),
    ],
)
def test_what_changes_no_model(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = write(tmp_path)
    before = recipe(path)
    change(tmp_path)
    assert recipe(path).key == before.key


def test_another_place_is_the_same_model(tmp_path: Path) -> None:
    assert recipe(write(tmp_path / "here")).key == recipe(write(tmp_path / "there")).key


def test_how_it_is_computed_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path)
    keys = {
        recipe(path).key,
        recipe(path, How("reference")).key,
        recipe(path, How("cpu", patterns=False)).key,
        recipe(path, How("cpu", stacking=1)).key,
        recipe(path, topology=replace(ONE_RANK, devices=(0, 1))).key,
    }
    monkeypatch.setattr(training, "package_versions", lambda: run.package_versions() | {"paren": "0"})
    keys.add(recipe(path).key)
    assert len(keys) == 6
    monkeypatch.undo()
    assert recipe(path, How("cpu", threads=1)).key == recipe(path, How("cpu", threads=2)).key


def test_the_bytes_of_data_count(tmp_path: Path) -> None:
    """Also where size and time are the same."""
    path = write_study(tmp_path)
    read_from_arrays(path, "d.npz")
    keys = set()
    for value in (1, 2):
        np.savez(tmp_path / "d.npz", x=np.full((40, 2), value, np.float32), y=np.ones(40, np.float32))
        keys.add(recipe(path).key)
    assert len(keys) == 2


def test_the_first_weights_count(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    path.write_text(path.read_text().replace(":steps 4", ':steps 4 :from "w.safetensors"'))
    keys = set()
    for content in (b"one", b"two"):
        (tmp_path / "w.safetensors").write_bytes(content)
        keys.add(recipe(path).key)
    assert len(keys) == 2


def test_files_that_are_declared_count(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    path.write_text(path.read_text().replace(":rows rows", ':rows rows :files ("table.csv")'))
    keys = set()
    for content in ("1,2", "3,4"):
        (tmp_path / "table.csv").write_text(content)
        keys.add(recipe(path).key)
    assert len(keys) == 2
