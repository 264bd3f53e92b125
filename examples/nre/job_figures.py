"""The figures of one job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from drawing import EXACT, LEARNED, PLAIN, binomial_band, distribution, histogram, label, panels
from gaussian import Array, problem_of
from inference import masses
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from verification import softmax


def draw_inference(
    *, inference: Mapping[str, Array], observations: Mapping[str, Array], problem: Sequence[object], bins: int
) -> dict[str, Figure]:
    """For each retained case the marginal densities of all parameters, learned and exact, as `marginals-CASE`, and
    from two parameters on the first two together, as `projection-CASE`."""
    names, found = problem_of(problem).names, {}
    for row, case in enumerate(np.asarray(inference["retained_cases"])):
        theta, truth = np.asarray(inference["retained_theta"])[row], np.asarray(observations["truth"])[case]
        measure = np.asarray(inference["retained_measure"])[row][None]
        mass = {
            name: masses(np.asarray(inference[f"retained_{name}"])[row][None], measure)[0]
            for name in ("ratio", "exact")
        }
        figure, (row_of_axes,) = panels(1, len(names))
        for i, axes in enumerate(row_of_axes):
            edges = _edges(theta[:, i], mass["exact"] + mass["ratio"], bins)
            histogram(axes, theta[:, i], edges, LEARNED, "learned", mass["ratio"])
            histogram(axes, theta[:, i], edges, EXACT, "exact", mass["exact"])
            axes.axvline(truth[i], color=PLAIN, ls="--", label="truth")
            label(axes, names[i], "density", f"case {case}", legend=i == 0)
        found[f"marginals-{case}"] = figure
        if len(names) > 1:
            figure, (row_of_axes,) = panels(1, 2)
            for axes, (name, weights) in zip(row_of_axes, mass.items(), strict=True):
                edges = [_edges(theta[:, i], mass["exact"] + mass["ratio"], bins) for i in (0, 1)]
                heights, *_ = np.histogram2d(theta[:, 0], theta[:, 1], edges, weights=weights)
                axes.pcolormesh(*edges, heights.T, cmap="Blues")
                axes.plot(*truth[:2], "x", color=EXACT)
                label(axes, names[0], names[1], f"{name}, case {case}")
            found[f"projection-{case}"] = figure
    return found


def _edges(values: Array, mass: Array, bins: int) -> Array:
    """Bins over the middle of a weighted sample, as fine as the sample allows, on a lattice one for each point."""
    order = np.argsort(values)
    reached = np.cumsum(mass[order]) / mass.sum()
    low, high = values[order][np.searchsorted(reached, [0.001, 0.999]).clip(max=len(values) - 1)]
    points = np.unique(values)
    if len(points) <= bins:
        gap = np.diff(points).min() if len(points) > 1 else 1.0
        return np.concatenate([points - gap / 2, points[-1:] + gap / 2])
    return np.linspace(low, high + 1e-9, min(bins, max(8, int(np.sqrt(len(values))))) + 1)


def draw_pairwise(
    *, verification_observations: Mapping[str, Array], verification_predictions: Mapping[str, Array]
) -> Figure:
    """Learned against exact log ratio on the observations of two pairs: the one of median error and the worst."""
    learned, exact = (np.asarray(verification_predictions[f"probe_{name}"]) for name in ("learned", "exact"))
    error = np.sqrt(np.mean((learned - exact) ** 2, 1))
    order = np.argsort(error)
    figure, (row,) = panels(1, 2)
    for axes, pair, name in zip(row, (order[len(order) // 2], order[-1]), ("median", "worst"), strict=True):
        ends = np.asarray(verification_observations["pairs"])[pair]
        axes.plot(exact[pair], learned[pair], ".", ms=2, color=LEARNED)
        axes.axline((0, 0), slope=1, color=EXACT, lw=0.7)
        shown = " to ".join("(" + ", ".join(f"{value:.3g}" for value in end) + ")" for end in ends)
        label(axes, "exact log ratio", "learned log ratio", f"{name} pair, RMSE {error[pair]:.3g}\n{shown}")
    return figure


def draw_reweighting(
    *,
    verification_observations: Mapping[str, Array],
    verification_predictions: Mapping[str, Array],
    reweighting_distances: Mapping[str, Array],
    bins: int,
) -> Figure:
    """The pair whose weighted source is furthest from its target, on the first axis of x."""
    pair = int(np.argmax(reweighting_distances["learned_w1"]))
    given = verification_observations
    source, target = (np.asarray(given[f"{name}_x"])[pair, :, 0] for name in ("source", "target"))
    figure, ((axes,),) = panels(1, 1, width=4.6)
    _draw_weighted(axes, source, target, np.asarray(verification_predictions["source_learned"])[pair], bins)
    return figure


def draw_showcase(
    *, showcase_observations: Mapping[str, Array], showcase_predictions: Mapping[str, Array], bins: int
) -> Figure:
    """Many samples of one parameter, weighted to look like those of another, on the first axis of x."""
    source, target = (np.asarray(showcase_observations[f"{name}_x"])[0, :, 0] for name in ("source", "target"))
    figure, ((axes,),) = panels(1, 1, width=4.6)
    _draw_weighted(axes, source, target, np.asarray(showcase_predictions["learned"], np.float64)[0], bins)
    return figure


def _draw_weighted(axes: Axes, source: Array, target: Array, log_ratio: Array, bins: int) -> None:
    weights = softmax(log_ratio)
    edges = np.linspace(min(source.min(), target.min()), max(source.max(), target.max()), bins + 1)
    histogram(axes, source, edges, PLAIN, "source")
    histogram(axes, target, edges, EXACT, "target")
    ess = 1 / np.sum(weights**2)
    histogram(axes, source, edges, LEARNED, "source, weighted", weights)
    label(axes, "x:0", "density", f"{len(source):,} samples, {ess:,.0f} count", legend=True)


def draw_calibration(*, calibration_levels: Mapping[str, Array], problem: Sequence[object]) -> Figure:
    """Expected coverage, the ranks of each parameter, and TARP's balls, as distribution functions in a 95 % band."""
    names = problem_of(problem).names
    figure, (row,) = panels(1, 3)
    cases = len(np.asarray(calibration_levels["level"]))
    for axes, name in zip(row, ("level", "rank", "ball"), strict=True):
        binomial_band(axes, cases)
        for prefix, colour, who in (("exact_", EXACT, "exact"), ("", LEARNED, "learned")):
            values = np.asarray(calibration_levels[prefix + name]).reshape(cases, -1)
            for i, column in enumerate(values.T):
                distribution(axes, column, colour, who if i == 0 else "_")
    label(row[0], "level", "part of the truths inside", "expected coverage", legend=True)
    label(row[1], "rank", "part of the truths below", f"ranks of {', '.join(names)}")
    label(row[2], "level", "part of the truths inside", "balls around random points")
    return figure
