"""The figures over the sweep: what becomes of each metric as a setting changes, with replicas as error bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from drawing import EXACT, by_prior, colour_of, label, panels, spread
from jobs import Job
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Panel = tuple[str, str, str]  # what is drawn, where the metrics have it, where they have it for the exact target

ACCURACY: tuple[Panel, ...] = (
    ("loss above the optimum", "classification.excess", ""),
    ("C2ST of the posteriors", "calibration.c2st", ""),
    ("median RMSE of a pair's log ratio", "pairwise.median_rmse", ""),
    ("part of the candidates that counts", "resolution.ratio.ess_fraction", ""),
)
REGIONS: tuple[Panel, ...] = (
    ("coverage of the first level", "ratio.coverage.joint_density.0", "exact-reference.coverage.joint_density.0"),
    ("coverage of the last level", "ratio.coverage.joint_density.-1", "exact-reference.coverage.joint_density.-1"),
    ("absolute bias", "ratio.bias.mean_absolute", "exact-reference.bias.mean_absolute"),
    ("width of the first level", "ratio.width.mean.0", "exact-reference.width.mean.0"),
)


def draw_sweep(*, jobs: Sequence[Job], along: str) -> dict[str, Figure]:
    """Jobs that differ from the baseline in the setting `along` alone, or not at all: `accuracy` (loss above the
    optimum, classifier between the posteriors, RMSE of pairs, the samples that count) and `regions` (coverage of both
    levels with the exact target's, absolute bias, width)."""
    kept = [job for job in jobs if set(job.changed) <= {along}]
    return {"accuracy": _figure(kept, along, ACCURACY), "regions": _figure(kept, along, REGIONS)}


def number_at(metrics: Mapping[str, object], path: str) -> float | None:
    """The number at a dotted path of names and places; None where there is none."""
    value: object = metrics
    for key in path.split("."):
        try:
            value = value[int(key)] if isinstance(value, list | tuple) else value[key]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return None
    return float(value) if isinstance(value, int | float) else None


def _figure(jobs: Sequence[Job], along: str, shown: Sequence[Panel]) -> Figure:
    figure, rows = panels(2, 2, width=4.4)
    groups = by_prior([job.settings for job in jobs])
    for axes, (title, learned, exact) in zip([axes for row in rows for axes in row], shown, strict=True):
        for offset, (name, members) in enumerate(groups.items()):
            for path, colour, style in ((learned, colour_of(name), "-"), (exact, EXACT, ":")):
                if path:
                    _draw_line(axes, [jobs[member] for member in members], along, path, colour, style, name, offset)
        axes.ticklabel_format(axis="y", scilimits=(-2, 3))
        label(axes, along, title, legend=axes is rows[0][0])
    return figure


def _draw_line(
    axes: Axes,
    jobs: Sequence[Job],
    along: str,
    path: str,
    colour: str,
    style: str,
    name: str,
    offset: int,
) -> None:
    groups: dict[float, list[float]] = {}
    for job in jobs:
        number = number_at(job.metrics, path)
        if number is not None:
            groups.setdefault(float(job.settings[along]), []).append(number)  # type: ignore[arg-type]
    if groups:
        places = np.array(sorted(groups))
        means, errors = np.transpose([spread(groups[place]) for place in places])
        shift = 0.04 * offset if style == "-" else 0.0
        axes.errorbar(
            places + shift, means, errors, color=colour, ls=style, lw=1, capsize=2, label=name if style == "-" else "_"
        )
