"""Sizes as people read them."""

from __future__ import annotations

import pytest

from paren.text.size import count_of, form_of, show_beside, show_bytes


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (1047552, "0.999 MiB"), (5 << 40, "5 TiB")],
)
def test_a_size_has_three_digits(count: int, text: str) -> None:
    assert show_bytes(count) == text


@pytest.mark.parametrize(
    ("count", "other", "texts"),
    [
        (52 << 20, 24 << 20, ("52 MiB", "24 MiB")),
        (2 << 30, 2 << 30, ("2 GiB", "2 GiB")),
        ((1962 << 20) + 5, 1961 << 20, ("1,963 MiB", "1,961 MiB")),
        ((1962 << 20) + (257 << 10), 1962 << 20, ("2,009,345 KiB", "2,009,088 KiB")),
        ((1 << 30) + 1, 1 << 30, ("1,073,741,825 bytes", "1,073,741,824 bytes")),
        (1001, 1000, ("1001 bytes", "1000 bytes")),
    ],
)
def test_sizes_that_are_close_are_told_apart(count: int, other: int, texts: tuple[str, str]) -> None:
    assert (show_beside(count, other), show_beside(other, count)) == texts


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ((1, "step"), "1 step"),
        ((0, "step"), "0 steps"),
        ((2, "microbatch"), "2 microbatches"),
        ((1, "microbatch"), "1 microbatch"),
        ((3, "axis", "axes"), "3 axes"),
        ((1, "file is", "files are"), "1 file is"),
        ((2, "file is", "files are"), "2 files are"),
    ],
)
def test_one_is_one_and_all_else_is_several(given: tuple[int, str] | tuple[int, str, str], wanted: str) -> None:
    assert count_of(*given) == wanted
    assert wanted.endswith(form_of(*given))
