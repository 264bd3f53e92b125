"""Batches by position: which examples the optimizer step at a position trains on, and how they are cut up.

A position counts optimizer steps from 0. What it holds is a pure function of (count, batch, seed, position), so a run
that starts at a position continues exactly, and the position is all a checkpoint has to store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from paren.data.dataset import Int64Array, Split
from paren.data.order import permuted
from paren.ir.op import Array
from paren.ir.program import RunForm
from paren.runtime.walk import Walk
from paren.text.errors import InternalError

PREFETCH = 2  # batches that are read ahead


@dataclass(frozen=True)
class Microbatch:
    """`size` rows that one call of a graph computes.

    It is one of the microbatches of a global batch, or several neighbours that are stacked.

    `fields`: name -> array (size, *field shape). `rows`: uint32[size], the index of each example in the global batch.
    `valid`: float32[size], 1 for an example and 0 for padding. A padding row repeats the last valid row (data and
    index), so its ids are in range and its values finite; its weight is 0.
    """

    fields: dict[str, Array]
    rows: npt.NDArray[np.uint32]
    valid: npt.NDArray[np.float32]


@dataclass(frozen=True)
class GlobalBatch:
    """What one optimizer step trains on. `indices`: int64[examples], samples of the split, in the batch's order.

    Microbatches that would hold padding only are left out, so each has at least one valid row; of several ranks, one
    may have none.
    """

    position: int
    epoch: int
    indices: Int64Array
    microbatches: tuple[Microbatch, ...]


@dataclass(frozen=True)
class Share:
    """The part of a batch's calls that one of several ranks makes: neighbouring ones, as many as every other rank."""

    rank: int = 0
    ranks: int = 1

    def of(self, ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """This rank's ranges; their number is a multiple of the ranks'."""
        each = len(ranges) // self.ranks
        return ranges[self.rank * each : (self.rank + 1) * each]


WHOLE = Share()


@dataclass(frozen=True)
class Schedule:
    """Which samples each position takes: `count` samples in batches of `batch`, every epoch in its own order.

    A batch never crosses the border of an epoch; the last one of an epoch may be short. Within an epoch every sample
    is taken once. `walk`: what computes the order faster.
    """

    count: int
    batch: int
    seed: int
    walk: Walk | None = None

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.count // self.batch)

    def batch_at(self, position: int) -> tuple[int, Int64Array]:
        """Epoch (from 0) and sample indices (int64[n], 1 <= n <= batch) of a position."""
        epoch, step = divmod(position, self.steps_per_epoch)
        start = step * self.batch
        places = np.arange(start, min(start + self.batch, self.count), dtype=np.int64)
        return epoch, permuted(places, self.count, self.seed, epoch, self.walk)

    def batches(self, start: int, stop: int) -> tuple[Int64Array, Int64Array]:
        """The sample indices of positions `start <= position < stop`, one after another, and how many each has."""
        steps = self.steps_per_epoch
        parts = []
        for epoch in range(start // steps, -(-stop // steps)):
            first, last = (min(max(position - epoch * steps, 0), steps) for position in (start, stop))
            places = np.arange(first * self.batch, min(last * self.batch, self.count), dtype=np.int64)
            parts.append(permuted(places, self.count, self.seed, epoch, self.walk))
        within = np.arange(start, stop, dtype=np.int64) % steps
        return np.concatenate(parts), np.minimum(self.batch, self.count - within * self.batch)


def microbatch_ranges(batch: int, microbatches: int) -> list[tuple[int, int]]:
    """The positions `start <= position < stop` of the global batch that each microbatch holds.

    Sizes differ by at most one, the larger ones first. A short batch leaves the last positions empty.
    """
    small, larger = divmod(batch, microbatches)
    starts = [number * small + min(number, larger) for number in range(microbatches + 1)]
    return list(pairwise(starts))


def call_ranges(batch: int, microbatches: int, stacking: int) -> list[tuple[int, int]]:
    """The positions of the global batch that each call holds: `stacking` neighbouring microbatches, side by side."""
    ranges = microbatch_ranges(batch, microbatches)
    return [(ranges[number][0], ranges[number + stacking - 1][1]) for number in range(0, len(ranges), stacking)]


def cut(
    fields: dict[str, Array], count: int, ranges: list[tuple[int, int]], rows: int, first: int = 0
) -> tuple[Microbatch, ...]:
    """Cuts a batch of `count` examples into microbatches of `rows` rows, padded with weight 0. `fields`: name -> the
    examples from `first` on."""
    parts = []
    for start, stop in ranges:
        stop = min(stop, count)
        if stop <= start:
            break
        places = np.minimum(np.arange(start, start + rows, dtype=np.int64), stop - 1)
        valid = (np.arange(rows) < stop - start).astype(np.float32)
        parts.append(Microbatch({k: v[places - first] for k, v in fields.items()}, places.astype(np.uint32), valid))
    return tuple(parts)


class Loader:
    """Iterates the global batches of positions `start <= position < stop`, reading up to `prefetch` ahead in a thread.

    An error while reading surfaces at the batch it belongs to. `close` (or leaving the `with` block, or reaching the
    end) ends the thread; nothing is read after it.
    """

    def __init__(
        self,
        split: Split,
        run: RunForm,
        rows: int,
        start: int,
        stop: int,
        *,
        seed: int,
        stacking: int = 1,
        share: Share = WHOLE,
        prefetch: int = PREFETCH,
        walk: Walk | None = None,
    ) -> None:
        self._split = split
        self._schedule = Schedule(split.count, run.batch, seed, walk)
        self._ranges = share.of(call_ranges(run.batch, run.microbatches, stacking))
        self._rows = rows
        if max(end - begin for begin, end in self._ranges) > rows:
            raise InternalError(
                "loader", f"{run.batch} examples in {run.microbatches} microbatches need more than {rows} rows"
            )
        self._next = start
        self._stop = stop
        self._waiting: deque[Future[GlobalBatch]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="paren-loader")
        self._closed = False
        for _ in range(max(1, prefetch)):
            self._request()

    def __iter__(self) -> Iterator[GlobalBatch]:
        return self

    def __next__(self) -> GlobalBatch:
        if not self._waiting:
            self.close()
            raise StopIteration
        future = self._waiting.popleft()
        try:
            batch = future.result()
        except BaseException:
            self.close()
            raise
        self._request()
        return batch

    def batch(self, position: int) -> GlobalBatch:
        """The next batch, which must be that of `position`."""
        batch = next(self)
        if batch.position != position:
            raise InternalError("loader", f"position {position} was asked for, {batch.position} is next")
        return batch

    def table(self, position: int, count: int) -> NoReturn:
        """Never asked for: the examples are read, and lie nowhere in memory."""
        raise InternalError("loader", f"a table of {count} positions from {position} on was asked for")

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drops what was read ahead and waits for the thread to end. May be called more than once."""
        self._closed = True
        self._waiting.clear()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _request(self) -> None:
        if self._next < self._stop and not self._closed:
            self._waiting.append(self._thread.submit(self._load, self._next))
            self._next += 1

    def _load(self, position: int) -> GlobalBatch:
        epoch, indices = self._schedule.batch_at(position)
        first, last = self._ranges[0][0], min(self._ranges[-1][1], len(indices))
        if first >= last:
            return GlobalBatch(position, epoch, indices, ())
        fields = self._split.read(indices[first:last])
        return GlobalBatch(position, epoch, indices, cut(fields, len(indices), self._ranges, self._rows, first))


def evaluation_batches(split: Split, rows: int, limit: int | None = None, share: Share = WHOLE) -> Iterator[Microbatch]:
    """The first `limit` examples of a split (all, without one), each once, in the split's order. Ranks take turns.

    The microbatches have `rows` rows; the last is padded. `rows` of a microbatch are the indices of its examples in
    the split.
    """
    count = split.count if limit is None else min(limit, split.count)
    for start in range(share.rank * rows, count, share.ranks * rows):
        indices = np.minimum(np.arange(start, start + rows, dtype=np.int64), count - 1)
        valid = (np.arange(rows) < count - start).astype(np.float32)
        yield Microbatch(split.read(indices), indices.astype(np.uint32), valid)
