"""The study's file: its settings, networks and jobs; training; the whole of a small one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from classification import measure_classification, predict_test
from nre_settings import FAMILIES, prior_list, problem_list
from pairs import pairs

import paren
from paren.experiment.jobs import make_jobs
from paren.ir.evaluate import evaluate
from paren.text.errors import ParenError

FILE = Path(__file__).parents[2] / "examples" / "nre" / "nre.paren"
METRICS = ["classification", "ratio", "posterior", "exact-reference", "resolution", "pairwise", "reweighting"]
METRICS += ["normalization", "calibration"]


@pytest.mark.parametrize(
    ("variant", "settings", "count"),
    [
        (None, {}, 12_737),
        (None, {"dimension": 6}, 12_737 + 128 * 5),
        ("smoke", {}, 1_185),
        (None, {"network": "residual"}, 25_217),
        (None, {"network": "residual", "dimension": 2, "inferred-stds": [0]}, 25_217 + 3 * 64),
        (None, {"dimension": 3, "fixed-means": [0, 2], "inferred-stds": [1], "activation": "gelu"}, 12_737 + 64 * 3),
    ],
)
def test_the_networks_have_the_sizes_of_the_reference(
    variant: str | None, settings: dict[str, object], count: int
) -> None:
    program = paren.load(FILE, variant=variant, set=settings).program
    assert sum(slot.type.size for slot in program.parameters) == count


@pytest.mark.parametrize(
    "settings",
    [{"dimension": 2}, {"dimension": 2, "inferred-stds": [1]}, {"fixed-means": [0], "inferred-stds": [0]}],
)
def test_inputs_are_standardised(settings: dict[str, object], tmp_path: Path) -> None:
    """Of a uniform prior: x and parameters come to the network with mean 0 and deviation 1."""
    seen = "(defmodel seen ((x float32 [dimension]) (theta float32 [parameters]))\n"
    seen += "  (concat (standard-x x) (standard-theta theta)))\n\n"
    copy = tmp_path / "seen.paren"
    text = FILE.read_text().replace("(defmodel ratio", seen + "(defmodel ratio", 1)
    copy.write_text(text.replace("((accuracy", "((seen (sum (seen x theta))) (accuracy", 1))
    values = {"fixed-means": [], "inferred-stds": [], "dimension": 1, **settings}
    problem = problem_list(values["dimension"], tuple(values["fixed-means"]), tuple(values["inferred-stds"]))
    rows = pairs(problem=problem, prior=prior_list("uniform"), rows=(4000, 2, 2), seed=0)["train"]
    program = paren.load(copy, set=settings).program
    graph = next(model for model in program.models if model.name == "seen").forward(4000)
    found = evaluate(graph, {name: rows[name] for name in ("x", "theta")})["result"]
    parameters = rows["theta"].shape[1]
    np.testing.assert_allclose(found[:, -parameters:].mean(0), 0, atol=0.08)
    np.testing.assert_allclose(found[:, -parameters:].std(0), 1, atol=0.05)
    if not values["fixed-means"]:
        np.testing.assert_allclose(found.mean(0), 0, atol=0.08)
        np.testing.assert_allclose(found.std(0), 1, atol=0.2)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"network": "wide"}, "the network is mlp or residual, not wide"),
        ({"activation": "sine"}, "the activation is relu, tanh or gelu, not sine"),
        ({"method": "sgd"}, "the method is adam or adamw, not sgd"),
        ({"rate": -0.1}, "the rate is above 0, not -0.1"),
        ({"prior": "flat"}, "the prior is uniform, normal, exponential or grid, not flat"),
        ({"rows": [127, 64, 64]}, "half of all pairs are joint, so rows are even, not [127 64 64]"),
        ({"inferred-stds": [1]}, "inferred-stds names axes of 0 to 0, not [1]"),
        ({"dimension": 2, "fixed-means": [2]}, "fixed-means names axes of 0 to 1, not [2]"),
        ({"levels": [68, 95]}, "levels are above 0 and at most 1, not [68 95]"),
        ({"candidates": 0}, "at least 2 candidates are needed, not 0"),
        ({"truth-design": "line"}, "truth-design is sobol, grid or size-adaptive, not line"),
        ({"truth-margin": 6.0}, "a truth-margin of 6.0 leaves nothing of the interval"),
        ({"epochs": 0}, ":epochs is an integer of at least 1, not the integer 0"),
        ({"dropout-rate": 1.0}, "the rate of dropout is at least 0 and below 1, not 1.0"),
    ],
)
def test_settings_that_cannot_be_are_refused(setting: dict[str, object], message: str) -> None:
    with pytest.raises(ParenError) as caught:
        paren.load(FILE, set=setting)
    assert caught.value.message == message


@pytest.mark.parametrize("variant", ["default", "paper", None])
def test_the_whole_study_has_seventy_two_jobs(variant: str | None) -> None:
    """Six dimensions, four priors, three replicas."""
    program = paren.load(FILE, variant=variant).program
    study = program.study
    assert [len(factor.values) for factor in (*study.sweep, *study.cohort)] == [5, 4, 3]
    assert len(make_jobs(program, ())) == 72
    assert [(limit.name, limit.most) for limit in study.limits] == [("evaluations", 2e12), ("bytes", 8e9)]


def test_too_large_a_study_is_refused(tmp_path: Path) -> None:
    """Before anything is written."""
    with pytest.raises(ParenError) as caught:
        paren.load(FILE, set={"truth-count": 10**9, "replica": 0, "prior": "normal"}).run(out=tmp_path / "out")
    assert caught.value.code == "E-STUDY-009"
    assert "evaluations" in caught.value.message
    assert not (tmp_path / "out").exists()


def test_a_small_study_is_run_whole(tmp_path: Path) -> None:
    """One job of each of two dimensions: all metrics are there and finite, and all figures."""
    out = tmp_path / "out"
    paren.load(FILE, variant="smoke", set={"prior": "grid", "calibration-cases": 32}).run(out=out, threads=1)
    jobs = sorted(out.glob("runs/*/*/metrics.json"))
    assert len(jobs) == 2
    for path in jobs:
        metrics = json.loads(path.read_text())
        assert list(metrics) == METRICS
        assert metrics["calibration"]["exact"]["level_p"] > 1e-4
        assert {folder.name for folder in (path.parent / "plots").iterdir()} == {
            "cases",
            "pairs",
            "weights",
            "showcases",
            "calibrated",
        }
    cohorts = {path.parent.name for path in out.glob("runs/*/plots/*/plot.json")}
    assert cohorts == {"priors", "training", "posterior-errors", "ratio-errors", "verifications", "calibrations"}
    assert (out / "plots" / "dimensions" / "regions.pdf").is_file()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.long
def test_the_default_network_is_near_the_best_classifier(family: str, tmp_path: Path) -> None:
    """In one dimension the loss is less than 0.002 above that of the best classifier on the same rows."""
    loaded = paren.load(FILE, set={"dimension": 1, "replica": 0, "prior": family})
    loaded.run(out=tmp_path / "run", single=True)
    terms = {"problem": problem_list(1), "prior": prior_list(family)}
    data = pairs(**terms, rows=(2, 2, 100_000), seed=9)
    model = paren.restore(tmp_path / "run")
    found = measure_classification(test_predictions=predict_test(model=model, data=data, **terms))
    assert found["excess"] < 0.002
