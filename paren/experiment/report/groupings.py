"""By what jobs are told apart in charts: each by itself, or, where they are many, by a setting."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from paren.experiment.report.charts import COLOURS, swatch
from paren.experiment.report.html import Html, element, join
from paren.experiment.results.recorded import Recorded, label_of
from paren.experiment.results.table import numbers, series_columns
from paren.experiment.results.values import number_of, show_number, show_value
from paren.text.json import Json
from paren.text.size import count_of

_ORDERED = 5  # from so many numbers on, a setting's colours are in the order of its values


@dataclass(frozen=True)
class Grouping:
    """`of` gives each job the index of its label; `colours` are those of the labels."""

    name: str
    labels: tuple[str, ...]
    of: tuple[int, ...]
    colours: tuple[str, ...]

    def job_colours(self) -> list[str]:
        return [self.colours[index] for index in self.of]


def groupings(recorded: Recorded) -> list[Grouping]:
    """All ways to colour the jobs, that which tells most about the losses first."""
    jobs = recorded.jobs
    if len(jobs) <= COLOURS:
        return [_by_name("job", [job.label for job in jobs], list(range(len(jobs))))]
    configurations = [label_of(job.changed, {}) for job in jobs]
    found = [_by_value("configuration", list(configurations))]
    found += [_by_value(name, [job.settings.get(name) for job in jobs]) for name in recorded.varying()]
    useful = {each.of: each for each in found if each and len(each.labels) > 1}
    if not useful:
        return [_by_name("all jobs", [count_of(len(jobs), "job")], [0] * len(jobs))]
    column = next((each for each in series_columns(recorded) if each.endswith("loss.min")), "")
    losses = [numbers(job, column) for job in jobs]
    return sorted(useful.values(), key=lambda way: -_explained(way.of, losses))


def _by_name(name: str, labels: Sequence[str], of: Sequence[int]) -> Grouping:
    return Grouping(name, tuple(labels), tuple(of), tuple(f"--c{number}" for number in range(len(labels))))


def _by_value(name: str, values: Sequence[Json]) -> Grouping | None:
    """By the values of a setting: many numbers are parted into ranges. None for too many other values."""
    found = [number_of(value) for value in values]
    ordered = sorted({number for number in found if number is not None})
    if None not in found and len(ordered) >= _ORDERED:
        parts = min(COLOURS, len(ordered))
        rank = {number: index * parts // len(ordered) for index, number in enumerate(ordered)}
        ranges = [[number for number in ordered if rank[number] == part] for part in range(parts)]
        labels = [" to ".join(show_number(value, 3) for value in dict.fromkeys((each[0], each[-1]))) for each in ranges]
        colours = [f"--s{part * (COLOURS - 1) // (parts - 1)}" for part in range(parts)]
        return Grouping(name, tuple(labels), tuple(rank[each] for each in found if each is not None), tuple(colours))
    labels = list(dict.fromkeys(map(show_value, values)))
    return (
        _by_name(name, labels, [labels.index(show_value(value)) for value in values])
        if len(labels) <= COLOURS
        else None
    )


def _explained(of: Sequence[int], losses: Sequence[float | None]) -> float:
    """Which part of the losses' variance lies between the groups, from 0 to 1."""
    known = [(group, loss) for group, loss in zip(of, losses, strict=True) if loss is not None and abs(loss) < 1e30]
    if not known:
        return 0.0
    mean = sum(loss for _, loss in known) / len(known)
    total = sum((loss - mean) ** 2 for _, loss in known)
    between = 0.0
    for group in set(of):
        own = [loss for each, loss in known if each == group]
        if own:
            between += len(own) * (sum(own) / len(own) - mean) ** 2
    return round(between / total, 9) if total else 0.0


def legend(ways: Sequence[Grouping]) -> Html:
    """What the colours mean, and, where there are several ways to colour, a choice between them."""
    choice = None
    if len(ways) > 1:
        options = [element("option", way.name, value=number) for number, way in enumerate(ways)]
        choice = element("label", "colour by ", element("select", *options, id="colour-by"), class_="choice")
    return join(choice, *(_row(way, hidden=number > 0) for number, way in enumerate(ways)))


def _row(way: Grouping, *, hidden: bool) -> Html:
    entries = [
        element("button", swatch(colour), element("span", label), type="button", data_c=index, aria_pressed="false")
        for index, (label, colour) in enumerate(zip(way.labels, way.colours, strict=True))
    ]
    of, colours = (json.dumps(each, separators=(",", ":")) for each in (way.of, way.colours))
    return element("div", *entries, class_="legend", data_of=of, data_colours=colours, hidden=hidden)
