"""Whether the posterior is calibrated: on parameters from the prior itself, and observations of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from candidates import Cases, candidates_of_passes, find_candidates
from gaussian import Array, problem_of
from inference import case_chunks, joined, masses, random_of_cases
from network import Network, ensemble_score
from priors import prior_of, support_of
from regions import best_classifier, level_of
from scipy.special import logsumexp


def draw_calibration(
    *, problem: Sequence[object], prior: Sequence[object], cases: int, observations: int, rng: np.random.Generator
) -> dict[str, Array]:
    """`truth [C, p]` from this prior, `observations [C, m, d]` of each, and `reference [C, p]`, uniform on the box."""
    distribution = prior_of(problem_of(problem), prior)
    truth = distribution.sample(cases, rng)
    x = distribution.problem.sample(np.repeat(truth[:, None], observations, 1), rng)
    low, high = distribution.box
    reference = low + (high - low) * rng.random(truth.shape)
    return {"truth": truth, "observations": x.astype(np.float32), "reference": reference}


def calibrate(
    *,
    model: Network,
    calibration_observations: Mapping[str, Array],
    problem: Sequence[object],
    prior: Sequence[object],
    candidates: int,
    rng: np.random.Generator,
) -> dict[str, Array]:
    """Where each truth lies in the learned posterior (log ratio and log prior), and in the exact one as `exact_NAME`:

    - `level [C]`: the mass that is denser than the truth (expected coverage);
    - `rank [C, p]`: the mass below the truth on each axis (the rank of simulation-based calibration over the draws);
    - `ball [C]`: the mass nearer to the reference point than the truth (TARP).

    All are uniform on [0, 1] if the posterior is right, ties being counted in random part. `c2st [C]` is the accuracy
    of the best classifier between the two posteriors, `ess` and `exact_ess [C]` say how many candidates count.
    """
    known = problem_of(problem)
    distribution = prior_of(known, prior)
    given = {name: np.asarray(values) for name, values in calibration_observations.items()}
    x, support = given["observations"].astype(np.float64), support_of(distribution)
    ratio = ensemble_score(model, given["observations"])

    def learned(cases: Cases, theta: Array) -> Array:
        return ratio(cases, theta) + distribution.log_density(theta)

    def exact(cases: Cases, theta: Array) -> Array:
        return known.log_likelihood_of_all(x[cases], theta) + distribution.log_density(theta)

    parts = []
    for cases in case_chunks(len(x), candidates):
        shift, tie = random_of_cases(cases, support.low.size, rng)
        truth, reference = given["truth"][cases], given["reference"][cases]
        part: dict[str, Array] = {}
        for name, score in (("exact_", exact), ("", learned)):
            found = find_candidates(score, cases, support, candidates, shift)
            mass, normalizer = masses(found.density, found.log_measure), logsumexp(found.density + found.log_measure, 1)
            part[f"{name}level"] = level_of(found.density, mass, score(cases, truth[:, None])[:, 0], tie)
            below = [level_of(-found.theta[..., i], mass, -truth[:, i], tie) for i in range(truth.shape[1])]
            part[f"{name}rank"] = np.stack(below, 1)
            distance = np.linalg.norm(found.theta - reference[:, None], axis=-1)
            part[f"{name}ball"] = level_of(-distance, mass, -np.linalg.norm(truth - reference, axis=-1), tie)
            part[f"{name}ess"] = found.ess
            if name:
                scale = normalizer
        other = exact(cases, found.theta) - scale[:, None]
        part["c2st"] = best_classifier(mass, found.density - normalizer[:, None], other)
        parts.append(part)
    return joined(parts)


def calibrate_cost(*, problem: Sequence[object], candidates: int, settings: Mapping[str, object]) -> dict[str, float]:
    """Evaluations of the network in `calibrate`."""
    rows = int(settings["calibration-cases"]) * int(settings["observations"])  # type: ignore[call-overload]
    return {"evaluations": float(rows * (candidates_of_passes(len(problem_of(problem).names), candidates) + 1))}
