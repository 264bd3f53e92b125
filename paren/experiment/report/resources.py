"""Memory as it was planned and as it was measured, speed, and what happened on the way."""

from __future__ import annotations

import numpy as np

from paren.experiment.report.charts import colour_of, stack, swatch
from paren.experiment.report.html import Html, element, join
from paren.experiment.report.tables import cell, job_head, sortable
from paren.experiment.results.recorded import Recorded, RecordedJob
from paren.experiment.results.values import number_of, show_value
from paren.text.json import Json
from paren.text.size import show_bytes

# The parts of the memory annotation that `planned` is the sum of; the rest are its notes.
_PARTS = ("parameters", "gradients", "optimizer", "averages", "live", "inputs", "products", "saving", "host")
_TOLD = {"step", "annotation"}


def memory(recorded: Recorded) -> Html | None:
    """Planned beside measured memory of each job, with the time of a step; None if nothing was planned or measured."""
    rows = [_row(job, number) for number, job in enumerate(recorded.jobs)]
    shown = [row for row in rows if row is not None]
    if not shown:
        return None
    heads = ["job", "planned", "measured", "of planned", "step, median", "examples/s, median"]
    parts = _parts_of_one(recorded)
    return join(parts, sortable(heads, shown, "Memory and speed"))


def _row(job: RecordedJob, number: int) -> Html | None:
    planned = number_of(_planned(job).get("planned"))
    peaks = job.series.get("runtime/peak_bytes", np.array([]))
    peak = float(np.nanmax(peaks)) if np.isfinite(peaks).any() else None
    if planned is None and peak is None:
        return None
    cells = [_bytes(planned), _bytes(peak), _share(planned, peak)]
    milliseconds = _median(job, "runtime/step-ms")
    cells.append(cell(None) if milliseconds is None else _number(f"{milliseconds:.3g} ms", milliseconds))
    rate = _median(job, "examples-per-second")
    cells.append(cell(None) if rate is None else _number(f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}", rate))
    return element("tr", job_head(job, number), *cells, data_j=number)


def _share(planned: float | None, peak: float | None) -> Html:
    if not planned or peak is None:
        return cell(None)
    share = peak / planned
    bar = element("i", style=f"--share:{min(share, 1.5) / 1.5:.4f}", class_="over" if share > 1 else None)
    text = f"{100 * share:.0f} %"
    gauge = element("span", bar, class_="gauge")
    return element("td", gauge, element("span", text, class_="share"), class_="number", data_v=share)


def _bytes(count: float | None) -> Html:
    return cell(None) if count is None else _number(show_bytes(int(count)), count, f"{int(count):,} bytes")


def _number(text: str, value: float, tip: str | None = None) -> Html:
    return element("td", text, class_="number", data_v=value, data_tip=tip)


def _median(job: RecordedJob, name: str) -> float | None:
    values = job.series.get(name, np.array([]))
    return float(np.nanmedian(values)) if np.isfinite(values).any() else None


def _planned(job: RecordedJob) -> dict[str, Json]:
    """The last annotation of the memory plan: a resume writes it again."""
    return next((dict(each) for each in reversed(job.annotations) if each.get("annotation") == "memory"), {})


def _parts_of_one(recorded: Recorded) -> Html | None:
    """What the plan consists of, if all jobs have the same plan."""
    plans = [{name: _planned(job).get(name) for name in _PARTS} for job in recorded.jobs]
    first = plans[0]
    parts = [(name, size) for name in _PARTS if (size := number_of(first.get(name)))]
    if not parts or any(plan != first for plan in plans):
        return None
    bar = stack([(f"{name}: {show_bytes(int(size))}", size) for name, size in parts])
    keys = [
        element("span", swatch(colour_of(number)), f"{name} ", element("span", show_bytes(int(size)), class_="muted"))
        for number, (name, size) in enumerate(parts)
    ]
    planned = sum(size for _, size in parts)
    title = element("p", "Planned: ", element("b", show_bytes(int(planned))))
    return element("div", title, bar, element("div", *keys, class_="key"), class_="card")


def events(recorded: Recorded) -> Html | None:
    """Annotations other than the memory plan, in order: skipped steps, padding, resumes, the stacking; and what could
    not be read. Equal ones of one job are counted. None without any."""
    rows: list[Html] = []
    for number, job in enumerate(recorded.jobs):
        seen: dict[tuple[str, str], list[int]] = {}
        for each in job.annotations:
            if each.get("annotation") != "memory":
                told = ", ".join(f"{name} {show_value(value)}" for name, value in each.items() if name not in _TOLD)
                seen.setdefault((show_value(each.get("annotation")), told), []).append(
                    int(number_of(each.get("step")) or 0)
                )
        for (kind, told), steps in seen.items():
            at = str(steps[0]) if len(steps) == 1 else f"{steps[0]} to {steps[-1]} ({len(steps)} times)"
            cells = [
                element("td", at, class_="number", data_v=steps[0]),
                element("td", kind),
                element("td", told, class_="told"),
            ]
            rows.append(element("tr", job_head(job, number), *cells, data_j=number))
        for problem in job.problems:
            cells = [cell(None), element("td", "unreadable", class_="bad"), element("td", problem, class_="told")]
            rows.append(element("tr", job_head(job, number), *cells, data_j=number))
    return sortable(["job", "step", "event", "what"], rows, "Events") if rows else None
