"""The priors of the ratio-estimation study against quadrature, scipy, and their own samples."""

from __future__ import annotations

import numpy as np
import pytest
from gaussian import Problem
from nre_settings import FAMILIES, axis, prior, prior_list
from priors import Axis, log_mass, prior_of, support_of
from scipy.integrate import quad
from scipy.special import logsumexp
from scipy.stats import norm, truncnorm

RATES = (0.0, 0.1, -0.1, 10.0, -10.0)
CONTINUOUS = [("uniform", 0.1), ("normal", 0.1), *(("exponential", rate) for rate in RATES)]


def density(known: Axis, at: float) -> float:
    return float(np.exp(known.log_density(np.array(at))))


@pytest.mark.parametrize(("family", "rate"), CONTINUOUS)
def test_densities_integrate_to_one(family: str, rate: float) -> None:
    known = axis(family, rate)
    whole = sum(quad(lambda t: density(known, t), a, a + 0.5, epsabs=1e-12)[0] for a in np.arange(0, 10, 0.5))
    assert whole == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize(("family", "rate"), CONTINUOUS)
def test_samples_have_the_mean_of_the_density(family: str, rate: float) -> None:
    known = axis(family, rate)
    mean = sum(quad(lambda t: t * density(known, t), a, a + 0.5)[0] for a in np.arange(0, 10, 0.5))
    drawn = known.from_uniform(np.random.default_rng(0).random(40_000))
    assert drawn.min() >= 0
    assert drawn.max() <= 10
    assert drawn.mean() == pytest.approx(mean, abs=0.055)


@pytest.mark.parametrize(("rate", "mean"), [(0.1, 4.18023), (-0.1, 5.81977), (10.0, 0.1), (-10.0, 9.9)])
def test_means_of_exponentials(rate: float, mean: float) -> None:
    assert axis("exponential", rate).from_uniform((np.arange(10**6) + 0.5) / 10**6).mean() == pytest.approx(
        mean, abs=1e-5
    )


def test_a_normal_prior_is_cut_off() -> None:
    at = np.array([1.0, 5.0, 9.0])
    reference = truncnorm(-1.25, 1.25, loc=5, scale=4)
    np.testing.assert_allclose(axis("normal").log_density(at), reference.logpdf(at), rtol=1e-12)
    np.testing.assert_allclose(axis("normal").log_density(at), [-2.567864, -2.067864, -2.567864], atol=1e-6)
    u = np.linspace(0.01, 0.99, 9)
    np.testing.assert_allclose(axis("normal").from_uniform(u), reference.ppf(u), rtol=1e-9)


def test_a_grid_prior_is_a_lattice() -> None:
    known = axis("grid")
    assert len(known.points) == 51
    assert np.exp(known.log_density(known.points)).sum() == pytest.approx(1, abs=1e-12)
    assert known.log_density(np.array([0.1, 10.2, -0.2])).tolist() == [-np.inf] * 3
    assert known.log_density(np.float32(known.points)).min() > -np.inf
    assert np.isin(known.from_uniform(np.random.default_rng(0).random(1000)), known.points).all()
    assert known.from_uniform(np.array([0.0, np.nextafter(1, 0)])).tolist() == [0.0, known.points[-1]]


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_lies_outside(family: str) -> None:
    assert axis(family).log_density(np.array([-0.01, 10.01])).tolist() == [-np.inf, -np.inf]


@pytest.mark.parametrize(("family", "rate"), [*CONTINUOUS, ("grid", 0.1)])
def test_the_evidence_is_an_integral(family: str, rate: float) -> None:
    """In closed form, also of x far outside the interval."""
    known, x = axis(family, rate), np.array([-9.0, 0.3, 4.0, 9.9, 19.0])
    if family == "grid":
        theta, weights = known.nodes()
    else:
        nodes, weights = np.polynomial.legendre.leggauss(300)
        theta, weights = 5 * (nodes + 1), np.log(5 * weights) + known.log_density(5 * (nodes + 1))
    expected = logsumexp(weights + norm.logpdf(x[:, None], theta, 2), axis=1)
    np.testing.assert_allclose(known.log_evidence(x, np.array(2.0)), expected, rtol=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_evidence_of_means_and_deviations(family: str) -> None:
    """Two axes, one of which has an unknown deviation: against the mean likelihood of many samples."""
    known = prior(family, Problem(2, inferred_stds=(1,)))
    x = np.array([[4.0, 6.0], [1.0, 9.0]])
    theta = known.sample(400_000, np.random.default_rng(1))
    expected = [logsumexp(known.problem.log_likelihood(row, theta)) - np.log(len(theta)) for row in x]
    np.testing.assert_allclose(known.log_evidence(x), expected, atol=0.02)
    fixed = prior(family, Problem(2, fixed_means=(0, 1), inferred_stds=(0,)))
    theta = fixed.sample(400_000, np.random.default_rng(2))
    expected = [logsumexp(fixed.problem.log_likelihood(row, theta)) - np.log(len(theta)) for row in x]
    np.testing.assert_allclose(fixed.log_evidence(x), expected, atol=0.02)


def test_masses_far_in_the_tail() -> None:
    at = log_mass(0.0, 10.0, np.array([-80.0, 90.0, 5.0]), np.array([1.0, 1.0, 1.0]))
    assert at[0] == pytest.approx(at[1])
    assert at[0] == pytest.approx(norm.logsf(80))
    assert at[2] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"family": "flat"}, "the prior flat is unknown, there are uniform, normal, exponential, grid"),
        ({"low": 10.0}, "an interval that is not empty"),
        ({"rate": np.inf}, "finite terms"),
        ({"normal": (5.0, 0.0)}, "a deviation above 0"),
        ({"step": 20.0}, "a step that fits"),
    ],
)
def test_what_is_no_prior_is_refused(change: dict[str, object], message: str) -> None:
    terms = {"family": "uniform", "low": 0.0, "high": 10.0, "normal": (5.0, 4.0), "rate": 0.1, "step": 0.2}
    with pytest.raises(ValueError, match=message):
        Axis(**(terms | change))


def test_a_deviation_of_zero_is_refused() -> None:
    terms = list(prior_list("uniform"))
    terms[6] = (0.0, 4.0)
    with pytest.raises(ValueError, match="a lower end above 0, not 0"):
        prior_of(Problem(1, inferred_stds=(0,)), terms)


def test_supports() -> None:
    problem = Problem(2, inferred_stds=(0,))
    assert support_of(prior("normal", problem)).measure == "continuous"
    lattice = support_of(prior("grid", problem))
    assert lattice.measure == "discrete"
    assert len(lattice.enumerated(10**6)) == 51 * 51 * 20
    assert lattice.enumerated(10**4) is None
    mixed = support_of(prior_of(problem, prior_list("uniform", std_family="grid")))
    assert mixed.measure == "mixed"
    assert mixed.snapped(np.array([1.234, 9.9, 0.55])).tolist() == pytest.approx([1.234, 9.9, 0.6])
    assert lattice.snapped(np.array([-3.0, 10.5, 9.0])).tolist() == pytest.approx([0.0, 10.0, 4.0])
