"""`paren plan`, `train`, `analyze` and `run` of a study, as processes: what they say, exit codes, and their ends."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from cases.paren_command import paren
from experiment.studies import faults, states, write_study
from warm import Command

from paren.experiment.events import Event
from paren.experiment.jobs import make_jobs
from paren.experiment.progress import StudyLines
from paren.experiment.store.claims import holders
from paren.lang.elaborate import elaborate

SWEEP = "(defsweep (rate 1e-3) (rows 4))"
ENDLESS = ":steps 1000000000"
PATIENCE = 300.0  # seconds; a machine that is busy with other things is slow


def test_commands_of_a_study(tmp_path: Path) -> None:
    write_study(tmp_path, SWEEP)
    planned = paren(tmp_path, "plan", "study.paren", "--json")
    assert (planned.code, planned.err) == (0, "")
    assert [job["name"] for job in json.loads(planned.out)["jobs"]] == ["baseline", "rate 0.001", "rows 4"]
    assert not (tmp_path / "outputs").exists()
    trained = paren(tmp_path, "train", "study.paren")
    assert (trained.code, trained.out) == (1, "")
    lines = [re.sub(r"[0-9.]+ s$", "T s", line) for line in trained.err.splitlines()]
    assert lines[:3] == [
        "[1/3] baseline: done in T s",
        "[2/3] rate 0.001: done in T s",
        "[3/3] rows 4: failed in stage data: E-DATA-018: split train has 3 samples, fewer than one batch of 8",
    ]
    assert lines[3] == "E-JOB-001: 1 of 3 jobs failed, in outputs/study"
    missing = paren(tmp_path, "analyze", "study.paren")
    assert missing.code == 1
    assert "E-JOB-008: 1 of 3 jobs has no trained model in outputs/study" in missing.err
    (tmp_path / "study.paren").write_text((tmp_path / "study.paren").read_text().replace("(rows 4)", "(rows 80)"))
    again = paren(tmp_path, "run", "study.paren")
    assert (again.code, again.out) == (0, "outputs/study\n")
    lines = [re.sub(r"[0-9.]+ s$", "T s", line) for line in again.err.splitlines()]
    assert lines == ["2 of 3 jobs are done already", "[3/3] rows 80: done in T s"]
    last = paren(tmp_path, "run", "study.paren")
    assert (last.code, last.out) == (0, "outputs/study\n")
    assert last.err == "outputs/study holds this study, complete with 3 jobs: nothing to do\n"


def test_options_of_one_training_are_refused(tmp_path: Path) -> None:
    write_study(tmp_path, SWEEP)
    refused = paren(tmp_path, "run", "study.paren", "--profile")
    assert (refused.code, refused.err) == (
        1,
        "E-JOB-004: study.paren declares a study, and --profile is for one training\n"
        "  fix: leave it out, or give --single to train the file's own values alone\n",
    )
    single = paren(tmp_path, "run", "study.paren", "--single", "--steps", "2", "--out", "one")
    assert (single.code, single.out) == (0, "one\n")
    assert (tmp_path / "one" / "run.json").is_file()


def test_a_study_and_a_single_run_do_not_mix(tmp_path: Path) -> None:
    write_study(tmp_path, "(defsweep (rate 1e-3))")
    single = ("run", "study.paren", "--single", "--steps", "2")
    assert paren(tmp_path, "run", "study.paren", "--out", "both").code == 0
    assert paren(tmp_path, *single, "--out", "one").code == 0
    before = set(tmp_path.rglob("*"))
    fix = "  fix: take another --out\n"
    for options in ((), ("--overwrite",), ("--resume", "auto")):
        refused = paren(tmp_path, *single, *options, "--out", "both")
        said = "E-RUN-017: both holds a study (study.json), and a single run would mix with it\n"
        assert (refused.code, refused.out, refused.err) == (1, "", said + fix)
    for command in ("run", "train", "analyze"):
        refused = paren(tmp_path, command, "study.paren", "--out", "one")
        said = "E-RUN-017: one holds a single run (run.json), and a study would mix with it\n"
        assert (refused.code, refused.out, refused.err) == (1, "", said + fix)
    assert set(tmp_path.rglob("*")) == before
    again = paren(tmp_path, "run", "study.paren", "--out", "both")
    assert (again.code, again.err) == (0, "both holds this study, complete with 2 jobs: nothing to do\n")
    assert paren(tmp_path, *single, "--resume", "latest", "--out", "one").code == 0


class Started:
    """`paren train study.paren`, or another command, as a process of a session of its own."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        command: str = "train",
        file: str = "study.paren",
        more: Mapping[str, str] | None = None,
    ) -> None:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PAREN_")}
        self.out = folder / "out"
        words = [command, file, "--out", "out", *options]
        variables |= {"PAREN_CACHE": str(folder / "cache"), **(more or {})}
        self.process = Command(words, variables, folder, session=True)

    def wait_for(self, fact: Callable[[], object], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not fact():
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < end, what
            time.sleep(0.02)

    def workers(self) -> set[int]:
        """The processes that hold jobs."""
        return {holder.pid for holder in holders(self.out) if holder.claim.startswith("runs/")}

    def trains(self) -> bool:
        """Whether a training has written a checkpoint."""
        return any(self.out.glob("store/model/*.partial/checkpoints/*/manifest.json"))


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # also if it ends while it is looked at
        return False


def long_study(folder: Path, jobs: int) -> Path:
    path = write_study(folder, f"(defcohort (replica {' '.join(map(str, range(jobs)))}))")
    path.write_text(path.read_text().replace(":steps 4", f"{ENDLESS} :checkpoint-every 500 :log-every 1000"))
    return path


@pytest.mark.parametrize("options", [(), ("--workers", "2")])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stop_ends_all_workers(tmp_path: Path, options: tuple[str, ...], number: signal.Signals, code: int) -> None:
    long_study(tmp_path, 3)
    started = Started(tmp_path, *options)
    started.wait_for(lambda: started.trains() and len(started.workers()) == max(1, len(options)), "two trainings")
    workers = started.workers()
    started.process.send_signal(number)
    said = started.process.communicate(timeout=PATIENCE)[1]
    assert started.process.returncode == code, said
    assert f"{number.name}: stopping at the next step border" in said
    assert not any(runs(pid) for pid in workers)
    assert set(states(started.out).values()) == {"waiting"}
    assert said.count(": it goes on the next time") == len(workers)
    assert not list((started.out / "locks").iterdir())


@pytest.mark.parametrize("options", [(), ("--workers", "2")])
def test_a_second_signal_leaves_no_claims(tmp_path: Path, options: tuple[str, ...]) -> None:
    """A function that computes for long has no border to stop at."""
    path = write_study(tmp_path, '(defcohort (replica 0 1 2))(defmetric m (python "f.py" m :replica replica))')
    (tmp_path / "f.py").write_text(
        "import pathlib, time\n\n\ndef m(replica):\n"
        '    pathlib.Path(f"began-{replica}").touch()\n    time.sleep(3000)\n'
    )
    started = Started(tmp_path, *options, command="run", file=path.name)
    count = max(1, len(options))
    started.wait_for(lambda: len(list(tmp_path.glob("began-*"))) == count, "the functions")
    workers = started.workers()
    started.process.send_signal(signal.SIGINT)
    border = "at the next step border, or after the function that is computing now"
    started.process.wait_to_say(rf"SIGINT: stopping {border} \(again: stop at once\)\n")
    started.process.send_signal(signal.SIGINT)
    assert "stopped at once" in started.process.communicate(timeout=PATIENCE)[1]
    assert started.process.returncode == 130
    assert not any(runs(pid) for pid in workers)
    assert not list((started.out / "locks").iterdir())


def test_workers_end_with_whoever_started_them(tmp_path: Path) -> None:
    long_study(tmp_path, 3)
    started = Started(tmp_path, "--workers", "2")
    started.wait_for(lambda: len(started.workers()) == 2, "two workers")
    workers = started.workers()
    started.process.kill()
    started.process.communicate()
    end = time.monotonic() + PATIENCE
    while any(runs(pid) for pid in workers):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert started.workers() == set()


def test_a_killed_workers_job_is_taken_by_another(tmp_path: Path) -> None:
    path, gate = long_study(tmp_path, 3), tmp_path / "gate"
    path.write_text(path.read_text().replace(ENDLESS, ":steps 4000 :evaluate-every 1000"))
    started = Started(tmp_path, "--workers", "2", more=faults("hold@0:evaluate", gate))
    started.wait_for(lambda: len(started.workers()) == 2, "two workers")
    os.kill(min(started.workers()), signal.SIGKILL)
    gate.touch()
    said = started.process.communicate(timeout=PATIENCE)[1]
    assert started.process.returncode == 0, said
    assert "was ended by SIGKILL; its job is free for the others" in said
    assert set(states(started.out).values()) == {"done"}


def test_a_study_whose_workers_are_all_killed(tmp_path: Path) -> None:
    long_study(tmp_path, 2)
    started = Started(tmp_path, "--workers", "2")
    started.wait_for(lambda: len(started.workers()) == 2, "two workers")
    for pid in started.workers():
        os.kill(pid, signal.SIGKILL)
    said = started.process.communicate(timeout=PATIENCE)[1]
    assert started.process.returncode == 1
    assert said.splitlines()[-2:] == [
        "E-JOB-002: 2 of 2 jobs were not finished, as the workers ended before",
        "  fix: start again: finished jobs are kept, and interrupted ones go on",
    ]


def test_lines_of_progress(tmp_path: Path) -> None:
    stream = io.StringIO()
    jobs = make_jobs(elaborate(write_study(tmp_path, "(defsweep (rate 1e-3) (rows 80))")), ())
    view = StudyLines(stream)
    view.begin(jobs[1:], 1)
    view.show(Event(1, "running", "training", 3, 8))
    view.show(Event(-1, "notice", text="the cache is full"))
    view.show(Event(-1, "notice", text="the cache is full"))
    view.show(Event(2, "running", "error"))
    view.show(Event(1, "done"))
    view.show(Event(1, "done"))
    view.show(Event(-1, "said", text="printed"))
    view.show(Event(-1, "said", text="printed"))
    view.show(Event(2, "waiting", "training"))
    view.end()
    assert re.sub(r"[0-9.]+ s\n", "T s\n", stream.getvalue()) == (
        "1 of 3 jobs is done already\n"
        "the cache is full\n"
        "[2/3] rate 0.001: done in T s\n"
        "printed\nprinted\n"
        "stopped rows 80 in stage training: it goes on the next time\n"
    )
