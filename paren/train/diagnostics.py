"""Diagnostics: values sampled on the training batch, folded over its microbatches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from paren.data.loader import GlobalBatch
from paren.ir.program import Diagnostic
from paren.parallel.company import Company
from paren.text.json import Json
from paren.train.engine import Engine

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


def sample(
    engine: Engine, diagnostics: Mapping[str, Diagnostic], batch: GlobalBatch
) -> dict[str, list[tuple[float, float]]]:
    """The parts of the diagnostics that are due at a step, by name: (value, weight) of each microbatch, computed with
    the parameters before the update."""
    due = [name for name, diagnostic in diagnostics.items() if (batch.position + 1) % diagnostic.every == 0]
    return {name: [engine.diagnose(name, part, batch.position) for part in batch.microbatches] for name in due}


def reduce_samples(
    diagnostics: Mapping[str, Diagnostic], samples: Mapping[str, Parts], company: Company
) -> dict[str, Json]:
    """The values of the diagnostics of a step that counts, over the microbatches of all ranks.

    A microbatch of weight 0 holds no value and takes no part; a diagnostic without any part is left out.
    """
    values: dict[str, Json] = {}
    for name, parts in samples.items():
        counted = [(value, weight) for value, weight in company.merge(parts, turns=False) if weight != 0.0]
        if counted:
            values[name] = REDUCERS[diagnostics[name].reduce](counted)
    return values
