"""A run that was cut, or killed, and resumed ends with the bytes and the metrics of a run that was not."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from resume_runs import (
    EPOCH,
    STEPS,
    Trial,
    assert_equal_runs,
    final_state,
    metric_lines,
    run,
    run_signalled,
    status_of,
)
from warm import Command

import paren

COUNTED = pytest.mark.parametrize("rounds", [2, pytest.param(24, marks=pytest.mark.long)])


@pytest.fixture(scope="module", params=["gpt", "mlp"])
def trial(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return Trial.make(tmp_path_factory.mktemp(request.param), request.param)


def test_what_is_compared_says_something(trial: Trial) -> None:
    """All of it is on: short batches at borders of epochs, averages, moments, best, diagnostics, evaluations."""
    lines = metric_lines(trial.whole)
    names = {name for line in lines for name in line}
    assert {"loss", "gradient-norm", "rate", "evaluation/loss", *trial.experiment.program.diagnostics} < names
    steps = [line["step"] for line in lines if "annotation" not in line]
    assert steps == sorted(set(steps))
    state = final_state(trial.whole)
    assert {slot.role for slot in state["slots"].values()} == {"parameter", "moment", "average"}  # type: ignore[attr-defined]
    assert state["loop"].samples < 6 * STEPS  # type: ignore[attr-defined]
    assert len({line["loss"] for line in lines if "loss" in line}) == len(lines) - 1  # the line of the stacking


@pytest.mark.parametrize("cut", range(1, STEPS))
def test_every_cut_point(trial: Trial, tmp_path: Path, cut: int) -> None:
    """Borders of epochs are at multiples of 4, checkpoints and evaluations at others."""
    first = trial.run(tmp_path / "run", steps=cut)
    assert (first.ended, first.step, first.exit_code) == ("steps", cut, 0)
    second = trial.run(tmp_path / "run", resume="latest")
    assert (second.ended, second.step) == ("complete", STEPS)
    assert_equal_runs(tmp_path / "run", trial.whole)


def test_many_cuts_one_after_the_other(trial: Trial, tmp_path: Path) -> None:
    for stop in (1, 2, EPOCH, EPOCH + 1, 11, 12, 19):
        trial.run(tmp_path / "run", steps=stop, resume="auto")
    trial.run(tmp_path / "run", resume="auto")
    assert_equal_runs(tmp_path / "run", trial.whole)


def test_the_reported_metrics_of_a_cut_run_are_those_of_the_whole(trial: Trial, tmp_path: Path) -> None:
    trial.run(tmp_path / "run", steps=9)
    columns = trial.run(tmp_path / "run", resume="latest").metrics()
    expected = paren.Run(trial.whole, "complete", 0, STEPS).metrics()
    for name in ("step", "loss", "evaluation/loss", "gradient-norm"):
        assert columns[name].tobytes() == expected[name].tobytes()


def test_7_and_13_steps_by_the_command(trial: Trial, tmp_path: Path) -> None:
    """The real thing in three processes: two in sequence, and one from before the first step."""
    out = tmp_path / "run"
    code, printed, shown = run(*trial.command(out, "--steps", 7))
    assert (code, printed) == (0, f"{out}\n")
    assert "step 7/7" in shown
    assert status_of(out).state == "stopped"
    code, printed, shown = run(*trial.command(out, "--resume", "latest"))
    assert (code, printed) == (0, f"{out}\n")
    assert "going on at step 7 of 20\n" in shown
    assert_equal_runs(out, trial.whole)


def test_from_an_older_checkpoint(trial: Trial, tmp_path: Path) -> None:
    """Going back discards what came after: the lines, the best parameters, the later checkpoints' place in line."""
    out = tmp_path / "run"
    trial.run(out, steps=8)
    trial.run(out, steps=13, resume="latest")
    older = sorted((out / "checkpoints").glob("0*"))[-2]
    trial.run(out, resume=str(int(older.name)))
    assert_equal_runs(out, trial.whole)
    again = tmp_path / "elsewhere"
    shutil.copytree(out, again)
    assert trial.run(again, resume="latest").ended == "done"


def test_a_checkpoint_goes_on_in_another_folder(trial: Trial, tmp_path: Path) -> None:
    trial.run(tmp_path / "run", steps=6)
    ended = trial.run(tmp_path / "new", resume=str(tmp_path / "run" / "checkpoints" / "000006"))
    assert ended.ended == "complete"
    files, expected = final_state(tmp_path / "new")["files"], final_state(trial.whole)["files"]
    assert files == expected
    later = [line for line in metric_lines(trial.whole) if int(str(line["step"])) > 6]
    assert [line for line in metric_lines(tmp_path / "new") if int(str(line["step"])) > 6] == later


@pytest.mark.parametrize("rounds", [2, pytest.param(48, marks=pytest.mark.long)])
def test_killed_at_random_events(trial: Trial, tmp_path: Path, rounds: int) -> None:
    """Every event is as likely: a kernel's compilation, a microbatch, an evaluation, half a write, a rename."""
    out = tmp_path / "run-0"
    code, _, _ = run_signalled("count", tmp_path / "events", "any", 0, *trial.command(tmp_path / "counted"))
    assert code == 0
    assert_equal_runs(tmp_path / "counted", trial.whole)
    events = int((tmp_path / "events").read_text())
    chance = random.Random(rounds)
    for number in range(rounds):
        arguments = trial.command(out, "--resume", "auto")
        code, _, shown = run_signalled(int(signal.SIGKILL), 1, "any", chance.randrange(events), *arguments)
        assert code in (-signal.SIGKILL, 0), shown
        if code == 0:
            assert_equal_runs(out, trial.whole)
            out = tmp_path / f"run-{number + 1}"
    assert run(*trial.command(out, "--resume", "auto"))[0] == 0
    assert_equal_runs(out, trial.whole)


@COUNTED
def test_killed_from_outside_at_random_moments(trial: Trial, tmp_path: Path, rounds: int) -> None:
    """`kill -9` by the clock, from the start to the end of the training."""
    arguments = trial.command(tmp_path / "run", "--resume", "auto")
    chance = random.Random(rounds)
    begun = time.monotonic()
    Command(trial.command(tmp_path / "timed")).wait()
    length = time.monotonic() - begun
    for _ in range(rounds):
        process = Command(arguments)
        time.sleep(chance.uniform(0, length))
        process.kill()
        process.wait()
        if process.returncode == 0:
            assert_equal_runs(tmp_path / "run", trial.whole)
            shutil.rmtree(tmp_path / "run")
    assert run(*arguments)[0] == 0
    assert_equal_runs(tmp_path / "run", trial.whole)


@pytest.mark.parametrize("places", [[0], pytest.param(range(3, 260, 8), marks=pytest.mark.long)])
def test_killed_at_an_operation_of_a_save(trial: Trial, tmp_path: Path, places: Sequence[int]) -> None:
    """S01: `places` count the operations of all saves of the run."""
    for number in places:
        out = tmp_path / f"run-{number}"
        code, _, shown = run_signalled(int(signal.SIGKILL), 1, "save", number, *trial.command(out))
        assert code in (-signal.SIGKILL, 0), shown
        assert trial.run(out, resume="auto").ended in ("complete", "done")
        assert_equal_runs(out, trial.whole)
