"""Inference in all cases: of the exact target by itself, and of the targets that the network gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from candidates import Candidates, Cases, candidates_of_passes, find_candidates
from gaussian import Array, problem_of
from network import Network, ensemble_score
from observations import truths
from priors import prior_of, support_of
from regions import best_classifier
from summaries import scores_of_summary, summarise

CHUNK = 2**18  # candidates of all cases that stand in memory at a time


def infer_exactly(
    *,
    observations: Mapping[str, Array],
    problem: Sequence[object],
    support: Sequence[object],
    candidates: int,
    levels: Sequence[float],
    targets: Sequence[str],
    rng: np.random.Generator,
) -> dict[str, Array]:
    """The summaries (`summaries.summarise`) of the likelihood under the base measure of the support, with candidates
    of its own: it depends on no model. Empty if `exact` is not among the targets."""
    if "exact" not in targets:
        return {}
    known = problem_of(problem)
    truth, x = observations["truth"], np.asarray(observations["observations"], np.float64)
    where = support_of(prior_of(known, support))

    def likelihood(cases: Cases, theta: Array) -> Array:
        return known.log_likelihood_of_all(x[cases], theta)

    parts = []
    for cases in case_chunks(len(truth), candidates):
        shift, tie = random_of_cases(cases, where.low.size, rng)
        found = find_candidates(likelihood, cases, where, candidates, shift)
        parts.append(summarise(likelihood, cases, found, truth[cases], tie, levels, where)[0])
    return joined(parts)


def infer(
    *,
    model: Network,
    observations: Mapping[str, Array],
    exact: Mapping[str, Array],
    problem: Sequence[object],
    prior: Sequence[object],
    support: Sequence[object],
    candidates: int,
    levels: Sequence[float],
    targets: Sequence[str],
    retain: int,
    rng: np.random.Generator,
) -> dict[str, Array]:
    """The summaries of the targets `ratio` (the sum of log ratios) and `posterior` (with the log prior, once) as
    `TARGET_NAME`, if they are wanted.

    `c2st [N]` compares the ratio with the likelihood, if `exact` has it. Of `retained_cases [R]`, spread over all, are
    there the candidates `retained_theta [R, K, p]`, and `retained_ratio`, `retained_exact`, `retained_measure
    [R, K]`. Raises ValueError for a posterior under a lattice prior without the lattice, where it has no density.
    """
    known = problem_of(problem)
    distribution = prior_of(known, prior)
    truth, x = observations["truth"], np.asarray(observations["observations"], np.float64)
    where = support_of(prior_of(known, support))
    lost = [axis.family == "grid" and not step for axis, step in zip(distribution.axes, where.step, strict=True)]
    if "posterior" in targets and any(lost):
        raise ValueError("a posterior under a grid prior needs its lattice: set lattice, or leave the posterior out")
    ratio = ensemble_score(model, np.asarray(observations["observations"]))

    def posterior(cases: Cases, theta: Array) -> Array:
        return ratio(cases, theta) + distribution.log_density(theta)

    retained = np.unique(np.linspace(0, len(truth) - 1, min(retain, len(truth))).astype(np.int64))
    parts: list[dict[str, Array]] = []
    kept: list[Mapping[str, Array]] = []
    for cases in case_chunks(len(truth), candidates):
        shift, tie = random_of_cases(cases, where.low.size, rng)
        found = find_candidates(ratio, cases, where, candidates, shift)
        part, regions = summarise(ratio, cases, found, truth[cases], tie, levels, where)
        part = {f"ratio_{name}": values for name, values in part.items()} if "ratio" in targets else {}
        if "posterior" in targets:
            density = found.density + distribution.log_density(found.theta)
            moved = Candidates(found.theta, density, found.log_measure)
            more, _ = summarise(posterior, cases, moved, truth[cases], tie, levels, where)
            part |= {f"posterior_{name}": values for name, values in more.items()}
        likelihood = known.log_likelihood_of_all(x[cases], found.theta)
        if "log_normalizer" in exact:
            scales = regions.log_normalizer, np.asarray(exact["log_normalizer"])[cases]
            density = [s - scale[:, None] for s, scale in zip((found.density, likelihood), scales, strict=True)]
            part["c2st"] = best_classifier(regions.mass, *density)
        parts.append(part)
        here = retained[np.isin(retained, cases)] - cases[0]
        values = {"theta": found.theta, "ratio": found.density, "exact": likelihood, "measure": found.log_measure}
        kept.append({f"retained_{name}": value[here] for name, value in values.items()})
    return joined(parts) | joined(kept) | {"retained_cases": retained}


def masses(density: Array, log_measure: Array) -> Array:
    """The mass of each candidate `[n, K]`, summing to 1."""
    mass = np.exp(density + log_measure - np.max(density + log_measure, 1, keepdims=True))
    return mass / mass.sum(1, keepdims=True)


def infer_cost(
    *,
    problem: Sequence[object],
    targets: Sequence[str],
    candidates: int,
    levels: Sequence[float],
    retain: int,
    settings: Mapping[str, object],
) -> dict[str, float]:
    """Evaluations of the network, and bytes of the arrays, of `infer`."""
    parameters = len(problem_of(problem).names)
    design, count, most = (settings[name] for name in ("truth-design", "truth-count", "most-truths"))
    cases = truths(str(design), int(count), parameters, int(most))[1] * int(settings["repeats"])  # type: ignore[call-overload]
    learned = 1 + ("posterior" in targets)
    each = candidates_of_passes(parameters, candidates) + learned * scores_of_summary(parameters)
    of_target = parameters + len(levels) * (2 * parameters + 2) + 3
    size = 8 * (cases * (learned * of_target + 1) + retain * candidates * (parameters + 3))
    return {"evaluations": float(cases * each * int(settings["observations"])), "bytes": float(size)}  # type: ignore[call-overload]


def case_chunks(count: int, candidates: int) -> Iterator[Cases]:
    """Cases whose candidates stand in memory together."""
    step = max(1, CHUNK // candidates)
    for start in range(0, count, step):
        yield np.arange(start, min(start + step, count))


def random_of_cases(cases: Cases, parameters: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """The shift `[n, p]` of the candidates, and the part `[n]` of ties that counts, of each case."""
    drawn = rng.random((len(cases), parameters + 1))
    return drawn[:, :-1], drawn[:, -1]


def joined(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The arrays of all chunks."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
