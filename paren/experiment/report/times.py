"""How long things took, from the times that are recorded."""

from __future__ import annotations

from datetime import datetime

from paren.experiment.recorded import RecordedJob, number_of, object_of
from paren.train.state import Json


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
    """Seconds that a job took: the sum of its stages, or from its start to its last sign of life."""
    stages = [number_of(value) for value in object_of(job.status.get("seconds")).values()]
    if any(stage is not None for stage in stages):
        return sum(stage or 0.0 for stage in stages)
    for status in (job.status, job.training):
        started, updated = read_time(status.get("started")), read_time(status.get("updated"))
        if started and updated and updated >= started:
            return (updated - started).total_seconds()
    return None
