"""What a density on weighted candidates says: masses, regions of highest density, effective sample size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from gaussian import Array
from scipy.special import logsumexp


@dataclass(frozen=True)
class Regions:
    """Of n densities on K candidates each: `mass [n, K]`, which sums to 1, and for each of L levels the `threshold`
    of the region of highest density and the mass that it `enclosed`, `[n, L]`; `ess [n]` is 1 / sum(mass^2),
    `log_normalizer [n]` the logarithm of the integral of the density."""

    mass: Array
    threshold: Array
    enclosed: Array
    ess: Array
    log_normalizer: Array


def find_regions(density: Array, log_measure: Array, levels: Sequence[float]) -> Regions:
    """The regions of log densities `[n, K]` under log measures that are broadcast to them.

    Candidates are ranked by density, not by mass. A threshold is the density of the first candidate at which the mass
    so far reaches the level; ties belong to the region, so it may enclose more. Raises ValueError for what is no
    density: NaN, +inf, nothing above -inf, no candidates, and for levels outside (0, 1].
    """
    if (
        density.ndim != 2
        or density.shape[1] == 0
        or np.broadcast_shapes(density.shape, log_measure.shape) != density.shape
    ):
        raise ValueError(f"densities [n, K] and measures that fit are needed, not {density.shape}, {log_measure.shape}")
    if not levels or not all(0 < level <= 1 for level in levels):
        raise ValueError(f"levels are above 0 and at most 1, not {list(levels)}")
    for name, values in (("density", density), ("measure", log_measure)):
        if np.isnan(values).any() or (values == np.inf).any():
            raise ValueError(f"a {name} is NaN or infinite")
    log_mass = density + log_measure
    log_normalizer = logsumexp(log_mass, axis=1)
    if (log_normalizer == -np.inf).any():
        raise ValueError("no candidate has any density")
    mass = np.exp(log_mass - log_normalizer[:, None])
    mass /= mass.sum(1, keepdims=True)
    order = np.argsort(-density, axis=1, kind="stable")
    ranked = np.take_along_axis(density, order, 1)
    reached = np.cumsum(np.take_along_axis(mass, order, 1), axis=1)
    threshold, enclosed = (np.empty((len(density), len(levels))) for _ in range(2))
    for i, level in enumerate(levels):
        first = np.argmax(reached >= np.minimum(level, reached[:, -1:]), axis=1)
        threshold[:, i] = np.take_along_axis(ranked, first[:, None], 1)[:, 0]
        enclosed[:, i] = np.sum(mass, axis=1, where=density >= threshold[:, i, None])
    ess = 1 / np.sum(mass * mass, axis=1)
    return Regions(mass, threshold, np.minimum(enclosed, 1.0), ess, log_normalizer)


def extents(theta: Array, density: Array, threshold: Array) -> tuple[Array, Array]:
    """The least and greatest coordinate `[n, L, p]` among the candidates `[n, K, p]` of each region."""
    inside = (density[:, None, :] >= threshold[:, :, None])[..., None]
    least = np.min(np.where(inside, theta[:, None], np.inf), axis=2)
    return least, np.max(np.where(inside, theta[:, None], -np.inf), axis=2)


def level_of(density: Array, mass: Array, truth: Array, u: Array) -> Array:
    """The mass `[n]` of candidates denser than the truth, whose density is given; of candidates as dense as the truth
    the part `u`. Uniform on [0, 1] for a right posterior, so the truth lies in a region of that level or more."""
    above = np.sum(mass, axis=1, where=density > truth[:, None])
    return above + u * np.sum(mass, axis=1, where=density == truth[:, None])


def best_classifier(mass: Array, density: Array, other: Array) -> Array:
    """The accuracy `[n]` of the best classifier between draws of two distributions, which others train one to
    estimate (C2ST): 1/2 + total variation / 2.

    The first distribution has the masses `[n, K]` on its candidates, where its normalised log density is `density` and
    that of the second is `other`: the total variation is the first's mean of what the second lacks.
    """
    return 0.5 + 0.5 * np.sum(mass * np.maximum(-np.expm1(np.minimum(other - density, 0)), 0), 1)
