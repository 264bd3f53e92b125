"""What the loop itself remembers between steps. It is in every checkpoint, next to the engine's slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Self

from paren.text.json import Json


@dataclass(frozen=True)
class BestRecord:
    """The best evaluation so far, and the file under `best/` that holds its parameters, with its size in bytes and
    its digest (see `tensor_file.file_digest`)."""

    step: int
    metric: str
    value: float
    file: str
    size: int
    digest: str


@dataclass
class LoopState:
    """`step`: positions done, so the next position is `step`. `samples`: examples consumed. `updates`: updates made.

    `skipped` and `padding` count positions without an update, `skipped_in_row` those since the last good one.
    `early_value` and `early_misses`: the best value that early stopping has seen, and the evaluations since.
    """

    step: int = 0
    samples: int = 0
    updates: int = 0
    skipped: int = 0
    skipped_in_row: int = 0
    padding: int = 0
    best: BestRecord | None = None
    early_value: float | None = None
    early_misses: int = 0
    stopped_early: bool = False

    def to_json(self) -> dict[str, Json]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> Self:
        """The state that `to_json` wrote. Raises KeyError or TypeError for anything else."""
        values = {each.name: data[each.name] for each in fields(cls)}
        best = values["best"]
        if best is not None:
            if not isinstance(best, dict):
                raise TypeError("best is not an object")
            values["best"] = BestRecord(**best)  # type: ignore[assignment, arg-type]
        return cls(**values)  # type: ignore[arg-type]
