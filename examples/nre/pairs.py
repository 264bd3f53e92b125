"""What the network is trained on: pairs (x, theta), half of them joint, half of an x and a theta apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gaussian import Array, problem_of
from priors import Prior, prior_of


def pairs(
    *, problem: Sequence[object], prior: Sequence[object], rows: Sequence[int], seed: int
) -> dict[str, dict[str, Array]]:
    """The splits train, validation and test of so many `rows`, each drawn anew and exactly balanced.

    Fields: x float32[rows, dimension], theta float32[rows, parameters], label float32[rows]: 1 for a pair from the
    joint distribution, 0 for one from the product of the marginals. Raises ValueError for an odd number of rows.
    """
    distribution = prior_of(problem_of(problem), prior)
    streams = np.random.SeedSequence([seed, 1]).spawn(3)
    splits = zip(("train", "validation", "test"), rows, streams, strict=True)
    return {name: balanced_pairs(distribution, count, np.random.default_rng(s)) for name, count, s in splits}


def balanced_pairs(prior: Prior, rows: int, rng: np.random.Generator) -> dict[str, Array]:
    """One split: of three equal parts of parameters a, b, c, class 0 is (x of b, a) and class 1 is (x of c, c)."""
    if rows < 2 or rows % 2:
        raise ValueError(f"half of the rows are joint and half are not: an even number is needed, not {rows}")
    a, b, c = np.split(prior.sample(3 * (rows // 2), rng), 3)
    x = prior.problem.sample(np.concatenate([b, c]), rng)
    theta = np.concatenate([a, c])
    label = np.repeat([0.0, 1.0], rows // 2)
    order = rng.permutation(rows)
    fields = {"x": x, "theta": theta, "label": label}
    return {name: values[order].astype(np.float32) for name, values in fields.items()}
