"""Learning curves: a chart for each series, a line for each job."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paren.experiment.report.charts import Line, line_chart
from paren.experiment.report.groupings import groupings, legend
from paren.experiment.report.html import Html, element, join
from paren.experiment.report.thinning import thin
from paren.experiment.results.recorded import Recorded
from paren.text.size import count_of
from paren.train.metrics import MEASURED_SERIES

# Points of one chart, over all its lines; a line has at least the second and at most the third.
_POINTS, _LEAST, _MOST = 16_000, 40, 400


def curves(recorded: Recorded) -> Html | None:
    """The charts of all series; those that measure the machine are folded away. None if no job has a series."""
    ways = groupings(recorded)
    colours = ways[0].job_colours()
    names = dict.fromkeys(name for job in recorded.jobs for name in job.series if name != "step")
    ordered = sorted(
        names, key=lambda name: (name != "loss", name != "evaluation/loss", not name.startswith("evaluation/"))
    )
    learning = [_chart(recorded, name, colours) for name in ordered if name not in MEASURED_SERIES]
    machine = [_chart(recorded, name, colours) for name in ordered if name in MEASURED_SERIES]
    shown, folded = [each for each in learning if each], [each for each in machine if each]
    if not shown and not folded:
        return None
    key = legend(ways) if len(recorded.jobs) > 1 else None
    more = None
    if folded:
        summary = element("summary", "Speed and memory during training")
        more = element("details", summary, element("div", *folded, class_="charts"), class_="fold")
    return join(key, element("div", *shown, class_="charts"), more)


def _chart(recorded: Recorded, name: str, colours: Sequence[str]) -> Html | None:
    most = min(_MOST, max(_LEAST, _POINTS // max(1, len(recorded.jobs))))
    lines = []
    left_out = 0
    for number, job in enumerate(recorded.jobs):
        if name not in job.series:
            continue
        values = job.series[name]
        there = np.isfinite(values)
        left_out += int(np.isinf(values).sum())
        if there.any():
            steps, kept = thin(job.series["step"][there], values[there], most)
            lines.append(Line(number, steps.tolist(), kept.tolist()))
    if not lines:
        return None
    last = sorted(line.values[-1] for line in lines)
    about = f"{name} over steps, {count_of(len(lines), 'line')}, last values {last[0]:.4g}"
    about += f" to {last[-1]:.4g}" if len(last) > 1 else ""
    return line_chart(name, lines, colours, about, f" · {left_out} infinite, not drawn" if left_out else "")
