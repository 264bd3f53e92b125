"""The jobs of a study are trained once, by one worker or several; what fails or is interrupted stays apart."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from experiment.recorded_folders import write_json
from experiment.studies import Shown, faults, files_below, read_from_arrays, states, weights, write_study

from paren import api
from paren.experiment import training
from paren.experiment.events import Event
from paren.experiment.job_files import JobStatus, write_job_status
from paren.experiment.jobs import Job, make_jobs
from paren.experiment.plan import _Former, _likely_data
from paren.experiment.python.functions import Functions
from paren.experiment.store.store import Store
from paren.experiment.training import Trainer
from paren.lang.elaborate import elaborate
from paren.run import How
from paren.runtime.device import open_device
from paren.text.errors import ParenError
from paren.train.status import Status, read_status

SWEEP = "(defsweep (rate 1e-3 1e-4) (rows 80))"


pytestmark = pytest.mark.usefixtures("own_cache")


def train(path: Path, out: Path, view: Shown | None = None, **options: object) -> api.StudyRun:
    return api.load(path).train(out, progress=view, **options)  # type: ignore[arg-type]


def test_each_job_is_trained_once(tmp_path: Path) -> None:
    path, out = write_study(tmp_path / "s", SWEEP), tmp_path / "out"
    first, again = Shown(), Shown()
    ended = train(path, out, first)
    assert (ended.exit_code, ended.done, ended.left) == (0, 4, 0)
    assert first.ended("done") == {0, 1, 2, 3}
    before = files_below(out / "store")
    assert train(path, out, again).done == 4
    assert again.events == []
    assert again.notices == [f"{out} holds this study, complete with 4 jobs: nothing to do"]
    assert files_below(out / "store") == before
    assert not list((out / "locks").iterdir())


def test_a_job_is_what_a_single_run_would_be(tmp_path: Path) -> None:
    path, out = write_study(tmp_path / "s", SWEEP), tmp_path / "out"
    train(path, out)
    single = api.load(path, set={"rate": 1e-4}).run(tmp_path / "run", single=True)
    assert isinstance(single, api.Run)
    alone = single.restore().parameters()
    job = next(bits for folder, bits in weights(out).items() if folder.startswith("runs/rate-0.0001-"))
    assert {name: array.tobytes() for name, array in alone.items()} == job


def test_only_changed_jobs_are_trained_again(tmp_path: Path) -> None:
    path, out = write_study(tmp_path / "s", SWEEP), tmp_path / "out"
    train(path, out)
    before = weights(out)
    path.write_text(path.read_text().replace("1e-4)", "5e-4)") + "; a comment\n")
    view = Shown()
    train(path, out, view)
    assert view.begun == ["rate 0.0005"]
    assert before.items() <= weights(out).items()
    (tmp_path / "s" / "data.py").write_text((tmp_path / "s" / "data.py").read_text().replace("sum(1)", "sum(1) + 1"))
    view = Shown()
    train(path, out, view)
    assert view.begun == ["baseline", "rate 0.001", "rate 0.0005", "rows 80"]


def test_changing_the_rate_makes_no_data_again(tmp_path: Path) -> None:
    path, out = write_study(tmp_path / "s", SWEEP), tmp_path / "out"
    train(path, out)
    assert len(list((out / "store" / "data").iterdir())) == 2


def test_a_failed_job_does_not_stop_the_others(tmp_path: Path) -> None:
    path, out = write_study(tmp_path / "s", "(defsweep (rows 4 80))"), tmp_path / "out"
    view = Shown()
    with pytest.raises(ParenError) as raised:
        train(path, out, view)
    folder = next(out.glob("runs/rows-4-*"))
    assert str(raised.value) == (
        f"E-JOB-001: 1 of 3 jobs failed, in {out}\n"
        "  note: rows 4: E-DATA-018: split train has 3 samples, fewer than one batch of 8 "
        f"(runs/{folder.name}/all/status.json)\n"
        "  fix: the status.json of each has its traceback; starting again tries them again, and only them"
    )
    assert states(out) == {"baseline/all": "done", "rows-4/all": "failed", "rows-80/all": "done"}
    status = json.loads((folder / "all" / "status.json").read_bytes())
    assert (status["code"], status["stage"]) == ("E-DATA-018", "data")
    assert "Traceback" in status["traceback"]
    again = Shown()
    with pytest.raises(ParenError, match="1 of 3 jobs failed"):
        train(path, out, again)
    assert again.begun == ["rows 4"]


def test_a_fault_of_user_code_keeps_its_traceback(tmp_path: Path) -> None:
    path, out = write_study(tmp_path / "s", "(defsweep (rows 4 80))"), tmp_path / "out"
    data = tmp_path / "s" / "data.py"
    data.write_text(
        data.read_text().replace("    draw", "    if rows == 80:\n        raise RuntimeError('no')\n    draw", 1)
    )
    with pytest.raises(ParenError, match="2 of 3 jobs failed"):
        train(path, out)
    status = json.loads(next(out.glob("runs/rows-80-*/all/status.json")).read_bytes())
    assert status["message"] == "pairs in data.py raised RuntimeError: no"
    assert "raise RuntimeError('no')" in status["traceback"]


def test_several_workers_do_the_same(tmp_path: Path) -> None:
    path = write_study(tmp_path / "s", SWEEP + "(defcohort (replica 0 1))")
    train(path, tmp_path / "one")
    view = Shown()
    assert train(path, tmp_path / "three", view, workers=3).done == 8
    assert view.ended("done") == set(range(8))
    assert weights(tmp_path / "one") == weights(tmp_path / "three")
    assert not list((tmp_path / "three" / "locks").iterdir())


def test_more_workers_than_jobs(tmp_path: Path) -> None:
    path = write_study(tmp_path / "s", "(defsweep (rate 1e-3))")
    assert train(path, tmp_path / "out", workers=5).done == 2


def test_workers_tell_of_failed_jobs(tmp_path: Path) -> None:
    path, out = write_study(tmp_path / "s", "(defsweep (rows 4 80))"), tmp_path / "out"
    with pytest.raises(ParenError) as raised:
        train(path, out, workers=2)
    assert raised.value.message == f"1 of 3 jobs failed, in {out}"
    assert states(out)["rows-80/all"] == "done"


LONG = "(defsweep (rate 1e-3))"


def stop_at(step: int, number: signal.Signals) -> Shown:
    """A view that sends this process a signal once a training is there."""
    sent: list[int] = []

    def look(event: Event) -> None:
        if event.stage == "training" and event.step >= step and not sent:
            sent.append(event.step)
            os.kill(os.getpid(), number)

    return Shown(look)


@pytest.mark.parametrize(
    ("number", "code", "workers"), [(signal.SIGTERM, 143, None), (signal.SIGINT, 130, None), (signal.SIGTERM, 143, 2)]
)
def test_an_interrupted_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int, workers: int | None
) -> None:
    """Workers do not come to their end before they hear of the stop, which they may late."""
    path, out, steps = write_study(tmp_path / "s", LONG), tmp_path / "out", 8000
    path.write_text(path.read_text().replace(":steps 4", f":steps {steps} :log-every 500 :evaluate-every 1000"))
    with monkeypatch.context() as patch:
        for name, value in (faults("heed@0:evaluate") if workers else {}).items():
            patch.setenv(name, value)
        ended = train(path, out, stop_at(1, number), workers=workers)
    assert (ended.exit_code, ended.done) == (code, 0)
    told = [json.loads(path.read_bytes()) for path in (out / "store" / "model").glob("*.partial/status.json")]
    stopped = max(told, key=lambda status: status["step"])  # of two workers, one may have come to no step
    assert {status["state"] for status in told} == {"stopped"}
    assert 0 < stopped["step"] < steps
    assert "waiting" in states(out).values()
    planned = [job for job in api.load(path).plan(out).jobs if job.step is not None]
    assert stopped["step"] in [job.step for job in planned]
    assert f"goes on at step {stopped['step']} of {steps}" in str(api.load(path).plan(out))
    assert train(path, out).done == 2
    assert not list((out / "store" / "model").glob("*.partial"))
    train(path, tmp_path / "whole")
    assert weights(out) == weights(tmp_path / "whole")


def test_an_output_root_can_be_moved(tmp_path: Path) -> None:
    path, out = write_study(tmp_path / "s", SWEEP), tmp_path / "out"
    train(path, out)
    moved = out.rename(tmp_path / "moved")
    view = Shown()
    assert train(path, moved, view).done == 4
    assert view.events == []


# Plans --------------------------------------------------------------------------------------------------------------


def test_a_plan_changes_no_file(tmp_path: Path) -> None:
    path, out = write_study(tmp_path / "s", SWEEP), tmp_path / "out"
    data = tmp_path / "s" / "data.py"
    data.write_text("raise SystemExit('this must not run')\n" + data.read_text())
    before = files_below(tmp_path)
    plan = api.load(path).plan(out)
    assert files_below(tmp_path) == before
    assert {(job.data, job.model) for job in plan.jobs} == {("to make", "to make")}
    data.write_text(data.read_text().partition("\n")[2])
    api.load(path).train(out)
    before = files_below(tmp_path)
    assert {(job.data, job.model) for job in api.load(path).plan(out).jobs} == {("cached", "cached")}
    assert files_below(tmp_path) == before


def test_a_plan_says_why(tmp_path: Path) -> None:
    path, out = write_study(tmp_path / "s", SWEEP), tmp_path / "out"
    assert re.fullmatch(
        r"""job          data     model
baseline     to make  to make, [\d.]+ [KM]iB
rate 0\.001   to make  to make, [\d.]+ [KM]iB
rate 0\.0001  to make  to make, [\d.]+ [KM]iB
rows 80      to make  to make, [\d.]+ [KM]iB

4 jobs in .*/out, 4 models to train
memory: [\d.]+ [KM]iB of .* free for the largest: fits""",
        str(api.load(path).plan(out)),
    )
    train(path, out)
    path.write_text(path.read_text().replace("(def hidden [4])", "(def hidden [5])"))
    data = tmp_path / "s" / "data.py"
    data.write_text(data.read_text().replace("sum(1)", "sum(1) + 1"))
    changes = api.load(path).plan(out).jobs[3].changes
    assert changes == ("data: data.py pairs: changed", "hidden: [4] -> [5]", "program: changed")


def test_a_plan_of_data_that_are_not_read(tmp_path: Path) -> None:
    """Data known by their content: what was recorded counts as long as they have not changed."""
    path, out = write_study(tmp_path / "s", "(defsweep (rate 1e-3))"), tmp_path / "out"
    np.savez(tmp_path / "s" / "d.npz", x=np.ones((40, 2), np.float32), y=np.ones(40, np.float32))
    read_from_arrays(path, "d.npz")
    assert [job.model for job in api.load(path).plan(out).jobs] == ["to make"] * 2
    train(path, out)
    plan = api.load(path).plan(out)
    assert [(job.data, job.model) for job in plan.jobs] == [(None, "cached, if its data have not changed")] * 2
    path.write_text(path.read_text().replace(":steps 4", ":steps 30000 :log-every 1000"))
    plan = api.load(path).plan(out)
    assert [(job.model, job.changes) for job in plan.jobs] == [("to make", ("program: changed",))] * 2
    train(path, out, stop_at(1, signal.SIGTERM))
    plan = api.load(path).plan(out)
    assert [job.steps for job in plan.jobs if job.step is not None] == [30000]


def test_a_plan_goes_on_from_the_newest_of_several_interrupted_trainings(tmp_path: Path) -> None:
    """Of a job whose data are read where they lie: it is not known yet which of them it has."""
    path = write_study(tmp_path / "s")
    (job,) = make_jobs(elaborate(path), ())
    trainer = Trainer(Store(tmp_path / "out"), Functions.of(path.parent), How("cpu"))
    former = {}
    for day in (2, 3, 1):
        key = f"{day}" * 24
        folder = trainer.store.partial(trainer.recipe(job, key))
        write_json(folder / "status.json", asdict(Status("stopped", day, 4, 8, "", f"2026-11-0{day}")))
        former[key] = _Former(folder, key)
    assert _likely_data(job, trainer, former) == "3" * 24


def test_a_plan_goes_on_from_the_last_checkpoint_of_a_training_that_was_killed(tmp_path: Path) -> None:
    """What the training did after its checkpoint is lost, whatever its status says."""
    path, out = write_study(tmp_path / "s"), tmp_path / "out"
    path.write_text(path.read_text().replace(":steps 4", ":steps 30000 :log-every 1000"))
    train(path, out, stop_at(1, signal.SIGTERM))
    (job,) = api.load(path).plan(out).jobs
    (partial,) = (out / "store" / "model").glob("*.partial")
    status = read_status(partial)
    assert status is not None
    assert status.step == job.step
    write_json(partial / "status.json", asdict(replace(status, step=status.step + 5)))
    assert api.load(path).plan(out).jobs[0].step == job.step
    for checkpoint in (partial / "checkpoints").iterdir():
        shutil.rmtree(checkpoint) if checkpoint.is_dir() else checkpoint.unlink()
    (job,) = api.load(path).plan(out).jobs
    assert (job.model, job.step, job.steps) == ("to make", None, None)


def test_what_changed_in_all_jobs_is_told_once(tmp_path: Path) -> None:
    path, out = write_study(tmp_path / "s", "(defcohort (replica 0 1))"), tmp_path / "out"
    train(path, out)
    (tmp_path / "s" / "data.py").write_text((tmp_path / "s" / "data.py").read_text().replace("sum(1)", "sum(1) + 1"))
    head, told = "changed since the newest artifacts of the same job:", "data: data.py pairs: changed"
    assert f"\n{head}\n  all jobs: {told}\n\n" in str(api.load(path).plan(out))
    replica = api.load(path, set={"replica": 1}).plan(out)
    assert f"\n{head}\n  {replica.jobs[0].name}: {told}\n\n" in str(replica)


def test_a_plan_of_a_first_training_that_was_interrupted(tmp_path: Path) -> None:
    """No job was ever done, so nothing but the job's own folder names the data that it had."""
    path, out = write_study(tmp_path / "s"), tmp_path / "out"
    np.savez(tmp_path / "s" / "d.npz", x=np.ones((40, 2), np.float32), y=np.ones(40, np.float32))
    read_from_arrays(path, "d.npz")
    path.write_text(path.read_text().replace(":steps 4", ":steps 30000 :log-every 1000"))
    train(path, out, stop_at(1, signal.SIGTERM))
    (job,) = api.load(path).plan(out).jobs
    assert (job.model, job.steps, (job.step or 0) > 0) == ("to make", 30000, True)
    assert f"goes on at step {job.step} of 30000" in str(api.load(path).plan(out))
    path.write_text(path.read_text().replace("tanh", "relu"))
    (job,) = api.load(path).plan(out).jobs
    assert (job.model, job.step) == ("to make", None)


def test_a_plan_goes_on_with_a_training_of_other_data_than_the_job_had_before(tmp_path: Path) -> None:
    path, out = write_study(tmp_path / "s"), tmp_path / "out"
    read_from_arrays(path, "d.npz")
    np.savez(tmp_path / "s" / "d.npz", x=np.ones((40, 2), np.float32), y=np.ones(40, np.float32))
    train(path, out)
    np.savez(tmp_path / "s" / "d.npz", x=np.ones((40, 2), np.float32), y=np.zeros(40, np.float32))
    changed = path.read_text().replace(":steps 4", ":steps 30000 :log-every 1000")
    path.write_text(changed.replace("(def hidden [4])", "(def hidden [5])"))  # so the job has another folder
    train(path, out, stop_at(1, signal.SIGTERM))
    (job,) = api.load(path).plan(out).jobs
    assert (job.model, job.steps, (job.step or 0) > 0) == ("to make", 30000, True)


# Options ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 2}, "E-JOB-004: {path} declares a study, and --steps is for one training"),
        ({"overwrite": True}, "E-JOB-004: {path} declares a study, and --overwrite is for one training"),
        (
            {"workers": 2, "parallel": "ddp"},
            "E-JOB-006: --workers takes jobs side by side, and --parallel ddp one after another",
        ),
    ],
)
def test_options_that_do_not_fit_a_study(tmp_path: Path, options: dict[str, object], message: str) -> None:
    path = write_study(tmp_path / "s", SWEEP)
    with pytest.raises(ParenError) as raised:
        api.load(path).run(tmp_path / "out", **options)  # type: ignore[arg-type]
    assert str(raised.value).startswith(message.format(path=path))
    assert not (tmp_path / "out").exists()


def test_analysis_names_jobs_without_a_model(tmp_path: Path) -> None:
    path = write_study(tmp_path / "s", "(defsweep (rate 1e-3))")
    with pytest.raises(ParenError) as raised:
        api.load(path).analyze(tmp_path / "out")
    assert str(raised.value) == (
        f"E-JOB-008: 2 of 2 jobs have no trained model in {tmp_path / 'out'}\n"
        "  note: baseline\n  note: rate 0.001\n"
        "  fix: train them with paren train, or both with paren run"
    )


def test_workers_are_for_studies(tmp_path: Path) -> None:
    path = write_study(tmp_path / "s")
    with pytest.raises(ParenError) as raised:
        api.load(path).run(tmp_path / "out", workers=2)
    assert raised.value.message == f"{path} declares one training, and --workers is for several"


def test_mistakes_of_a_configuration_are_told_before_anything_is_written(tmp_path: Path) -> None:
    path = write_study(tmp_path / "s", "(defsweep (hidden [8] [0]))")
    with pytest.raises(ParenError, match="the shape of a parameter"):
        train(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ParenError, match="the shape of a parameter"):
        api.load(path).check()


def test_check_counts_the_jobs(tmp_path: Path) -> None:
    path = write_study(tmp_path / "s", SWEEP)
    assert api.load(path).check()["jobs"] == 4
    assert api.load(write_study(tmp_path / "t", "")).check()["jobs"] is None


def test_workers_that_ask_for_the_same_data_make_them_once(tmp_path: Path) -> None:
    path, out = write_study(tmp_path / "s", "(defsweep (rate 1e-3 1e-4 1e-5))"), tmp_path / "out"
    data, calls = tmp_path / "s" / "data.py", tmp_path / "calls"
    call = f"    with open({str(calls)!r}, 'a') as file:\n        file.write('called\\n')\n    draw"
    data.write_text(data.read_text().replace("    draw", call, 1))
    train(path, out, workers=3)
    assert calls.read_text() == "called\n"
    train(path, out)
    assert calls.read_text() == "called\n"


@pytest.mark.parametrize(("state", "tried"), [("running", False), ("failed", True)])
def test_a_job_that_fails_elsewhere_meanwhile_is_not_tried_again(tmp_path: Path, state: str, tried: bool) -> None:
    """One that another worker was at when this launch began has had its try; one that had failed before has not."""
    path, out = write_study(tmp_path / "s", "(defsweep (rate 1e-3))"), tmp_path / "out"
    train(path, out)
    folder = next(out.glob("runs/rate-0.001-*")) / "all"
    model = folder / json.loads((folder / "job.json").read_bytes())["model"]
    model.rename(tmp_path / "taken away")
    write_job_status(folder, JobStatus(state, "attempt"))

    class Meanwhile(Shown):
        def begin(self, jobs: Sequence[Job], finished: int) -> None:
            write_job_status(folder, JobStatus("failed", "attempt", "training", message="it went wrong elsewhere"))

    view = Meanwhile()
    if tried:
        assert train(path, out, view).done == 2
    else:
        with pytest.raises(ParenError, match="1 of 2 jobs failed") as raised:
            train(path, out, view)
        assert raised.value.notes[0].message.startswith("rate 0.001: it went wrong elsewhere (")
    assert bool([event for event in view.events if event.kind == "running"]) is tried


def test_a_device_that_is_opened_anew_gives_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_study(tmp_path / "s", "(defsweep (hidden [5] [6]) (rate 1e-3))")
    train(path, tmp_path / "one")
    opened: list[str] = []
    monkeypatch.setattr(training, "MOST_LOADED", 0)
    monkeypatch.setattr(training, "open_device", lambda *given: opened.append(given[0]) or open_device(*given))
    train(path, tmp_path / "many")
    assert opened == ["cpu"] * 4
    assert weights(tmp_path / "many") == weights(tmp_path / "one")
