"""The study's figures on a small cohort: which there are, and that they can be drawn."""

from __future__ import annotations

import io
from dataclasses import dataclass, field

import numpy as np
import pytest
from calibration import calibrate, draw_calibration
from classification import predict_test
from cohort_figures import draw_calibrations, draw_errors, draw_priors, draw_training, draw_verifications
from drawing import bins_of_truths, mean_in_bins, spread
from gaussian import Array, problem_of
from inference import infer
from job_figures import draw_calibration as draw_calibration_of_job
from job_figures import draw_inference, draw_pairwise, draw_reweighting, draw_showcase
from matplotlib.figure import Figure
from nre_settings import LEVELS, Oracle, prior_list, problem_list
from observations import observe
from pairs import pairs
from sweep_figures import draw_sweep, number_at
from verification import (
    draw_pairs,
    draw_predictive,
    predict_normalization,
    predict_pairs,
    predict_showcase,
    reweight,
)
from verification import (
    draw_showcase as draw_showcase_samples,
)


@dataclass
class Job:
    settings: dict[str, object]
    changed: dict[str, object] = field(default_factory=dict)
    member: dict[str, object] = field(default_factory=dict)
    metrics: dict[str, object] = field(default_factory=dict)
    history: dict[str, Array] = field(default_factory=dict)


def products_of(family: str, dimension: int) -> dict[str, dict[str, Array]]:
    problem, model = problem_list(dimension), Oracle(problem_of(problem_list(dimension)), 0.9)
    terms, box = {"problem": problem, "prior": prior_list(family)}, {"problem": problem, "box": prior_list("uniform")}
    rng = np.random.default_rng(0)
    given = observe(**box, design="grid", count=4, margin=0.1, snap=True, most=100, repeats=1, observations=15, rng=rng)
    shown = {"candidates": 64, "levels": LEVELS, "targets": ("ratio", "posterior"), "retain": 2, "rng": rng}
    ends = draw_pairs(**box, pairs=6, design="grid", probes=8, sources=50, targets=50, directions=2, rng=rng)
    ratios = predict_pairs(model=model, verification_observations=ends, problem=problem)
    predictive = draw_predictive(**terms, count=40, points=3, snap=True, rng=rng)
    samples = draw_showcase_samples(**box, source=0.3, target=0.7, samples=200, rng=rng)
    truths = draw_calibration(**terms, cases=20, observations=5, rng=rng)
    data = pairs(**terms, rows=(2, 2, 200), seed=0)
    return {
        "observations": given,
        "inference": infer(model=model, observations=given, exact={}, **terms, support=prior_list(family), **shown),
        "test_predictions": predict_test(model=model, data=data, **terms),
        "verification_observations": ends,
        "verification_predictions": ratios,
        "reweighting_distances": reweight(verification_observations=ends, verification_predictions=ratios),
        "normalization_predictions": predict_normalization(model=model, normalization_observations=predictive, **terms),
        "showcase_observations": samples,
        "showcase_predictions": predict_showcase(model=model, showcase_observations=samples),
        "calibration_levels": calibrate(model=model, calibration_observations=truths, **terms, candidates=64, rng=rng),
    }


def drawn(result: Figure | dict[str, Figure]) -> list[str]:
    """The names of figures, each of which is drawn."""
    figures = result if isinstance(result, dict) else {"": result}
    for figure in figures.values():
        figure.savefig(io.BytesIO(), format="png", dpi=30)
    return list(figures)


@pytest.mark.parametrize(("family", "dimension"), [("uniform", 1), ("grid", 2)])
def test_figures_of_a_job(family: str, dimension: int) -> None:
    found, problem = products_of(family, dimension), problem_list(dimension)

    def of(*names: str) -> dict[str, dict[str, Array]]:
        return {name: found[name] for name in names}

    last = 4**dimension - 1
    names = [f"{kind}-{case}" for case in (0, last) for kind in ("marginals", "projection")[:dimension]]
    assert drawn(draw_inference(**of("inference", "observations"), problem=problem, bins=30)) == names
    checks = ("verification_observations", "verification_predictions")
    assert drawn(draw_pairwise(**of(*checks))) == [""]
    assert drawn(draw_reweighting(**of(*checks, "reweighting_distances"), bins=30)) == [""]
    assert drawn(draw_showcase(**of("showcase_observations", "showcase_predictions"), bins=30)) == [""]
    assert drawn(draw_calibration_of_job(**of("calibration_levels"), problem=problem)) == [""]


@pytest.mark.parametrize("dimension", [1, 2])
def test_figures_of_a_cohort(dimension: int) -> None:
    """Two priors, of which one has two replicas."""
    families, problem = ("uniform", "grid", "grid"), problem_list(dimension)
    found = [products_of(family, dimension) for family in families]
    history = {"step": np.arange(1.0, 7), "loss": np.linspace(0.7, 0.5, 6)}
    history["evaluation/loss"] = np.array([np.nan, np.nan, 0.6, np.nan, np.nan, 0.5])
    jobs = [Job({"prior": family}, history=history) for family in families]

    def of(*names: str) -> dict[str, list[dict[str, Array]]]:
        return {name: [products[name] for products in found] for name in names}

    shown = {"problem": problem, "prior": prior_list("uniform")}
    assert drawn(draw_priors(jobs=jobs, **shown, samples=100, bins=10)) == [""]
    assert drawn(draw_training(jobs=jobs, **of("test_predictions"))) == ["losses", "roc", "excess"]
    terms = {"jobs": jobs, "problem": problem, "truth_bins": 3, **of("inference", "observations")}
    assert drawn(draw_errors(**terms, target="ratio")) == ["modes", "bias-and-width"]
    assert drawn(draw_errors(**terms, target="likelihood")) == ["modes"]
    checks = of("verification_observations", "verification_predictions", "reweighting_distances")
    checks |= of("normalization_predictions")
    assert drawn(draw_verifications(jobs=jobs, **checks, bins=20)) == ["ratios", "reweighting", "normalization"]
    assert drawn(draw_calibrations(jobs=jobs, **of("calibration_levels"))) == [""]


def test_figures_of_a_sweep() -> None:
    """Lines of means over replicas, also where a metric is missing."""
    jobs = [
        Job({"prior": "uniform", "dimension": d}, {"dimension": d} if d > 1 else {}, metrics=metrics)
        for d in (1, 2)
        for metrics in ({"classification": {"excess": 0.1 * d}}, {"classification": {"excess": 0.2 * d}}, {})
    ]
    figures = draw_sweep(jobs=[*jobs, Job({"prior": "uniform", "dimension": 1}, {"rate": 0.1})], along="dimension")
    assert drawn(figures) == ["accuracy", "regions"]
    (line,) = [line for line in figures["accuracy"].axes[0].lines if len(line.get_xdata()) == 2][:1]
    np.testing.assert_allclose(line.get_ydata(), [0.15, 0.3])


def test_numbers_at_paths() -> None:
    metrics = {"ratio": {"width": {"mean": [1.0, 2.0]}, "enabled": "no"}}
    assert number_at(metrics, "ratio.width.mean.-1") == 2.0
    assert number_at(metrics, "ratio.width.mean.5") is None
    assert number_at(metrics, "ratio.bias.rmse") is None
    assert number_at(metrics, "ratio.enabled") is None


def test_bins_of_truths() -> None:
    centres, bins = bins_of_truths(np.array([3.0, 1.0, 3.0]), 5)
    assert (centres.tolist(), bins.tolist()) == ([1.0, 3.0], [1, 0, 1])
    assert mean_in_bins(np.array([1.0, 5.0, 3.0]), bins, 2).tolist() == [5.0, 2.0]
    centres, bins = bins_of_truths(np.linspace(0, 10, 101), 2)
    assert (centres.tolist(), bins[0], bins[-1]) == ([2.5, 7.5], 0, 1)
    assert spread([1.0, 3.0]) == (2.0, pytest.approx(np.sqrt(2)))
    assert spread([1.0]) == (1.0, 0.0)
