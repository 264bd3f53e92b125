"""SIGTERM and Ctrl-C to a real training in every phase: the exit code, the checkpoint, and what comes after."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest
from resume_runs import STEPS, Trial, assert_equal_runs, newest, run, run_signalled, status_of
from warm import Command

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}
SAVE = 108 + 9  # operations: a write for each slot, and nine for headers, manifest, syncs and the rename
SAYS = "stopping at the next step border (again: stop at once)"


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return Trial.make(tmp_path_factory.mktemp("gpt"), "gpt")


@pytest.fixture
def between(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for the plan, and not for a copy of the state: checkpoints are written between two steps."""
    planned = trial.experiment.explain(device="cpu", threads=1, stacking=1).memory.planned
    monkeypatch.setenv("PAREN_MEMORY", str(planned - 1))


def assert_resumes(trial: Trial, out: Path) -> None:
    assert trial.run(out, resume="auto").ended in ("complete", "done")
    assert_equal_runs(out, trial.whole)


@pytest.mark.usefixtures("between")
@pytest.mark.parametrize(
    ("event", "place", "number", "step"),
    [
        ("accumulate", 3 * 6, signal.SIGTERM, 7),  # three microbatches a step
        ("finish", 0, signal.SIGINT, 1),
        ("evaluate", 1, signal.SIGTERM, 5),
        ("evaluate", 2, signal.SIGINT, 10),  # two microbatches an evaluation
        ("save", 2, signal.SIGINT, 4),
        ("save", SAVE + 12, signal.SIGTERM, 8),
    ],
)
def test_a_signal_saves_at_the_step_border(
    trial: Trial, tmp_path: Path, event: str, place: int, number: signal.Signals, step: int
) -> None:
    out = tmp_path / "run"
    code, printed, shown = run_signalled(int(number), 1, event, place, *trial.command(out))
    assert (code, printed) == (CODES[number], f"{out}\n")
    assert f"{number.name}: {SAYS}" in shown
    assert "Traceback" not in shown
    status = status_of(out)
    assert (status.state, status.step, status.code) == ("stopped", step, None)
    assert newest(out).name == f"{step:06d}"
    assert_resumes(trial, out)


@pytest.mark.parametrize("place", [0, 1])
def test_a_signal_in_a_call_of_many_steps_saves_at_its_end(tmp_path: Path, place: int) -> None:
    trial = Trial.make(tmp_path / "stacked", "gpt", 3)
    out = tmp_path / "run"
    code, _, shown = run_signalled(int(signal.SIGTERM), 1, "steps", place, *trial.command(out))
    assert code == 143
    assert "Traceback" not in shown
    status = status_of(out)
    assert status.state == "stopped"
    assert newest(out).name == f"{status.step:06d}"
    assert_resumes(trial, out)


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize(("event", "place"), [("compile", 0), ("initialize", 0)])
def test_a_signal_before_step_1_leaves_no_checkpoint(
    trial: Trial, tmp_path: Path, event: str, place: int, number: signal.Signals
) -> None:
    out = tmp_path / "run"
    code, _, shown = run_signalled(int(number), 1, event, place, *trial.command(out))
    assert code == CODES[number]
    assert "Traceback" not in shown
    assert status_of(out).state == "stopped"
    assert not list((out / "checkpoints").glob("0*"))
    assert_resumes(trial, out)


@pytest.mark.parametrize(
    ("event", "place", "number", "earliest"),
    [
        ("evaluate", 2, signal.SIGINT, 10),
        ("save", 2, signal.SIGINT, 4),
        ("save", SAVE - 1, signal.SIGTERM, 4),  # published, not yet followed
        ("save", SAVE + 12, signal.SIGTERM, 4),
    ],
)
def test_a_signal_waits_for_what_is_written_while_training_goes_on(
    trial: Trial, tmp_path: Path, event: str, place: int, number: signal.Signals, earliest: int
) -> None:
    """Training may be some steps ahead of the write in which the signal comes."""
    out = tmp_path / "run"
    code, printed, shown = run_signalled(int(number), 1, event, place, *trial.command(out))
    status = status_of(out)
    assert (code, printed) in ((CODES[number], f"{out}\n"), (0, f"{out}\n"))
    assert status.state == ("complete" if code == 0 else "stopped")
    assert status.step >= earliest
    assert newest(out).name == f"{status.step:06d}"
    assert "while training went on" in shown
    assert "Traceback" not in shown
    assert not list(out.rglob(".temporary*"))
    assert_resumes(trial, out)


@pytest.mark.usefixtures("between")
@pytest.mark.parametrize(
    ("event", "place", "number", "step"),
    [
        ("compile", 1, signal.SIGINT, None),
        ("accumulate", 3 * 6, signal.SIGTERM, 4),
        ("evaluate", 3, signal.SIGINT, 8),
        ("save", 11, signal.SIGTERM, None),
        ("save", SAVE + 11, signal.SIGTERM, 4),
        ("save", 2 * SAVE - 1, signal.SIGINT, 8),  # published, not yet followed
    ],
)
def test_a_second_signal_ends_at_once(
    trial: Trial, tmp_path: Path, event: str, place: int, number: signal.Signals, step: int | None
) -> None:
    out = tmp_path / "run"
    code, _, shown = run_signalled(int(number), 2, event, place, *trial.command(out))
    assert code == CODES[number]
    assert shown.endswith("\nstopped at once; the last checkpoint stands\n")
    if step is not None:
        assert newest(out).name == f"{step:06d}"
    assert_resumes(trial, out)


@pytest.mark.parametrize("rounds", [2, pytest.param(20, marks=pytest.mark.long)])
def test_signals_at_random_moments(trial: Trial, tmp_path: Path, rounds: int) -> None:
    """By the clock, from when the run's directory stands; each start goes on where the one before was stopped."""
    chance = random.Random(rounds)
    for each in range(rounds):
        out = tmp_path / f"run-{each}"
        number = chance.choice(list(CODES))
        process = Command(trial.command(out, "--resume", "auto"))
        while not (out / "status.json").exists() and process.poll() is None:
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.3))
        process.send_signal(number)
        _, shown = process.communicate(timeout=120)
        assert "Traceback" not in shown
        status = status_of(out)
        # After the training has ended a signal does what it does to any process.
        codes = (0, CODES[number], -number) if status.state == "complete" else (CODES[number],)
        assert process.returncode in codes, shown
        assert status.state in ("complete", "stopped")
        if status.step:
            assert newest(out).name == f"{status.step:06d}"
        assert status.step <= STEPS
        assert_resumes(trial, out)


def test_a_signal_while_the_data_are_read_stops_before_compiling(tmp_path: Path) -> None:
    """A data function that takes its time: the signal is noted, and nothing is started after it."""
    file = tmp_path / "slow.paren"
    text = (
        '(defdata points (python "slow.py" points :fields ((x float32 [2])) :split ((train 0.5) (test 0.5))))\n'
        "(defmodel net ((x float32 [2])) (linear x 1))\n"
        "(defrun :data points :loss (* (net x) (net x)) :optimizer (sgd :rate 0.1) :batch 2 :steps 3 :seed 1)\n"
    )
    file.write_text(text)
    (tmp_path / "slow.py").write_text(
        "import os, signal, time\nimport numpy as np\n\n\ndef points():\n    os.kill(os.getpid(), signal.SIGTERM)\n"
        '    time.sleep(0.1)\n    return {"x": np.ones((8, 2), np.float32)}\n'
    )
    code, _, shown = run("run", file, "--out", tmp_path / "run")
    assert code == 143
    assert "Traceback" not in shown
    assert status_of(tmp_path / "run").state == "stopped"
    assert not list((tmp_path / "run" / "checkpoints").glob("0*"))
