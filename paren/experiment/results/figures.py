"""Numbers and times as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence


def show_number(value: float, digits: int = 5) -> str:
    """`0.019119`, `50,000`, `1.3e-5`: at most `digits` significant digits, but all of a whole number below 10^9."""
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "∞" if value > 0 else "−∞"
    if float(value).is_integer() and abs(value) < 1e9:
        return f"{int(value):,}"
    text = f"{value:.{digits}g}"
    if "e" in text:
        mantissa, exponent = text.split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{float(text):,}" if abs(value) >= 1000 else text


def show_ticks(values: Sequence[float]) -> list[str]:
    """Round numbers, each as short as it can be: `2k`, `0.5`, `1e-4`; with more digits where they would look alike."""
    for digits in range(6, 17):
        texts = [_show_tick(value, digits) for value in values]
        if len(set(texts)) == len(values):
            break
    return texts


def _show_tick(value: float, digits: int) -> str:
    if value and (abs(value) < 1e-3 or abs(value) >= 1e6):
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{float(mantissa):.{digits}g}e{int(exponent)}"
    if abs(value) >= 10_000:
        return f"{value / 1000:.{digits}g}k"
    return f"{value:.{digits}g}"


def show_seconds(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
