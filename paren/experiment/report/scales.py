"""Axes of charts, linear or logarithmic, and their ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Values that span more than this factor are drawn on a logarithmic axis, if all are positive.
_WIDE = 20.0
_TICKS = 5
_HUGE = 1e300  # an axis ends here, so that differences and quotients are floats


@dataclass(frozen=True)
class Axis:
    """Maps values from `low` to `high` to positions from `start` to `end`, in pixels."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def position(self, value: float) -> float:
        """Where a value lies; the axis is nowhere empty, so there is no division by 0. What lies beyond an end, which
        only happens at the limits of floats, is drawn there."""
        value = min(max(value, self.low), self.high)
        low, high, at = (math.log(each) if self.logarithmic else each for each in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (at - low) / (high - low)

    def ticks(self) -> list[float]:
        """A few round values within the axis."""
        return _log_ticks(self.low, self.high) if self.logarithmic else _linear_ticks(self.low, self.high)


def axis_for(values: Sequence[float], start: float, end: float, *, margin: float = 0.05, wide: float = _WIDE) -> Axis:
    """An axis on which all (finite) values lie: logarithmic if they are positive and span more than a factor `wide`.
    `margin` is the empty part on both sides."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    low, high = max(low, -_HUGE), min(high, _HUGE)
    if low > 0 and high > wide * low:
        low = max(low, 1 / _HUGE)
        factor = math.exp((math.log(high) - math.log(low)) * margin)
        return Axis(low / factor, high * factor, start, end, logarithmic=True)
    size = max(abs(low), abs(high))
    room = (high - low) * margin
    if high - low <= 1e-9 * size or high == low:
        room = size * 0.1 or 1.0
    return Axis(low - room, high + room, start, end)


def _linear_ticks(low: float, high: float) -> list[float]:
    rough = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    decades = math.log10(high) - math.log10(low)
    factors = (1, 2, 5) if decades < 2.5 else (1,)
    every = max(1, math.ceil((last - first) / 6))
    ticks = [factor * 10.0**power for power in range(first, last + 1, every) for factor in factors]
    return [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]


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
