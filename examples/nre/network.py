"""The trained network as a function of many pairs, and as the score of parameters given several observations."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
from candidates import Cases, Score
from gaussian import Array

MOST_ROWS = 2**19  # whose inputs stand in memory at a time


class Network(Protocol):
    """x [n, dimension], theta [n, parameters] -> logits [n]; a trained one rounds them to float32."""

    def __call__(self, x: Array, theta: Array, /) -> npt.NDArray[np.floating]: ...


def logits(model: Network, x: Array, theta: Array) -> Array:
    """The log ratio of each pair of rows, as float64.

    Raises FloatingPointError where the network gives a number that is not finite.
    """
    result = np.asarray(model(x, theta), np.float64)
    if not np.isfinite(result).all():
        raise FloatingPointError("the network gives a number that is not finite")
    return result


def ensemble_score(model: Network, x: Array) -> Score:
    """The log ratio of several observations `x [cases, m, dimension]` that share their parameters: the sum of theirs.

    It is log p(x_1, ..., x_m | theta) up to a number that does not depend on theta.
    """
    m = x.shape[1]

    def score(cases: Cases, theta: Array) -> Array:
        given = x[cases]
        n, count, _ = theta.shape
        result = np.empty((n, count))
        step = max(1, MOST_ROWS // (count * m))
        for start in range(0, n, step):
            part = slice(start, start + step)
            shape = (len(given[part]), count, m)
            rows_x = np.broadcast_to(given[part][:, None], (*shape, x.shape[2])).reshape(-1, x.shape[2])
            rows_theta = np.broadcast_to(theta[part][:, :, None], (*shape, theta.shape[2])).reshape(-1, theta.shape[2])
            result[part] = logits(model, rows_x, rows_theta).reshape(shape).sum(-1)
        return result

    return score
