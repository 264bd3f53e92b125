"""Jobs are trained and analysed; plots over cohorts and sweeps are drawn once all their jobs are there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from experiment.studies import Shown, files_below, states, write_study

import paren
from paren import api
from paren.experiment import job_analysis
from paren.text.errors import ParenError

FUNCTIONS = """import matplotlib.pyplot as plt
import numpy as np


def grid(model, points):
    x = np.zeros((points, 2), np.float32)
    x[:, 0] = np.linspace(-1, 1, points)
    return {"x": x, "y": model(x)}


def work(points):
    return {"evaluations": points}


def error(grid, scale):
    return {"worst": float(np.abs(grid["y"]).max()) * scale}


def curve(grid):
    figure, axes = plt.subplots()
    axes.plot(grid["x"][:, 0], grid["y"])
    return figure


def all_curves(grid, jobs):
    figure, axes = plt.subplots()
    for one, job in zip(grid, jobs):
        axes.plot(one["x"][:, 0], one["y"], label=str(job.settings["rate"]))
    return figure
"""

FORMS = """
(def points 5)
(def scale 1.0)
(defsweep (rate 1e-3 1e-4))
(defcohort (replica 0 1))
(defproduct grid (python "analysis.py" grid :points points) :needs (model) :cost work)
(defmetric error (python "analysis.py" error :scale scale) :needs (grid))
(defplot curve (python "analysis.py" curve) :needs (grid))
(defplot members (python "analysis.py" all-curves) :needs (grid) :over cohort)
(defplot rates (python "analysis.py" all-curves) :needs (grid) :over sweep)
"""


pytestmark = pytest.mark.usefixtures("own_cache")


def write(tmp_path: Path, forms: str = FORMS) -> tuple[Path, Path]:
    path = write_study(tmp_path / "s", forms)
    (path.parent / "analysis.py").write_text(FUNCTIONS)
    return path, tmp_path / "out"


def stages(view: Shown) -> set[str]:
    return {event.stage for event in view.events if event.kind == "running"}


@pytest.mark.parametrize("workers", [None, 2])
def test_a_study_is_trained_and_analysed(tmp_path: Path, workers: int | None) -> None:
    path, out = write(tmp_path)
    ended = api.load(path).run(out, workers=workers)
    assert isinstance(ended, api.StudyRun)
    assert (ended.exit_code, ended.done) == (0, 6)
    jobs = sorted(out.glob("runs/*/*/job.json"))
    assert len(jobs) == 6
    for job in jobs:
        content = json.loads(job.read_bytes())
        assert (job.parent / content["products"]["grid"] / "artifact.json").is_file()
        assert json.loads((job.parent / "metrics.json").read_bytes())["error"]["worst"] >= 0
        assert (job.parent / "plots" / "curve" / "curve.png").is_file()
    assert len(list(out.glob("runs/*/plots/members/*.png"))) == 3
    assert len(list(out.glob("plots/rates/*.png"))) == 1
    sources = json.loads((out / "study.json").read_bytes())["sources"]
    assert [Path(name).name for name in sources] == ["study.paren", "analysis.py", "data.py"]
    assert sources[str(path.parent / "analysis.py")]["text"] == FUNCTIONS
    assert "figure, axes = plt.subplots()" in paren.report(out).read_text()
    before, view = files_below(out), Shown()
    api.load(path).run(out, progress=view)
    assert view.events == []
    assert view.notices == [f"{out} holds this study, complete with 6 jobs: nothing to do"]
    after = files_below(out)
    assert {name: before[name] for name in before if Path(name).is_file()} == {
        name: after[name] for name in after if Path(name).is_file()
    }


def test_training_and_analysis_may_be_apart(tmp_path: Path) -> None:
    path, out = write(tmp_path)
    trained, analysed = Shown(), Shown()
    api.load(path).train(out, progress=trained)
    assert stages(trained) >= {"data", "training"}
    assert not list(out.glob("runs/*/*/metrics.json"))
    plan = api.load(path).plan(out)
    assert {job.analyses for job in plan.jobs} == {("grid", "error", "curve")}
    assert plan.costs == {"evaluations": 30}
    assert "costs of the analyses: evaluations 30, at most 5 a job" in str(plan)
    api.load(path).analyze(out, progress=analysed)
    assert "training" not in stages(analysed)
    assert len(list(out.glob("runs/*/*/metrics.json"))) == 6
    assert {job.analyses for job in api.load(path).plan(out).jobs} == {()}
    view = Shown()
    api.load(path).train(out, progress=view)
    assert view.events == []


def test_a_limit_of_a_cost_that_nobody_foretells(tmp_path: Path) -> None:
    path, out = write(tmp_path, FORMS + "(deflimits (evaluation 5))")
    for act in (api.load(path).plan, api.load(path).run):
        with pytest.raises(ParenError) as caught:
            act(out)
        assert caught.value.code == "E-STUDY-010"
        assert caught.value.message == ("no function under :cost foretells evaluation (did you mean evaluations?)")
        assert caught.value.fix == "the costs that are foretold: evaluations"
    assert not out.exists()
    path.write_text(path.read_text().replace(" :cost work", ""))
    with pytest.raises(ParenError) as caught:
        api.load(path).plan(out)
    assert caught.value.message == "no function under :cost foretells evaluation"
    assert caught.value.fix == "add a :cost to a form"


def test_a_metric_that_is_added_reuses_everything(tmp_path: Path) -> None:
    path, out = write(tmp_path)
    api.load(path).run(out)
    store = files_below(out / "store")
    path.write_text(path.read_text() + '(defmetric twice (python "analysis.py" error :scale 2.0) :needs (grid))')
    view = Shown()
    api.load(path).run(out, progress=view)
    assert stages(view) == {"data", "twice"}
    assert files_below(out / "store").keys() == store.keys()


def test_what_the_file_no_longer_has_is_not_shown(tmp_path: Path) -> None:
    path, out = write(tmp_path)
    extra = '(defmetric twice (python "analysis.py" error :scale 2.0) :needs (grid))'
    extra += '(defplot more (python "analysis.py" curve) :needs (grid))'
    text = path.read_text()
    path.write_text(text + extra)
    api.load(path).run(out)
    assert "twice.worst" in paren.results(out).columns
    assert 'alt="more: baseline' in paren.report(out).read_text()
    path.write_text(text)
    api.load(path).run(out)
    assert "twice.worst" not in paren.results(out).columns
    assert 'alt="more: baseline' not in paren.report(out).read_text()


def test_figures_of_an_earlier_state_say_so(tmp_path: Path) -> None:
    path, out = write(tmp_path)
    api.load(path).run(out)
    assert "as drawn before a change" not in paren.report(out).read_text()
    functions = path.parent / "analysis.py"
    functions.write_text(FUNCTIONS.replace('    return {"worst"', '    raise RuntimeError("no")\n    return {"worst"'))
    with pytest.raises(ParenError):
        api.load(path).run(out)
    page = paren.report(out).read_text()
    assert "rates: as drawn before a change" in page, "it is of metrics that are no more"
    assert "curve: baseline · replica 0 · as drawn" not in page, "its product is the same"
    functions.write_text(FUNCTIONS)
    api.load(path).run(out)
    assert "as drawn before a change" not in paren.report(out).read_text()


def test_a_plan_lists_plots_over_jobs(tmp_path: Path) -> None:
    path, out = write(tmp_path)
    both = ("plots over the cohort to draw: members, for 3 configurations", "plots over the sweep to draw: rates")
    assert api.load(path).plan(out).plots == both
    assert both[1] in str(api.load(path).plan(out)).splitlines()
    api.load(path).train(out)
    assert api.load(path).plan(out).plots == both
    api.load(path).analyze(out)
    assert api.load(path).plan(out).plots == ()
    next(out.glob("runs/rate-0.001-*/plots/members/members.png")).unlink()
    assert api.load(path).plan(out).plots == ("plots over the cohort to draw: members",)
    functions = path.parent / "analysis.py"
    functions.write_text(FUNCTIONS.replace("label=str", "lw=2, label=str"))
    assert api.load(path).plan(out).plots == both


def test_a_comment_computes_nothing_again(tmp_path: Path) -> None:
    path, out = write(tmp_path)
    api.load(path).run(out)
    functions = path.parent / "analysis.py"
    functions.write_text("# a comment\n" + functions.read_text())
    view = Shown()
    api.load(path).run(out, progress=view)
    assert view.events == []


def test_a_plan_says_why_products_are_made_again(tmp_path: Path) -> None:
    path, out = write(tmp_path)
    path.write_text(path.read_text().replace("(defsweep (rate 1e-3 1e-4))", "").replace("(replica 0 1)", "(replica 0)"))
    api.load(path).run(out)
    functions = path.parent / "analysis.py"
    functions.write_text(FUNCTIONS.replace("x[:, 0] = np", "x[:, 1] = np"))
    (job,) = api.load(path).plan(out).jobs
    assert (job.model, job.analyses) == ("cached", ("grid", "error", "curve"))
    assert job.changes == ("grid: analysis.py grid: changed",)
    path.write_text(path.read_text().replace("(def points 5)", "(def points 7)").replace(":steps 4", ":steps 5"))
    (job,) = api.load(path).plan(out).jobs
    assert job.changes == ("points: 5 -> 7", "program: changed", "grid: analysis.py grid: changed")


def test_limits_refuse_before_anything_is_written(tmp_path: Path) -> None:
    path, out = write(tmp_path, FORMS + "(deflimits (evaluations 4))")
    with pytest.raises(ParenError, match="the analysis of one model costs 5 evaluations, the limit is 4") as raised:
        api.load(path).run(out)
    assert raised.value.fix == "reduce points (now 5), or raise the limit"
    assert not out.exists()
    with pytest.raises(ParenError, match="the limit is 4"):
        api.load(path).plan(out)


def test_an_analysis_that_fails_stops_no_other_job(tmp_path: Path) -> None:
    path, out = write(tmp_path)
    functions = path.parent / "analysis.py"
    fault = '    if scale == 3 or grid["y"].sum() > 1e9:\n        raise RuntimeError("too much")\n    return {"worst"'
    functions.write_text(FUNCTIONS.replace('    return {"worst"', fault))
    path.write_text(path.read_text().replace("(rate 1e-3 1e-4)", "(scale 3.0)"))
    view = Shown()
    with pytest.raises(ParenError) as raised:
        api.load(path).run(out, progress=view)
    assert raised.value.message == f"2 of 4 jobs failed, in {out}"
    assert sorted(states(out).values()) == ["done", "done", "failed", "failed"]
    status = json.loads(next(out.glob("runs/scale-3.0-*/replica-0/status.json")).read_bytes())
    assert (status["stage"], status["code"]) == ("error", "E-STUDY-007")
    assert 'raise RuntimeError("too much")' in status["traceback"]
    assert len(list((out / "store" / "model").iterdir())) == 2
    told = [event.text for event in view.events if event.kind == "notice"]
    assert told[-1] == "plots over the sweep wait for 2 of 4 jobs"
    assert len(list(out.glob("runs/*/plots/members/*.png"))) == 1
    functions.write_text(FUNCTIONS)
    again = Shown()
    api.load(path).run(out, progress=again)
    assert "training" not in stages(again)
    assert set(states(out).values()) == {"done"}


def test_a_plot_over_jobs_that_fails_is_told_once(tmp_path: Path) -> None:
    path, out = write(tmp_path)
    functions = path.parent / "analysis.py"
    functions.write_text(FUNCTIONS.replace("for one, job", "raise RuntimeError('no')\n    for one, job"))
    with pytest.raises(ParenError) as raised:
        api.load(path).run(out)
    assert [error.code for error in raised.value.errors] == ["E-STUDY-007"] * 2  # over cohorts, and over the sweep
    own = "analysis.py:27, in all_curves: raise RuntimeError('no')"
    notes = [[note.message for note in error.notes] for error in raised.value.errors]
    configurations = [f"runs/{each}-[0-9a-f]{{12}}" for each in ("baseline", "rate-0.001", "rate-0.0001")]
    assert [each[0] for each in notes] == [own, own]
    assert [len(each) for each in notes] == [2, 1]
    assert re.fullmatch(f"over the cohort of {', '.join(configurations)}", notes[0][1]) is not None
    assert set(states(out).values()) == {"done"}


def test_of_many_cohorts_some_are_named() -> None:
    (note,) = job_analysis._named(["runs/a", "runs/b", "runs/c", "runs/d", "runs/e"])
    assert note.message == "over the cohort of runs/a, runs/b, runs/c and 2 more"
