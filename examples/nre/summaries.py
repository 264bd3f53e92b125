"""What a target distribution says of each case: its mode, its regions and their ends, where the truth lies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from candidates import Candidates, Cases, Score, Surface, fit_surface
from gaussian import Array
from priors import Support
from regions import Regions, extents, find_regions, level_of

RAY = 8  # places on a ray at which the score is evaluated
NEAREST, FURTHEST = 0.7, 1.35  # of the rays: from the innermost fitted end to beyond the outermost


def scores_of_summary(parameters: int) -> int:
    """Scores that a summary takes beyond those of the candidates, for one case: the fitted top, the truth, the rays."""
    return 2 + 2 * parameters * RAY


def summarise(
    score: Score,
    cases: Cases,
    found: Candidates,
    truth: Array,
    tie: Array,
    levels: Sequence[float],
    support: Support,
) -> tuple[dict[str, Array], Regions]:
    """The summary of one target, N cases and L levels, as arrays by name, and its regions.

    - `mode [N, p]`: the densest of all points evaluated, the top of a quadratic fitted to the candidates among them;
    - `lower`, `upper [N, L, p]`: the ends of the joint region of highest density, projected to each axis;
    - `threshold`, `enclosed_mass [N, L]`, `ess`, `log_normalizer [N]`;
    - `joint_contains_truth [N, L]`: the density at the truth is at least the threshold;
    - `truth_level [N]`: the mass that is denser than the truth (of ties the part `tie [N]`).
    """
    regions = find_regions(found.density, found.log_measure, levels)
    p = truth.shape[1]
    start = Surface(*_moments(found.theta, regions.mass, support))
    surface = fit_surface(found.theta, found.density, start, support, regions.mass)
    best = np.take_along_axis(found.theta, np.argmax(found.density, 1)[:, None, None], 1)
    top = support.snapped(np.clip(surface.centre, support.low, support.high))[:, None]
    heights = np.concatenate([score(cases, top), found.density.max(1, keepdims=True)], 1)
    mode = np.where(heights[:, :1] >= heights[:, 1:], top[:, 0], best[:, 0])
    height = heights.max(1)
    lower, upper = extents(found.theta, found.density, regions.threshold)
    lower, upper = np.minimum(lower, mode[:, None]), np.maximum(upper, mode[:, None])
    if (support.step == 0).any() or p > 1:
        ends = _ends(score, cases, mode, height, surface.covariance, regions.threshold, support)
        lower, upper = np.minimum(lower, ends[0]), np.maximum(upper, ends[1])
    at_truth = score(cases, truth[:, None])[:, 0]
    return {
        "mode": mode,
        "lower": lower,
        "upper": upper,
        "threshold": regions.threshold,
        "enclosed_mass": regions.enclosed,
        "joint_contains_truth": at_truth[:, None] >= regions.threshold,
        "truth_level": level_of(found.density, regions.mass, at_truth, tie),
        "ess": regions.ess,
        "log_normalizer": regions.log_normalizer,
    }, regions


def _moments(theta: Array, mass: Array, support: Support) -> tuple[Array, Array]:
    """Mean `[n, p]` of the candidates, and their deviations as a diagonal factor `[n, p, p]`: the unit of a fit."""
    mean = np.einsum("nk,nkp->np", mass, theta)
    variance = np.einsum("nk,nkp->np", mass, (theta - mean[:, None]) ** 2)
    low, high = support.cells
    deviation = np.maximum(np.sqrt(variance), 1e-3 * (high - low))
    return mean, deviation[:, :, None] * np.eye(theta.shape[2])


def _ends(
    score: Score, cases: Cases, mode: Array, height: Array, covariance: Array, threshold: Array, support: Support
) -> tuple[Array, Array]:
    """The ends `[n, L, p]` of each region below and above the mode along each axis.

    The point of an ellipsoid that is furthest along axis i lies from its centre along column i of the covariance. On
    the rays in those directions the score is evaluated at several places. The root of twice its drop is a straight line
    for a quadratic: the place where it meets the threshold is interpolated. On axes with a lattice the furthest point
    of the lattice counts that lies in the region.
    """
    n, p = mode.shape
    unit = np.sqrt(np.einsum("nii->ni", covariance))
    along = covariance.transpose(0, 2, 1) / unit[..., None]  # [n, axis, p], of length 1 in the metric of the covariance
    direction = np.stack([-along, along], 1)  # [n, side, axis, p]
    wanted = np.sqrt(2 * np.maximum(height[:, None] - threshold, 0))  # [n, L]
    low, high = support.cells
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(direction < 0, low - mode[:, None, None], high - mode[:, None, None]) / direction
    room = np.where(direction == 0, np.inf, room).min(-1)  # [n, side, axis], to where the ray leaves the box
    places = np.linspace(NEAREST * wanted.min(1), FURTHEST * np.maximum(wanted.max(1), 1e-3), RAY, axis=-1)
    places = np.minimum(places[:, None, None, :], room[..., None])  # [n, side, axis, RAY]
    points = support.snapped(mode[:, None, None, None] + places[..., None] * direction[..., None, :])
    values = score(cases, points.reshape(n, -1, p)).reshape(places.shape)
    drop = np.sqrt(2 * np.maximum(height[:, None, None, None] - values, 0))
    drop = np.concatenate([np.zeros_like(drop[..., :1]), drop], -1)
    radius = np.concatenate([np.zeros_like(places[..., :1]), places], -1)
    ends = np.empty((2, n, threshold.shape[1], p))
    for level in range(threshold.shape[1]):
        reach = _crossing(radius, drop, wanted[:, level, None, None], room)  # [n, side, axis]
        offset = reach * unit[:, None, :]
        inside = values >= threshold[:, level, None, None, None]
        for axis in range(p):
            if support.step[axis] == 0:
                ends[0, :, level, axis] = mode[:, axis] - offset[:, 0, axis]
                ends[1, :, level, axis] = mode[:, axis] + offset[:, 1, axis]
            else:
                coordinate = np.where(inside[:, :, axis], points[:, :, axis, :, axis], mode[:, None, None, axis])
                ends[0, :, level, axis] = coordinate[:, 0].min(-1)
                ends[1, :, level, axis] = coordinate[:, 1].max(-1)
    return ends[0], ends[1]


def _crossing(radius: Array, drop: Array, wanted: Array, room: Array) -> Array:
    """Where along rays `drop [..., places]` first reaches `wanted [...]`: between two places by a straight line, beyond
    the last by the line from the origin through it, at most at `room`."""
    wanted = np.broadcast_to(wanted, room.shape)
    reached = drop >= wanted[..., None]
    place = np.maximum(np.argmax(reached, -1), 1)[..., None]
    after, before = (np.take_along_axis(drop, place - shift, -1)[..., 0] for shift in (0, 1))
    outer, inner = (np.take_along_axis(radius, place - shift, -1)[..., 0] for shift in (0, 1))
    part = np.clip((wanted - before) / np.maximum(after - before, 1e-300), 0, 1)
    beyond = radius[..., -1] * wanted / np.maximum(drop[..., -1], 1e-300)
    return np.where(reached.any(-1), inner + part * (outer - inner), np.minimum(beyond, room))
