"""Where a score is evaluated: passes of candidates that draw closer around the mass of each case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gaussian import Array
from priors import Support
from scipy.special import expit
from scipy.stats import qmc

Cases = npt.NDArray[np.int64]  # which cases, by number
Score = Callable[[Cases, Array], Array]  # n cases, theta [n, K, p] -> log density [n, K]

WIDENING = (3.0, *(11 * [1.5]))  # of passes after the first: how far beyond the fit they look
ENOUGH = 0.15  # part of its candidates that counts in a pass after which the next one is the last
AGAIN = (1.0, 1.5, 2.0)  # widening of further large passes, for cases in which ...
POOR = 0.25  # ... less than this part counts
TAIL = 0.62  # scale of a logistic variable that stands for a normal one: its tails are heavier, few candidates are lost
FLATTEST, STEEPEST = 1 / 4, 1e4  # curvature of a fit, in units of the pass it was fitted to
FURTHEST = 3.0  # step of a fit, in deviations of that pass
NARROWEST = 1e-5  # deviation of a fit, in widths of the box; the widest is one width
CORRELATION = 1e-6  # is taken off what a fit correlates, so that rounding leaves it definite
RIDGE = 1e-9
TINY, EPSILON = np.finfo(float).tiny, np.finfo(float).epsneg


@dataclass(frozen=True)
class Surface:
    """A quadratic that stands for the score of each case: its top `[n, p]`, and the lower triangular factor
    `[n, p, p]` of the covariance that its curvature is the inverse of."""

    centre: Array
    factor: Array

    @property
    def covariance(self) -> Array:
        return self.factor @ self.factor.transpose(0, 2, 1)

    def widened(self, widening: float) -> Surface:
        """The same with deviations so many times as large."""
        return Surface(self.centre, widening * self.factor)

    def of(self, which: Cases) -> Surface:
        """Of some of the cases."""
        return Surface(self.centre[which], self.factor[which])

    def put(self, which: Cases, other: Surface) -> None:
        """Puts others in the place of some of the cases'."""
        self.centre[which], self.factor[which] = other.centre, other.factor


@dataclass(frozen=True)
class Candidates:
    """Points `theta [n, K, p]`, their score, and the logarithm of the measure that each stands for, `[n, K]`."""

    theta: Array
    density: Array
    log_measure: Array

    def put(self, which: Cases, other: Candidates, kept: Cases) -> None:
        """Puts some of other candidates in the place of some of the cases'."""
        self.theta[which], self.density[which] = other.theta[kept], other.density[kept]
        self.log_measure[which] = other.log_measure[kept]

    @property
    def ess(self) -> Array:
        """The effective sample size of each case, 1 / sum(mass^2)."""
        log_mass = self.density + self.log_measure
        mass = np.exp(log_mass - log_mass.max(1, keepdims=True))
        return mass.sum(1) ** 2 / np.sum(mass * mass, 1)


def locating(parameters: int) -> int:
    """Candidates of each pass before the last: four for each coefficient of a quadratic, at least 16."""
    return max(16, 2 * (parameters + 1) * (parameters + 2))


def candidates_of_passes(parameters: int, count: int) -> int:
    """Candidates of all passes together, for one case that is located by two passes after the first."""
    return 3 * locating(parameters) + count


def find_candidates(score: Score, cases: Cases, support: Support, count: int, shift: Array) -> Candidates:
    """`count` candidates around the mass of each case, whose measures add up to integrals over the support.

    The first pass covers the whole support with few candidates. A quadratic fitted to the better ones says where the
    next pass looks, and so on until enough of a pass counts. The last pass is a large one. Its candidates are drawn
    from a known distribution, so the result is right wherever that covers the mass, whatever the fits were; the
    effective sample size tells. Where that is poor, further large passes start from what the last one found, and the
    best one stays. A lattice of at most `count` points is taken whole. `shift [n, p]` in 0..1 moves the points of each
    case.
    """
    n, p = shift.shape
    whole = support.enumerated(count)
    if whole is not None:
        theta = np.broadcast_to(whole, (n, *whole.shape))
        return Candidates(theta, score(cases, theta), np.zeros((n, len(whole))))
    low, high = support.cells
    few = locating(p)
    theta = support.snapped(low + (high - low) * _points(few, shift))
    start = Surface(np.tile((low + high) / 2, (n, 1)), np.tile(np.diag((high - low) / np.sqrt(12)), (n, 1, 1)))
    surface = fit_surface(theta, score(cases, theta), start, support)
    unlocated = np.arange(n)
    for widening in WIDENING:
        wider = surface.of(unlocated).widened(widening)
        found = _draw(score, cases[unlocated], support, few, shift[unlocated], wider)
        surface.put(unlocated, fit_surface(found.theta, found.density, wider, support))
        unlocated = unlocated[found.ess < ENOUGH * few]
    found = _draw(score, cases, support, count, shift, surface)
    for widening in AGAIN:
        poor = np.flatnonzero(found.ess < POOR * count)
        fitted = fit_surface(found.theta[poor], found.density[poor], surface.of(poor), support).widened(widening)
        other = _draw(score, cases[poor], support, count, shift[poor], fitted)
        better = np.flatnonzero(other.ess > found.ess[poor])
        found.put(poor[better], other, better)
        surface.put(poor[better], fitted.of(better))
    return found


def _draw(score: Score, cases: Cases, support: Support, count: int, shift: Array, surface: Surface) -> Candidates:
    """`count` candidates of the distribution under a surface."""
    drawn, log_density = _propose(_points(count, shift), surface, *support.cells)
    theta = support.snapped(drawn)
    cell = np.log(np.where(support.step > 0, support.step, 1.0)).sum()
    return Candidates(theta, score(cases, theta), -log_density - np.log(count) - cell)


def fit_surface(theta: Array, density: Array, start: Surface, support: Support, weight: Array | None = None) -> Surface:
    """The quadratic nearest to the densities `[n, K]` by weighted squares, kept concave, near `start`, and in the box.

    Without weights, they fall with the distance from the best density: what is far below says little of the top. Where
    the fit is not concave, or its top is far, the next pass looks where the denser candidates are instead.
    """
    n, _, p = theta.shape
    inverse = np.linalg.inv(start.factor)
    z = (theta - start.centre[:, None]) @ inverse.transpose(0, 2, 1)
    best = density.max(1, keepdims=True)
    drop = density - best
    if weight is None:
        middle = np.median(drop, axis=1, keepdims=True)
        weight = np.exp(2 * drop / np.maximum(-middle, 1e-300)) / (1 - drop / p) ** 2
    finite = np.isfinite(drop)
    weight, drop = np.where(finite, weight, 0.0), np.where(finite, drop, 0.0)
    rows, columns = np.triu_indices(p)
    features = np.concatenate([np.ones_like(z[..., :1]), z, z[..., rows] * z[..., columns]], -1)
    weighted = features * weight[..., None]
    normal = weighted.transpose(0, 2, 1) @ features
    normal += RIDGE * np.trace(normal, axis1=1, axis2=2)[:, None, None] * np.eye(normal.shape[1])
    solution = np.linalg.solve(normal, weighted.transpose(0, 2, 1) @ drop[..., None])[..., 0]
    slope, quadratic = solution[:, 1 : p + 1], solution[:, p + 1 :]
    curvature = np.zeros((n, p, p))
    curvature[:, rows, columns] -= quadratic
    curvature[:, columns, rows] -= quadratic
    values, vectors = np.linalg.eigh(curvature)
    bounded = np.clip(values, FLATTEST, STEEPEST)
    step = (vectors @ ((vectors.transpose(0, 2, 1) @ slope[..., None]) / bounded[..., None]))[..., 0]
    low, high = support.cells
    root = vectors / np.sqrt(bounded)[:, None, :]
    centre = np.clip(start.centre + (start.factor @ step[..., None])[..., 0], low, high)
    away = np.abs((inverse @ (centre - start.centre)[..., None])[..., 0])
    doubtful = (values <= 0).any(1) | (away > FURTHEST).any(1)
    if doubtful.any():
        step[doubtful], root[doubtful] = _better_ones(z[doubtful], drop[doubtful])
        centre = np.clip(start.centre + (start.factor @ step[..., None])[..., 0], low, high)
    root = start.factor @ root
    unit = np.sqrt(np.sum(root * root, -1))
    bounded = np.clip(unit, NARROWEST * (high - low), high - low)
    root = root / unit[..., None]
    correlation = root @ root.transpose(0, 2, 1) * (1 - CORRELATION) + CORRELATION * np.eye(p)
    return Surface(centre, bounded[..., None] * np.linalg.cholesky(correlation))


def _better_ones(z: Array, drop: Array) -> tuple[Array, Array]:
    """The middle `[n, p]` of the densest fifth of the candidates, and a diagonal of five sixths of their deviations; of
    twice the deviations of all candidates if these are all about as dense, and so have closed in on too little."""
    count, p = z.shape[1:]
    best = np.argsort(-drop, axis=1)[:, : max(p + 2, count // 5)]
    chosen = np.take_along_axis(z, best[..., None], 1)
    flat = np.median(drop, axis=1)[:, None] > -1
    deviation = np.where(flat, 2 * z.std(1), chosen.std(1) / 1.2)
    return chosen.mean(1), np.maximum(deviation, 1e-3)[:, :, None] * np.eye(p)


def _points(count: int, shift: Array) -> Array:
    """`[n, count, p]`: Sobol's points, moved for each case by its shift, around the borders of the unit cube."""
    p = shift.shape[1]
    sobol = qmc.Sobol(p, scramble=False).random_base2(max(0, int(count - 1).bit_length()))[:count]
    return (sobol + shift[:, None, :]) % 1.0


def _propose(u: Array, surface: Surface, low: Array, high: Array) -> tuple[Array, Array]:
    """Points `[n, K, p]` of the distribution of u under a surface, all in the box, and their log density `[n, K]`.

    Axis after axis, given those before: a logistic variable, cut off at the ends of the box.
    """
    z, theta = np.empty_like(u), np.empty_like(u)
    log_density = np.zeros(u.shape[:2])
    for i in range(u.shape[2]):
        middle = surface.centre[:, None, i] + (z[..., :i] @ surface.factor[:, i, :i, None])[..., 0]
        middle = np.clip(middle, low[i], high[i])
        scale = TAIL * surface.factor[:, i, i, None]
        below, above = expit((low[i] - middle) / scale), expit((high[i] - middle) / scale)
        v = np.clip(below + u[..., i] * (above - below), TINY, 1 - EPSILON)
        theta[..., i] = np.clip(middle + scale * np.log(v / (1 - v)), low[i], high[i])
        z[..., i] = (theta[..., i] - middle) / surface.factor[:, i, i, None]
        log_density += np.log(v * (1 - v)) - np.log((above - below) * scale)
    return theta, log_density
