"""Results against what was changed: a row of charts for each setting of the sweep, grid or cohort.

Jobs that differ in nothing but a replica are one point with an error bar. A replica is a whole number of the cohort
that is called so: its values have no meaning but to be different.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paren.experiment.recorded import Recorded, RecordedJob, label_of, number_of, show_value
from paren.experiment.report.charts import COLOURS, Bar, bar_chart, colour_of, swatch
from paren.experiment.report.html import Html, element, join
from paren.experiment.results import metric_columns, numbers, series_columns
from paren.train.state import Json

REPLICAS = ("replica", "replicate", "repeat", "repetition", "seed")
MOST_CHARTS = 24
_LARGEST = 1e150  # results from here on, infinite ones too, have no deviation that is a float
_MOST_GROUPS = 2 * COLOURS


@dataclass(frozen=True)
class _Place:
    """A job on the axis of a setting: its value there, and what else sets it apart."""

    value: Json
    group: str
    number: int


def sweeps(recorded: Recorded) -> Html | None:
    """The charts of every setting that was varied on purpose; None if there is none with results."""
    changed = [name for job in recorded.jobs for name in job.changed]
    factors = dict.fromkeys([*changed, *(name for job in recorded.jobs for name in job.member)])
    rows = [_row(recorded, name) for name in factors if name.lower() not in REPLICAS]
    shown = [row for row in rows if row]
    return join(*shown) if shown else None


def _row(recorded: Recorded, factor: str) -> Html | None:
    """All charts against one setting."""
    places = _places(recorded, factor)
    values = list({show_value(place.value): place.value for place in places}.values())
    if len(values) < 2:
        return None
    labels = list(dict.fromkeys(place.group for place in places))
    if len(labels) > _MOST_GROUPS:
        labels = labels[:_MOST_GROUPS]
    columns = [*series_columns(recorded), *metric_columns(recorded)]
    charts: list[Html] = []
    left_out: list[str] = []
    for column in columns:
        bars = _bars(recorded, places, labels, column, values)
        if len({bar.place for bar in bars}) < 2:
            continue
        if len(charts) == MOST_CHARTS:
            left_out.append(column)
            continue
        names = None if _is_numeric(values) else [show_value(value) for value in values]
        about = f"{column} against {factor}: " + "; ".join(f"{bar.label} {bar.mean:.4g}" for bar in bars[:24])
        charts.append(bar_chart(column, bars, names, factor, about))
    if not charts:
        return None
    keys = [
        element(
            "button",
            swatch(colour_of(number)),
            element("span", label),
            type="button",
            data_g=number,
            aria_pressed="false",
        )
        for number, label in enumerate(labels)
    ]
    note = None
    if left_out:
        note = element("p", f"{len(left_out)} more are left out: {', '.join(left_out)}", class_="note")
    return element(
        "div",
        element("h3", "Against ", element("code", factor)),
        element("div", *keys, class_="legend groups") if len(labels) > 1 else None,
        element("div", *charts, class_="charts"),
        note,
        class_="sweep",
    )


def _places(recorded: Recorded, factor: str) -> list[_Place]:
    """Jobs by their value of the setting; a group with one value only says nothing about it, and is left out."""
    found = []
    for number, job in enumerate(recorded.jobs):
        if factor in job.settings:
            changed = {name: value for name, value in job.changed.items() if name != factor}
            found.append(_Place(job.settings[factor], _group(job, changed, factor), number))
    spread: dict[str, set[str]] = {}
    for place in found:
        spread.setdefault(place.group, set()).add(show_value(place.value))
    return [place for place in found if len(spread[place.group]) > 1]


def _group(job: RecordedJob, changed: Mapping[str, Json], factor: str) -> str:
    member = {name: value for name, value in job.member.items() if name != factor and name.lower() not in REPLICAS}
    if not changed and member:
        return ", ".join(f"{name} {show_value(value)}" for name, value in member.items())
    return label_of(changed, member)


def _is_numeric(values: Sequence[Json]) -> bool:
    return all(number_of(value) is not None for value in values)


def _bars(
    recorded: Recorded, places: Sequence[_Place], labels: Sequence[str], column: str, values: Sequence[Json]
) -> list[Bar]:
    """The points of one chart: results of one group and one value together."""
    numeric = _is_numeric(values)
    texts = [show_value(value) for value in values]
    together: dict[tuple[int, str], list[float]] = {}
    for place in places:
        result = numbers(recorded.jobs[place.number], column)
        if result is not None and abs(result) < _LARGEST and place.group in labels:
            together.setdefault((labels.index(place.group), show_value(place.value)), []).append(result)
    bars = []
    for (group, text), results in together.items():
        number = number_of(values[texts.index(text)]) if numeric else texts.index(text)
        label = f"{labels[group]}, {text}" if len(labels) > 1 else text
        bars.append(Bar(group, float(number or 0), results, label))
    return bars
