"""Diagnostics: values sampled on the training batch, folded over its microbatches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from paren.data.loader import GlobalBatch
from paren.ir.program import Diagnostic
from paren.train.engine import Engine
from paren.train.state import Json

Parts = Sequence[tuple[float, float]]


def _mean(parts: Parts) -> float:
    return sum(value * weight for value, weight in parts) / sum(weight for _, weight in parts)


def _extreme(choose: Callable[..., float]) -> Callable[[Parts], float]:
    """`max` and `min` of Python pass over a nan or keep it, depending on its place; a nan must come through."""

    def reduce(parts: Parts) -> float:
        values = [value for value, _ in parts]
        return math.nan if any(math.isnan(value) for value in values) else choose(values)

    return reduce


REDUCERS: Mapping[str, Callable[[Parts], float]] = {
    "max": _extreme(max),
    "min": _extreme(min),
    "sum": lambda parts: sum(value for value, _ in parts),
    "mean": _mean,
}


def diagnose(engine: Engine, diagnostics: Mapping[str, Diagnostic], batch: GlobalBatch) -> dict[str, Json]:
    """The diagnostics that are due at this step, by name, computed with the parameters before the update.

    A microbatch of weight 0 holds no value and takes no part; a diagnostic without any part is left out.
    """
    values: dict[str, Json] = {}
    for name, diagnostic in diagnostics.items():
        if (batch.position + 1) % diagnostic.every:
            continue
        parts = [engine.diagnose(name, microbatch, batch.position) for microbatch in batch.microbatches]
        parts = [(value, weight) for value, weight in parts if weight != 0.0]
        if parts:
            values[name] = REDUCERS[diagnostic.reduce](parts)
    return values
