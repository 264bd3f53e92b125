"""Inference with a network that knows the answer, and with one that is too sure."""

from __future__ import annotations

import numpy as np
import pytest
from calibration import calibrate, draw_calibration
from gaussian import Array, Problem, problem_of
from inference import infer, infer_cost, infer_exactly, masses
from metrics import (
    measure_calibration,
    measure_exact,
    measure_resolution,
    measure_target,
    tarp_area,
)
from network import ensemble_score, logits
from nre_settings import LEVELS, TARGETS, Oracle, prior, prior_list, problem_list
from observations import observe


def cases(problem: tuple, count: int = 16, **changes: object) -> dict[str, Array]:
    terms = {"problem": problem, "box": prior_list("uniform"), "design": "sobol", "count": count, "margin": 0.0}
    terms |= {"snap": True, "most": 10**6, "repeats": 1, "observations": 15, "rng": np.random.default_rng(0)}
    return observe(**(terms | changes))


def inferred(problem: tuple, family: str, given: dict[str, Array], **changes: object) -> dict[str, Array]:
    terms = {"model": Oracle(problem_of(problem)), "observations": given, "exact": {}, "problem": problem}
    terms |= {"prior": prior_list(family), "support": prior_list(family), "candidates": 256, "levels": LEVELS}
    terms |= {"targets": TARGETS, "retain": 3, "rng": np.random.default_rng(1)}
    return infer(**(terms | changes))


def exactly(problem: tuple, family: str, given: dict[str, Array], **changes: object) -> dict[str, Array]:
    terms = {"observations": given, "problem": problem, "support": prior_list(family), "candidates": 256}
    terms |= {"levels": LEVELS, "targets": TARGETS, "rng": np.random.default_rng(1)}
    return infer_exactly(**(terms | changes))


@pytest.mark.parametrize(("dimension", "family"), [(1, "uniform"), (1, "grid"), (3, "exponential"), (2, "grid")])
def test_an_oracle_infers_exactly(dimension: int, family: str) -> None:
    problem = problem_list(dimension)
    given = cases(problem)
    exact = exactly(problem, family, given)
    found = inferred(problem, family, given, exact=exact)
    shown = [np.asarray(found[f"retained_{name}"]) for name in ("ratio", "exact", "measure")]
    np.testing.assert_allclose(masses(shown[0], shown[2]), masses(shown[1], shown[2]), atol=1e-13)
    np.testing.assert_allclose(found["c2st"], 0.5, atol=1e-9)
    for name in ("mode", "lower", "upper", "enclosed_mass", "truth_level", "ess"):
        np.testing.assert_allclose(found[f"ratio_{name}"], exact[name], rtol=1e-7, atol=1e-7)
    np.testing.assert_array_equal(found["ratio_joint_contains_truth"], exact["joint_contains_truth"])
    theta = found["retained_theta"]
    assert theta.shape == (3, 51 if family == "grid" and dimension == 1 else 256, dimension)
    assert found["retained_cases"].tolist() == [0, (16 * 2 ** (dimension - 1) - 1) // 2, 16 * 2 ** (dimension - 1) - 1]


@pytest.mark.parametrize("family", ["normal", "exponential"])
def test_a_posterior_has_its_prior_once(family: str) -> None:
    """And not once an observation: its normalizer is the integral of the likelihood under the prior."""
    problem = problem_list(1)
    given = cases(problem)
    found = inferred(problem, family, given, candidates=1024)
    known = prior(family, Problem(1))
    line = np.linspace(0, 10, 20_001)[None, :, None]
    x = np.asarray(given["observations"], np.float64)
    density = known.problem.log_likelihood_of_all(x, np.repeat(line, len(x), 0)) + known.log_density(line)
    total = np.log(np.sum(np.exp(density - density.max(1, keepdims=True)), 1) * (10 / 20_000)) + density.max(1)
    np.testing.assert_allclose(found["posterior_log_normalizer"], total, atol=2e-3)
    np.testing.assert_allclose(found["posterior_mode"][:, 0], line[0, np.argmax(density, 1), 0], atol=1e-3)


def test_means_and_deviations() -> None:
    problem = problem_list(2, inferred_stds=(0,))
    given = cases(problem, count=2)
    found = inferred(problem, "uniform", given, targets=("ratio",), retain=0)
    assert given["truth"].shape == (8, 3)
    assert found["ratio_lower"].shape == (8, 2, 3)
    assert found["retained_ratio"].shape == (0, 256)
    assert "posterior_mode" not in found


def test_every_case_is_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many cases and rows stand in memory at a time."""
    problem = problem_list(2)
    given = cases(problem)
    whole = inferred(problem, "normal", given)
    monkeypatch.setattr("inference.CHUNK", 256 * 5)
    monkeypatch.setattr("network.MOST_ROWS", 1000)
    parts = inferred(problem, "normal", given)
    for name, values in whole.items():
        np.testing.assert_allclose(parts[name], values, rtol=1e-9, atol=1e-9, err_msg=name)


def test_targets_that_are_not_wanted() -> None:
    problem, terms = problem_list(1), {"problem": problem_list(1), "support": prior_list("uniform"), "levels": LEVELS}
    given = cases(problem)
    found = inferred(problem, "uniform", given, targets=("ratio",))
    assert exactly(problem, "uniform", given, targets=("ratio",)) == {}
    assert measure_target(inference=found, observations=given, **terms, target="posterior") == {"enabled": False}
    assert measure_exact(inference=found, exact={}, observations=given, **terms) == {"enabled": False}
    assert measure_target(inference=found, observations=given, **terms, target="ratio")["enabled"] is True


def test_a_grid_prior_needs_its_lattice() -> None:
    problem = problem_list(1)
    with pytest.raises(ValueError, match="a posterior under a grid prior needs its lattice: set lattice"):
        inferred(problem, "grid", cases(problem), support=prior_list("uniform"))
    found = inferred(problem, "grid", cases(problem), support=prior_list("uniform"), targets=("ratio",))
    assert found["ratio_mode"].shape == (16, 1)


def test_a_network_that_gives_no_number_is_refused() -> None:
    with pytest.raises(FloatingPointError, match="the network gives a number that is not finite"):
        logits(lambda x, theta: np.full(len(x), np.nan), np.zeros((2, 1)), np.zeros((2, 1)))


@pytest.mark.parametrize("batch", [1, 4, 128])
def test_a_score_is_a_sum_over_observations(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the logit x + 2 theta with x = 1, 2, 3: 6 + 6 theta."""
    monkeypatch.setattr("network.MOST_ROWS", batch)
    score = ensemble_score(lambda x, theta: x[:, 0] + 2 * theta[:, 0], np.array([[[1.0], [2.0], [3.0]]]))
    theta = np.array([[[0.0], [0.5], [2.0]]])
    assert score(np.arange(1), theta).tolist() == [[6.0, 9.0, 18.0]]


def test_metrics_of_the_exact_target() -> None:
    """Widths of regions that the box does not cut: 1.0271 and 2.0242."""
    problem = problem_list(1)
    given = cases(problem, count=512)
    exact = exactly(problem, "uniform", given, candidates=512)
    found = measure_exact(
        inference={}, exact=exact, observations=given, problem=problem, support=prior_list("uniform"), levels=LEVELS
    )
    np.testing.assert_allclose(found["width"]["inside"], [1.027072, 2.024242], rtol=0.01)
    assert found["bias"]["rmse"] == pytest.approx(0.5164, abs=0.05)
    assert found["coverage"]["projected_mean"] == pytest.approx([0.68, 0.95], abs=0.06)
    shown = {"candidates": 512, "problem": problem, "support": prior_list("grid")}
    whole = measure_resolution(inference=inferred(problem, "grid", given), **shown)
    assert (whole["candidates"], whole["measure"]) == (51, "discrete")
    assert whole["ratio"]["ess_fraction"] is None


def test_what_inference_costs() -> None:
    settings = {"truth-design": "sobol", "truth-count": 1024, "most-truths": 10**6, "repeats": 1, "observations": 15}
    costs = [
        infer_cost(problem=problem_list(d), targets=TARGETS, candidates=512, levels=LEVELS, retain=3, settings=settings)
        for d in (1, 6)
    ]
    assert costs[0]["evaluations"] == 1024 * 15 * (512 + 3 * 16 + 2 * (2 + 16))
    assert costs[1]["evaluations"] == 32_768 * 15 * (512 + 3 * 112 + 2 * (2 + 96))


def test_bytes_are_those_of_the_arrays() -> None:
    problem, given = problem_list(3), cases(problem_list(3))
    found = inferred(problem, "uniform", given, exact=exactly(problem, "uniform", given))
    settings = {"truth-design": "sobol", "truth-count": 16, "most-truths": 10**6, "repeats": 1, "observations": 15}
    cost = infer_cost(problem=problem, targets=TARGETS, candidates=256, levels=LEVELS, retain=3, settings=settings)
    booleans = sum(values.size for values in found.values() if values.dtype == bool)
    written = sum(values.nbytes for values in found.values()) - booleans - found["retained_cases"].nbytes
    assert cost["bytes"] == written


# Calibration --------------------------------------------------------------------------------------------------------


def calibrated(family: str, sharpness: float, dimension: int = 1) -> dict[str, Array]:
    problem = problem_list(dimension)
    terms = {"problem": problem, "prior": prior_list(family)}
    given = draw_calibration(**terms, cases=512, observations=15, rng=np.random.default_rng(5))
    model = Oracle(problem_of(problem), sharpness)
    return calibrate(model=model, calibration_observations=given, **terms, candidates=256, rng=np.random.default_rng(6))


@pytest.mark.parametrize(("family", "dimension"), [("uniform", 1), ("grid", 1), ("normal", 2), ("exponential", 3)])
def test_an_oracle_is_calibrated(family: str, dimension: int) -> None:
    found = calibrated(family, 1.0, dimension)
    measured = measure_calibration(calibration_levels=found)
    assert measured["c2st"] == pytest.approx(0.5, abs=1e-9)
    assert measured["coverage_error"] < 0.08
    assert min(measured["level_p"], measured["ball_p"], *measured["rank_p"]) > 0.001
    assert abs(measured["tarp"]) < 0.03
    np.testing.assert_allclose(found["level"], found["exact_level"], atol=1e-9)


def test_a_network_that_is_too_sure_is_found() -> None:
    """With four times the log likelihood the posterior has half the deviation."""
    sure = measure_calibration(calibration_levels=calibrated("uniform", 4.0))
    assert sure["tarp"] < -0.03
    assert sure["level_p"] < 1e-6
    assert sure["coverage"][12] < 0.5
    assert sure["c2st"] > 0.6
    unsure = measure_calibration(calibration_levels=calibrated("uniform", 0.25))
    assert unsure["tarp"] > 0.02
    assert unsure["coverage"][12] > 0.8


def test_the_area_of_uniform_levels_is_zero() -> None:
    assert tarp_area((np.arange(10_000) + 0.5) / 10_000) == pytest.approx(0, abs=1e-6)
    assert tarp_area(np.zeros(10)) == pytest.approx(1 / 8)
