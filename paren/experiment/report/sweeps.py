"""Results against what was changed: a row of charts for each setting of the sweep, grid or cohort.

Jobs that differ in nothing but a replica are one point with an error bar.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paren.experiment.report.charts import COLOURS, Bar, bar_chart, colour_of, swatch
from paren.experiment.report.html import Html, element, join
from paren.experiment.report.replicas import LARGEST, is_replica, member_of
from paren.experiment.results.recorded import Recorded, RecordedJob, label_of
from paren.experiment.results.table import metric_columns, numbers, series_columns
from paren.experiment.results.values import number_of, show_value
from paren.text.json import Json
from paren.text.size import count_of

_OPEN = 18  # charts against one setting that are shown without being asked for
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
    rows = [_row(recorded, name) for name in factors if not is_replica(name)]
    shown = [row for row in rows if row]
    return join(*shown) if shown else None


def _row(recorded: Recorded, factor: str) -> Html | None:
    """All charts against one setting: losses and evaluations, then each metric, folded away once they are many."""
    places = _places(recorded, factor)
    values = list({show_value(place.value): place.value for place in places}.values())
    if len(values) < 2:
        return None
    labels = list(dict.fromkeys(place.group for place in places))[:_MOST_GROUPS]
    plot = _Plot(recorded, factor, places, labels, values)
    shown: list[Html] = []
    folded: list[Html] = []
    for title, columns in _families(recorded).items():
        charts = [chart for column in columns if (chart := plot.draw(column)) is not None]
        if charts and shown and len(shown) + len(charts) > _OPEN:
            summary = element("summary", title, " ", element("span", count_of(len(charts), "chart"), class_="muted"))
            folded.append(element("details", summary, element("div", *charts, class_="charts"), class_="fold"))
        else:
            shown += charts
    if not shown:
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
    heading = element("h3", "Against ", element("code", factor))
    legend = element("div", *keys, class_="legend groups") if len(labels) > 1 else None
    return element("div", heading, legend, element("div", *shown, class_="charts"), *folded, class_="sweep")


def _families(recorded: Recorded) -> dict[str, list[str]]:
    """The columns to draw: those of the training, and those of each metric."""
    found = {"training": series_columns(recorded)}
    for column in metric_columns(recorded):
        found.setdefault(column.removeprefix("metrics.").partition(".")[0], []).append(column)
    return found


@dataclass(frozen=True)
class _Plot:
    """What the charts against one setting have in common."""

    recorded: Recorded
    factor: str
    places: Sequence[_Place]
    labels: Sequence[str]
    values: Sequence[Json]

    def draw(self, column: str) -> Html | None:
        """The chart of a column; None if it has too few values to say anything, or they are all the same."""
        bars = self._bars(column)
        if len({bar.place for bar in bars}) < 2 or len({value for bar in bars for value in bar.values}) < 2:
            return None
        names = None if self._is_numeric() else [show_value(value) for value in self.values]
        about = f"{column} against {self.factor}: " + "; ".join(f"{bar.label} {bar.mean:.4g}" for bar in bars[:24])
        return bar_chart(column, bars, names, self.factor, about)

    def _is_numeric(self) -> bool:
        return all(number_of(value) is not None for value in self.values)

    def _bars(self, column: str) -> list[Bar]:
        """Results of one group and one value together."""
        texts = [show_value(value) for value in self.values]
        together: dict[tuple[int, str], list[float]] = {}
        for place in self.places:
            result = numbers(self.recorded.jobs[place.number], column)
            if result is not None and abs(result) < LARGEST and place.group in self.labels:
                together.setdefault((self.labels.index(place.group), show_value(place.value)), []).append(result)
        bars = []
        for (group, text), results in together.items():
            number = number_of(self.values[texts.index(text)]) if self._is_numeric() else texts.index(text)
            label = f"{self.labels[group]}, {text}" if len(self.labels) > 1 else text
            bars.append(Bar(group, float(number or 0), results, label))
        return bars


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
    member = {name: value for name, value in member_of(job).items() if name != factor}
    if not changed and member:
        return ", ".join(f"{name} {show_value(value)}" for name, value in member.items())
    return label_of(changed, member)
