"""The figures over all priors and replicas of one configuration. Lists have an item a job, in the order of `jobs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from classification import cross_entropy, receiver_curve
from drawing import (
    EXACT,
    PLAIN,
    binomial_band,
    bins_of_truths,
    by_prior,
    colour_of,
    distribution,
    histogram,
    label,
    mean_in_bins,
    panels,
    spread,
)
from gaussian import Array, problem_of
from jobs import Job
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from metrics import distances
from priors import prior_of
from verification import softmax

Product = Mapping[str, Array]


def draw_priors(
    *, jobs: Sequence[Job], problem: Sequence[object], prior: Sequence[object], samples: int, bins: int
) -> Figure:
    """The density (on lattices the mass over the step) of each prior's first two parameters, and samples of it."""
    known = problem_of(problem)
    groups = by_prior([job.settings for job in jobs])
    count = min(2, len(known.names))
    figure, rows = panels(count, len(groups))
    for column, name in enumerate(groups):
        distribution = prior_of(known, prior).of_family(name)
        drawn = distribution.sample(samples, np.random.default_rng(0))
        for i in range(count):
            axes, axis = rows[i][column], distribution.axes[i]
            if axis.family == "grid":
                edges = np.append(axis.points - axis.step / 2, axis.points[-1] + axis.step / 2)
                axes.plot(axis.points, np.exp(axis.log_density(axis.points)) / axis.step, ".", color=EXACT, ms=3)
            else:
                edges, line = np.linspace(axis.low, axis.high, bins + 1), np.linspace(axis.low, axis.high, 400)
                axes.plot(line, np.exp(axis.log_density(line)), color=EXACT, lw=1)
            histogram(axes, drawn[:, i], edges, colour_of(name), "samples")
            axes.set_ylim(bottom=0)
            label(axes, known.names[i], "density", name)
    return figure


def draw_training(*, jobs: Sequence[Job], test_predictions: Sequence[Product]) -> dict[str, Figure]:
    """`losses`: the loss of each prior on training (mean of each epoch) and validation rows; `roc`: all receiver
    curves; `excess`: how far each network is above the best classifier, with its error and over replicas."""
    groups = by_prior([job.settings for job in jobs])
    losses, (row,) = panels(1, len(groups))
    for axes, (name, members) in zip(row, groups.items(), strict=True):
        for member in members:
            steps, loss = (np.asarray(jobs[member].history[key]) for key in ("step", "loss"))
            evaluated = np.asarray(jobs[member].history["evaluation/loss"])
            at = np.flatnonzero(np.isfinite(evaluated))
            parts = np.split(loss, at[:-1] + 1) if len(at) else [loss]
            ends = steps[at] if len(at) else steps[-1:]
            axes.plot(ends, [np.nanmean(part) for part in parts[: len(ends)]], color=PLAIN, marker=".", lw=0.8)
            axes.plot(steps[at], evaluated[at], color=colour_of(name), marker=".", lw=1)
        label(axes, "step", "loss", f"{name}: validation, training in grey")
    roc, ((axes,),) = panels(1, 1, width=4)
    excess, ((right,),) = panels(1, 1, width=4)
    for place, (name, members) in enumerate(groups.items()):
        values = [_excess(test_predictions[member]) for member in members]
        for k, (member, (mean, error)) in enumerate(zip(members, values, strict=True)):
            rows = test_predictions[member]
            curve = receiver_curve(np.asarray(rows["logits"]), np.asarray(rows["labels"]))
            axes.plot(*curve, color=colour_of(name), lw=0.8, label=name if k == 0 else "_")
            right.errorbar(place + 0.08 * k, mean, error, color=PLAIN, marker=".", lw=0.8)
        mean, deviation = spread([mean for mean, _ in values])
        right.errorbar(place - 0.15, mean, deviation, color=colour_of(name), marker="o", capsize=3)
    axes.plot([0, 1], [0, 1], color=PLAIN, lw=0.7)
    label(axes, "false positive rate", "true positive rate", "test rows", legend=True)
    right.axhline(0, color=EXACT, lw=0.7)
    right.ticklabel_format(axis="y", scilimits=(-2, 3))
    right.set_xticks(range(len(groups)), list(groups))
    label(right, "", "loss above the optimum", "replicas in grey, their mean and deviation")
    return {"losses": losses, "roc": roc, "excess": excess}


def _excess(rows: Product) -> tuple[float, float]:
    """The mean difference of the two losses on the same rows, and the standard deviation of that mean."""
    learned, labels, optimal = (np.asarray(rows[name]) for name in ("logits", "labels", "optimal"))
    difference = cross_entropy(learned, labels) - cross_entropy(optimal, labels)
    return float(difference.mean()), float(difference.std() / np.sqrt(len(difference)))


def draw_errors(
    *,
    jobs: Sequence[Job],
    inference: Sequence[Product],
    observations: Sequence[Product],
    problem: Sequence[object],
    target: str,
    truth_bins: int,
) -> dict[str, Figure]:
    """Of one target (`ratio` or `posterior`): `modes`, mode against truth with the regions of all levels, for each
    parameter and prior; `bias-and-width` against truth, over all parameters and for each. Without the target a figure
    that says so."""
    if f"{target}_mode" not in inference[0]:
        figure, ((axes,),) = panels(1, 1)
        axes.text(0.5, 0.5, f"{target} is not among the targets", ha="center", va="center")
        axes.set_axis_off()
        return {"modes": figure}
    names, groups = problem_of(problem).names, by_prior([job.settings for job in jobs])
    modes, rows = panels(len(names), len(groups))
    errors, right = panels(2, 1 + (len(names) if len(names) > 1 else 0))
    for column, (name, members) in enumerate(groups.items()):
        for i, parameter in enumerate(names):
            truth = np.asarray(observations[members[0]]["truth"])[:, i]
            centres, bins = bins_of_truths(truth, truth_bins)
            mode, lower, upper = (
                [mean_in_bins(v, bins, len(centres)) for v in _replicas(inference, members, f"{target}_{key}", i)]
                for key in ("mode", "lower", "upper")
            )
            axes = rows[i][column]
            middle, low, high = (np.nanmean(values, axis=0) for values in (mode, lower, upper))
            bars = np.array([middle - low, high - middle])
            axes.errorbar(centres, middle, bars, fmt=".", color=colour_of(name), lw=0.7, ms=3)
            axes.axline((centres[0], centres[0]), slope=1, color=EXACT, lw=0.7)
            label(axes, f"true {parameter}", "mode and region", name)
        for i in range(-1, len(names) if len(names) > 1 else 0):
            axes_of = [right[kind][i + 1] for kind in (0, 1)]
            _draw_bias_and_width(axes_of, inference, observations, members, target, i, truth_bins, name)
    for i, row in enumerate(right):
        for axes, parameter in zip(row, ["all parameters", *names], strict=False):
            label(axes, "truth", ("mode - truth", "width of the region")[i], parameter, legend=axes is right[0][0])
    return {"modes": modes, "bias-and-width": errors}


def _replicas(inference: Sequence[Product], members: Sequence[int], key: str, axis: int) -> list[Array]:
    """One parameter of an array of all replicas, of several levels the narrowest."""
    found = [np.asarray(inference[member][key])[..., axis] for member in members]
    return [values[:, 0] if values.ndim == 2 else values for values in found]


def _draw_bias_and_width(
    axes: Sequence[Axes],
    inference: Sequence[Product],
    observations: Sequence[Product],
    members: Sequence[int],
    target: str,
    parameter: int,
    truth_bins: int,
    name: str,
) -> None:
    truth = np.asarray(observations[members[0]]["truth"])
    columns = range(truth.shape[1]) if parameter < 0 else [parameter]
    flat = np.concatenate([truth[:, i] for i in columns])
    centres, bins = bins_of_truths(flat, truth_bins)
    for axis, kind in zip(axes, ("bias", "width"), strict=True):
        curves = []
        for k in range(len(members)):
            values = []
            for i in columns:
                mode, lower, upper = (
                    _replicas(inference, members, f"{target}_{key}", i)[k] for key in ("mode", "lower", "upper")
                )
                values.append(mode - truth[:, i] if kind == "bias" else upper - lower)
            curves.append(mean_in_bins(np.concatenate(values), bins, len(centres)))
        error = np.std(curves, axis=0, ddof=1) if len(curves) > 1 else None
        axis.errorbar(centres, np.mean(curves, axis=0), error, color=colour_of(name), lw=1, capsize=1.5, label=name)


def draw_verifications(
    *,
    jobs: Sequence[Job],
    verification_observations: Sequence[Product],
    verification_predictions: Sequence[Product],
    reweighting_distances: Sequence[Product],
    normalization_predictions: Sequence[Product],
    bins: int,
) -> dict[str, Figure]:
    """`ratios`: error of pairs against their distance, and exact against predicted; `reweighting`: distance to the
    target, and the samples that count; `normalization`: the mean ratio at each parameter. One column a prior."""
    groups = by_prior([job.settings for job in jobs])
    ratios, upper = panels(2, len(groups))
    reweighting, middle = panels(2, len(groups))
    normalization, (lower,) = panels(1, len(groups))
    for column, (name, members) in enumerate(groups.items()):
        far = distances(verification_observations[members[0]])
        order = np.argsort(far)
        for member in members:
            found = verification_predictions[member]
            learned, exact = (np.asarray(found[f"probe_{key}"]) for key in ("learned", "exact"))
            each = np.sqrt(np.mean((learned - exact) ** 2, 1))
            upper[0][column].plot(far, each, ".", color=colour_of(name), ms=2)
            medians = [(np.median(far[part]), np.median(each[part])) for part in np.array_split(order, 8) if len(part)]
            upper[0][column].plot(*np.transpose(medians), color=EXACT, lw=1)
            apart = np.asarray(reweighting_distances[member]["learned_w1"])
            weights = softmax(np.asarray(found["source_learned"]))
            fraction = 1 / np.sum(weights**2, 1) / weights.shape[1]
            points = middle[0][column].scatter(far, apart, c=fraction, s=4, vmin=0, vmax=1, cmap="viridis")
            histogram(middle[1][column], np.log10(fraction), np.linspace(-3.5, 0, 36), colour_of(name), "_")
            values = np.asarray(normalization_predictions[member]["learned"])
            mean = np.log(np.mean(np.exp(values), axis=1))
            lower[column].plot(range(len(mean)), mean, marker=".", color=colour_of(name), lw=0.8)
        found = verification_predictions[members[0]]
        pair = [np.asarray(found[f"probe_{key}"]).ravel() for key in ("exact", "learned")]
        upper[1][column].hexbin(*pair, gridsize=bins // 2, bins="log", cmap="Blues", mincnt=1)
        upper[1][column].axline((0, 0), slope=1, color=EXACT, lw=0.7)
        reweighting.colorbar(points, ax=middle[0][column])
        lower[column].axhline(0, color=EXACT, lw=0.7)
        label(upper[0][column], "distance of the pair", "RMSE of the log ratio", name)
        upper[0][column].set_yscale("log")
        label(upper[1][column], "exact log ratio", "learned log ratio")
        label(middle[0][column], "distance of the pair", "distance to the target", f"{name}; colour: part that counts")
        label(middle[1][column], "log10 of the part that counts", "density")
        label(lower[column], "parameter on the diagonal", "log of the mean ratio", name)
    return {"ratios": ratios, "reweighting": reweighting, "normalization": normalization}


def draw_calibrations(*, jobs: Sequence[Job], calibration_levels: Sequence[Product]) -> Figure:
    """Expected coverage, ranks and balls of all priors; each replica is a line."""
    groups = by_prior([job.settings for job in jobs])
    figure, rows = panels(3, len(groups))
    for column, (name, members) in enumerate(groups.items()):
        for row, key in enumerate(("level", "rank", "ball")):
            binomial_band(rows[row][column], len(np.asarray(calibration_levels[members[0]]["level"])))
            for member in members:
                values = np.asarray(calibration_levels[member][key])
                for each in values.reshape(len(values), -1).T:
                    distribution(rows[row][column], each, colour_of(name), "_")
        label(rows[0][column], "level", "truths inside", f"{name}: expected coverage")
        label(rows[1][column], "rank", "truths below", "ranks")
        label(rows[2][column], "level", "truths inside", "balls around random points")
    return figure
