"""A study and a single run that start at once in one new folder: one of them gets it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from training_fakes import Trial

from paren.text.errors import ParenError
from paren.train import run_directory
from paren.train.lock import RunLock
from paren.train.run_directory import becoming_study


def become_study(out: Path) -> None:
    with becoming_study(out):
        (out / "study.json").write_text("{}")


def test_a_study_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the single run looked for one, and before it has the lock."""
    trial = Trial(tmp_path / "out")
    make = run_directory.make_folder

    def made(folder: Path) -> None:
        monkeypatch.setattr(run_directory, "make_folder", make)
        make(folder)
        become_study(folder)

    monkeypatch.setattr(run_directory, "make_folder", made)
    with pytest.raises(ParenError) as caught:
        trial.start()
    error = caught.value
    assert (error.code, error.message) == (
        "E-RUN-017",
        f"{trial.out} holds a study (study.json), and a single run would mix with it",
    )
    assert {path.name for path in trial.out.iterdir()} <= {"study.json", "lock"}


def test_a_single_run_comes_first(tmp_path: Path) -> None:
    trial = Trial(tmp_path / "out")
    errors: list[ParenError] = []

    def before(name: str, number: int) -> None:
        if not errors:
            with pytest.raises(ParenError) as caught:
                become_study(trial.out)
            errors.append(caught.value)

    trial.before = before
    trial.start()
    holder = f"process {os.getpid()} on {socket.gethostname()}, since "
    assert errors[0].code == "E-RUN-004", "it may not have come to its run.json"
    assert errors[0].message.startswith(f"{trial.out} is in use by {holder}")
    with pytest.raises(ParenError) as caught:
        become_study(trial.out)
    assert (caught.value.code, caught.value.message) == (
        "E-RUN-017",
        f"{trial.out} holds a single run (run.json), and a study would mix with it",
    )
    assert not (trial.out / "study.json").exists()


def test_studies_that_start_at_once_all_get_the_folder(tmp_path: Path) -> None:
    with becoming_study(tmp_path / "out"):
        (tmp_path / "out" / "study.json").write_text("{}")
        become_study(tmp_path / "out")
    become_study(tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["study.json"]


def test_a_study_goes_on_where_another_became_one_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    make = run_directory.make_folder

    def made(folder: Path) -> None:  # the other has the lock, and writes its file while this one waits
        make(folder)
        other.__enter__()
        (out / "study.json").write_text("{}")

    other = RunLock(out)
    monkeypatch.setattr(run_directory, "make_folder", made)
    become_study(out)
    other.__exit__(None, None, None)
