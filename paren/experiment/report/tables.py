"""Tables of jobs and of what they came to, which the page's script sorts and filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paren.experiment.report.html import Html, element, join
from paren.experiment.report.replicas import LARGEST, deviation_of, mean_of, replicated
from paren.experiment.report.times import seconds_of, show_seconds
from paren.experiment.results.recorded import Recorded, RecordedJob
from paren.experiment.results.table import leaves_of, look_up, series_columns
from paren.experiment.results.values import number_of, show_number, show_value
from paren.text.json import Json
from paren.text.size import count_of

MOST_COLUMNS = 40
_LONGEST = 60  # characters of a cell; the rest is told on hovering


def cell(value: Json, mark: str = "") -> Html:
    """A cell: numbers to the right, in few digits, and whole for sorting and on hovering. `mark` is a class of its
    style."""
    number = number_of(value)
    whole = show_value(value)
    if number is None:
        short = shorten(_round(value))
        return element("td", short, class_=mark if whole else "empty", data_tip=whole if short != whole else None)
    shown = show_number(number)
    tip = whole if whole != shown.replace(",", "") else None
    return element("td", shown, class_=f"number {mark}".rstrip(), data_v=whole, data_tip=tip)


def _round(value: Json) -> str:
    """A list with its numbers in few digits."""
    if isinstance(value, list):
        return f"[{' '.join(map(_round, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else show_value(value)


def shorten(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def sortable(heads: Sequence[str], rows: Sequence[Html], caption: str) -> Html:
    """A table in a box of its own that scrolls; its heads are buttons that sort."""
    head = [
        element(
            "th",
            element("button", name, type="button"),
            scope="col",
            aria_sort="none",
            class_="first" if not number else None,
        )
        for number, name in enumerate(heads)
    ]
    table = element(
        "table",
        element("caption", caption, class_="unseen"),
        element("thead", element("tr", *head)),
        element("tbody", *rows),
        class_="sortable",
    )
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)


def job_head(job: RecordedJob, number: int) -> Html:
    """The first cell of a job's row, which leads to its details."""
    link = element("a", job.label, href=f"#job-{number}", title=job.name)
    return element("th", link, scope="row", class_="first")


def state_badge(state: str) -> Html:
    return element("span", state or "unknown", class_=f"state {state if state.isalpha() else 'unknown'}")


def job_table(recorded: Recorded) -> Html:
    """A row for each job: what sets it apart, its state, its losses and evaluations."""
    settings = recorded.varying()
    series = series_columns(recorded)
    heads = ["job", "state", *settings, "steps", "time", *series]
    best = {column: _least(recorded, column) for column in series if "loss" in column}
    rows = []
    for number, job in enumerate(recorded.jobs):
        seconds = seconds_of(job)
        step, total = look_up(job, "step"), job.training.get("steps")
        cells = [element("td", state_badge(job.state))]
        cells += [cell(job.settings.get(name), "changed" if name in job.changed else "") for name in settings]
        cells.append(_progress(step[0] if step else None, total))
        cells.append(_time_cell(seconds))
        for column in series:
            value = next(iter(look_up(job, column)), None)
            is_best = column in best and value is not None and value == best[column] and len(recorded.jobs) > 1
            cells.append(cell(value, "best" if is_best else ""))
        rows.append(element("tr", job_head(job, number), *cells, data_j=number))
    return sortable(heads, rows, "Jobs")


def _progress(step: Json, total: Json) -> Html:
    done, whole = number_of(step), number_of(total)
    if done is None or whole is None or done >= whole:
        return cell(step)
    return element("td", f"{show_number(done)} of {show_number(whole)}", class_="number", data_v=done)


def _time_cell(seconds: float | None) -> Html:
    if seconds is None:
        return cell(None)
    return element("td", show_seconds(seconds), class_="number", data_v=seconds)


def _least(recorded: Recorded, column: str) -> Json:
    found = [value for job in recorded.jobs for value in look_up(job, column) if number_of(value) is not None]
    return min(found, key=lambda value: number_of(value) or 0.0, default=None)


def metric_tables(recorded: Recorded) -> Html | None:
    """A table for each metric of the analysis; metrics that are single values share one. Where there are replicas,
    means over them come first, those of losses and evaluations too. None without metrics and replicas."""
    names = dict.fromkeys(name for job in recorded.jobs for name in job.results)
    single = [name for name in names if not any(isinstance(job.results.get(name), dict) for job in recorded.jobs)]
    means = replicated(recorded)
    parts: list[Html] = []
    if means and series_columns(recorded):
        parts += _titled("Training", _mean_table(means, series_columns(recorded), ""))
    if single:
        columns = [leaf for name in single for leaf in _leaves(recorded, name)]
        parts += _titled("Single values", *_metric_table(recorded, means, columns, ""))
    for name in names:
        if name not in single:
            parts += _titled(name, *_metric_table(recorded, means, _leaves(recorded, name), f"{name}."))
    return join(*parts) if parts else None


def _titled(title: str, *contents: Html) -> list[Html]:
    return [element("h3", title), *contents]


def _leaves(recorded: Recorded, name: str) -> list[str]:
    """The dotted names of a metric's values."""
    values = [(leaf, value) for job in recorded.jobs for leaf, value in leaves_of(name, job.results.get(name))]
    return list(dict.fromkeys(leaf for leaf, value in values if leaf != name or value is not None)) or [name]


def _metric_table(
    recorded: Recorded, means: Mapping[str, Sequence[RecordedJob]], columns: Sequence[str], prefix: str
) -> list[Html]:
    """The values of each job; behind means over replicas, if there are any."""
    shown = columns[:MOST_COLUMNS]
    rows = []
    for number, job in enumerate(recorded.jobs):
        if job.results:
            values = [next(iter(look_up(job, f"metrics.{column}")), None) for column in shown]
            rows.append(element("tr", job_head(job, number), *map(cell, values), data_j=number))
    title = prefix.rstrip(".") or "Single values"
    table = sortable(["job", *(column.removeprefix(prefix) for column in shown)], rows, title)
    note = []
    if len(columns) > len(shown):
        more = count_of(len(columns) - len(shown), "more column is", "more columns are")
        left_out = f"{more} left out; paren results OUT {title} has them"
        note.append(element("p", left_out, class_="note"))
    if not means:
        return [table, *note]
    short = _mean_table(means, [f"metrics.{column}" for column in shown], f"metrics.{prefix}")
    return [short, element("details", element("summary", "Each job"), table, class_="fold"), *note]


def _mean_table(means: Mapping[str, Sequence[RecordedJob]], columns: Sequence[str], prefix: str) -> Html:
    """Means over replicas with their standard deviations, and over how many if some lack the value; what is no number
    is told if it is the same in all."""
    rows = []
    for label, jobs in means.items():
        cells = [_mean_cell(jobs, column) for column in columns]
        rows.append(element("tr", element("th", label, scope="row", class_="first"), cell(len(jobs)), *cells))
    heads = ["mean ± standard deviation", "jobs", *(column.removeprefix(prefix) for column in columns)]
    return sortable(heads, rows, "Means over replicas")


def _mean_cell(jobs: Sequence[RecordedJob], column: str) -> Html:
    found = [value for job in jobs for value in look_up(job, column) if value is not None]
    values = [number for value in found if (number := number_of(value)) is not None and abs(number) < LARGEST]
    if not values or len(values) < len(found):
        return cell(found[0] if len(set(map(show_value, found))) == 1 else None)
    mean, deviation = mean_of(values), deviation_of(values)
    text = show_number(mean, 4) if deviation == 0 else f"{show_number(mean, 4)} ± {show_number(deviation, 2)}"
    if len(values) < len(jobs):
        text += f" ({len(values)})"
    tip = f"{show_number(mean, 8)} ± {show_number(deviation, 4)}, {len(values)} of {count_of(len(jobs), 'job')}"
    return element("td", text, class_="number", data_v=mean, data_tip=tip)


def series_table(job: RecordedJob) -> Html | None:
    """First, last, least and greatest value of each series of a run."""
    rows = []
    for name, values in job.series.items():
        finite = [float(value) for value in values if value == value]
        if name != "step" and finite:
            rows.append(
                element(
                    "tr",
                    element("th", name, scope="row", class_="first"),
                    *(cell(value) for value in (finite[0], finite[-1], min(finite), max(finite), len(finite))),
                )
            )
    return sortable(["series", "first", "last", "least", "greatest", "values"], rows, "Series") if rows else None


def pairs(content: Mapping[str, Json | Html]) -> Html:
    """Names with their values, one below the other; what is empty is left out."""
    items: list[Html] = []
    for name, value in content.items():
        shown = value if isinstance(value, Html) else show_value(value)
        if shown:
            items += [element("dt", name), element("dd", shown)]
    return element("dl", *items)
