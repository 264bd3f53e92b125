"""Sizes in bytes, and counts of things, as people read them."""

from __future__ import annotations

UNITS = ("KiB", "MiB", "GiB", "TiB")
CLOSE = 50  # sizes that differ by less than this part of them look alike in three digits, or nearly


def show_bytes(count: int) -> str:
    """`512 bytes`, `1.5 MiB`: three digits at most, in powers of 1,024."""
    if count < 1024:
        return count_of(count, "byte")
    value = float(count)
    for unit in UNITS:
        value /= 1024
        if value < 999.5 or unit == UNITS[-1]:
            return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"
    raise AssertionError("the last unit returns")


def show_beside(count: int, other: int) -> str:
    """A size that is read beside another one: as ever, or where they are close in the largest unit that still tells
    them apart, `2,067 MiB` beside `2,075 MiB`; rounded up then, so that what is said to be needed is enough."""
    apart = abs(count - other)
    if apart == 0 or CLOSE * apart >= max(count, other) or max(count, other) < 1024:
        return show_bytes(count)
    power = next((power for power in range(len(UNITS), 0, -1) if apart >= 1024**power), 0)
    return f"{-(-count // 1024**power):,} {UNITS[power - 1] if power else 'bytes'}"


def count_of(number: int, one: str, several: str | None = None) -> str:
    """`1 job`, `2 jobs`; `several` as for `form_of`."""
    return f"{number} {form_of(number, one, several)}"


def form_of(number: int, one: str, several: str | None = None) -> str:
    """The form of a word that goes with a number; `several` where no s or es makes the plural."""
    return one if number == 1 else several or f"{one}{'es' if one.endswith(('s', 'x', 'ch', 'sh')) else 's'}"
