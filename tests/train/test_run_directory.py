"""A run's directory: what may be started where something stands, one run at a time, refusals before step 1."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from training_fakes import FaultyFiles, Trial, run_form

from paren.text.codes import CODES
from paren.text.errors import ParenError
from paren.train import lock, run_directory
from paren.train.lock import Holder, RunLock
from paren.train.read_run import read_weights
from paren.train.status import read_status

TESTS = Path(__file__).parent


def refused(trial: Trial, **options) -> ParenError:
    with pytest.raises(ParenError) as caught:
        trial.start(**options)
    return caught.value


# ---- layout --------------------------------------------------------------------------------------------------------


def test_the_layout_of_a_run(tmp_path):
    trial = Trial(tmp_path / "deep" / "run", run_form(keep_checkpoints=2))
    trial.start()
    assert sorted(path.name for path in trial.out.iterdir() if path.name != "lock") == [
        "best",
        "checkpoints",
        "metrics.jsonl",
        "run.json",
        "status.json",
    ]
    assert sorted(path.name for path in (trial.out / "checkpoints").iterdir()) == ["000008", "000012", "latest"]
    run = json.loads((trial.out / "run.json").read_text())
    assert run["experiment"] == trial.digest
    assert run["settings"] == {"rate": 0.05}
    assert (run["seed"], run["batch"], run["microbatches"], run["steps"]) == (3, 8, 2, 12)
    assert run["identity"] == {"device": "cpu"}
    text = run["sources"]["linear.paren"]
    assert text["sha256"] == hashlib.sha256(text["text"].encode()).hexdigest()
    status = read_status(trial.out)
    assert (status.state, status.step, status.steps, status.samples, status.code) == ("complete", 12, 12, 88, None)
    assert read_weights(trial.out).step == 12


def test_the_status_follows_the_run(tmp_path):
    trial = Trial(tmp_path / "run")
    seen = {}

    def before(name, number):
        status = read_status(trial.out)
        seen.setdefault(name, (status.state, status.phase))

    trial.before = before
    trial.start()
    assert seen["accumulate"] == ("running", "training")
    assert seen["evaluate"] == ("running", "evaluating")


# ---- an existing OUT -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resume", [None, "auto", "latest"])
def test_a_complete_run_is_said_to_be_and_nothing_is_computed(tmp_path, resume):
    trial = Trial(tmp_path / "run")
    trial.start()
    before = {path: path.read_bytes() for path in trial.out.rglob("*") if path.is_file()}
    trial.engine = None
    outcome = trial.start(resume=resume)
    assert (outcome.ended, outcome.exit_code, outcome.step) == ("done", 0, 12)
    assert trial.listener.notices == [f"{trial.out} holds this run, complete after 12 steps: nothing to do"]
    assert trial.engine is None
    assert {path: path.read_bytes() for path in trial.out.rglob("*") if path.is_file()} == before


def test_an_unfinished_run_is_refused_with_the_hint(tmp_path):
    trial = Trial(tmp_path / "run")
    trial.start(steps=5)
    error = refused(trial)
    assert error.code == "E-RUN-001"
    assert error.message == f"{trial.out} holds an unfinished run of this experiment, at step 5"
    assert error.fix == "--resume latest goes on, --overwrite starts anew"
    assert read_status(trial.out).state == "stopped"


@pytest.mark.parametrize("options", [{}, {"resume": "latest"}, {"resume": "auto"}, {"resume": "4"}])
@pytest.mark.parametrize("complete", [False, True])
def test_another_experiment_is_refused(tmp_path, options, complete):
    Trial(tmp_path / "run").start(steps=None if complete else 4)
    other = Trial(tmp_path / "run", digest="e" * 64, settings={"rate": 0.1})
    error = refused(other, **options)
    assert error.code == "E-RUN-002"
    assert error.message == f"{other.out} holds another experiment (rate is 0.05 there and 0.1 here)"
    other.settings = {"rate": 0.05}
    assert refused(other).message == (f"{other.out} holds another experiment (its data or its version of paren differ)")


def test_overwrite_deletes_the_run_and_nothing_else(tmp_path):
    Trial(tmp_path / "run").start()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    other = Trial(tmp_path / "run", digest="e" * 64)
    assert other.start(overwrite=True, steps=2).step == 2
    assert (other.out / "notes.txt").read_text() == "mine"
    assert [path.name for path in (other.out / "checkpoints").glob("0*")] == ["000002"]
    assert not (other.out / "best").exists()
    lines = (other.out / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2, 2]


def test_overwrite_and_resume_contradict(tmp_path):
    error = refused(Trial(tmp_path / "run"), overwrite=True, resume="latest")
    assert (error.code, error.message) == ("E-RUN-008", "--overwrite and --resume contradict each other")


def test_a_start_that_ended_before_its_first_step_may_be_repeated(tmp_path, monkeypatch):
    trial = Trial(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(run_directory, "SPARE", 1 << 60)
        assert refused(trial).code == "E-RUN-006"
    assert trial.start().ended == "complete"


def test_a_start_that_was_killed_before_it_wrote_anything_may_be_repeated(tmp_path):
    trial = Trial(tmp_path / "run")
    (trial.out / "checkpoints").mkdir(parents=True)
    (trial.out / "checkpoints" / ".temporary-probe-12").write_text("")
    assert trial.start().ended == "complete"


def test_auto_starts_if_there_is_nothing(tmp_path):
    assert Trial(tmp_path / "run").start(resume="auto").ended == "complete"


@pytest.mark.parametrize("resume", ["latest", "500"])
def test_a_resume_of_nothing_is_an_error_and_no_new_start(tmp_path, resume):
    trial = Trial(tmp_path / "run")
    error = refused(trial, resume=resume)
    assert error.code == "E-CKPT-001"
    assert error.message == f"{trial.out} holds no run to resume"
    assert trial.engine is None
    assert not (trial.out / "run.json").exists()


def test_a_run_without_a_checkpoint_starts_again_with_auto_only(tmp_path):
    trial = Trial(tmp_path / "run")
    trial.start(steps=1)
    shutil.rmtree(trial.out / "checkpoints")
    error = refused(trial)
    assert error.code == "E-RUN-001"
    assert error.message == f"{trial.out} holds an unfinished run of this experiment, at step 1, without a checkpoint"
    assert error.fix == "--overwrite starts anew"
    error = refused(trial, resume="latest")
    assert error.code == "E-CKPT-001"
    assert error.message == f"{trial.out / 'checkpoints'} holds no checkpoint to resume from"
    trial.start(resume="auto")
    steps = [json.loads(line)["step"] for line in (trial.out / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(13))


def test_steps_that_are_done_already(tmp_path):
    trial = Trial(tmp_path / "run")
    trial.start(steps=7)
    outcome = trial.start(steps=6, resume="latest")
    assert (outcome.ended, outcome.exit_code, outcome.step) == ("done", 0, 7)
    assert trial.listener.notices == [f"{trial.out} is at step 7 already: nothing to do"]


def test_files_without_a_run_are_not_taken_for_one(tmp_path):
    trial = Trial(tmp_path / "run")
    trial.out.mkdir()
    (trial.out / "metrics.jsonl").write_text("mine")
    for options in ({}, {"overwrite": True}, {"resume": "auto"}):
        error = refused(trial, **options)
        assert error.code == "E-RUN-003"
        assert error.message == f"{trial.out} holds metrics.jsonl but no run.json, so it is not a run's directory"
    assert [path.name for path in trial.out.iterdir()] == ["metrics.jsonl"]
    assert (trial.out / "metrics.jsonl").read_text() == "mine"


def test_other_files_do_not_matter(tmp_path):
    trial = Trial(tmp_path / "run")
    trial.out.mkdir()
    (trial.out / "log.txt").write_text("mine")
    trial.start()
    assert (trial.out / "log.txt").read_text() == "mine"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"run": 1, "experiment": "x"}'])
def test_a_damaged_run_file(tmp_path, content):
    trial = Trial(tmp_path / "run")
    trial.start(steps=1)
    (trial.out / "run.json").write_text(content)
    error = refused(trial, resume="auto")
    assert (error.code, error.message) == ("E-RUN-010", f"{trial.out / 'run.json'} is damaged")


def test_a_place_for_checkpoints_belongs_to_one_run(tmp_path):
    place = str(tmp_path / "place")
    first = Trial(tmp_path / "a")
    first.start(steps=4, checkpoints=place)
    assert (tmp_path / "place" / "000004" / "manifest.json").exists()
    first.start(resume="latest", checkpoints=place)
    error = refused(Trial(tmp_path / "b"), checkpoints=place)
    assert error.code == "E-RUN-015"
    assert error.fix == (
        "take another --checkpoints, one for each run; with a new --out, --resume latest goes on with that run"
    )


def test_a_place_for_checkpoints_is_used_by_one_process_at_a_time(tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    with RunLock(place):
        error = refused(Trial(tmp_path / "a"), checkpoints=str(place))
    assert error.code == "E-RUN-004"


# ---- steps ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "steps", "message"),
    [
        ({}, 0, "--steps 0 would train nothing"),
        ({}, -3, "--steps -3 would train nothing"),
        ({}, 13, "--steps 13 is more than the 12 steps of the experiment"),
        ({"steps": 0}, None, "the experiment has 0 steps, so it would train nothing"),
        ({"steps": None, "epochs": 0}, None, "the experiment has 0 steps, so it would train nothing"),
    ],
)
def test_a_count_of_steps_that_trains_nothing_or_too_much(tmp_path, changes, steps, message):
    error = refused(Trial(tmp_path / "run", run_form(**changes)), steps=steps)
    assert (error.code, error.message) == ("E-RUN-007", message)
    assert not (tmp_path / "run").exists()


# ---- before step 1 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["write", "sync", "rename", "sync_folder"])
@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_folder_that_cannot_be_written_is_refused_before_the_engine_is_made(tmp_path, operation, code):
    trial = Trial(tmp_path / "run")
    trial.files = FaultyFiles(fails=lambda number, name: OSError(code, "No way") if name == operation else None)
    error = refused(trial)
    assert error.code == "E-RUN-005"
    assert error.message == f"{trial.out} is not writable (no way)"
    assert trial.engine is None
    assert not list(trial.out.glob(".temporary*"))


def test_a_path_through_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    error = refused(Trial(tmp_path / "file" / "run"))
    assert error.code == "E-RUN-005"
    assert error.message == f"{tmp_path / 'file' / 'run'} is not writable (not a directory)"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory_is_refused(tmp_path):
    (tmp_path / "run").mkdir(mode=0o555)
    assert refused(Trial(tmp_path / "run")).code == "E-RUN-005"


def test_too_little_space_is_known_before_step_1(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 5, 1 << 20))
    trial = Trial(tmp_path / "run", run_form(keep_checkpoints=2, checkpoint_every=1))
    error = refused(trial)
    assert error.code == "E-RUN-006"
    assert error.message == (
        f"{trial.out / 'checkpoints'} has 1 MiB free, and the run needs 16 MiB for 3 checkpoints of 60 bytes"
        ", 120 bytes of best parameters and 16 MiB of metrics and manifests"
    )
    assert read_status(trial.out).code == "E-RUN-006"


# ---- the lock ------------------------------------------------------------------------------------------------------


def test_a_second_start_is_refused_and_names_the_holder(tmp_path):
    trial = Trial(tmp_path / "run")
    errors = []

    def before(name, number):
        if name == "update" and number == 3:
            errors.append(refused(Trial(trial.out), resume="auto"))

    trial.before = before
    trial.start()
    holder = f"process {os.getpid()} on {socket.gethostname()}, since "
    assert errors[0].code == "E-RUN-004"
    assert errors[0].message.startswith(f"{trial.out} is in use by {holder}")
    with RunLock(trial.out):  # which nobody holds
        pass


def script(body: str) -> list[str]:
    head = f"import sys; sys.path.insert(0, {str(TESTS)!r})\n"
    return [sys.executable, "-c", head + textwrap.dedent(body)]


HOLD = """
    import os, signal, sys
    from pathlib import Path
    from paren.train.lock import RunLock
    with RunLock(Path(sys.argv[1])):
        print("held", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path):
    done = subprocess.run([*script(HOLD), str(tmp_path)], capture_output=True, text=True)
    assert done.stdout == "held\n"
    assert (tmp_path / "holder.json").exists()
    with RunLock(tmp_path):
        assert json.loads((tmp_path / "holder.json").read_text())["pid"] == os.getpid()
    assert not (tmp_path / "holder.json").exists()


RACE = """
    import sys
    from pathlib import Path
    from training_fakes import Trial
    from paren.text.errors import ParenError
    print("ready", flush=True)
    sys.stdin.readline()
    trial = Trial(Path(sys.argv[1]))
    trial.before = lambda name, number: sys.stdin.readline() if (name, number) == ("update", 2) else None
    try:
        print(trial.start().ended, flush=True)
    except ParenError as error:
        print(error.code, error.message, flush=True)
"""


@pytest.mark.parametrize("count", [3, pytest.param(20, marks=pytest.mark.long)])
def test_of_many_starts_at_once_one_wins(tmp_path, count):
    out = tmp_path / "run"
    command = [*script(RACE), str(out)]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    try:
        for process in started:
            assert process.stdout.readline() == "ready\n"
        for process in started:
            process.stdin.write("go\n")
            process.stdin.flush()
        losers = []
        waiting = list(started)
        while len(losers) < count - 1:  # the winner waits in its second update until all others have given up
            for process in list(waiting):
                if process.poll() is not None:
                    losers.append(process)
                    waiting.remove(process)
        (winner,) = waiting
        answers = [process.communicate()[0] for process in losers]
        answer = winner.communicate("go\n")[0]
    finally:
        for process in started:
            process.kill()
    assert answer == "complete\n"
    assert all(each.startswith(f"E-RUN-004 {out} is in use by process {winner.pid} on ") for each in answers), answers


def test_a_holder_that_has_not_written_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "PATIENCE", 0.0)
    with RunLock(tmp_path):
        (tmp_path / "holder.json").unlink()
        with pytest.raises(ParenError) as caught, RunLock(tmp_path):
            pass
    assert caught.value.message == f"{tmp_path} is in use by a process that has not written its name yet"


def test_a_holder_on_another_host_is_named(tmp_path):
    with RunLock(tmp_path):
        content = Holder("elsewhere", 1, "2026-01-01T00:00:00+00:00")
        (tmp_path / "holder.json").write_text(json.dumps(vars(content)))
        with pytest.raises(ParenError) as caught, RunLock(tmp_path):
            pass
    assert caught.value.message == (f"{tmp_path} is in use by process 1 on elsewhere, since 2026-01-01T00:00:00+00:00")


# ---- the rest ------------------------------------------------------------------------------------------------------


def test_a_reader_of_no_run(tmp_path):
    with pytest.raises(ParenError) as caught:
        read_weights(tmp_path)
    assert (caught.value.code, caught.value.message) == ("E-RUN-014", f"{tmp_path} holds no run")


def test_a_status_that_cannot_be_read_is_none(tmp_path):
    assert read_status(tmp_path) is None
    (tmp_path / "status.json").write_text("{")
    assert read_status(tmp_path) is None


def test_every_code_of_training_is_registered():
    used = set()
    for path in Path(run_directory.__file__).parent.glob("*.py"):
        used |= set(re.findall(r'"(E-[A-Z]+-\d{3})"', path.read_text()))
    assert used <= CODES.keys()
    assert {code for code in CODES if code.startswith(("E-RUN", "E-CKPT", "E-NUM", "E-START"))} <= used


def test_a_directory_that_refuses_its_lock(tmp_path):
    (tmp_path / "lock").mkdir()
    with pytest.raises(ParenError) as caught, RunLock(tmp_path):
        pass
    assert caught.value.code == "E-RUN-005"
    assert caught.value.message.startswith(f"{tmp_path} is not writable (")


def test_a_final_status_that_cannot_be_written_is_an_error(tmp_path):
    class Failing(FaultyFiles):
        def rename(self, source: Path, target: Path) -> None:
            if target.name == "status.json":
                raise OSError(errno.ENOSPC, "No space left on device")
            super().rename(source, target)

    trial = Trial(tmp_path / "run", files=Failing())
    error = refused(trial)
    assert error.code == "E-RUN-012"
    assert error.message == f"{trial.out / 'status.json'} could not be written (no space left on device)"
    trial.files = FaultyFiles()
    assert trial.start(resume="latest").ended == "complete"


def test_memory_that_runs_out_in_a_step_ends_the_run_with_a_code(tmp_path):
    def act(name, step):
        if (name, step) == ("accumulate", 2):
            raise MemoryError("Unable to allocate 3. TiB")

    trial = Trial(tmp_path / "run", before=act)
    with pytest.raises(ParenError) as caught:
        trial.start()
    error = caught.value
    assert error.code == "E-MEM-002"
    assert re.fullmatch(r"memory ran out after step 2: [\d.]+ GiB are free, 4 KiB were planned", error.message)
    assert error.notes[1].message == "the system said: Unable to allocate 3. TiB"
    assert error.fix == (
        "end other programs, or make the model or the microbatch smaller, then continue with --resume latest"
    )
    found = read_status(tmp_path / "run")
    assert (found.state, found.code, found.step) == ("failed", "E-MEM-002", 2)
