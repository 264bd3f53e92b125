"""What charts are made of: axes, ticks, thinned series, numbers, elements."""

from __future__ import annotations

import numpy as np
import pytest

from paren.experiment.report.html import Html, element, escape, join
from paren.experiment.report.scales import Axis, axis_for, show_ticks
from paren.experiment.report.thinning import thin
from paren.experiment.report.times import show_seconds
from paren.experiment.results.values import show_number


@pytest.mark.parametrize("seed", range(20))
def test_ticks_are_round_and_within_the_axis(seed: int) -> None:
    draw = np.random.default_rng(seed)
    values = draw.normal(size=7) * 10.0 ** draw.integers(-8, 8) + 10.0 ** draw.integers(-3, 3) * draw.integers(0, 2)
    for given in (values, np.abs(values) + 1e-12, np.exp(draw.normal(size=5) * 6)):
        axis = axis_for(given.tolist(), 240, 10)
        ticks = axis.ticks()
        assert 2 <= len(ticks) <= 12
        assert all(axis.low - 1e-9 * abs(axis.low) <= tick <= axis.high * (1 + 1e-9) + 1e-9 for tick in ticks)
        places = [axis.position(value) for value in sorted(given)]
        assert places == sorted(places, reverse=True), "larger is higher up"
        assert all(10 <= place <= 240 for place in places)
        assert len(set(show_ticks(ticks))) == len(ticks)


def test_an_axis_is_logarithmic_where_values_span_much() -> None:
    assert axis_for([0.01, 1.0], 0, 100).logarithmic
    assert not axis_for([0.1, 1.0], 0, 100).logarithmic
    assert not axis_for([0.0, 100.0], 0, 100).logarithmic
    assert axis_for([0.001, 0.01, 0.1], 0, 100, margin=0.0).position(0.01) == pytest.approx(50)
    assert Axis(0.0, 10.0, 100, 0).position(2.5) == 75


@pytest.mark.parametrize(("count", "most"), [(3, 4), (4, 4), (5, 4), (1000, 40), (1001, 41), (99, 98)])
def test_a_thinned_series_keeps_its_ends_and_extremes(count: int, most: int) -> None:
    draw = np.random.default_rng(count)
    steps, values = np.arange(count) * 3.0, draw.normal(size=count)
    kept_steps, kept = thin(steps, values, most)
    assert len(kept) <= most
    assert {values[0], values[-1], values.min(), values.max()} <= set(kept) or count <= 5
    assert np.all(np.diff(kept_steps) > 0)
    np.testing.assert_array_equal(values[(kept_steps / 3).astype(int)], kept)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (600.0, "600"),
        (50_000, "50,000"),
        (1234.5678, "1,234.6"),
        (0.0191190, "0.019119"),
        (1.34e-5, "1.34e-5"),
        (-2.5e12, "-2.5e12"),
        (float("nan"), "nan"),
        (float("-inf"), "−∞"),
    ],
)
def test_numbers_in_few_digits(value: float, text: str) -> None:
    assert show_number(value) == text


def test_times_and_ticks() -> None:
    assert [show_seconds(each) for each in (0.123, 12.3, 119.6, 3725, 7500)] == [
        *("0.12 s", "12 s", "2 min 00 s", "62 min 05 s", "2 h 05 min"),
    ]
    assert show_ticks([0, 0.5, 1e-4, 2.5e-5, 2000, 50_000, 3e6]) == ["0", "0.5", "1e-4", "2.5e-5", "2000", "50k", "3e6"]
    assert show_ticks([9.9999998, 10.0, 10.0000002]) == ["9.9999998", "10", "10.0000002"]
    assert show_ticks([]) == []


def test_elements_escape_what_is_not_html() -> None:
    assert escape("<a href='x'>\x00&\ud800") == "&lt;a href=&#x27;x&#x27;&gt;\ufffd&amp;\ufffd"
    assert element("td", "a<b", None, element("i"), class_="x", data_tip='"', hidden=False, open=True, title=None) == (
        '<td class="x" data-tip="&quot;" open>a&lt;b<i></i></td>'
    )
    assert element("br") == "<br>"
    assert element("path", d="M0 0", class_="") == '<path d="M0 0"/>'
    assert isinstance(join("<", Html("<b></b>")), Html)
    assert join("<", Html("<b></b>"), None) == "&lt;<b></b>"
