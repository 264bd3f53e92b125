"""What is decided about a whole run: when the update may begin, and in how many calls a step is made."""

from __future__ import annotations

from pathlib import Path

import pytest

import paren
from paren.forecast.plans import lay_out
from paren.plan.decision import Pattern

EXAMPLE = (Path(__file__).parents[2] / "examples" / "regression.paren").read_text()


@pytest.mark.parametrize(
    ("options", "update", "place", "one_call"),
    [
        ("", "the whole gradient is checked to be finite first", "(adam ", True),
        (":clip 1.0", ":clip needs the norm of the whole gradient", "1.0", True),
        (":clip 1.0 :microbatches 4", "the gradient is the sum of 4 microbatches", "4", False),
    ],
)
def test_the_reasons(tmp_path: Path, options: str, update: str, place: str, one_call: bool) -> None:
    path = tmp_path / "f.paren"
    path.write_text(EXAMPLE.replace(":seed           1", f":seed 1 {options}"))
    experiment = paren.load(path)
    first, second = experiment.plans.decisions
    assert (first.pattern, first.fired, first.reason) == (Pattern.UPDATE, False, update)
    assert first.saved_bytes == 4 * lay_out(experiment.program).trained
    assert first.span is not None
    assert first.span.source.text[first.span.start :].startswith(place)
    assert (second.pattern, second.fired, second.saved_bytes) == (Pattern.CALL, one_call, 0)
    said = (
        "gradients, norm, check and all updates"
        if one_call
        else "one call for each microbatch, and one that ends the step"
    )
    assert second.reason == said
