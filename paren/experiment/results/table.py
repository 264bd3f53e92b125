"""A table of what the jobs of a study, or a run, came to: settings that vary, state, losses, metrics.

A column is a name with dots into nested results: `coverage.joint.68`, `modes.0`. Names are looked up in this order;
`settings.NAME`, `series.NAME` and `metrics.NAME` name one of them only:

- `job`, `state`, `step`, `code`, `message`;
- a setting;
- a series of metrics.jsonl: its last value, or `.min` and `.max` over the training (`evaluation/loss.min`);
- a metric of the analysis.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paren.experiment.results.recorded import Recorded, RecordedJob, read_recorded
from paren.experiment.results.values import number_of, object_of, show_number, show_value, text_of
from paren.text.errors import ParenError, did_you_mean
from paren.text.json import Json
from paren.train.metrics import finite

if TYPE_CHECKING:
    import pandas
    from rich.table import Table

_OWN = ("job", "state", "step", "code", "message")
_GROUPS = ("settings", "series", "metrics")
_SHORT = 4  # numbers of a list that are columns of their own
_EXTREMES = {".min": np.nanmin, ".max": np.nanmax}


@dataclass(frozen=True)
class Results:
    """A row for each job, in job order; None where a job lacks a value. Nested results are lists and dicts."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Json, ...], ...]

    def csv(self) -> str:
        """As CSV with a head line; blank where a job lacks a value, numbers as they are stored, nested results as
        JSON."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        for row in self.rows:
            writer.writerow([show_value(value) if not isinstance(value, list) else json.dumps(value) for value in row])
        return text.getvalue()

    def records(self) -> list[dict[str, Json]]:
        """A mapping for each job; numbers that are not finite are "nan", "inf", "-inf"."""
        return [finite(dict(zip(self.columns, row, strict=True))) for row in self.rows]

    def part(self, count: int) -> Results:
        """The first columns."""
        return Results(self.columns[:count], tuple(row[:count] for row in self.rows))

    def table(self) -> Table:
        """As a table to look at: numbers in few digits, nested results as JSON."""
        from rich.table import Table  # drawn on request only
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for number, column in enumerate(self.columns):
            values = [row[number] for row in self.rows if row[number] is not None]
            numeric = bool(values) and all(number_of(value) is not None for value in values)
            table.add_column(Text(column), justify="right" if numeric else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*(Text(_brief(value)) for value in row))
        return table

    def frame(self) -> pandas.DataFrame:
        """As a DataFrame. Raises E-API-005 if pandas is not installed."""
        try:
            import pandas  # optional
        except ModuleNotFoundError:
            raise ParenError(
                "E-API-005",
                "a DataFrame needs pandas, which is not installed",
                fix="pip install pandas, or use .columns and .rows",
            ) from None
        return pandas.DataFrame([list(row) for row in self.rows], columns=list(self.columns))


def _brief(value: Json) -> str:
    number = number_of(value)
    return show_value(value) if number is None else show_number(number)


def results(out: str | Path, columns: Sequence[str] = ()) -> Results:
    """The results of a study or of a single run, from its folder.

    `columns`: what to show, as above; a nested result becomes a column for each of its values. Without: the settings
    that vary, the state, the losses, the evaluations, and every number of the metrics. Raises E-RUN-014 if `out` holds
    neither a study nor a run, E-API-006 for a column that no job has.
    """
    recorded = read_recorded(out)
    names = [name for each in columns for name in _expand(recorded, each)] or default_columns(recorded)
    rows = tuple(tuple(next(iter(look_up(job, name)), None) for name in names) for job in recorded.jobs)
    return Results(tuple(names), rows)


def default_columns(recorded: Recorded) -> list[str]:
    """What is shown if nothing is asked for."""
    names = ["job", *_qualified(recorded, "settings", recorded.varying()), "state", "step"]
    if any(job.failed for job in recorded.jobs):
        names.append("code")
    return [*names, *series_columns(recorded), *metric_columns(recorded)]


def series_columns(recorded: Recorded) -> list[str]:
    """The losses and evaluations: last values, and the least loss."""
    there = dict.fromkeys(name for job in recorded.jobs for name in job.series)
    evaluations = [name for name in there if name.startswith("evaluation/") and name != "evaluation/loss"]
    best = "evaluation/loss" if "evaluation/loss" in there else "loss"
    losses = [name for name in ("loss", "evaluation/loss") if name in there]
    return _qualified(recorded, "series", [*losses, *([f"{best}.min"] if losses else []), *evaluations])


def metric_columns(recorded: Recorded) -> list[str]:
    """Every metric of the analysis that is a value, and every value in nested ones; long lists are left out."""
    leaves = dict.fromkeys(
        leaf
        for job in recorded.jobs
        for name, value in job.results.items()
        for leaf, each in leaves_of(name, value)
        if not isinstance(each, list)
    )
    return _qualified(recorded, "metrics", list(leaves))


def leaves_of(name: str, value: Json) -> Iterator[tuple[str, Json]]:
    """The values in a nested result with their dotted names. A list is a value, but of a few numbers each is one."""
    if isinstance(value, list) and 0 < len(value) <= _SHORT and all(number_of(each) is not None for each in value):
        yield from ((f"{name}.{index}", each) for index, each in enumerate(value))
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from leaves_of(f"{name}.{key}", each)
    else:
        yield name, value


def look_up(job: RecordedJob, column: str) -> list[Json]:
    """The value of a column in a list of one; an empty list if the job has no such thing."""
    if column in _OWN:
        return _own(job, column)
    group, _, rest = column.partition(".")
    groups = (group,) if group in _GROUPS and rest else _GROUPS
    for each in groups:
        found = _in_group(job, each, rest if len(groups) == 1 else column)
        if found:
            return found
    return []


def _own(job: RecordedJob, column: str) -> list[Json]:
    if column == "job":
        return [job.name]
    if column == "step":
        step = job.training.get("step")
        return [step] if step is not None else [int(each) for each in job.series.get("step", ())[-1:]]
    status = job.status.get(column)
    return [] if status is None else [status]


def _in_group(job: RecordedJob, group: str, name: str) -> list[Json]:
    if group == "settings":
        return [job.settings[name]] if name in job.settings else []
    if group == "metrics":
        return _descend(dict(job.results), name)
    ending = name[-4:]
    extreme = _EXTREMES.get(ending) if name not in job.series else None
    values = job.series.get(name[:-4] if extreme else name)
    if values is None:
        return []
    finite_or_inf = values[~np.isnan(values)]
    if not finite_or_inf.size:
        return []
    return [float(extreme(finite_or_inf) if extreme else finite_or_inf[-1])]


def _descend(value: Json, path: str) -> list[Json]:
    """The value at a dotted path; a key may have dots itself, and the longest that fits is taken."""
    if not path:
        return [value]
    if isinstance(value, list):
        head, _, rest = path.partition(".")
        index = int(head) if head.isascii() and head.isdigit() else len(value)
        return _descend(value[index], rest) if index < len(value) else []
    if not isinstance(value, dict):
        return []
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        key = ".".join(parts[:count])
        if key in value:
            found = _descend(value[key], ".".join(parts[count:]))
            if found:
                return found
    return []


def _expand(recorded: Recorded, column: str) -> list[str]:
    """The columns that a requested one stands for. Raises E-API-006."""
    found = [value for job in recorded.jobs for value in look_up(job, column)]
    nested = dict.fromkeys(leaf for value in found if isinstance(value, dict) for leaf, _ in leaves_of(column, value))
    if nested:
        return list(nested)
    if found or column in _OWN or _is_declared(recorded, column):
        return [column]
    known = [*default_columns(recorded), *_every_name(recorded)]
    raise ParenError(
        "E-API-006",
        f"no job in {recorded.out} has {column}{did_you_mean(column, known)}",
        fix="paren results OUT shows what there is; nested results are named with dots",
    )


def _is_declared(recorded: Recorded, column: str) -> bool:
    """Whether a metric of the study has this name, though no job has come to it yet."""
    analyses = recorded.study.get("analyses")
    first = column.removeprefix("metrics.").partition(".")[0]
    if any(first in job.results for job in recorded.jobs):
        return False
    return isinstance(analyses, list) and any(
        object_of(each).get("kind") == "metric" and text_of(object_of(each).get("name")) == first for each in analyses
    )


def _every_name(recorded: Recorded) -> Iterator[str]:
    for job in recorded.jobs:
        yield from (*job.settings, *job.series, *job.results)


def _qualified(recorded: Recorded, group: str, names: Sequence[str]) -> list[str]:
    """The names as columns: with the group in front where the short name means something else."""
    return [name if _means(recorded, group, name) else f"{group}.{name}" for name in names]


def _means(recorded: Recorded, group: str, name: str) -> bool:
    if name in _OWN or name.partition(".")[0] in _GROUPS:
        return False
    before = _GROUPS[: _GROUPS.index(group)]
    return not any(_in_group(job, each, name) for job in recorded.jobs for each in before)


def numbers(job: RecordedJob, column: str) -> float | None:
    """The value of a column as a number, None where it is none."""
    return next((number_of(value) for value in look_up(job, column)), None)
