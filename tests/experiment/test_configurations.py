"""Which jobs a study has: configurations, members, names of folders, and mistakes of all configurations at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from experiment.studies import PLAIN, write_study

from paren.experiment.configurations import configuration_folder, member_folder
from paren.experiment.jobs import Job, check_jobs, make_jobs
from paren.lang.elaborate import elaborate
from paren.lang.value import show
from paren.text.errors import ParenError

SWEEP = "(defsweep (rate 1e-3 1e-4) (rows 80 20))"
COHORT = '(defcohort (prior "uniform" "normal") (replica 0 1))'


def jobs_of(folder: Path, forms: str, *overrides: str, variant: str | None = None) -> tuple[Job, ...]:
    path = write_study(folder, forms)
    jobs = make_jobs(elaborate(path, variant=variant, overrides=overrides), overrides)
    check_jobs(jobs)
    return jobs


def names(jobs: tuple[Job, ...]) -> list[str]:
    return [job.name for job in jobs]


def test_two_factors_of_two_alternatives_are_five_configurations(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, SWEEP)
    assert names(jobs) == ["baseline", "rate 0.001", "rate 0.0001", "rows 80", "rows 20"]
    assert [job.program.data.options["keywords"] for job in jobs] == [
        (("rows", rows),) for rows in (40, 40, 40, 80, 20)
    ]
    assert len({job.identity for job in jobs[:3]}) == 3
    assert len({job.folder for job in jobs}) == 5


def test_a_cohort_is_repeated_in_each_configuration(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, SWEEP + COHORT)
    assert len(jobs) == 20
    assert [job.folder.rpartition("/")[2] for job in jobs[:4]] == [
        "prior-uniform,replica-0",
        "prior-uniform,replica-1",
        "prior-normal,replica-0",
        "prior-normal,replica-1",
    ]
    assert len({job.configuration for job in jobs}) == 5
    assert [job.program.run.seed for job in jobs] == [0, 1] * 10
    assert {job.order for job in jobs} == set(range(20))


def test_a_grid_crosses(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, "(defgrid (rate 1e-2 1e-4) (rows 40 80))")
    assert names(jobs) == ["baseline", "rows 80", "rate 0.0001", "rate 0.0001, rows 80"]
    alone = jobs_of(tmp_path, "(defgrid (rate 1e-3 1e-4) (rows 20 80))")
    assert len(alone) == 4
    assert "baseline" not in names(alone)


def test_duplicates_vanish(tmp_path: Path) -> None:
    assert names(jobs_of(tmp_path, "(defsweep (rate 1e-2 1e-3 1e-3) (rows 40))")) == ["baseline", "rate 0.001"]
    both = jobs_of(tmp_path, "(defsweep (rate 1e-3)) (defgrid (rows 40 80) (hidden [4] [8]))")
    assert names(both) == ["baseline", "rate 0.001", "hidden [8]", "rows 80", "rows 80, hidden [8]"]


@pytest.mark.parametrize(
    ("default", "others"),
    [("0.0", ("-0.0",)), ("[1 2]", ("[1.0 2.0]", "[true 2]")), ("[]", ("[0]", "[0.0]", "[-0.0]", "[false]"))],
)
@pytest.mark.parametrize("head", ["defsweep", "defgrid", "defcohort"])
def test_values_that_python_takes_for_equal_are_several(
    tmp_path: Path, default: str, others: tuple[str, ...], head: str
) -> None:
    """Each has its job, and its job has it."""
    text = f"(def same {default})" + PLAIN
    path = write_study(tmp_path, f"({head} (same {default} {' '.join(others)} {others[-1]}))", text)
    jobs = make_jobs(elaborate(path), ())
    assert [show(job.settings["same"]) for job in jobs] == [default, *others]
    assert [show({each.name: each.value for each in job.program.settings}["same"]) for job in jobs] == [
        default,
        *others,
    ]


def test_what_the_command_line_sets_wins_over_the_sweep(tmp_path: Path) -> None:
    pinned = jobs_of(tmp_path, SWEEP + COHORT, "rate=1e-3", "replica=1")
    whole = jobs_of(tmp_path, "(def more 1)" + SWEEP + COHORT)
    assert names(pinned) == [
        f'{changed}prior "{prior}", replica 1'
        for changed in ("", "rows 80, ", "rows 20, ")
        for prior in ("uniform", "normal")
    ]
    assert all(job.settings["rate"] == 1e-3 for job in pinned)
    assert {job.folder.rpartition("/")[2] for job in pinned} < {job.folder.rpartition("/")[2] for job in whole}


def test_a_member_that_is_set_keeps_its_folder(tmp_path: Path) -> None:
    whole = {job.folder for job in jobs_of(tmp_path, SWEEP + COHORT)}
    assert {job.folder for job in jobs_of(tmp_path, SWEEP + COHORT, "replica=1")} < whole


def test_a_variant_may_drop_or_replace_the_sweep(tmp_path: Path) -> None:
    variants = "(defvariant smoke (rows 20) (defsweep)) (defvariant other (rate 5.0) (defsweep (rows 8)))"
    assert names(jobs_of(tmp_path, SWEEP + variants, variant="smoke")) == ["baseline"]
    other = jobs_of(tmp_path, SWEEP + variants, variant="other")
    assert names(other) == ["baseline", "rows 8"]
    assert {job.settings["rate"] for job in other} == {5.0}


def test_the_mistakes_of_all_configurations_are_told_at_once(tmp_path: Path) -> None:
    path = write_study(tmp_path, "(defsweep (hidden [8] [0] [2 -1]) (rate 1e-3 0.0)) (defcohort (replica 0 1))")
    jobs = make_jobs(elaborate(path), ())
    with pytest.raises(ParenError) as raised:
        check_jobs(jobs)
    first, second = raised.value.errors
    assert first.message == "the shape of a parameter is a list of positive integers, not the list [2 0]"
    assert str(first).endswith(f"note: in the configuration hidden [0], replica 0 and 1 more ({path}:14:11)")
    assert second.message == "the shape of a parameter is a list of positive integers, not the list [2 -1]"
    assert second.notes[-1].message == "in the configuration hidden [2 -1], replica 0 and 1 more"


def test_jobs_read_the_texts_of_the_baseline(tmp_path: Path) -> None:
    path = write_study(tmp_path, SWEEP)
    jobs = make_jobs(elaborate(path), ())
    path.write_text("(nothing")
    check_jobs(jobs)


@pytest.mark.parametrize(
    ("value", "folder"),
    [
        (1e-3, "x-0.001"),
        (-2, "x--2"),
        (True, "x-true"),
        ((32, 16), "x-32-16"),
        ("uniform", "x-uniform"),
        ("a b", "x-a-b-c8687a"),
        ("a/b", "x-a-b-c14cdd"),
        ("../up", "x-up-8c722b"),
        ("", "x-e3b0c4"),
        (((1, 2), 3), "x-1-2--3-065536"),
    ],
)
def test_values_in_names_of_folders(value: object, folder: str) -> None:
    assert member_folder({"x": value}) == folder  # type: ignore[dict-item]


def test_names_of_folders_are_safe_and_short() -> None:
    settings = {f"setting-{i}": "a" * 30 for i in range(20)}
    folder = configuration_folder(settings, settings, ())
    assert len(folder) < 130
    assert folder != configuration_folder(settings, settings | {"more": 1}, ())
    assert configuration_folder({}, settings | {"replica": 1}, ["replica"]) == configuration_folder(
        {}, settings | {"replica": 2}, ["replica"]
    )
    assert configuration_folder({}, {"x": 1}, ()) != configuration_folder({}, {"x": 1.0}, ())
