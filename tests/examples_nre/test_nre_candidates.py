"""Candidates that draw closer: the exact target is right in every dimension from one to six."""

from __future__ import annotations

import numpy as np
import pytest
from candidates import Candidates, find_candidates
from gaussian import Array, Problem
from inference import case_chunks
from nre_settings import LEVELS, prior
from priors import Support, support_of
from regions import find_regions
from scipy.special import logsumexp
from scipy.stats import chi2, kstest, norm
from summaries import summarise


def summaries_of(problem: Problem, family: str, cases: int, count: int) -> tuple[dict[str, Array], Array, Support]:
    """The exact target of cases from the prior, 15 observations each; and these."""
    known, rng = prior(family, problem), np.random.default_rng(problem.dimension)
    truth = known.sample(cases, rng)
    x = problem.sample(np.repeat(truth[:, None], 15, 1), rng)
    support = support_of(known)

    def score(which: Array, theta: Array) -> Array:
        return problem.log_likelihood_of_all(x[which], theta)

    parts = []
    for which in case_chunks(cases, count):
        found = find_candidates(score, which, support, count, rng.random((len(which), truth.shape[1])))
        parts.append(summarise(score, which, found, truth[which], rng.random(len(which)), LEVELS, support)[0])
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, x, support


@pytest.mark.parametrize("dimension", range(1, 7))
def test_the_exact_target_is_right_in_every_dimension(dimension: int) -> None:
    cases, count = 1024, 512
    found, x, support = summaries_of(Problem(dimension), "uniform", cases, count)
    mean = x.mean(1)
    assert np.median(found["ess"]) > 0.85 * count
    for i, level in enumerate(LEVELS):
        error = np.sqrt(level * (1 - level) / cases)
        assert found["joint_contains_truth"][:, i].mean() == pytest.approx(level, abs=3 * error)
        assert found["enclosed_mass"][:, i].mean() == pytest.approx(level, abs=0.003)
    assert kstest(found["truth_level"], "uniform").pvalue > 0.001
    inside = ((mean > 2.2) & (mean < 7.8)).all(1)
    np.testing.assert_allclose(found["mode"][inside], mean[inside], atol=1e-6)
    np.testing.assert_allclose(found["mode"], np.clip(mean, support.low, support.high), atol=0.02)
    width = (found["upper"] - found["lower"])[inside].mean((0, 2))
    np.testing.assert_allclose(width, 2 * np.sqrt(chi2.ppf(LEVELS, dimension)) * 2 / np.sqrt(15), rtol=0.01)


@pytest.mark.parametrize("dimension", [1, 3, 6])
def test_the_exact_target_on_a_lattice(dimension: int) -> None:
    """Regions of a lattice hold more than their level where its points are few; the truths are in as many."""
    cases = 1024
    found, _, support = summaries_of(Problem(dimension), "grid", cases, 512)
    for i in range(2):
        enclosed = found["enclosed_mass"][:, i].mean()
        error = np.sqrt(enclosed * (1 - enclosed) / cases)
        assert found["joint_contains_truth"][:, i].mean() == pytest.approx(enclosed, abs=3 * error)
    assert kstest(found["truth_level"], "uniform").pvalue > 0.001
    for name in ("mode", "lower", "upper"):
        np.testing.assert_array_equal(found[name], support.snapped(found[name]))


def test_unknown_deviations() -> None:
    """A posterior that is not normal, cut off by the box, against a fine grid."""
    problem = Problem(1, inferred_stds=(0,))
    found, x, support = summaries_of(problem, "uniform", 64, 1024)
    lines = [np.linspace(low, high, 801) for low, high in zip(support.low, support.high, strict=True)]
    grid = np.stack(np.meshgrid(*lines, indexing="ij"), -1).reshape(1, -1, 2)
    cell = np.log([line[1] - line[0] for line in lines]).sum()
    for case in range(0, 64, 9):
        density = problem.log_likelihood_of_all(x[case : case + 1], grid)
        expected = find_regions(density, np.array([[cell]]), LEVELS)
        np.testing.assert_allclose(found["threshold"][case], expected.threshold[0], atol=0.2)
        assert found["log_normalizer"][case] == pytest.approx(expected.log_normalizer[0], abs=0.05)
        inside = grid[0][density[0] >= expected.threshold[0, 0]]
        np.testing.assert_allclose(found["lower"][case, 0], inside.min(0), atol=0.12)
        np.testing.assert_allclose(found["upper"][case, 0], inside.max(0), atol=0.12)
    assert np.median(found["ess"]) > 0.5 * 1024


def test_a_lattice_that_fits_is_taken_whole() -> None:
    support = support_of(prior("grid", Problem(1)))
    found = find_candidates(lambda _, theta: -theta[..., 0], np.arange(3), support, 51, np.zeros((3, 1)))
    assert found.theta.shape == (3, 51, 1)
    assert not found.log_measure.any()


def test_measures_add_up_to_integrals() -> None:
    """Of a density with two tops, one of them narrow and far from the quadratic that was fitted."""
    support = support_of(prior("uniform", Problem(1)))

    def score(_: Array, theta: Array) -> Array:
        return np.logaddexp(norm.logpdf(theta[..., 0], 3, 0.5), norm.logpdf(theta[..., 0], 7, 0.3))

    found = find_candidates(score, np.arange(200), support, 1024, np.random.default_rng(0).random((200, 1)))
    total = logsumexp(found.density + found.log_measure, axis=1)
    np.testing.assert_allclose(total, np.log(2), atol=0.15)
    assert np.median(found.ess) > 200


def test_effective_sample_size() -> None:
    assert Candidates(np.zeros((1, 4, 1)), np.zeros((1, 4)), np.full((1, 4), -50.0)).ess == pytest.approx(4)
    assert Candidates(np.zeros((1, 2, 1)), np.array([[0.0, -1e4]]), np.zeros((1, 2))).ess == pytest.approx(1)
