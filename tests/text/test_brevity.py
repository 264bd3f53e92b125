"""Long texts are cut, and of two that differ, what differs is shown."""

from __future__ import annotations

import pytest

from paren.text.brevity import LONG, shorten, tell_apart

TEXT = "one processor, which has some features,more features and many others"


def test_a_text_is_cut_to_a_width() -> None:
    assert shorten("x" * LONG) == "x" * LONG
    assert shorten("x" * (LONG + 1)) == "x" * (LONG - 3) + "..."
    assert shorten("123456789", 8) == "12345..."


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (TEXT.replace("has", "had").replace("many ", ""), ("has many", "had")),
        (f"{TEXT} features", ("without", "features")),
        (TEXT.replace("many others", "others many"), ("many others", "others many")),
        (TEXT.replace(",", ""), ("features more", "featuresmore")),
        (TEXT.replace(", ", ","), ("one processor which has some features more features and m...",) * 2),
        ("one", ("processor which has some features more features and many ...", "without")),
    ],
)
def test_of_long_texts_what_differs_is_told(other: str, told: tuple[str, str]) -> None:
    assert tell_apart(TEXT, other) == told
    assert tell_apart(other, TEXT) == told[::-1]


def test_short_texts_are_told_whole() -> None:
    assert tell_apart("one word", "one other word") == ("one word", "one other word")
