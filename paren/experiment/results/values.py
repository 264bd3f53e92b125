"""Recorded values, taken apart and shown: what is of another kind than was expected is empty, and no error."""

from __future__ import annotations

import json
import math

from paren.text.json import Json


def text_of(value: Json) -> str:
    return value if isinstance(value, str) else ""


def object_of(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}


def number_of(value: Json) -> float | None:
    """The number that a value is, `"nan"` and `"inf"` of metrics included; None for anything else."""
    if value in ("nan", "inf", "-inf"):
        return float(str(value))
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def show_value(value: Json) -> str:
    """A setting or result as text: `0.001`, `[32 32]` as the language writes lists, blank for nothing."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{' '.join(map(show_value, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)


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
