"""What holds for a right ratio whatever the prior: ratios between two parameters, reweighting, normalisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from gaussian import Array, problem_of
from network import Network, logits
from priors import prior_of, support_of
from scipy.stats import qmc

PAIR_DESIGNS = ("grid", "uniform", "sobol")


def draw_pairs(
    *,
    problem: Sequence[object],
    box: Sequence[object],
    pairs: int,
    design: str,
    probes: int,
    sources: int,
    targets: int,
    directions: int,
    rng: np.random.Generator,
) -> dict[str, Array]:
    """Pairs of different parameters `pairs [P, 2, p]` and observations: `probe_x [P, 2 n, d]`, n at each end,
    `source_x` at the first, `target_x` at the second, and unit vectors `directions [D, d]` (one in one dimension).

    The design is `grid` (points of the priors' lattices), `uniform` or `sobol`. Raises ValueError for another one.
    """
    distribution = prior_of(problem_of(problem), box)
    known, p = distribution.problem, len(distribution.axes)
    if design not in PAIR_DESIGNS:
        raise ValueError(f"the design of pairs is {', '.join(PAIR_DESIGNS)}, not {design}")
    unit = rng.random((pairs, 2 * p))
    if design == "sobol":
        unit = qmc.Sobol(2 * p, rng=rng).random_base2(int(pairs - 1).bit_length())[:pairs]
    places = distribution.of_family("grid" if design == "grid" else "uniform")
    ends = places.from_uniform(unit.reshape(pairs, 2, p))
    while (same := (ends[:, 0] == ends[:, 1]).all(-1)).any():
        ends[same] = places.from_uniform(rng.random((int(same.sum()), 2, p)))

    def at(end: Array, count: int) -> Array:
        return known.sample(np.repeat(end[:, None], count, 1), rng).astype(np.float32)

    first, second = ends[:, 0], ends[:, 1]
    probe = np.concatenate([at(first, probes), at(second, probes)], 1)
    vectors = rng.standard_normal((directions if known.dimension > 1 else 1, known.dimension))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = {"probe_x": probe, "source_x": at(first, sources), "target_x": at(second, targets)}
    return {"pairs": ends, "directions": vectors, **found}


def predict_pairs(
    *, model: Network, verification_observations: Mapping[str, Array], problem: Sequence[object]
) -> dict[str, Array]:
    """log p(x | second) / p(x | first), `learned` and `exact`, of probes `[P, 2 n]` and of sources `[P, n]`."""
    known, given = problem_of(problem), verification_observations
    found = {}
    for name in ("probe", "source"):
        x, ends = np.asarray(given[f"{name}_x"]), np.asarray(given["pairs"])
        found[f"{name}_learned"] = log_ratio(model, x, ends)
        first, second = (known.log_likelihood(x.astype(np.float64), ends[:, end, None]) for end in (0, 1))
        found[f"{name}_exact"] = second - first
    return found


def log_ratio(model: Network, x: Array, ends: Array) -> Array:
    """The network's log ratio `[P, n]` between the ends `[P, 2, p]` of pairs at x `[P, n, d]`."""
    rows = x.reshape(-1, x.shape[-1])
    first, second = (logits(model, rows, np.repeat(ends[:, end], x.shape[1], axis=0)) for end in (0, 1))
    return (second - first).reshape(x.shape[:2])


def reweight(
    *, verification_observations: Mapping[str, Array], verification_predictions: Mapping[str, Array]
) -> dict[str, Array]:
    """How near weighted sources come to the targets of each pair, `[P]`: sliced Wasserstein distances `learned_w1`,
    `exact_w1`, `unweighted_w1`, and the effective sample sizes `ess`, `exact_ess` of the weights, which are the softmax
    of the log ratios."""
    given, ratios = verification_observations, verification_predictions
    learned, exact = (softmax(np.asarray(ratios[f"source_{name}"])) for name in ("learned", "exact"))
    weights = np.stack([learned, exact, np.full_like(exact, 1 / exact.shape[1])], 1)
    vectors = np.asarray(given["directions"])
    distances = np.array(
        [
            np.mean([weighted_distance(s @ v, w, t @ v) for v in vectors], axis=0)
            for s, t, w in zip(given["source_x"], given["target_x"], weights, strict=True)
        ]
    )
    found = {f"{name}_w1": distances[:, i] for i, name in enumerate(("learned", "exact", "unweighted"))}
    return found | {"ess": 1 / np.sum(learned**2, 1), "exact_ess": 1 / np.sum(exact**2, 1)}


def softmax(values: Array) -> Array:
    weights = np.exp(values - values.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def weighted_distance(source: Array, weights: Array, target: Array) -> Array:
    """The exact Wasserstein-1 distance `[W]` of points `source [n]` under each of several weights `[W, n]` that sum to
    1 from equal weights of `target [m]`: the integral of the difference of the distribution functions."""
    points = np.concatenate([source, target])
    order = np.argsort(points, kind="stable")
    jumps = np.concatenate([weights, np.full((len(weights), len(target)), -1 / len(target))], 1)[:, order]
    return np.abs(np.cumsum(jumps, 1)[:, :-1]) @ np.diff(points[order])


def draw_predictive(
    *, problem: Sequence[object], prior: Sequence[object], count: int, points: int, snap: bool, rng: np.random.Generator
) -> dict[str, Array]:
    """`x [n, d]` from the predictive distribution of this prior, and `theta [points, p]` on the diagonal of its box
    from a tenth to nine tenths, on the lattices of the priors' steps if `snap`."""
    distribution = prior_of(problem_of(problem), prior)
    x = distribution.problem.sample(distribution.sample(count, rng), rng).astype(np.float32)
    low, high = distribution.box
    diagonal = np.linspace(low + 0.1 * (high - low), low + 0.9 * (high - low), points)
    lattice = support_of(distribution.of_family("grid"))
    return {"x": x, "theta": lattice.snapped(diagonal) if snap else diagonal}


def predict_normalization(
    *,
    model: Network,
    normalization_observations: Mapping[str, Array],
    problem: Sequence[object],
    prior: Sequence[object],
) -> dict[str, Array]:
    """log r(x, theta) `[points, n]`, `learned` and `exact`: the mean of r over x is 1 at each theta."""
    distribution = prior_of(problem_of(problem), prior)
    x, theta = (np.asarray(normalization_observations[name]) for name in ("x", "theta"))
    learned = [logits(model, x, np.broadcast_to(t, (len(x), theta.shape[1]))) for t in theta]
    evidence = distribution.log_evidence(x.astype(np.float64))
    exact = [distribution.problem.log_likelihood(x.astype(np.float64), t) - evidence for t in theta]
    return {"learned": np.array(learned), "exact": np.array(exact)}


def draw_showcase(
    *,
    problem: Sequence[object],
    box: Sequence[object],
    source: float,
    target: float,
    samples: int,
    rng: np.random.Generator,
) -> dict[str, Array]:
    """`ends [1, 2, p]`: parameters at a fraction `source` and `target` of all intervals, and so many samples of each,
    `source_x`, `target_x [1, n, d]`."""
    distribution = prior_of(problem_of(problem), box)
    low, high = distribution.box
    ends = np.array([[low + part * (high - low) for part in (source, target)]])
    found = {"ends": ends}
    for i, name in enumerate(("source_x", "target_x")):
        found[name] = distribution.problem.sample(np.repeat(ends[:, i, None], samples, 1), rng).astype(np.float32)
    return found


def predict_showcase(*, model: Network, showcase_observations: Mapping[str, Array]) -> dict[str, Array]:
    """The learned log ratio float32 `[1, n]` between the ends on the source."""
    x, ends = (np.asarray(showcase_observations[name]) for name in ("source_x", "ends"))
    return {"learned": log_ratio(model, x, ends).astype(np.float32)}


def predict_cost(*, settings: Mapping[str, object]) -> dict[str, float]:
    """Evaluations of the network in `predict_pairs`."""
    pairs, probes, sources = (int(settings[name]) for name in ("pairs-count", "probes", "sources"))  # type: ignore[call-overload]
    return {"evaluations": 2.0 * pairs * (2 * probes + sources)}
