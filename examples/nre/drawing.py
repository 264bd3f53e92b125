"""What the figures share: colours, panels, weighted histograms, bins of truths, spread over replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from gaussian import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = {"uniform": "#3366cc", "normal": "#cc5533", "exponential": "#339966", "grid": "#8855aa"}
LEARNED, EXACT, PLAIN = "#3366cc", "#222222", "#999999"


def colour_of(prior: str) -> str:
    """The colour of a prior in all figures."""
    return COLOURS.get(prior, PLAIN)


def panels(rows: int, columns: int, width: float = 3.6, height: float = 2.9) -> tuple[Figure, list[list[Axes]]]:
    """A figure of equal panels, by row and column; sizes in inches. Margins are fixed, for it takes longer to find the
    best ones than to draw a figure."""
    figure = Figure(figsize=(width * columns, height * rows))
    left, below, above, right = 0.75, 0.5, 0.4, 0.15
    figure.subplots_adjust(
        left=left / (width * columns),
        right=1 - right / (width * columns),
        bottom=below / (height * rows),
        top=1 - above / (height * rows),
        wspace=(left + right) / (width - left - right),
        hspace=(below + above) / (height - below - above),
    )
    return figure, [list(row) for row in figure.subplots(rows, columns, squeeze=False)]


def label(axes: Axes, x: str, y: str, title: str = "", legend: bool = False) -> None:
    """Names the axes of a panel."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if title:
        axes.set_title(title, fontsize=10)
    if legend and axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=7, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def histogram(axes: Axes, values: Array, bins: Array, colour: str, name: str, weights: Array | None = None) -> None:
    """The outline of a density, of points that may have weights."""
    heights, _ = np.histogram(values, bins, weights=weights, density=True)
    axes.stairs(heights, bins, color=colour, label=name)


def bins_of_truths(truth: Array, most: int) -> tuple[Array, Array]:
    """Centres, and the bin of each truth: one bin for each distinct value, or `most` equal ones if there are more."""
    values = np.unique(truth)
    if len(values) <= most:
        return values, np.searchsorted(values, truth)
    edges = np.linspace(values[0], values[-1], most + 1)
    return (edges[1:] + edges[:-1]) / 2, np.clip(np.digitize(truth, edges) - 1, 0, most - 1)


def mean_in_bins(values: Array, bins: Array, count: int) -> Array:
    """The mean of the values of each bin; NaN for an empty one."""
    total, number = np.bincount(bins, values, count), np.bincount(bins, minlength=count)
    return np.divide(total, number, out=np.full(count, np.nan), where=number > 0)


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean over replicas, and their standard deviation (0 for one)."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def by_prior(settings: Sequence[Mapping[str, object]]) -> dict[str, list[int]]:
    """Which jobs have each prior, in their order."""
    found: dict[str, list[int]] = {}
    for index, values in enumerate(settings):
        found.setdefault(str(values["prior"]), []).append(index)
    return found


def binomial_band(axes: Axes, cases: int) -> None:
    """Where 95 % of the coverages of a calibrated posterior lie, level by level; and the diagonal."""
    levels = np.linspace(0, 1, 101)
    error = 1.96 * np.sqrt(levels * (1 - levels) / cases)
    axes.fill_between(levels, levels - error, levels + error, color=PLAIN, alpha=0.25, lw=0)
    axes.plot([0, 1], [0, 1], color=EXACT, lw=0.7)


def distribution(axes: Axes, values: Array, colour: str, name: str) -> None:
    """The empirical distribution function of numbers in 0..1."""
    axes.plot(np.sort(values), (np.arange(len(values)) + 0.5) / len(values), color=colour, label=name, lw=1.2)
