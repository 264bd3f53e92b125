"""The lists that nre.paren gives to its Python functions, and networks that know the answer."""

from __future__ import annotations

import numpy as np
from gaussian import Array, Problem
from priors import Axis, Prior, prior_of

FAMILIES = ("uniform", "normal", "exponential", "grid")
LEVELS = (0.68, 0.95)
TARGETS = ("ratio", "posterior", "exact")


def problem_list(dimension: int, fixed_means: tuple[int, ...] = (), inferred_stds: tuple[int, ...] = ()) -> tuple:
    return (dimension, fixed_means, inferred_stds, 5.0, 2.0)


def prior_list(family: str, std_family: str | None = None) -> tuple:
    means = ((0.0, 10.0), (5.0, 4.0), 0.1, 0.2)
    return (family, std_family or family, *means, (0.2, 4.0), (2.0, 0.7), 0.1, 0.2)


def axis(family: str, rate: float = 0.1) -> Axis:
    return Axis(family, 0.0, 10.0, (5.0, 4.0), rate, 0.2)


def prior(family: str, problem: Problem) -> Prior:
    return prior_of(problem, prior_list(family))


class Oracle:
    """A network whose logit is the log likelihood, or its product with `sharpness`."""

    def __init__(self, problem: Problem, sharpness: float = 1.0) -> None:
        self.problem, self.sharpness = problem, sharpness

    def __call__(self, x: Array, theta: Array, /) -> Array:
        x, theta = np.asarray(x, np.float64), np.asarray(theta, np.float64)
        return self.sharpness * self.problem.log_likelihood(x, theta)
