"""The problem: x in R^d, normal and independent by axis, with means and some standard deviations unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
LOG_TWO_PI = float(np.log(2 * np.pi))


@dataclass(frozen=True)
class Problem:
    """Parameters are the means of all axes but `fixed_means`, then the standard deviations of the axes
    `inferred_stds`, each in the order of axes. What is not inferred has the values `mean` and `std`.

    Raises ValueError for axes that do not exist or are named twice, for a problem without parameters, and for a
    standard deviation that is not above 0.
    """

    dimension: int
    fixed_means: tuple[int, ...] = ()
    inferred_stds: tuple[int, ...] = ()
    mean: float = 5.0
    std: float = 2.0

    def __post_init__(self) -> None:
        for name, axes in (("fixed-means", self.fixed_means), ("inferred-stds", self.inferred_stds)):
            if len(set(axes)) < len(axes) or not set(axes) <= set(range(self.dimension)):
                raise ValueError(f"{name} are different axes of 0 to {self.dimension - 1}, not {list(axes)}")
        if not self.names:
            raise ValueError("the problem has no parameters: infer a mean or a standard deviation")
        if not self.std > 0:
            raise ValueError(f"the standard deviation is above 0, not {self.std}")

    @property
    def mean_axes(self) -> list[int]:
        """The axes whose means are parameters."""
        return [axis for axis in range(self.dimension) if axis not in self.fixed_means]

    @property
    def std_axes(self) -> list[int]:
        """The axes whose standard deviations are parameters."""
        return sorted(self.inferred_stds)

    @property
    def names(self) -> list[str]:
        """One name for each parameter: `mean:0`, ..., `std:0`, ..."""
        return [f"mean:{axis}" for axis in self.mean_axes] + [f"std:{axis}" for axis in self.std_axes]

    def moments(self, theta: Array) -> tuple[Array, Array]:
        """Means and standard deviations `[..., dimension]` at parameters `[..., parameters]`."""
        shape = (*theta.shape[:-1], self.dimension)
        means, stds = np.full(shape, self.mean), np.full(shape, self.std)
        count = len(self.mean_axes)
        means[..., self.mean_axes] = theta[..., :count]
        stds[..., self.std_axes] = theta[..., count:]
        return means, stds

    def sample(self, theta: Array, rng: np.random.Generator) -> Array:
        """One x `[..., dimension]` for each row of parameters `[..., parameters]`."""
        means, stds = self.moments(theta)
        return means + stds * rng.standard_normal(means.shape)

    def log_likelihood(self, x: Array, theta: Array) -> Array:
        """log p(x | theta) `[...]`; x `[..., dimension]` and theta `[..., parameters]` are broadcast."""
        means, stds = self.moments(theta)
        z = (x - means) / stds
        return -0.5 * np.sum(z * z, -1) - np.sum(np.log(stds), -1) - 0.5 * self.dimension * LOG_TWO_PI

    def log_likelihood_of_all(self, x: Array, theta: Array) -> Array:
        """log p(x_1, ..., x_m | theta) `[cases, K]` of observations `[cases, m, dimension]` at parameters
        `[cases, K, parameters]`, by the sums that are sufficient for a normal distribution."""
        m = x.shape[1]
        centre = x.mean(1, keepdims=True)
        spread = np.sum((x - centre) ** 2, 1, keepdims=True)
        means, stds = self.moments(theta)
        squares = (spread + m * (centre - means) ** 2) / stds**2
        return -0.5 * squares.sum(-1) - m * (np.log(stds).sum(-1) + 0.5 * self.dimension * LOG_TWO_PI)


def problem_of(terms: Sequence[object]) -> Problem:
    """The problem of the list `problem` in nre.paren."""
    dimension, fixed_means, inferred_stds, mean, std = terms
    return Problem(dimension, tuple(fixed_means), tuple(inferred_stds), mean, std)  # type: ignore[arg-type]
