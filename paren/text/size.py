"""Sizes in bytes, and counts of things, as people read them."""

from __future__ import annotations

UNITS = ("KiB", "MiB", "GiB", "TiB")


def show_bytes(count: int) -> str:
    """`512 bytes`, `1.5 MiB`: three digits at most, in powers of 1,024."""
    if count < 1024:
        return f"{count} bytes"
    value = float(count)
    for unit in UNITS:
        value /= 1024
        if value < 999.5 or unit == UNITS[-1]:
            return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"
    raise AssertionError("the last unit returns")


def count_of(number: int, one: str, several: str | None = None) -> str:
    """`1 job`, `2 jobs`; `several` where an s does not make the plural."""
    return f"{number} {one if number == 1 else several or f'{one}s'}"
