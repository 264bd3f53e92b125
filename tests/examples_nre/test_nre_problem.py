"""The Gaussian problem, its training pairs, and the cases for inference."""

from __future__ import annotations

import numpy as np
import pytest
from gaussian import Problem
from nre_settings import FAMILIES, prior, prior_list, problem_list
from observations import observe, true_parameters, truths
from pairs import balanced_pairs, pairs
from scipy.stats import norm


def test_moments_of_the_simulator() -> None:
    problem = Problem(2, inferred_stds=(0, 1))
    x = problem.sample(np.tile([3.0, 6.0, 2.0, 1.5], (50_000, 1)), np.random.default_rng(0))
    np.testing.assert_allclose(x.mean(0), [3, 6], atol=0.04)
    np.testing.assert_allclose(x.std(0), [2, 1.5], atol=0.04)


def test_the_parameters_have_an_order() -> None:
    problem = Problem(3, fixed_means=(1,), inferred_stds=(2, 0))
    assert problem.names == ["mean:0", "mean:2", "std:0", "std:2"]
    means, stds = problem.moments(np.array([1.0, 3.0, 0.5, 0.7]))
    assert means.tolist() == [1.0, 5.0, 3.0]
    assert stds.tolist() == [0.5, 2.0, 0.7]


def test_the_likelihood_is_a_product_of_normals() -> None:
    problem, rng = Problem(2, inferred_stds=(1,)), np.random.default_rng(0)
    theta, x = prior("uniform", problem).sample(6, rng).reshape(2, 3, 3), rng.normal(5, 3, (2, 15, 2))
    means, stds = problem.moments(theta)
    expected = norm.logpdf(x[:, None], means[:, :, None], stds[:, :, None]).sum((-1, -2))
    each = problem.log_likelihood(x[:, None], theta[:, :, None])
    np.testing.assert_allclose(each.sum(-1), expected, rtol=1e-12)
    np.testing.assert_allclose(problem.log_likelihood_of_all(x, theta), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"dimension": 2, "fixed_means": (2,)}, r"fixed-means are different axes of 0 to 1, not \[2\]"),
        ({"dimension": 2, "inferred_stds": (0, 0)}, r"inferred-stds are different axes of 0 to 1, not \[0, 0\]"),
        ({"dimension": 1, "fixed_means": (0,)}, "the problem has no parameters"),
        ({"dimension": 1, "std": 0.0}, "the standard deviation is above 0, not 0"),
    ],
)
def test_what_is_no_problem_is_refused(terms: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Problem(**terms)


def test_pairs_are_joint_or_apart() -> None:
    rows = balanced_pairs(prior("uniform", Problem(1)), 40_000, np.random.default_rng(0))
    joint = rows["label"] == 1
    assert joint.sum() == 20_000
    correlation = [np.corrcoef(rows["x"][part, 0], rows["theta"][part, 0])[0, 1] for part in (~joint, joint)]
    assert abs(correlation[0]) < 0.04
    assert correlation[1] > 0.8


@pytest.mark.parametrize("family", FAMILIES)
def test_splits_are_drawn_apart(family: str) -> None:
    terms = {"problem": problem_list(2, inferred_stds=(0,)), "prior": prior_list(family), "rows": (64, 32, 16)}
    first, again, other = (pairs(**terms, seed=seed) for seed in (0, 0, 1))
    assert [len(first[name]["label"]) for name in ("train", "validation", "test")] == [64, 32, 16]
    assert {name: values.shape[1:] for name, values in first["test"].items()} == {"x": (2,), "theta": (3,), "label": ()}
    assert all(values.dtype == np.float32 for values in first["train"].values())
    np.testing.assert_array_equal(first["train"]["x"], again["train"]["x"])
    assert not np.isin(first["train"]["x"], other["train"]["x"]).any()
    assert not np.isin(first["train"]["x"], first["validation"]["x"]).any()


def test_an_odd_number_of_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="an even number is needed, not 127"):
        pairs(problem=problem_list(1), prior=prior_list("uniform"), rows=(128, 127, 64), seed=0)


def test_numbers_of_truths() -> None:
    """The reference's: twice as many for each further parameter, or a grid that may grow too large."""
    assert [truths("sobol", 1024, p, 10**6) for p in (1, 6)] == [("sobol", 1024), ("sobol", 32_768)]
    paper = [truths("size-adaptive", 25, p, 10**6) for p in range(1, 7)]
    assert paper == [
        ("grid", 25),
        ("grid", 625),
        ("grid", 15_625),
        ("grid", 390_625),
        ("sobol", 16_384),
        ("sobol", 32_768),
    ]
    with pytest.raises(ValueError, match="the design of truths is sobol, grid, size-adaptive, not line"):
        truths("line", 5, 1, 10)


def observed(**changes: object) -> dict[str, np.ndarray]:
    terms = {"problem": problem_list(3), "box": prior_list("uniform"), "design": "sobol", "count": 5, "margin": 0.1}
    terms |= {"snap": True, "most": 10**6, "repeats": 2, "observations": 15, "rng": np.random.default_rng(3)}
    return observe(**(terms | changes))


def test_cases_repeat_their_truths() -> None:
    found = observed()
    truth, x = found["truth"], found["observations"]
    assert truth.shape == (5 * 4 * 2, 3)
    assert x.shape == (40, 15, 3)
    assert x.dtype == np.float32
    np.testing.assert_array_equal(truth[::2], truth[1::2])
    assert not np.isin(x[::2], x[1::2]).any()


def test_truths_keep_the_margin_on_the_lattice() -> None:
    truth = observed(count=64)["truth"]
    assert truth.min() == pytest.approx(0.2)
    assert truth.max() == pytest.approx(9.8)
    np.testing.assert_allclose(truth / 0.2, np.rint(truth / 0.2), atol=1e-9)
    np.testing.assert_allclose(
        np.unique(observed(design="grid", count=7, snap=False)["truth"]), np.linspace(0.1, 9.9, 7)
    )
    assert observed(design="grid", count=60, problem=problem_list(1), repeats=1)["coincident"] == 60 - 49


def test_a_margin_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="a margin of 6 leaves nothing of the intervals"):
        true_parameters(prior("uniform", Problem(1)), "grid", 7, 6, False, 100, np.random.default_rng(0))
