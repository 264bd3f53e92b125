"""Worker processes that end in a job: by what the job does they end that job only, and it says how."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from experiment.studies import Shown, states, write_study

from paren import api
from paren.experiment import worker_pool
from paren.experiment.events import Event
from paren.experiment.worker_places import WorkerPlace
from paren.experiment.worker_pool import Death, Order, run_workers
from paren.run import How
from paren.text.errors import ParenError
from paren.train.signals import StopSignals

FUNCTIONS = """import os, signal


def end(model, replica):
    if replica == 1:
        HOW
    return replica
"""
FORMS = '(defcohort (replica 0 1 2))(defmetric last (python "f.py" end :replica replica) :needs (model))'


pytestmark = pytest.mark.usefixtures("own_cache")


def write(folder: Path, how: str) -> Path:
    path = write_study(folder, FORMS)
    (folder / "f.py").write_text(FUNCTIONS.replace("HOW", how))
    return path


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("os._exit(3)", "ended with exit code 3"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was ended by SIGSEGV"),
    ],
)
def test_a_function_that_ends_its_process_ends_its_job_only(tmp_path: Path, how: str, said: str) -> None:
    path, out = write(tmp_path / "s", how), tmp_path / "out"
    with pytest.raises(ParenError) as raised:
        api.load(path).run(out, workers=2)
    assert raised.value.message == f"1 of 3 jobs failed, in {out}"
    assert [note.message.partition(" (")[0] for note in raised.value.notes] == [
        f"replica 1: E-JOB-009: the worker process at this job {said}"
    ]
    assert sorted(states(out).values()) == ["done", "done", "failed"]
    status = json.loads(next(out.glob("runs/*/replica-1/status.json")).read_bytes())
    assert (status["code"], status["stage"]) == ("E-JOB-009", "last")
    assert not list((out / "locks").iterdir())
    (path.parent / "f.py").write_text(FUNCTIONS.replace("HOW", "pass"))
    assert api.load(path).run(out, workers=2).done == 3


def test_a_job_in_which_two_workers_are_killed_has_failed(tmp_path: Path) -> None:
    path, out = write(tmp_path / "s", "os.kill(os.getpid(), signal.SIGKILL)"), tmp_path / "out"
    path.write_text(path.read_text().replace("(replica 0 1 2)", "(replica 1 2 4)"))
    view = Shown()
    with pytest.raises(ParenError) as raised:
        api.load(path).run(out, workers=3, progress=view)
    assert raised.value.notes[0].message.startswith(
        "replica 1: E-JOB-009: the worker process at this job was ended by SIGKILL"
    )
    assert sorted(states(out).values()) == ["done", "done", "failed"]
    said = [event.text for event in view.events if event.kind == "said"]
    freed = [text for text in said if text.endswith("was ended by SIGKILL; its job is free for the others")]
    assert len(freed) <= 1  # none where two were found dead at once


def test_workers_that_are_found_dead_in_one_job_at_once_fail_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever is looked at first: the job's status says who was at it last. One that ends while deaths are settled is
    looked at again before the launch ends. Of those that were at no job each is told of."""
    deaths = [Death(number, 100 + number, "was ended by SIGKILL", 7, killed=True) for number in range(3)]
    deaths += [Death(number, 100 + number, "was ended by SIGKILL", -1, killed=True) for number in (3, 4)]
    late = Death(5, 105, "was ended by SIGKILL", 8, killed=True)
    ended = iter([False, True, True])

    def worker(*found: Death | None) -> SimpleNamespace:
        told = iter([*found, None, None])
        return SimpleNamespace(death=lambda: next(told), has_ended=lambda: True, end=lambda: None)

    last = worker(None, late)
    last.has_ended = lambda: next(ended)
    workers = iter([*(worker(death) for death in deaths), last])
    monkeypatch.setattr(worker_pool, "_Process", lambda *given: next(workers))
    failed: list[Death] = []
    events: list[Event] = []
    order = Order("f", None, (), {}, (), "", How("cpu"), 1, True, True, False, {})
    places = [WorkerPlace("cpu", 1)] * 6
    run_workers(order, places, {}, events.append, StopSignals(), failed.append, lambda: None)
    assert failed == deaths[:3]
    told = [f"worker {number} was ended by SIGKILL; its job is free for the others" for number in (3, 4, 5)]
    assert [event.text for event in events] == told


def test_one_worker_is_a_process_too(tmp_path: Path) -> None:
    """Also for a job that is the only one left."""
    path, out = write(tmp_path / "s", "os._exit(3)"), tmp_path / "out"
    for done in (2, 0):
        view = Shown()
        with pytest.raises(ParenError) as raised:
            api.load(path).run(out, workers=1, progress=view)
        assert raised.value.notes[0].message.startswith(
            "replica 1: E-JOB-009: the worker process at this job ended with exit code 3"
        )
        assert len(view.ended("done")) == done


def test_a_crash_in_the_launch_itself_names_the_line(tmp_path: Path) -> None:
    path = write(tmp_path / "s", "os.kill(os.getpid(), signal.SIGSEGV)")
    command = [sys.executable, "-m", "paren", "run", str(path), "--out", "out"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert ended.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in ended.stderr
    assert f'File "{path.parent / "f.py"}", line 6 in end' in ended.stderr
    again = subprocess.run([*command, "--workers", "1"], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert again.returncode == 1
    assert "replica 1: E-JOB-009: the worker process at this job was ended by SIGSEGV" in again.stderr
    assert sorted(states(tmp_path / "out").values()) == ["done", "done", "failed"]


def test_the_next_launch_tells_where_a_process_ended(tmp_path: Path) -> None:
    path, out, before = write_study(tmp_path / "s"), tmp_path / "out", signal.getsignal(signal.SIGINT)
    api.load(path).train(out)
    (status,) = out.glob("runs/*/*/status.json")
    content = json.loads(status.read_bytes())
    status.write_text(json.dumps(content | {"state": "running", "stage": "last", "worker": "process 7 on there"}))
    view = Shown()
    api.load(path).train(out, progress=view)
    text = "process 7 on there ended in stage last of baseline, which is tried again"
    hint = "; should the job end its process, --workers 1 lets the others go on"
    assert Event(0, "notice", text=text + hint) in view.events
    status.write_text(json.dumps(content | {"state": "running", "stage": "last", "worker": "process 7 on there"}))
    view = Shown()
    api.load(path).train(out, progress=view, workers=1)
    assert Event(0, "notice", text=text) in view.events
    assert signal.getsignal(signal.SIGINT) is before
