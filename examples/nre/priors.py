"""The four priors of one parameter on an interval, and of all parameters: samples, densities, evidence, support."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from gaussian import LOG_TWO_PI, Array, Problem
from scipy.special import log_ndtr, logsumexp, ndtr, ndtri

FAMILIES = ("uniform", "normal", "exponential", "grid")
NODES = 200  # of the quadrature over a standard deviation
OUTSIDE = 1e-7  # so far beyond the ends a parameter still counts as inside: float32 rounds
FLAT = 1e-8  # an exponential that falls less than that over the interval is uniform


@dataclass(frozen=True)
class Axis:
    """The prior of one parameter on [low, high].

    `normal` is the mean and standard deviation of a normal distribution cut off at the ends. `rate` has any sign: the
    density is proportional to exp(-rate theta). `step` is that of a lattice low, low + step, ... with equal masses.
    Raises ValueError for an unknown family, an empty interval, and terms that give no distribution.
    """

    family: str
    low: float
    high: float
    normal: tuple[float, float]
    rate: float
    step: float

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"the prior {self.family} is unknown, there are {', '.join(FAMILIES)}")
        if not self.low < self.high or not np.isfinite([self.low, self.high, self.rate, *self.normal]).all():
            raise ValueError(f"a prior needs finite terms and an interval that is not empty, not {self}")
        if not self.normal[1] > 0 or not 0 < self.step <= self.high - self.low:
            raise ValueError(f"a deviation above 0 and a step that fits the interval are needed, not {self}")

    @property
    def points(self) -> Array:
        """The lattice of the grid prior."""
        return self.low + self.step * np.arange(int(np.floor((self.high - self.low) / self.step + 1e-10)) + 1)

    def from_uniform(self, u: Array) -> Array:
        """The inverse of the distribution function, at 0 <= u < 1."""
        if self.family == "uniform":
            return self.low + (self.high - self.low) * u
        if self.family == "normal":
            mean, std = self.normal
            start, stop = ndtr((self.low - mean) / std), ndtr((self.high - mean) / std)
            return np.clip(mean + std * ndtri(start + (stop - start) * u), self.low, self.high)
        if self.family == "exponential":
            width, rate = self.high - self.low, abs(self.rate)
            way = width * u if rate * width < FLAT else -np.log1p(u * np.expm1(-rate * width)) / rate
            return np.clip(self.low + way if self.rate >= 0 else self.high - way, self.low, self.high)
        return self.points[np.minimum((u * len(self.points)).astype(np.int64), len(self.points) - 1)]

    def log_density(self, theta: Array) -> Array:
        """The logarithm of the density (of the mass, for `grid`); -inf outside the interval and off the lattice."""
        inside = (theta >= self.low - OUTSIDE) & (theta <= self.high + OUTSIDE)
        if self.family == "uniform":
            value = np.full(theta.shape, -np.log(self.high - self.low))
        elif self.family == "normal":
            mean, std = self.normal
            mass = log_mass(self.low, self.high, np.float64(mean), np.float64(std))
            value = -0.5 * ((theta - mean) / std) ** 2 - np.log(std) - 0.5 * LOG_TWO_PI - mass
        elif self.family == "exponential":
            way = theta - self.low if self.rate >= 0 else self.high - theta
            value = -abs(self.rate) * way - self._log_scale()
        else:
            index = np.clip(np.rint((theta - self.low) / self.step), 0, len(self.points) - 1)
            inside = np.abs(theta - self.low - self.step * index) <= max(1e-6, 1e-4 * self.step)
            value = np.full(theta.shape, -np.log(len(self.points)))
        return np.where(inside, value, -np.inf)

    def _log_scale(self) -> float:
        """log of the integral of exp(-|rate| way) over the width of the interval."""
        width = self.high - self.low
        fall = abs(self.rate) * width
        return float(np.log(width) + (np.log(-np.expm1(-fall) / fall) if fall >= FLAT else 0.0))

    def log_evidence(self, x: Array, std: Array) -> Array:
        """log of the integral of prior(mean) N(x; mean, std) over the mean; `x` and `std` are broadcast."""
        if self.family == "uniform":
            return log_mass(self.low, self.high, x, std) - np.log(self.high - self.low)
        if self.family == "normal":
            mean, width = self.normal
            variance = std**2 + width**2
            centre, deviation = (x * width**2 + mean * std**2) / variance, std * width / np.sqrt(variance)
            inside = log_mass(self.low, self.high, centre, deviation)
            whole = log_mass(self.low, self.high, np.float64(mean), np.float64(width))
            return inside - whole - 0.5 * ((x - mean) ** 2 / variance + np.log(variance) + LOG_TWO_PI)
        if self.family == "exponential":
            shifted = x - self.rate * std**2
            start = self.low if self.rate >= 0 else self.high
            slope = -self.rate * (x - start) + 0.5 * (self.rate * std) ** 2
            return slope + log_mass(self.low, self.high, shifted, std) - self._log_scale()
        z = (x[..., None] - self.points) / np.asarray(std)[..., None]
        return logsumexp(-0.5 * z * z, -1) - np.log(std) - 0.5 * LOG_TWO_PI - np.log(len(self.points))

    def nodes(self) -> tuple[Array, Array]:
        """Points, and logarithms of weights that sum to 1: an integral over this prior as a sum."""
        if self.family == "grid":
            return self.points, np.full(len(self.points), -np.log(len(self.points)))
        places, weights = np.polynomial.legendre.leggauss(NODES)
        half = 0.5 * (self.high - self.low)
        theta = self.low + half * (places + 1)
        return theta, np.log(weights * half) + self.log_density(theta)


@dataclass(frozen=True)
class Prior:
    """Independent priors of all parameters of a problem: `mean_axis` of each mean, `std_axis` of each deviation."""

    problem: Problem
    mean_axis: Axis
    std_axis: Axis

    def __post_init__(self) -> None:
        if self.problem.std_axes and not self.std_axis.low > 0:
            raise ValueError(f"an inferred standard deviation has a lower end above 0, not {self.std_axis.low}")

    @property
    def axes(self) -> list[Axis]:
        """One prior for each parameter."""
        return [self.mean_axis] * len(self.problem.mean_axes) + [self.std_axis] * len(self.problem.std_axes)

    @property
    def box(self) -> tuple[Array, Array]:
        """The ends `[parameters]` of all intervals."""
        return np.array([axis.low for axis in self.axes]), np.array([axis.high for axis in self.axes])

    def of_family(self, family: str) -> Prior:
        """Priors of one family with the same terms, the intervals among them."""
        return Prior(self.problem, replace(self.mean_axis, family=family), replace(self.std_axis, family=family))

    def from_uniform(self, u: Array) -> Array:
        """Parameters `[..., parameters]` by the inverse distribution functions."""
        return np.stack([axis.from_uniform(u[..., i]) for i, axis in enumerate(self.axes)], -1)

    def sample(self, count: int, rng: np.random.Generator) -> Array:
        """`[count, parameters]`."""
        return self.from_uniform(rng.random((count, len(self.axes))))

    def log_density(self, theta: Array) -> Array:
        """`[...]` at parameters `[..., parameters]`."""
        terms = [axis.log_density(theta[..., i]) for i, axis in enumerate(self.axes)]
        return np.sum(terms, 0)

    def log_evidence(self, x: Array) -> Array:
        """log p(x) `[...]` of x `[..., dimension]`: in closed form over means, by quadrature over deviations."""
        total = np.zeros(x.shape[:-1])
        for axis in range(self.problem.dimension):
            if axis in self.problem.std_axes:
                stds, weights = self.std_axis.nodes()
                each = self._log_evidence_of_axis(axis, x[..., axis, None], stds)
                total += logsumexp(each + weights, -1)
            else:
                total += self._log_evidence_of_axis(axis, x[..., axis], np.float64(self.problem.std))
        return total

    def _log_evidence_of_axis(self, axis: int, x: Array, std: Array) -> Array:
        x, std = np.broadcast_arrays(x, std)
        if axis in self.problem.mean_axes:
            return self.mean_axis.log_evidence(x, std)
        return -0.5 * ((x - self.problem.mean) / std) ** 2 - np.log(std) - 0.5 * LOG_TWO_PI

    def optimal_logit(self, x: Array, theta: Array) -> Array:
        """log p(x | theta) - log p(x): what the best classifier of joint against marginal pairs gives."""
        return self.problem.log_likelihood(x, theta) - self.log_evidence(x)


@dataclass(frozen=True)
class Support:
    """Where inference looks for parameters: a box, or on axes with a step above 0 a lattice from `low`."""

    low: Array
    high: Array
    step: Array

    @property
    def discrete(self) -> bool:
        return bool((self.step > 0).all())

    @property
    def measure(self) -> str:
        """The base measure: `continuous`, `discrete` or `mixed`."""
        return "discrete" if self.discrete else "mixed" if (self.step > 0).any() else "continuous"

    @property
    def cells(self) -> tuple[Array, Array]:
        """The ends of the box that all cells of the lattice fill; a cell has its point in the middle."""
        return self.low - self.step / 2, self.snapped(self.high) + self.step / 2

    def snapped(self, theta: Array) -> Array:
        """The lattice point of the cell that holds theta `[..., parameters]`; theta itself on axes without lattice."""
        step = np.where(self.step > 0, self.step, 1.0)
        last = np.floor((self.high - self.low) / step + 1e-10)
        index = np.clip(np.rint((theta - self.low) / step), 0, last)
        return np.where(self.step > 0, self.low + step * index, theta)

    def enumerated(self, most: int) -> Array | None:
        """All points of a lattice `[count, parameters]`, if there are at most so many."""
        if not self.discrete:
            return None
        counts = np.floor((self.high - self.low) / self.step + 1e-10).astype(int) + 1
        if np.prod(counts.astype(float)) > most:
            return None
        axes = [low + step * np.arange(n) for low, step, n in zip(self.low, self.step, counts, strict=True)]
        return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))


def support_of(prior: Prior) -> Support:
    """The box of a prior, and the lattice on the axes whose prior is one."""
    steps = [axis.step if axis.family == "grid" else 0.0 for axis in prior.axes]
    return Support(*prior.box, np.array(steps))


def prior_of(problem: Problem, terms: Sequence[object]) -> Prior:
    """The prior of a list such as `prior-terms` in nre.paren: the families of means and of deviations, then of both the
    interval, the normal distribution, the rate and the step."""
    family, std_family, *numbers = terms
    mean, std = numbers[:4], numbers[4:]
    return Prior(problem, _axis(str(family), mean), _axis(str(std_family), std))


def _axis(family: str, terms: Sequence[object]) -> Axis:
    (low, high), (mean, std), rate, step = terms  # type: ignore[misc]
    return Axis(family, low, high, (mean, std), rate, step)


def log_mass(low: float, high: float, mean: Array, std: Array) -> Array:
    """log of the mass of N(mean, std) between low and high, also far in its tails."""
    start, stop = (low - mean) / std, (high - mean) / std
    flip = start + stop > 0
    start, stop = np.where(flip, -stop, start), np.where(flip, -start, stop)
    upper, lower = log_ndtr(stop), log_ndtr(start)
    return upper + np.log1p(-np.exp(lower - upper))
