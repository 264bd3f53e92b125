"""The pages on runs name every file, key, series and annotation that a run writes, and every code they cite exists."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from training_fakes import SPAN, Trial, examples, run_form

from paren.ir.program import Diagnostic
from paren.text.codes import CODES
from paren.train.metrics import EXCHANGE_SERIES, MEASURED_SERIES
from paren.train.status import Status

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {name: (DOCS / name).read_text(encoding="utf-8") for name in ("run-directory.md", "metrics.md")}


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    """A run with everything: padding, skips, diagnostics, a best evaluation, event files."""
    fields = examples(22, 1)
    fields["weight"][:8] = 0
    fields["x"][9] = np.nan
    trial = Trial(tmp_path_factory.mktemp("documents") / "run", run_form(batch=2, on_nonfinite="skip"), training=fields)
    trial.diagnostics = {"mean": Diagnostic("mean", 2, "mean", SPAN)}
    trial.start(tensorboard=True)
    return trial.out


def test_every_file_is_in_the_layout(out):
    for path in out.rglob("*"):
        name = re.sub(r"\d{6}", "000300" if path.parent.name == "best" else "000500", path.name)
        if not name.startswith("events.out"):
            assert name in PAGES["run-directory.md"], path


def test_every_key_is_explained(out):
    page = PAGES["run-directory.md"]
    keys = set(json.loads((out / "run.json").read_text()))
    keys |= set(json.loads((out / "checkpoints" / "000012" / "manifest.json").read_text()))
    keys |= {field.name for field in dataclasses.fields(Status)}
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []


def test_every_series_and_annotation_is_explained(out):
    page = PAGES["metrics.md"]
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    series = {name for record in records if "annotation" not in record for name in record}
    series = {"evaluation/NAME" if name == "evaluation/error" else name for name in series} - {"mean"}
    assert series >= MEASURED_SERIES - EXCHANGE_SERIES
    assert [name for name in sorted(series | EXCHANGE_SERIES) if f"`{name}`" not in page] == []
    kinds = {record["annotation"] for record in records if "annotation" in record}
    assert kinds == {"memory", "padding", "skipped"}
    assert [kind for kind in sorted(kinds) if f"| `{kind}` |" not in page] == []


@pytest.mark.parametrize("name", PAGES)
def test_every_code_that_is_cited_exists(name):
    assert set(re.findall(r"E-[A-Z]+-\d{3}", PAGES[name])) <= CODES.keys()


@pytest.mark.parametrize("name", PAGES)
def test_lines_are_not_too_long(name):
    assert [line for line in PAGES[name].splitlines() if len(line) > 120 and not line.startswith("|")] == []
