"""SIGTERM, Ctrl-C and SIGKILL in a real process: noted in every phase, exact afterwards."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import training_fakes
from metric_lines import without_measured
from training_fakes import Trial, run_form

from paren.train.read_run import read_weights
from paren.train.signals import StopSignals
from paren.train.status import read_status

TESTS = Path(__file__).parent

# Sends itself signal argv[2] (several times, argv[3]) when the phase argv[4] comes for the first time.
PROGRAM = f"""
    import os, sys
    sys.path.insert(0, {str(TESTS)!r})
    from pathlib import Path
    import training_fakes
    from training_fakes import Trial, FaultyFiles, run_form
    from paren.train.signals import StopSignals
    out, number, times, phase = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    left = [times]

    def act(name, step=0):
        if name == phase and left[0]:
            count, left[0] = left[0], 0
            for _ in range(count):
                os.kill(os.getpid(), number)

    class Compiling(Trial):
        def _make(self):
            act("compile")
            return super()._make()

    trial = Compiling(out, run_form())
    trial.before = lambda name, step: act(name if name != "accumulate" or step == 5 else "", step)

    def fails(count, name):
        if name == "rename" and (out / "checkpoints").exists() and list((out / "checkpoints").glob(".temporary-0*")):
            act("save")

    trial.files = FaultyFiles(fails=fails)
    with StopSignals() as signals:
        training_fakes.StopSignals = lambda: signals
        sys.exit(trial.start(resume="auto").exit_code)
"""


def run_program(out: Path, number: int, times: int, phase: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(out), str(int(number)), str(times), phase]
    return subprocess.run(command, capture_output=True, text=True)


def lines(out: Path) -> list[dict]:
    return [without_measured(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Trial:
    trial = Trial(tmp_path_factory.mktemp("straight") / "run")
    trial.start()
    return trial


def assert_resumes_exactly(out: Path, straight: Trial) -> None:
    trial = Trial(out)
    trial.start(resume="auto")
    assert trial.state_bytes() == straight.state_bytes()
    assert lines(out) == lines(straight.out)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize(("phase", "step"), [("accumulate", 6), ("evaluate", 5), ("save", 4)])
def test_a_signal_is_obeyed_at_the_next_step_border(tmp_path, straight, number, code, phase, step):
    done = run_program(tmp_path / "run", number, 1, phase)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == f"\n{number.name}: stopping at the next step border (again: stop at once)\n"
    status = read_status(tmp_path / "run")
    assert (status.state, status.step, status.code) == ("stopped", step, None)
    assert read_weights(tmp_path / "run").step == step
    assert_resumes_exactly(tmp_path / "run", straight)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_before_step_1_leaves_no_checkpoint(tmp_path, straight, number, code):
    done = run_program(tmp_path / "run", number, 1, "compile")
    assert done.returncode == code
    assert read_status(tmp_path / "run").state == "stopped"
    assert not list((tmp_path / "run" / "checkpoints").glob("0*"))
    assert_resumes_exactly(tmp_path / "run", straight)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize(("phase", "step"), [("accumulate", 4), ("evaluate", 4), ("save", None), ("compile", None)])
def test_a_second_signal_ends_at_once_and_leaves_the_last_checkpoint(tmp_path, straight, number, code, phase, step):
    done = run_program(tmp_path / "run", number, 2, phase)
    assert done.returncode == code
    assert done.stderr.endswith("\nstopped at once; the last checkpoint stands\n")
    if step is not None:
        assert read_weights(tmp_path / "run").step == step
    assert_resumes_exactly(tmp_path / "run", straight)


@pytest.mark.parametrize("rounds", [3, pytest.param(50, marks=pytest.mark.long)])
def test_kills_at_random_moments_change_nothing(tmp_path, straight, rounds):
    """SIGKILL, also in the middle of a save; each round goes on where the one before died."""
    program = f"""
        import sys, time
        sys.path.insert(0, {str(TESTS)!r})
        from pathlib import Path
        from training_fakes import FaultyFiles, Trial, run_form
        trial = Trial(Path(sys.argv[1]), run_form())
        trial.before = lambda name, step: time.sleep(0.004)
        trial.files = FaultyFiles(fails=lambda number, name: time.sleep(0.002))
        print("started", flush=True)
        trial.start(resume="auto")
    """
    chance = random.Random(1)
    for number in range(rounds):
        out = tmp_path / f"run-{number // 10}"
        command = [sys.executable, "-c", textwrap.dedent(program), str(out)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "started\n"
        time.sleep(chance.uniform(0, 0.35))
        process.kill()
        process.communicate()
        if number % 10 == 9 or number == rounds - 1:
            trial = Trial(out)
            if trial.start(resume="auto").ended != "done":
                assert trial.state_bytes() == straight.state_bytes()
            assert lines(out) == lines(straight.out)
            assert not list(out.rglob(".temporary*"))


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with StopSignals() as signals:
        assert signal.getsignal(signal.SIGTERM) == signals._note
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_another_thread_hears_of_a_signal_while_the_main_thread_is_inside_of_a_call(tmp_path):
    begun, over, heard = tmp_path / "begun", tmp_path / "over", []
    for each in (begun, over):
        os.mkfifo(each)
    with StopSignals() as signals:
        with signals.heard_at_once() as code:

            def listen() -> None:
                begun.read_bytes()  # once the call has begun
                nothing = code()
                os.kill(os.getpid(), signal.SIGTERM)
                while code() is None:
                    time.sleep(0.01)
                heard.append((nothing, code(), signals.received))
                over.write_bytes(b"")

            thread = threading.Thread(target=listen)
            thread.start()
            os.system(f"echo > '{begun}'; cat '{over}'")  # runs no handler until it is over
            thread.join()
        assert heard == [(None, 143, None)]
        assert (code(), signals.received) == (143, signal.SIGTERM)


def test_a_rank_takes_a_signal_that_comes_twice_for_one(capfd):
    """A batch system signals all processes, and the launcher passes its own on: the state is to be saved all the
    same."""
    with StopSignals() as signals:
        signals.follow(quiet=False)
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received is signal.SIGTERM
    assert capfd.readouterr().err == "\nSIGTERM: stopping at the next step border\n"


def test_a_forked_process_ends_at_the_first_signal():
    """The workers of a user's `multiprocessing.Pool` are ended so."""
    reading, writing = os.pipe()
    with StopSignals() as signals:
        child = os.fork()
        while child == 0:
            os.write(writing, b".")
            time.sleep(0.01)
        os.read(reading, 1)  # CPython forgets a signal that comes before a forked process runs
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGTERM
        assert not signals.stop_asked


def test_another_thread_than_the_main_one_catches_nothing_and_can_be_asked(tmp_path):
    results = []

    def work() -> None:
        with StopSignals() as signals:
            signals.request()
            results.append((signals.stop_asked, signals.exit_code))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [(True, 143)]


def test_a_stop_asked_before_the_engine_is_made(tmp_path, monkeypatch):
    asked = StopSignals()
    asked.request(signal.SIGINT)
    monkeypatch.setattr("training_fakes.StopSignals", lambda: asked)
    trial = Trial(tmp_path / "run", run_form())
    outcome = trial.start()
    assert (outcome.ended, outcome.exit_code, outcome.step) == ("signal", 130, 0)
    assert trial.engine is None
    assert os.path.exists(tmp_path / "run" / "run.json")


@pytest.mark.parametrize(
    ("resume", "how"), [(None, "--resume latest"), ("latest", "--resume latest"), ("auto", "the same command")]
)
def test_a_stopped_run_says_what_goes_on_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: str | None, how: str
) -> None:
    trial = Trial(tmp_path / "run", run_form())
    if resume == "latest":
        trial.start(steps=2)
    trial.before = lambda name, step: signal.raise_signal(signal.SIGTERM) if (name, step) == ("update", 5) else None
    with StopSignals() as signals:
        monkeypatch.setattr(training_fakes, "StopSignals", lambda: signals)
        assert trial.start(resume=resume).exit_code == 143
    assert trial.listener.notices[-1] == f"saved at step 5: {how} goes on from there"
