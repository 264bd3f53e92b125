"""A factor that no model and no result depends on is told: replicas that are one model would agree for ever."""

from __future__ import annotations

from pathlib import Path

import pytest
from experiment.studies import PLAIN, Shown, write_study

from paren.experiment.launch import Launch
from paren.experiment.plan import plan_study
from paren.experiment.study import run_study
from paren.lang.elaborate import elaborate
from paren.run import How

UNUSED = "(def unused 0)" + PLAIN
METRIC = '(defmetric m (python "m.py" m{0}))'


@pytest.mark.parametrize(
    ("forms", "told"),
    [
        ("(defcohort (unused 0 1 2))", ["no model and no result depends on unused: its values 0, 1, 2 make the same"]),
        (
            "(defsweep (rate 0.1) (unused 1))",
            ["no model and no result depends on unused: its values 0, 1 make the same"],
        ),
        (
            "(defgrid (rate 0.1 0.2) (unused 3 4))(defcohort (replica 0 1))",
            ["no model and no result depends on unused: its values 3, 4 make the same"],
        ),
        ("(defcohort (replica 0 1))(defsweep (rows 48) (rate 0.1) (hidden [3]))", []),
        ("(defsweep (unused 1))" + METRIC.format(" :unused unused"), []),
        ("(defsweep (unused 1))" + METRIC.format(" :settings-too true"), []),
        ("(defcohort (unused 0))", []),
    ],
)
def test_a_factor_that_changes_nothing_is_told(tmp_path: Path, forms: str, told: list[str]) -> None:
    path = write_study(tmp_path, forms, UNUSED)
    taken = "unused" if ":unused" in forms else "settings, settings_too"
    (tmp_path / "m.py").write_text(f"def m({taken}):\n    return 1\n")
    program, launch, view = elaborate(path), Launch(tmp_path / "out", How("cpu")), Shown()
    plan = plan_study(program, (), launch)
    assert list(plan.idle) == told
    assert str(plan).endswith("\n".join(told))
    run_study(program, (), launch, view)
    assert view.notices == told
