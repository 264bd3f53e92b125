"""Plots over the jobs of a cohort or a sweep: what they get, in which order, when they are drawn again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from analysed import Study, refusal

from paren.experiment.analysis.analyze import Subject, analyze_job
from paren.experiment.analysis.over_jobs import draw_over

FORMS = """
(def replica 0)
(defcohort (replica 0 1 2))
(defproduct scores (python "f.py" score :cases cases :of replica))
(defmetric worst (python "f.py" worst) :needs (scores))
(defplot across (python "f.py" across) :needs (scores model data) :over cohort)
(defplot alone (python "f.py" alone) :needs (scores) :over cohort)
(defplot sweep (python "f.py" across) :needs (scores model data) :over sweep)
"""
PYTHON = """
import json
from pathlib import Path
from matplotlib.figure import Figure

def score(cases, of):
    return {"values": np.full(cases, of)}

def worst(scores):
    return float(scores["values"].max())

def across(scores, model, data, jobs, settings, rng):
    seen = [[*map(int, each["values"])] for each in scores], [dict(job.member) for job in jobs]
    seen += ([dict(job.metrics) for job in jobs],)
    seen += len(model), len(data), [dict(job.changed) for job in jobs], [float(job.history["loss"][0]) for job in jobs]
    seen += [job.settings["replica"] for job in jobs], settings["replica"]
    Path(__file__).with_name("seen.json").write_text(json.dumps(seen))
    return Figure()

def alone(scores):
    return Figure()
"""


@pytest.fixture
def study(tmp_path: Path) -> Study:
    made = Study(tmp_path)
    made.write(FORMS, PYTHON)
    return made


def subjects(study: Study, members: Sequence[int] = (0, 1, 2)) -> list[Subject]:
    """Analysed jobs, in order."""
    found = []
    for replica in members:
        subject = study.subject(f"replica-{replica}", {"replica": replica}, f"{replica:024d}", replica=replica)
        analyze_job(subject, study.functions, study.store, lambda name: None)
        found.append(subject)
    return found


def draw(study: Study, jobs: Sequence[Subject]) -> list[str]:
    """The plots that are drawn."""
    study.told = []
    folder = study.job().parent
    draw_over(jobs, "cohort", folder, study.functions, study.store, study.told.append)
    return study.told


def test_functions_get_lists_in_the_order_of_the_jobs(study: Study) -> None:
    assert draw(study, subjects(study)) == ["across", "alone"]
    seen = json.loads((study.folder / "seen.json").read_text())
    assert seen == [
        [[0] * 4, [1] * 4, [2] * 4],
        [{"replica": 0}, {"replica": 1}, {"replica": 2}],
        [{"worst": 0.0}, {"worst": 1.0}, {"worst": 2.0}],
        3,
        3,
        [{}, {}, {}],
        [0.5, 0.5, 0.5],
        [0, 1, 2],
        0,
    ]
    plots = study.job().parent / "plots"
    found = sorted(path.relative_to(plots).as_posix() for path in plots.rglob("*.*"))
    assert found == [
        "across/across.pdf",
        "across/across.png",
        "across/plot.json",
        "alone/alone.pdf",
        "alone/alone.png",
        "alone/plot.json",
    ]


def test_they_are_drawn_again_where_something_they_see_changed(study: Study) -> None:
    jobs = subjects(study)
    draw(study, jobs)
    assert draw(study, jobs) == []
    study.write(FORMS, PYTHON.replace(".max()", ".min() + 1"))
    jobs = subjects(study)
    assert draw(study, jobs) == ["across"], "which alone sees the metrics"
    assert draw(study, jobs[:2]) == ["across", "alone"]
    study.write(FORMS, PYTHON.replace("np.full(cases, of)", "np.full(cases, of + 1)"))
    assert draw(study, subjects(study)) == ["across", "alone"]


SEEING = """
(defmetric best (python "f.py" worst) :needs (scores))
(defmetric last (python "f.py" last) :needs (scores))
(defplot one (python "f.py" one) :over cohort)
(defplot every (python "f.py" every) :over cohort)
(defplot copied (python "f.py" copied) :over cohort)
(defplot missed (python "f.py" missed) :over cohort)
(defplot none (python "f.py" none) :over cohort)
"""
SEEN = """
import copy

def last(scores):
    return 7

def one(jobs):
    return Figure() if jobs[0].metrics["best"] is not None else None

def every(jobs):
    return Figure() if str([job.metrics for job in jobs]) else None

def copied(jobs):
    return Figure() if copy.deepcopy(jobs[-1].metrics)["best"] is not None else None

def missed(jobs):
    return Figure() if not any("more" in job.metrics for job in jobs) else Figure()

def none(jobs):
    return Figure() if jobs[0].history["loss"][0] and jobs[0].member else None
"""


def test_plots_that_take_jobs_are_drawn_again_for_the_metrics_that_they_read(study: Study) -> None:
    study.write(FORMS + SEEING, PYTHON + SEEN)
    assert draw(study, subjects(study)) == ["across", "alone", "one", "every", "copied", "missed", "none"]
    study.write(FORMS + SEEING, PYTHON + SEEN.replace("return 7", "return 8"))
    assert draw(study, subjects(study)) == ["across", "every", "copied"]
    more = '(defmetric more (python "f.py" last) :needs (scores))\n'
    study.write(FORMS + more + SEEING, PYTHON + SEEN)
    assert draw(study, subjects(study)) == ["across", "every", "copied", "missed"]
    study.write(FORMS + more + SEEING, PYTHON.replace(".max()", ".min() + 2") + SEEN)
    assert draw(study, subjects(study)) == ["across", "one", "every", "copied"]
    assert draw(study, subjects(study)) == []


def test_a_plot_that_cannot_be_drawn_keeps_none_back(study: Study) -> None:
    study.write(FORMS, PYTHON.replace("return Figure()", "raise ValueError('no')", 1))
    jobs = subjects(study)
    assert refusal(lambda: draw(study, jobs)) == ["E-STUDY-007: across in f.py raised ValueError: no"]
    assert study.told == ["across", "alone"]
    assert (study.job().parent / "plots/alone/alone.png").exists()
    study.write(FORMS, PYTHON)
    assert draw(study, subjects(study)) == ["across"]


def test_a_plot_over_the_sweep_lies_in_the_output_root(study: Study) -> None:
    out = study.folder / "out"
    draw_over(subjects(study), "sweep", out, study.functions, study.store, study.told.append)
    assert sorted(path.name for path in (out / "plots" / "sweep").iterdir()) == ["plot.json", "sweep.pdf", "sweep.png"]
