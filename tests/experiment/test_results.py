"""`results`: the table of a study or a run, from folders as they may be found."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
from recorded_folders import declare, mark_failed, mark_waiting, write_json, write_run, write_study

import paren
from paren.cli.app import main
from paren.experiment.results.recorded import label_of, read_recorded
from paren.experiment.results.table import results
from paren.text.errors import ParenError
from paren.train.read_run import read_metrics

SETTINGS = {"rate": 1e-3, "rows": 50_000, "hidden": [64, 64], "replica": 0}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Six jobs: one failed, one waiting."""
    jobs = write_study(tmp_path / "out", sweep={"rate": [1e-4, 1e-2]}, cohort={"replica": [0, 1]}, settings=SETTINGS)
    mark_failed(jobs[3])
    mark_waiting(jobs[5])
    return tmp_path / "out"


def test_without_columns_everything_that_varies_or_came_out(study: Path) -> None:
    found = results(study)
    assert found.columns == (
        *("job", "rate", "replica", "state", "step", "code", "loss", "evaluation/loss", "evaluation/loss.min"),
        *("evaluation/accuracy", "excess", "coverage.joint.68", "coverage.joint.95.4", "coverage.modes.0"),
        *("coverage.modes.1", "undefined"),
    )
    assert [row[3] for row in found.rows] == ["done", "done", "done", "failed", "done", "waiting"]
    assert [row[5] for row in found.rows] == [None, None, None, "E-STUDY-010", None, None]
    assert [row[1] for row in found.rows] == [1e-3, 1e-3, 1e-4, 1e-4, 1e-2, 1e-2]
    assert found.rows[5][4:] == (None,) * 12, "a waiting job has nothing but its settings"
    assert found.rows[3][10:] == (None,) * 6, "a failed one keeps its training"
    series = read_metrics(next(job.run for job in read_recorded(study).jobs if job.run))
    assert found.rows[0][6] == series["loss"][-1]
    assert found.rows[0][8] == min(value for value in series["evaluation/loss"] if value == value)


def test_dots_lead_into_nested_results(study: Path) -> None:
    names = ("coverage.joint.95.4", "coverage.modes.1", "coverage.modes", "coverage", "hidden", "loss.max", "undefined")
    found = results(study, names)
    assert found.columns == (
        *("coverage.joint.95.4", "coverage.modes.1", "coverage.modes"),
        *("coverage.joint.68", "coverage.joint.95.4", "coverage.modes.0", "coverage.modes.1"),
        *("hidden", "loss.max", "undefined"),
    )
    assert found.rows[0][:3] == (0.95, 2, [1, 2])
    assert found.rows[0][7] == [64, 64]
    assert found.rows[0][9] is None
    assert results(study, ["settings.rate", "series.loss", "metrics.excess"]).rows[5] == (1e-2, None, None)


def test_a_name_that_means_two_things_has_its_group_in_front(tmp_path: Path) -> None:
    settings = {"loss": 1, "state": 2, "excess": 3}
    jobs = write_study(tmp_path, sweep={"loss": [4], "state": [5]}, cohort={}, settings=settings)
    found = results(tmp_path)
    assert found.columns[:6] == ("job", "loss", "settings.state", "state", "step", "series.loss")
    assert "metrics.excess" in found.columns
    assert results(tmp_path, ["excess", "metrics.excess"]).rows[0][0] == 3
    assert len(jobs) == len(found.rows) == 3


def test_a_column_that_no_job_has(study: Path) -> None:
    with pytest.raises(ParenError) as caught:
        results(study, ["coverage.jiont.68"])
    assert str(caught.value) == (
        f"E-API-006: no job in {study} has coverage.jiont.68 (did you mean coverage.joint.68?)\n"
        "  fix: paren results OUT shows what there is; nested results are named with dots"
    )
    assert results(study, ["later.width"]).rows == ((None,),) * 6, "a metric of the study that has not come yet"


def test_csv_has_every_digit_and_blanks(study: Path) -> None:
    found = results(study, ["job", "rate", "hidden", "loss"])
    lines = list(csv.reader(found.csv().splitlines()))
    assert lines[0] == ["job", "rate", "hidden", "loss"]
    assert lines[1] == [found.rows[0][0], "0.001", "[64, 64]", repr(found.rows[0][3])]
    assert lines[6][3] == ""


def test_json_has_no_bare_nan(tmp_path: Path) -> None:
    write_run(tmp_path, SETTINGS, steps=3)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "loss": "inf"}\n{"step": 5, "loss": "nan"}\n')
    (row,) = results(tmp_path).records()
    assert row["loss"] == "inf", "the last value that is a number or infinite"
    assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_a_run_is_one_row(tmp_path: Path) -> None:
    write_run(tmp_path, SETTINGS, steps=40, done=20, state="stopped")
    found = paren.results(tmp_path)
    assert found.columns == (
        *("job", "state", "step", "loss", "evaluation/loss", "evaluation/loss.min", "evaluation/accuracy"),
    )
    assert found.rows[0][:3] == ("ratio.paren", "stopped", 20)


def test_a_run_without_evaluation_and_one_without_metrics(tmp_path: Path) -> None:
    write_run(tmp_path, SETTINGS, steps=40, done=2, state="running")
    assert results(tmp_path).columns == ("job", "state", "step", "loss", "loss.min")
    (tmp_path / "metrics.jsonl").unlink()
    assert results(tmp_path).columns == ("job", "state", "step")


@pytest.mark.parametrize("damage", [b"[1]", b"{", b"\xff", b"", b"[" * 100_000])
def test_files_that_cannot_be_read_are_said_and_read_as_empty(study: Path, damage: bytes) -> None:
    job = read_recorded(study).jobs[0]
    for name in ("job.json", "status.json", "metrics.json"):
        (job.folder / name).write_bytes(damage)
    (study / "study.json").write_bytes(damage)
    found = read_recorded(study)
    again = next(each for each in found.jobs if each.folder == job.folder)
    assert len(again.problems) == 3
    assert len(found.problems) == 1
    assert again.label == again.name
    assert results(study).rows[-1][0] == again.name, "without its place it comes last"


def test_lines_of_metrics_that_are_damaged(study: Path) -> None:
    job = read_recorded(study).jobs[0]
    assert job.run is not None
    (job.run / "metrics.jsonl").write_text('{"step": 1, "loss": 1}\n{"step": 2, "loss": "text"}\n')
    again = read_recorded(study).jobs[0]
    assert again.series == {}
    assert again.problems == (f"line 2 of {job.run.relative_to(study)}/metrics.jsonl is damaged",)


def test_a_model_in_training_is_read_where_it_is_trained(study: Path) -> None:
    job = read_recorded(study).jobs[0]
    assert job.run is not None
    job.run.rename(job.run.with_name(f"{job.run.name}.partial"))
    again = read_recorded(study).jobs[0]
    assert again.run is not None
    assert again.run.name.endswith(".partial")
    assert len(again.series["loss"]) == 100


def test_a_study_that_was_moved_reads_the_same(study: Path) -> None:
    before = results(study)
    moved = study.rename(study.with_name("elsewhere"))
    assert results(moved) == before


def test_folders_that_hold_neither(tmp_path: Path) -> None:
    write_json(tmp_path / "file", {})
    for path, told in (
        (tmp_path, f"{tmp_path} holds no study and no run"),
        (tmp_path / "absent", f"{tmp_path / 'absent'} holds no study and no run"),
        (tmp_path / "file", f"{tmp_path / 'file'} is a file, not the folder of a study or a run"),
    ):
        with pytest.raises(ParenError) as caught:
            results(path)
        assert str(caught.value) == f"E-RUN-014: {told}\n  fix: give the folder that paren run wrote"


def test_the_folder_of_a_job(study: Path) -> None:
    job = read_recorded(study).jobs[0].folder
    with pytest.raises(ParenError) as caught:
        results(job)
    assert str(caught.value) == (f"E-RUN-014: {job} is a job of a study\n  fix: give the folder of the study: {study}")


def test_a_frame_needs_pandas(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ParenError) as caught:
        results(study).frame()
    assert str(caught.value) == (
        "E-API-005: a DataFrame needs pandas, which is not installed\n"
        "  fix: pip install pandas, or use .columns and .rows"
    )


def test_labels() -> None:
    assert label_of({}, {}) == "baseline"
    assert (
        label_of({"rate": 0.0021544346900318843}, {"prior": "a b", "replica": 0})
        == "rate 0.00215443 · prior a b, replica 0"
    )
    assert label_of({"hidden": [32, 32], "smoke": True}, {}) == "hidden [32 32], smoke true"


def test_the_command(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["results", str(study), "state", "rate", "loss"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["state", "rate", "loss"]
    assert lines[6].split() == ["waiting", "0.01"]
    assert main(["results", str(study), "rate", "coverage.modes", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[0] == {"rate": 0.001, "coverage.modes": [1, 2]}
    assert main(["results", str(study), "rate", "--csv"]) == 0
    assert capsys.readouterr().out == "rate\n0.001\n0.001\n0.0001\n0.0001\n0.01\n0.01\n"
    assert main(["results", str(study), "--csv", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["message"] == "--csv and --json exclude each other"


def test_a_wide_table_is_cut_and_says_so(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for job in read_recorded(study).jobs:
        write_json(job.folder / "metrics.json", {f"value-{index}": index for index in range(20)})
    declare(study, *(f"value-{index}" for index in range(20)))
    assert main(["results", str(study)]) == 0
    written = capsys.readouterr()
    assert written.err == "14 more columns: name them, or see all with --csv or --json\n"
    assert written.out.splitlines()[0].split()[-1] == "value-5"
    assert main(["results", str(study), "--csv"]) == 0
    written = capsys.readouterr()
    assert written.err == ""
    assert len(written.out.splitlines()[0].split(",")) == 30
