"""Whether a device with memory of its own holds the training data, so that its graphs gather batches from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from paren.data.resident import Source, distinct_arrays
from paren.forecast.memory import memory_of
from paren.forecast.stacking import Candidate

MOST = 1 << 28  # bytes; where there are more data, a step is long enough to send its batch
SHARE = 8  # data take at most this part of what may be used


def choose_residence(candidate: Candidate, sources: Mapping[str, Source] | None, most: int) -> Candidate:
    """The candidate whose plan holds the arrays of `sources`, if they are few and it then needs at most `most` bytes.
    Where kernels read host memory, and where there are no sources, there is nothing to choose."""
    if sources is None or not candidate.plans.planning.traits.own_memory:
        return candidate
    size = sum(array.nbytes for array in distinct_arrays(sources).values())
    plans = replace(candidate.plans, data_bytes=size)
    memory = memory_of(candidate.program, plans)
    if size > min(MOST, most // SHARE) or memory.planned > most:
        return candidate
    return replace(candidate, plans=plans, memory=memory)
