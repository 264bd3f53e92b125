"""How long things took, from the times that are recorded."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from paren.experiment.results.recorded import RecordedJob
from paren.experiment.results.values import number_of, object_of
from paren.text.json import Json


def read_time(value: Json) -> datetime | None:
    """An ISO 8601 time with its zone; None for anything else."""
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def show_time(value: Json) -> str:
    """`2026-11-30 02:07:23 UTC`, or nothing."""
    found = read_time(value)
    return found.strftime("%Y-%m-%d %H:%M:%S %Z") if found else ""


def seconds_of(job: RecordedJob) -> float | None:
    """Seconds that a job took: the sum of its stages, or from its start to its last sign of life. The training counts
    also if it was done before the job's last start."""
    stages = {name: number_of(value) for name, value in object_of(job.status.get("seconds")).items()}
    known = [seconds for seconds in stages.values() if seconds is not None]
    training = _between(job.training)
    if known:
        return sum(known) + (training or 0.0 if "training" not in stages else 0.0)
    return _between(job.status) or training


def _between(status: Mapping[str, Json]) -> float | None:
    """Seconds from a start to the last sign of life."""
    started, updated = read_time(status.get("started")), read_time(status.get("updated"))
    return (updated - started).total_seconds() if started and updated and updated >= started else None


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
