"""`report`: one sound page from whatever a folder holds, and nothing of a user's in it that is not escaped."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import studies
from page_parser import Page, check
from recorded_folders import (
    TEXT,
    declare,
    mark_failed,
    mark_waiting,
    write_drawing,
    write_json,
    write_png,
    write_run,
    write_study,
)

import paren
from paren.cli.app import main
from paren.experiment.report import pictures
from paren.experiment.report.page import report
from paren.experiment.results.recorded import read_recorded
from paren.text.errors import ParenError

SETTINGS = {"rate": 1e-3, "rows": 50_000, "hidden": [64, 64], "prior": "uniform", "replica": 0}
SWEEP = {"rate": [1e-4, 1e-2], "rows": [150_000]}
COHORT = {"prior": ["uniform", "normal"], "replica": [0, 1]}
EVIL = '<script>alert("x")</script>&amp;\'</style>-->'


def read(out: Path) -> Page:
    return check(report(out).read_text("utf-8"))


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """16 jobs, of which one failed and one waits."""
    jobs = write_study(tmp_path / "out", sweep=SWEEP, cohort=COHORT, settings=SETTINGS)
    mark_failed(jobs[5])
    mark_waiting(jobs[-1])
    return tmp_path / "out"


def test_a_study_has_all_sections(study: Path) -> None:
    page = read(study)
    assert page.sections() == [
        *("summary", "failures", "jobs", "curves", "sweep", "metrics", "plots", "settings", "memory", "artifacts"),
        *("details", "provenance"),
    ]
    text = page.text()
    for told in ("14 of 16", "14 done, 1 waiting, 1 failed", "study of 16 jobs, 2026-11-30 08:00:00 UTC to", "smoke"):
        assert told in text
    assert "E-STUDY-010" in text
    assert 'File "analysis.py", line 7, in coverage' in text
    assert "2 of 16" not in text
    assert len(page.all("details", class_="job")) == 16
    assert TEXT.strip() in text
    assert "llvmlite" in text


def test_jobs_that_failed_in_one_way_are_told_together(study: Path) -> None:
    jobs = read_recorded(study).jobs
    for number in (1, 2):
        mark_failed(jobs[number].folder)
    mark_failed(jobs[3].folder, stage="training")
    text = read(study).text()
    assert "3 jobs:" in text
    assert text.count("traceback of") == 1
    assert text.count(jobs[1].label + " ") > 1


def test_the_same_folder_gives_the_same_bytes(study: Path) -> None:
    first = report(study).read_bytes()
    assert report(study).read_bytes() == first
    moved = study.rename(study.with_name("moved"))
    assert report(moved).read_bytes() == first
    for path in sorted(moved.rglob("*"), reverse=True):
        os.utime(path, (1, 1))
    assert report(moved).read_bytes() == first


def test_curves_carry_their_values(study: Path) -> None:
    page = read(study)
    job = read_recorded(study).jobs[3]
    drawn = [line for line in page.all("path", class_="line") if line["data-j"] == "3"]
    assert len(drawn) == len(job.series) - 1
    loss = drawn[0]
    assert [float(step) for step in loss["data-s"].split()] == job.series["step"].tolist()
    np.testing.assert_allclose([float(value) for value in loss["data-v"].split()], job.series["loss"], rtol=5e-5)
    places = [tuple(map(float, pair.split())) for pair in loss["d"][1:].split("L")]
    assert len(places) == 100
    values = job.series["loss"]
    heights = np.array([y for _, y in places])
    slope = (heights[0] - heights[-1]) / (values[0] - values[-1])
    np.testing.assert_allclose(heights, heights[0] + slope * (values - values[0]), atol=0.15)
    assert slope < 0, "larger is higher up"


def test_points_of_a_sweep_are_means_with_deviations(study: Path) -> None:
    page = read(study)
    jobs = [
        job for job in read_recorded(study).jobs if job.changed == {"rate": 1e-2} and job.member["prior"] == "normal"
    ]
    values = np.array([job.series["loss"][-1] for job in jobs])
    told = [point["data-tip"] for point in page.all("circle", class_="mean")]
    found = [re.fullmatch(r"prior normal, 0\.01: (\S+) ± (\S+) \(standard deviation of 2\)", tip) for tip in told]
    first = next(match for match in found if match)
    assert float(first[1]) == pytest.approx(values.mean(), rel=1e-4)
    assert float(first[2]) == pytest.approx(values.std(ddof=1), rel=1e-2)
    headings = [text for tag, text in page.texts if tag == "code" and text in ("rate", "rows", "prior", "replica")]
    assert headings[:3] == ["rate", "rows", "prior"], "charts against the swept settings, then the cohort; no replicas"


def test_tables_of_metrics_begin_with_means_over_replicas(study: Path) -> None:
    page = read(study)
    jobs = [job for job in read_recorded(study).jobs if job.changed == {} and job.member["prior"] == "normal"]
    excess = np.array([job.results["excess"] for job in jobs])
    tips = [found["data-tip"] for found in page.all("td") if "±" in found.get("data-tip", "")]
    assert f"{excess.mean():.8g} ± {excess.std(ddof=1):.4g}, 2 of 2 jobs".replace("e-05", "e-5") in tips
    assert "0.95 ± 0, 2 of 2 jobs" in tips, "equal values have no deviation"
    assert page.text().count("Each job") == 2


def test_many_metrics_are_folded_and_lists_are_rounded(tmp_path: Path) -> None:
    jobs = write_study(tmp_path, sweep={"rate": [1e-2]}, cohort={}, settings=SETTINGS, plots=False)
    for number, job in enumerate(jobs):
        many = {f"value-{index}": index + number for index in range(60)}
        content = {"many": many, "constant": {"levels": [0.68, 0.95]}, "long": [1 / 3] * 30, "pair": [1 / 3, number]}
        write_json(job / "metrics.json", content)
    declare(tmp_path, *content)
    page = read(tmp_path)
    text = page.text()
    assert "60 charts" in text
    assert "20 more columns are left out; paren results OUT many has them" in text
    assert f"[{'0.3333 ' * 8}0.…" in text
    charts = [found["aria-label"] for found in page.all("svg", class_="bars")]
    assert any(chart.startswith("pair.1 against rate: ") for chart in charts)
    assert not any("constant" in chart or "pair.0" in chart for chart in charts), "what does not change says nothing"


def test_names_of_users_are_text(tmp_path: Path) -> None:
    jobs = write_study(
        tmp_path / "out",
        sweep={EVIL: [EVIL + "2", "ünï ✓ 漢字 \ud800\x00\x07"], "größe": ["x" * 200]},
        cohort={"replica": [0, 1]},
        settings={EVIL: EVIL, "größe": 2, "replica": 0},
        program=f"{EVIL.replace('/', '')}.paren",
    )
    for job in jobs:
        content = {EVIL: {EVIL: 1.5, "text": EVIL}, "list": [EVIL, None, {"a": EVIL}]}
        write_json(job / "metrics.json", content)
        write_drawing(job / "plots" / "<b>" / '"quoted" & <i>.svg', "x")
    mark_failed(jobs[0])
    declare(tmp_path / "out", *content)
    declare(tmp_path / "out", "<b>", kind="plot")
    study = json.loads((tmp_path / "out/study.json").read_text("utf-8"))
    study["sources"][EVIL] = {"sha256": EVIL, "text": f"; {EVIL}\n"}
    write_json(tmp_path / "out/study.json", study)
    page = read(tmp_path / "out")
    assert EVIL in page.text()
    assert "ünï ✓ 漢字" in page.text()
    text = report(tmp_path / "out").read_text("utf-8")
    assert "<script>alert" not in text
    assert "\x00" not in text


def test_a_run_folder(tmp_path: Path) -> None:
    write_run(tmp_path, SETTINGS, done=300, state="stopped", series=["depth"])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        for step in (301, 302):
            file.write(
                json.dumps({"step": step, "annotation": "skipped", "cause": "gradient", "place": "f:3:1"}) + "\n"
            )
    page = read(tmp_path)
    assert page.sections() == ["summary", "curves", "settings", "memory", "events", "details", "provenance"]
    text = page.text()
    for told in ("step 300 of 600", "cause gradient, place f:3:1", "[64 64]", "9.5 KiB", "cpu, ranks 1, stacking 1"):
        assert told in text
    assert "open" in page.all("details", class_="job")[0]
    assert not page.all("input")


@pytest.mark.parametrize("done", [0, 1])
def test_a_run_of_no_or_one_step(tmp_path: Path, done: int) -> None:
    write_run(tmp_path, {}, done=done, state="running")
    page = read(tmp_path)
    assert ("curves" in page.sections()) == bool(done)


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    write_run(tmp_path, SETTINGS, done=3, state="failed")
    status = json.loads((tmp_path / "status.json").read_text())
    write_json(tmp_path / "status.json", {**status, "code": "E-NUM-001", "message": "the loss is nan at step 4"})
    page = read(tmp_path)
    assert page.sections()[:2] == ["summary", "failures"]
    assert "the loss is nan at step 4" in page.text()


def test_a_study_without_jobs_and_one_of_which_nothing_is_done(tmp_path: Path) -> None:
    write_json(tmp_path / "study.json", {"format": 1, "program": "later.paren"})
    page = read(tmp_path)
    assert page.sections() == ["summary", "provenance"]
    assert "No job has been written yet." in page.text()
    jobs = ["runs/baseline-0/all", "runs/rate-1-1/all", "../escape", "/etc", 7]
    write_json(tmp_path / "study.json", {"format": 1, "program": "later.paren", "jobs": jobs})
    page = read(tmp_path)
    assert page.sections() == ["summary", "jobs", "details", "provenance"]
    assert "2 waiting" in page.text()


def test_jobs_of_an_earlier_launch_are_not_shown(study: Path) -> None:
    content = json.loads((study / "study.json").read_text())
    folders = [job.folder.relative_to(study).as_posix() for job in read_recorded(study).jobs]
    write_json(study / "study.json", content | {"jobs": folders[2:0:-1]})
    page = read(study)
    assert [job["id"] for job in page.all("details", class_="job")] == ["job-0", "job-1"]
    assert "jobs of earlier launches that are not shown: 14" in page.text()
    assert read_recorded(study).jobs[0].folder == study / folders[2]


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"step": 1}', b"\xff\xfe", b'{"settings": 3, "seconds": "x"}'])
def test_whatever_is_damaged_there_is_a_page(study: Path, damage: bytes) -> None:
    names = ("study.json", "job.json", "status.json", "metrics.json", "metrics.jsonl", "run.json")
    for path in sorted(study.rglob("*.json*")):
        if path.name in names:
            path.write_bytes(damage)
    assert "summary" in read(study).sections()
    for path in sorted((study / "store/model").iterdir()):
        assert "provenance" in read(path).sections()
        break


@pytest.mark.parametrize(
    "values",
    [
        [1e308, -1e308, 0.0],
        [5e-324, 1.0],
        [1e-12, 1e-12],
        [-3.0, -3.0],
        [float("inf"), 1.0, float("nan")],
        [float("nan")] * 3,
        [1e15, 1e15 + 1],
    ],
)
def test_any_numbers_can_be_drawn(tmp_path: Path, values: list[float]) -> None:
    write_run(tmp_path, {}, done=0)
    lines = [
        {"step": step, "loss": str(value) if value != value or abs(value) > 1e308 else value}
        for step, value in enumerate(values, 1)
    ]
    lines = [{**line, "loss": line["loss"] if line["loss"] != "1e+308" else 1e308} for line in lines]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = read(tmp_path)
    drawn = " ".join(found.get("d", "") for found in page.all("path"))
    assert "nan" not in drawn
    assert "inf" not in drawn
    assert ("curves" in page.sections()) == any(np.isfinite(values))


def test_pictures_are_embedded_up_to_a_limit(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = read(study)
    kinds = [found["src"].partition(";")[0] for found in page.all("img") if "src" in found]
    assert kinds[:3] == ["data:image/png", "data:image/svg+xml", "data:image/svg+xml"]
    assert len(kinds) == 3 + 16
    folder = study / "plots/summary"
    write_drawing(folder / "both.svg", "x" * 1000)
    write_png(folder / "both.png", 8)
    (folder / "only.pdf").write_bytes(b"%PDF")
    monkeypatch.setattr(pictures, "_SMALL_DRAWING", 900)
    page = read(study)
    both = next(found for found in page.all("img") if found["alt"] == "summary: both")
    assert both["src"].startswith("data:image/png"), "a large drawing gives way to its picture in points"
    assert "1 left out" not in page.text()
    assert "1 figure is left out" in page.text()
    assert "plots/summary/only.pdf" in page.text()
    monkeypatch.setattr(pictures, "MOST", 1400)
    page = read(study)
    assert "figures are left out" in page.text()
    assert sum("src" in found for found in page.all("img")) < 10
    assert page.text().count("posterior.svg") > 8


def test_pictures_in_points_are_packed_without_loss(study: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    points = np.zeros((200, 300, 4), np.uint8)
    points[..., 3] = 255
    points[50:150, 100:200, 0] = np.arange(100)
    path = study / "plots/summary/packed.png"
    image.fromarray(points).save(path)
    path.with_name("half.png").write_bytes(path.read_bytes()[:100])
    found = {each["alt"]: each["src"] for each in read(study).all("img") if "src" in each}
    kind, _, data = found["summary: packed"].partition(";base64,")
    content = base64.b64decode(data)
    assert (kind, len(content) < path.stat().st_size) == ("data:image/webp", True)
    assert np.array_equal(np.asarray(image.open(io.BytesIO(content)).convert("RGBA")), points)
    assert found["summary: half"].startswith("data:image/png"), "what is no picture is left as it is"


def test_many_jobs_are_coloured_by_what_tells_most(tmp_path: Path) -> None:
    rates = [10 ** -(power / 4) for power in range(6, 16)]
    write_study(tmp_path, sweep={"rate": rates}, cohort={"replica": [0, 1]}, settings=SETTINGS, steps=60, plots=False)
    page = read(tmp_path)
    first = next(found for found in page.all("div", class_="legend"))
    assert "hidden" not in first
    of = json.loads(first["data-of"])
    jobs = read_recorded(tmp_path).jobs
    ordered = sorted(range(len(jobs)), key=lambda number: float(str(jobs[number].settings["rate"])))
    assert [of[number] for number in ordered] == sorted(of), "colours are in the order of the rates"
    assert json.loads(first["data-colours"])[::7] == ["--s0", "--s7"]


def test_the_command_and_the_function(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(study)]) == 0
    assert capsys.readouterr().out == f"{study / 'report.html'}\n"
    assert paren.report(study) == study / "report.html"
    assert main(["report", str(study / "absent")]) == 1
    assert capsys.readouterr().err == (
        f"E-RUN-014: {study / 'absent'} holds no study and no run\n  fix: give the folder that paren run wrote\n"
    )


def test_a_page_that_cannot_be_written(study: Path) -> None:
    (study / "report.html").mkdir()
    with pytest.raises(ParenError, match="is not writable") as caught:
        report(study)
    assert caught.value.code == "E-RUN-005"


def test_nothing_heavy_is_loaded() -> None:
    """Neither what trains nor what draws plots: the folder may lie on a machine that has neither."""
    code = (
        "import sys, paren.experiment.report.page; "
        "print([name for name in ('torch', 'llvmlite', 'matplotlib', 'rich', 'paren.lang') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_study_that_was_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What jobs write is what is read: settings, states, metrics, plots, failures."""
    (tmp_path / "analysis.py").write_text(
        "import matplotlib.pyplot as plt\n"
        "def size(*, model, settings):\n"
        "    if settings['rate'] < 0.005:\n"
        "        raise ValueError('that is <too> small')\n"
        "    return {'parameters': {'count': sum(each.size for each in model.parameters().values())}, 'none': None}\n"
        "def picture():\n"
        "    return plt.figure(figsize=(6, 2))\n"
    )
    forms = (
        "(defsweep (rate 1e-3)) (defcohort (replica 0 1))"
        '(defplot picture (python "analysis.py" picture))'
        '(defmetric size (python "analysis.py" size) :needs (model))'
    )
    file = studies.write_study(tmp_path, forms)
    out = tmp_path / "out"
    assert main(["run", str(file), "--out", str(out)]) == 1
    capsys.readouterr()
    found = paren.results(out, ["state", "rate", "replica", "size.parameters.count", "code", "step"])
    assert found.rows == (
        ("done", 0.01, 0, 17, None, 4),
        ("done", 0.01, 1, 17, None, 4),
        ("failed", 0.001, 0, None, "E-STUDY-007", 4),
        ("failed", 0.001, 1, None, "E-STUDY-007", 4),
    )
    page = read(out)
    assert "2 done, 2 failed" in page.text()
    assert "that is <too> small" in page.text()
    assert "jobs of earlier launches" not in page.text()
    assert 2 <= sum("src" in image for image in page.all("img")) <= 4
    assert [job.problems for job in read_recorded(out).jobs] == [()] * 4
    table = page.text().split(" Artifacts ")[-1]
    assert " UTC pairs data " in table
    assert "not there" not in table
