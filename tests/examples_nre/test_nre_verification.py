"""Ratios between parameters, reweighting, normalisation, and the classifier's scores."""

from __future__ import annotations

import numpy as np
import pytest
from classification import area_under_curve, cross_entropy, measure_classification, predict_test, receiver_curve
from gaussian import Array, Problem, problem_of
from metrics import measure_normalization, measure_pairwise, measure_reweighting
from nre_settings import Oracle, prior, prior_list, problem_list
from pairs import pairs
from scipy.stats import wasserstein_distance
from verification import (
    draw_pairs,
    draw_predictive,
    draw_showcase,
    predict_cost,
    predict_normalization,
    predict_pairs,
    predict_showcase,
    reweight,
    weighted_distance,
)


def drawn(dimension: int = 1, **changes: object) -> dict[str, Array]:
    terms = {"problem": problem_list(dimension), "box": prior_list("uniform"), "pairs": 12, "design": "grid"}
    terms |= {"probes": 20, "sources": 300, "targets": 400, "directions": 8, "rng": np.random.default_rng(0)}
    return draw_pairs(**(terms | changes))


@pytest.mark.parametrize("dimension", [1, 3])
def test_an_oracle_has_the_exact_ratios(dimension: int) -> None:
    given = drawn(dimension)
    assert given["pairs"].shape == (12, 2, dimension)
    assert given["probe_x"].shape == (12, 40, dimension)
    assert given["directions"].shape == ((8 if dimension > 1 else 1), dimension)
    np.testing.assert_allclose(np.linalg.norm(given["directions"], axis=1), 1)
    problem = problem_list(dimension)
    found = predict_pairs(model=Oracle(problem_of(problem)), verification_observations=given, problem=problem)
    np.testing.assert_allclose(found["probe_learned"], found["probe_exact"], atol=1e-5)
    measured = measure_pairwise(verification_observations=given, verification_predictions=found)
    assert measured["largest"] < 1e-5
    distances = reweight(verification_observations=given, verification_predictions=found)
    np.testing.assert_allclose(distances["learned_w1"], distances["exact_w1"], rtol=1e-4)
    np.testing.assert_allclose(distances["ess"], distances["exact_ess"], rtol=1e-4)
    scores = measure_reweighting(verification_observations=given, reweighting_distances=distances)
    assert scores["median_w1"] < 0.5 * scores["unweighted_median_w1"]


@pytest.mark.parametrize("design", ["grid", "uniform", "sobol"])
def test_pairs_differ(design: str) -> None:
    ends = drawn(design=design, pairs=400)["pairs"]
    assert (ends[:, 0] != ends[:, 1]).all()
    assert ends.min() >= 0
    assert ends.max() <= 10
    assert (np.abs(ends / 0.2 - np.rint(ends / 0.2)).max() < 1e-9) == (design == "grid")


def test_an_unknown_design_is_refused() -> None:
    with pytest.raises(ValueError, match="the design of pairs is grid, uniform, sobol, not line"):
        drawn(design="line")


def test_weighted_distances() -> None:
    first = weighted_distance(np.array([0.0, 1.0, 3.0]), np.array([[0.1, 0.2, 0.7]]), np.array([2.0, 5.0]))
    assert first == pytest.approx(1.6)
    points = np.random.default_rng(0).normal(size=50)
    assert weighted_distance(points, np.full((1, 50), 1 / 50), points) == pytest.approx(0)
    weights, target = np.random.default_rng(1).dirichlet(np.ones(50), 3), np.random.default_rng(2).normal(1, 2, 70)
    expected = [wasserstein_distance(points, target, row) for row in weights]
    np.testing.assert_allclose(weighted_distance(points, weights, target), expected, rtol=1e-12)


def test_correlations_that_are_not_defined() -> None:
    given = drawn(pairs=1)
    found = predict_pairs(model=Oracle(Problem(1)), verification_observations=given, problem=problem_list(1))
    assert measure_pairwise(verification_observations=given, verification_predictions=found)["spearman"] is None


@pytest.mark.parametrize("family", ["normal", "grid"])
def test_a_right_ratio_is_normalized(family: str) -> None:
    problem, known = problem_list(1), prior(family, Problem(1))

    def optimal(x: Array, theta: Array, /) -> Array:
        return known.optimal_logit(np.asarray(x, np.float64), np.asarray(theta, np.float64))

    terms = {"problem": problem, "prior": prior_list(family)}
    given = draw_predictive(**terms, count=20_000, points=5, snap=True, rng=np.random.default_rng(0))
    np.testing.assert_allclose(given["theta"][:, 0], [1, 3, 5, 7, 9])
    found = predict_normalization(model=optimal, normalization_observations=given, **terms)
    measured = measure_normalization(normalization_predictions=found)
    assert measured["mean_absolute"] < 0.03
    assert measured["mean_absolute"] == pytest.approx(measured["exact_mean_absolute"], abs=1e-5)


def test_the_showcase() -> None:
    terms = {"problem": problem_list(2), "box": prior_list("uniform"), "source": 0.3, "target": 0.7, "samples": 500}
    given = draw_showcase(**terms, rng=np.random.default_rng(0))
    assert given["ends"].tolist() == [[[3.0, 3.0], [7.0, 7.0]]]
    assert given["source_x"].mean() == pytest.approx(3, abs=0.2)
    found = predict_showcase(model=Oracle(Problem(2)), showcase_observations=given)["learned"]
    x = given["source_x"][0]
    assert (found.shape, found.dtype) == ((1, 500), np.float32)
    np.testing.assert_allclose(found[0], (x - 5).sum(1), atol=1e-4)


def test_what_verification_costs() -> None:
    assert predict_cost(settings={"pairs-count": 256, "probes": 512, "sources": 2048}) == {"evaluations": 1_572_864.0}


# Classification -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "bce", "auc"),
    [
        ("uniform", 0.5407, 0.7749),
        ("normal", 0.5597, 0.7590),
        ("exponential", 0.5459, 0.7706),
        ("grid", 0.5363, 0.7784),
    ],
)
def test_the_best_classifier_in_one_dimension(family: str, bce: float, auc: float) -> None:
    terms = {"problem": problem_list(1), "prior": prior_list(family)}
    data = pairs(**terms, rows=(2, 2, 400_000), seed=0)
    known = prior(family, Problem(1))

    def optimal(x: Array, theta: Array, /) -> Array:
        return known.optimal_logit(np.asarray(x, np.float64), np.asarray(theta, np.float64))

    measured = measure_classification(test_predictions=predict_test(model=optimal, data=data, **terms))
    assert measured["optimal_bce"] == pytest.approx(bce, abs=0.002)
    assert measured["auc"] == pytest.approx(auc, abs=0.002)
    assert measured["excess"] == pytest.approx(0, abs=1e-7)


def test_a_worse_classifier_has_an_excess() -> None:
    terms = {"problem": problem_list(1), "prior": prior_list("uniform")}
    data = pairs(**terms, rows=(2, 2, 20_000), seed=0)
    found = predict_test(model=lambda x, theta: np.zeros(len(x)), data=data, **terms)
    measured = measure_classification(test_predictions=found)
    assert measured["bce"] == pytest.approx(np.log(2))
    assert measured["excess"] > 0.1
    assert measured["excess_error"] < 0.01


def test_scores_at_the_extremes() -> None:
    labels, values = np.array([1.0, 0.0]), np.array([10_000.0, -10_000.0])
    assert cross_entropy(values, labels).tolist() == [0.0, 0.0]
    assert area_under_curve(values, labels) == 1.0
    assert area_under_curve(np.zeros(6), np.array([0.0, 1.0, 0.0, 1.0, 1.0, 0.0])) == 0.5
    assert area_under_curve(np.zeros(3), np.ones(3)) is None
    false, true = receiver_curve(np.array([3.0, 1.0, 2.0]), np.array([1.0, 0.0, 1.0]))
    assert false.tolist() == [0.0, 0.0, 0.0, 1.0]
    assert true.tolist() == [0.0, 0.5, 1.0, 1.0]
