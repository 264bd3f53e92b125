"""Regions of highest density from weighted candidates."""

from __future__ import annotations

import numpy as np
import pytest
from regions import best_classifier, extents, find_regions, level_of
from scipy.stats import norm


def test_widths_in_one_dimension() -> None:
    theta = np.linspace(0, 10, 20_001)[None, :, None]
    density = norm.logpdf(theta[..., 0], 5, 2 / np.sqrt(15))
    found = find_regions(density, np.full((1, 20_001), np.log(10 / 20_000)), (0.68, 0.95))
    lower, upper = extents(theta, density, found.threshold)
    assert theta[0, np.argmax(density[0]), 0] == 5
    np.testing.assert_allclose((upper - lower)[0, :, 0], [1.027072, 2.024242], atol=0.002)
    assert (found.enclosed[0] >= [0.68, 0.95]).all()
    assert found.log_normalizer[0] == pytest.approx(0, abs=1e-9)


def test_the_joint_region_in_two_dimensions() -> None:
    """It is wider along each axis than the region of that axis alone, whose half-width is 0.99446."""
    line = np.linspace(-5, 5, 251)
    theta = np.stack(np.meshgrid(line, line, indexing="ij"), -1).reshape(1, -1, 2)
    density = norm.logpdf(theta).sum(-1)
    lower, upper = extents(theta, density, find_regions(density, np.zeros((1, 1)), (0.68,)).threshold)
    np.testing.assert_allclose(upper[0, 0], 1.50959, atol=0.06)
    np.testing.assert_allclose(lower[0, 0], -1.50959, atol=0.06)


def test_candidates_rank_by_density_and_not_by_mass() -> None:
    density, measure = np.log([[2.0, 1.0]]), np.log([[0.001, 100.0]])
    found = find_regions(density, measure, (0.5,))
    assert found.threshold[0, 0] == density[0, 1]
    assert found.enclosed[0, 0] == pytest.approx(1)


def test_a_flat_density_is_enclosed_whole() -> None:
    found = find_regions(np.zeros((1, 4)), np.zeros((1, 4)), (0.1, 1.0))
    assert found.enclosed.tolist() == [[1.0, 1.0]]
    assert found.ess.tolist() == [4.0]


def test_extreme_scores_stay_finite() -> None:
    found = find_regions(np.array([[10_000.0, -10_000.0, 9_999.0]]), np.zeros((1, 3)), (0.68,))
    assert np.isfinite(found.mass).all()
    assert found.mass.sum() == pytest.approx(1, abs=1e-15)
    assert np.isfinite(find_regions(np.array([[0.0, -np.inf]]), np.zeros((1, 2)), (0.9,)).ess).all()


@pytest.mark.parametrize(
    ("density", "measure", "levels", "message"),
    [
        ([[np.nan, 0.0]], [[0.0, 0.0]], (0.5,), "a density is NaN or infinite"),
        ([[np.inf, 0.0]], [[0.0, 0.0]], (0.5,), "a density is NaN or infinite"),
        ([[1.0, 0.0]], [[np.nan, 0.0]], (0.5,), "a measure is NaN or infinite"),
        ([[-np.inf, -np.inf]], [[0.0, 0.0]], (0.5,), "no candidate has any density"),
        ([[]], [[]], (0.5,), r"not \(1, 0\), \(1, 0\)"),
        ([[1.0, 0.0]], [[0.0, 0.0, 0.0]], (0.5,), "shape"),
        ([[1.0, 0.0]], [[0.0, 0.0]], (68.0,), r"levels are above 0 and at most 1, not \[68.0\]"),
        ([[1.0, 0.0]], [[0.0, 0.0]], (), "levels are above 0"),
    ],
)
def test_what_is_no_density_is_refused(density: object, measure: object, levels: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_regions(np.array(density), np.array(measure), levels)


def test_where_a_truth_lies() -> None:
    mass, density = np.array([[0.5, 0.3, 0.2]]), np.array([[3.0, 2.0, 1.0]])
    assert level_of(density, mass, np.array([2.5]), np.array([0.5])) == pytest.approx(0.5)
    assert level_of(density, mass, np.array([2.0]), np.array([0.5])) == pytest.approx(0.65)
    assert level_of(density, mass, np.array([9.0]), np.array([0.5])) == pytest.approx(0.0)


def test_the_best_classifier_of_two_normals() -> None:
    """Of two normals a distance d apart it is right with the probability Phi(d / 2)."""
    line = np.linspace(-8, 8, 4001)[None]
    first, second = norm.logpdf(line), norm.logpdf(line, 1.0)
    mass = np.exp(first) / np.exp(first).sum()
    assert best_classifier(mass, first, second)[0] == pytest.approx(norm.cdf(0.5), abs=1e-4)
    assert best_classifier(mass, first, first)[0] == 0.5
    assert best_classifier(mass, first, np.full_like(first, -np.inf))[0] == 1.0
