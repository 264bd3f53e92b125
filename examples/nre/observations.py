"""The cases that inference is tried on: true parameters by a design, and observations of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gaussian import Array, problem_of
from priors import Prior, prior_of
from scipy.stats import qmc

DESIGNS = ("sobol", "grid", "size-adaptive")


def observe(
    *,
    problem: Sequence[object],
    box: Sequence[object],
    design: str,
    count: int,
    margin: float,
    snap: bool,
    most: int,
    repeats: int,
    observations: int,
    rng: np.random.Generator,
) -> dict[str, Array | int]:
    """True parameters `truth [N, p]`, float64, and `observations [N, m, dimension]`, float32; N is cases.

    The same for all priors and replicas: of `box` only the intervals and the steps of lattices matter. Each
    truth stands `repeats` times in a row, with other observations. `coincident` counts the truths that snapping made
    equal to another one.
    """
    distribution = prior_of(problem_of(problem), box)
    truth = true_parameters(distribution, design, count, margin, snap, most, rng)
    different = len(np.unique(truth, axis=0))
    truth = np.repeat(truth, repeats, axis=0)
    x = distribution.problem.sample(np.repeat(truth[:, None], observations, 1), rng)
    return {"truth": truth, "observations": x.astype(np.float32), "coincident": len(truth) // repeats - different}


def truths(design: str, count: int, parameters: int, most: int) -> tuple[str, int]:
    """The design that is used, and how many truths it has: `grid` has `count` an axis, `sobol` `count` for one
    parameter and twice as many for each further one, `size-adaptive` is a grid of at most `most` truths, or else sobol.

    Raises ValueError for another design.
    """
    if design not in DESIGNS:
        raise ValueError(f"the design of truths is {', '.join(DESIGNS)}, not {design}")
    if design == "grid" or (design == "size-adaptive" and count**parameters <= most):
        return "grid", count**parameters
    base = 1024 if design == "size-adaptive" else count
    return "sobol", base * 2 ** (parameters - 1)


def true_parameters(
    prior: Prior, design: str, count: int, margin: float, snap: bool, most: int, rng: np.random.Generator
) -> Array:
    """`[N, p]`, inside the intervals by a margin, on the lattices of the priors' steps if `snap`.

    Raises ValueError for a margin that leaves nothing.
    """
    low, high = prior.box
    low, high = low + margin, high - margin
    if margin < 0 or not (low < high).all():
        raise ValueError(f"a margin of {margin} leaves nothing of the intervals")
    kind, total = truths(design, count, len(low), most)
    if kind == "grid":
        lines = [np.linspace(a, b, count) for a, b in zip(low, high, strict=True)]
        unit = np.stack(np.meshgrid(*lines, indexing="ij"), -1).reshape(-1, len(low))
    else:
        points = qmc.Sobol(len(low), rng=rng).random_base2(int(total - 1).bit_length())[:total]
        unit = low + (high - low) * points
    return _snapped(unit, prior, low, high) if snap else unit


def _snapped(theta: Array, prior: Prior, low: Array, high: Array) -> Array:
    """The nearest lattice point, of those that the margin leaves."""
    result = np.empty_like(theta)
    for i, axis in enumerate(prior.axes):
        first = np.ceil((low[i] - axis.low) / axis.step - 1e-9)
        last = np.floor((high[i] - axis.low) / axis.step + 1e-9)
        result[:, i] = axis.low + axis.step * np.clip(np.rint((theta[:, i] - axis.low) / axis.step), first, last)
    return result
