"""The numbers of one job: what its summaries are worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from gaussian import Array, problem_of
from priors import prior_of, support_of
from scipy.special import logsumexp
from scipy.stats import kstest, spearmanr

Numbers = dict[str, object]
ROOM = 0.75  # of the widest region, to both sides of its mode: where the box leaves that, it hardly cuts the case
COVERAGE_LEVELS = tuple(float(level) for level in np.round(np.arange(0.05, 0.96, 0.05), 2))


def measure_target(
    *,
    inference: Mapping[str, Array],
    observations: Mapping[str, Array],
    problem: Sequence[object],
    support: Sequence[object],
    levels: Sequence[float],
    target: str,
) -> Numbers:
    """Bias, coverage and width of a target that the network gives, `ratio` or `posterior`."""
    box = prior_of(problem_of(problem), support).box
    return measure_summaries(inference, f"{target}_", np.asarray(observations["truth"]), box, levels)


def measure_exact(
    *,
    inference: Mapping[str, Array],
    exact: Mapping[str, Array],
    observations: Mapping[str, Array],
    problem: Sequence[object],
    support: Sequence[object],
    levels: Sequence[float],
) -> Numbers:
    """The same of the exact target, and how far the learned ratio is from it: the RMSE of the modes (over cases and
    axes), the mean and the worst `c2st`."""
    box = prior_of(problem_of(problem), support).box
    found = measure_summaries(exact, "", np.asarray(observations["truth"]), box, levels)
    if found["enabled"] and "ratio_mode" in inference:
        distance = np.asarray(inference["ratio_mode"]) - np.asarray(exact["mode"])
        found["mode_rmse"] = float(np.sqrt(np.mean(distance**2)))
        found["c2st"] = float(np.mean(inference["c2st"]))
        found["worst_c2st"] = float(np.max(inference["c2st"]))
    return found


def measure_summaries(
    found: Mapping[str, Array], prefix: str, truth: Array, box: tuple[Array, Array], levels: Sequence[float]
) -> Numbers:
    """Of one target, whose summaries are in `found` with a prefix to their names: `bias` of the mode, `coverage` and
    `width` for each level; `{"enabled": False}` without it.

    `joint_density` is the part of the cases whose truth lies in the joint region: the calibrated quantity, to be
    compared with `enclosed`, the mass that the regions hold (the level, but for lattices). A box around the joint
    region holds more, so `projected` coverage is above the level from two parameters on. The width `inside` is that of
    cases whose mode is `ROOM` widths or more from all ends of the box (None without any): the exact ones are equal.
    """
    if f"{prefix}mode" not in found:
        return {"enabled": False}
    mode, lower, upper, contains, enclosed = (
        np.asarray(found[prefix + name]) for name in ("mode", "lower", "upper", "joint_contains_truth", "enclosed_mass")
    )
    error, width = mode - truth, upper - lower
    reach = ROOM * width.max(1)
    clear = ((mode - reach > box[0]) & (mode + reach < box[1])).all(1)
    projected = (lower <= truth[:, None]) & (truth[:, None] <= upper)
    return {
        "enabled": True,
        "cases": len(truth),
        "levels": list(levels),
        "bias": {
            "mean_signed": float(error.mean()),
            "mean_absolute": float(np.abs(error).mean()),
            "rmse": float(np.sqrt(np.mean(error**2))),
            "per_axis_signed": error.mean(0).tolist(),
            "per_axis_absolute": np.abs(error).mean(0).tolist(),
        },
        "coverage": {
            "joint_density": contains.mean(0).tolist(),
            "enclosed": enclosed.mean(0).tolist(),
            "projected_mean": projected.mean((0, 2)).tolist(),
            "projected_per_axis": projected.mean(0).tolist(),
        },
        "width": {
            "mean": width.mean((0, 2)).tolist(),
            "per_axis": width.mean(0).tolist(),
            "inside": width[clear].mean((0, 2)).tolist() if clear.any() else None,
        },
    }


def measure_resolution(
    *,
    inference: Mapping[str, Array],
    candidates: int,
    problem: Sequence[object],
    support: Sequence[object],
) -> Numbers:
    """Whether the candidates are enough: the effective sample size of each target over the cases, least and median, the
    median as a fraction of the candidates, and the base measure. Of a lattice that is taken whole it is the number of
    points that the distribution covers, and no fraction."""
    where = support_of(prior_of(problem_of(problem), support))
    whole = where.enumerated(candidates)
    found: Numbers = {"candidates": candidates if whole is None else len(whole), "measure": where.measure}
    for target in ("ratio", "posterior"):
        if f"{target}_ess" in inference:
            ess = np.asarray(inference[f"{target}_ess"])
            found[target] = {
                "ess_min": float(ess.min()),
                "ess_median": float(np.median(ess)),
                "ess_fraction": float(np.median(ess) / candidates) if whole is None else None,
            }
    return found


def measure_pairwise(
    *, verification_observations: Mapping[str, Array], verification_predictions: Mapping[str, Array]
) -> Numbers:
    """Learned minus exact log ratio between two parameters, on observations of both: over all, and for each pair.
    `spearman` is the rank correlation of a pair's RMSE with the distance of its parameters; None if undefined."""
    error = np.asarray(verification_predictions["probe_learned"]) - np.asarray(verification_predictions["probe_exact"])
    each = np.sqrt(np.mean(error**2, 1))
    return {
        "rmse": float(np.sqrt(np.mean(error**2))),
        "mae": float(np.abs(error).mean()),
        "largest": float(np.abs(error).max()),
        "median_rmse": float(np.median(each)),
        "worst_rmse": float(each.max()),
        "pair_rmse": each.tolist(),
        "spearman": rank_correlation(distances(verification_observations), each),
    }


def measure_reweighting(
    *, verification_observations: Mapping[str, Array], reweighting_distances: Mapping[str, Array]
) -> Numbers:
    """Sliced Wasserstein distances of weighted sources to targets, and effective sample sizes, over the pairs."""
    learned, ess = np.asarray(reweighting_distances["learned_w1"]), np.asarray(reweighting_distances["ess"])
    count = np.asarray(verification_observations["source_x"]).shape[1]
    return {
        "median_w1": float(np.median(learned)),
        "worst_w1": float(learned.max()),
        "exact_median_w1": float(np.median(reweighting_distances["exact_w1"])),
        "unweighted_median_w1": float(np.median(reweighting_distances["unweighted_w1"])),
        "median_ess": float(np.median(ess)),
        "median_ess_fraction": float(np.median(ess) / count),
        "exact_median_ess_fraction": float(np.median(reweighting_distances["exact_ess"]) / count),
        "spearman": rank_correlation(distances(verification_observations), learned),
    }


def distances(verification_observations: Mapping[str, Array]) -> Array:
    """How far apart the parameters of each pair are `[P]`."""
    pairs = np.asarray(verification_observations["pairs"])
    return np.linalg.norm(pairs[:, 1] - pairs[:, 0], axis=1)


def rank_correlation(first: Array, second: Array) -> float | None:
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(spearmanr(first, second).statistic)


def measure_normalization(*, normalization_predictions: Mapping[str, Array]) -> Numbers:
    """log of the mean ratio over x at each parameter, which is 0 for a right ratio: of the network, and of the exact
    ratio on the same x, whose distance from 0 is the luck of the draw."""
    found: Numbers = {}
    for name, prefix in (("learned", ""), ("exact", "exact_")):
        values = np.asarray(normalization_predictions[name])
        log_mean = logsumexp(values, axis=1) - np.log(values.shape[1])
        found[f"{prefix}per_theta"] = log_mean.tolist()
        found[f"{prefix}mean_absolute"] = float(np.abs(log_mean).mean())
    return found


def measure_calibration(*, calibration_levels: Mapping[str, Array]) -> Numbers:
    """Of the learned posterior, and as `exact` of the exact one: `coverage` at the `levels`, with the greatest distance
    from them; the p-values of Kolmogorov and Smirnov that `level`, the `rank` of each parameter and `ball` are uniform;
    `tarp`, the area between TARP's curve and the diagonal above the middle, below 0 for a posterior that is too narrow
    and above it for one that is too wide; and the `c2st` between the two posteriors."""
    c2st, ess = np.asarray(calibration_levels["c2st"]), np.asarray(calibration_levels["ess"])
    found: Numbers = {"cases": len(c2st), "c2st": float(c2st.mean()), "worst_c2st": float(c2st.max())}
    found |= {"ess_min": float(ess.min()), "ess_median": float(np.median(ess))}
    return found | _calibration(calibration_levels, "") | {"exact": _calibration(calibration_levels, "exact_")}


def _calibration(found: Mapping[str, Array], prefix: str) -> Numbers:
    level, rank, ball = (np.asarray(found[prefix + name]) for name in ("level", "rank", "ball"))
    coverage = np.array([np.mean(level < wanted) for wanted in COVERAGE_LEVELS])
    return {
        "levels": list(COVERAGE_LEVELS),
        "coverage": coverage.tolist(),
        "coverage_error": float(np.abs(coverage - COVERAGE_LEVELS).max()),
        "level_p": float(kstest(level, "uniform").pvalue),
        "rank_p": [float(kstest(column, "uniform").pvalue) for column in rank.T],
        "ball_p": float(kstest(ball, "uniform").pvalue),
        "tarp": tarp_area(ball),
    }


def tarp_area(ball: Array) -> float:
    """The integral from 1/2 to 1 of the coverage of balls minus the level."""
    return float(np.mean(1 - np.maximum(ball, 0.5)) - 3 / 8)
