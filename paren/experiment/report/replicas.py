"""Jobs that differ in nothing but a replica: their results are told together.

A replica is a factor of the cohort that is called so: its values have no meaning but to be different.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from paren.experiment.results.recorded import Recorded, RecordedJob, label_of
from paren.text.json import Json

LARGEST = 1e150  # results from here on, infinite ones too, have no deviation that is a float
REPLICAS = ("replica", "replicate", "repeat", "repetition", "seed")


def is_replica(factor: str) -> bool:
    return factor.lower() in REPLICAS


def member_of(job: RecordedJob) -> Mapping[str, Json]:
    """What else tells the member from the others of its cohort."""
    return {name: value for name, value in job.member.items() if not is_replica(name)}


def replicated(recorded: Recorded) -> dict[str, list[RecordedJob]]:
    """The jobs by what they are replicas of, in order; empty if there are no replicas."""
    found: dict[str, list[RecordedJob]] = {}
    for job in recorded.jobs:
        is_one = any(is_replica(name) for name in job.member)
        found.setdefault(label_of(job.changed, member_of(job)) if is_one else job.label, []).append(job)
    return found if any(len(jobs) > 1 for jobs in found.values()) else {}


def mean_of(values: Sequence[float]) -> float:
    """The mean; of equal values exactly that."""
    return values[0] if min(values) == max(values) else sum(values) / len(values)


def deviation_of(values: Sequence[float]) -> float:
    """The sample's standard deviation, 0 of a single value or of equal ones."""
    if len(values) < 2 or min(values) == max(values):
        return 0.0
    mean = mean_of(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
