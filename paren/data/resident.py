"""Batches of examples that lie in memory as arrays: tables of where each is, from which native code assembles them."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import numpy.typing as npt

from paren.data.dataset import Int64Array, Split
from paren.data.fields import ArraySplit
from paren.data.loader import GlobalBatch, Schedule, cut
from paren.data.order import PIECE
from paren.data.stream import TokenSplit
from paren.ir.op import Array
from paren.ir.program import RunForm
from paren.runtime.walk import Walk

BLOCK_BYTES = 1 << 18  # of a table of places
BLOCK_STEPS = 1024  # the most steps of a table
READABLE = {"float64", "float32", "int64", "int32", "uint32", "uint16", "uint8", "bool"}


@dataclass(frozen=True)
class Source:
    """Where a field's values lie. Without `length` the value at place p is `array[p]`; with it, the `length` elements
    of `array` from p + `shift` on."""

    array: Array
    length: int | None = None
    shift: int = 0


def sources_of(split: Split) -> dict[str, Source] | None:
    """The sources of a split's fields, by name; None if native code cannot read it where it lies."""
    if isinstance(split, ArraySplit):
        found = {name: Source(column.values) for name, column in split.columns.items()}
    elif isinstance(split, TokenSplit):
        length = split.length
        found = {"tokens": Source(split.stream, length), "targets": Source(split.stream, length, 1)}
    else:
        return None
    arrays = [source.array for source in found.values()]
    readable = all(a.dtype.isnative and a.dtype.name in READABLE and a.flags.c_contiguous for a in arrays)
    return found if readable else None


def distinct_arrays(sources: Mapping[str, Source]) -> dict[int, Array]:
    """The arrays of sources by their address, each once: fields may share one."""
    return {source.array.ctypes.data: source.array for source in sources.values()}


def block_steps(rows: int) -> int:
    """The steps of a table of batches of `rows` rows: bounded in bytes and in number, and at least one."""
    return max(1, min(BLOCK_STEPS, BLOCK_BYTES // (8 * rows)))


def making_bytes(rows: int, *, walks: bool) -> int:
    """What making a table takes beside it, a part of the steps after another: what `permuted` holds of the places of a
    part and, unless machine code `walks`, of a piece of them."""
    places = min(_part_steps(rows), block_steps(rows)) * rows
    return 8 * 4 * (places + (0 if walks else min(places, PIECE))) + (20 << 10)


def _part_steps(rows: int) -> int:
    return max(1, PIECE // rows)


@dataclass(frozen=True)
class Table:
    """The batches of n positions from `position` on: `places` int64[n rows], of which rows beyond `counts` (int32[n])
    repeat the last example, as padding does."""

    position: int
    places: Int64Array
    counts: npt.NDArray[np.int32]

    def part(self, position: int, count: int) -> Table:
        """Up to `count` steps of it, from a position that it holds."""
        first = position - self.position
        return Table(position, self.places[first : first + count], self.counts[first : first + count])


class ResidentBatches:
    """The batches of positions up to `stop`, each in one call, one by one or as tables. Tables, which cost a
    permutation, and the next single batch are made ahead in a thread.

    A table never crosses a multiple of `block_steps`. Two places take turns: one is good until one of the next block is
    asked for.
    """

    def __init__(
        self, split: ArraySplit | TokenSplit, run: RunForm, rows: int, stop: int, walk: Walk | None = None
    ) -> None:
        self._split = split
        self._schedule = Schedule(split.count, run.batch, run.seed, walk)
        self._ranges = [(0, run.batch)]
        self._rows = rows
        self._stop = stop
        self._block = block_steps(rows)
        self._places = np.empty((2, min(self._block, stop), rows), np.int64)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="paren-loader")
        self._tables: dict[int, Future[Table]] = {}
        self._next: tuple[int, Future[GlobalBatch]] | None = None

    def __enter__(self) -> ResidentBatches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def batch(self, position: int) -> GlobalBatch:
        """The batch of a position; the one after it is read ahead."""
        ahead = self._next
        batch = ahead[1].result() if ahead is not None and ahead[0] == position else self._read(position)
        later = position + 1
        self._next = (later, self._thread.submit(self._read, later)) if later < self._stop else None
        return batch

    def table(self, position: int, count: int) -> Table:
        """The table of at least one and at most `count` positions from `position` on."""
        block = position // self._block
        self._tables = {number: table for number, table in self._tables.items() if number >= block}
        for number in (block, block + 1):
            if number not in self._tables and number * self._block < self._stop:
                self._tables[number] = self._thread.submit(self._make, number)
        return self._tables[block].result().part(position, count)

    def _read(self, position: int) -> GlobalBatch:
        epoch, indices = self._schedule.batch_at(position)
        fields = self._split.read(indices)
        return GlobalBatch(position, epoch, indices, cut(fields, len(indices), self._ranges, self._rows))

    def _make(self, block: int) -> Table:
        start, stop = block * self._block, min((block + 1) * self._block, self._stop)
        table, counts = self._places[block % 2, : stop - start], np.empty(stop - start, np.int32)
        each = _part_steps(self._rows)
        for first in range(0, stop - start, each):
            part = table[first : first + each]
            counts[first : first + each] = self._fill(part, start + first)
        return Table(start, table, counts)

    def _fill(self, table: Int64Array, start: int) -> Int64Array:
        """Fills the table of the positions from `start` on, and gives their counts."""
        indices, counts = self._schedule.batches(start, start + len(table))
        places = self._split.places(indices)
        ends = np.cumsum(counts)
        full = counts == self._rows
        whole = np.repeat(full, counts)
        table[full] = places[whole].reshape(-1, self._rows)
        for step in np.flatnonzero(~full):
            last = ends[step] - 1
            rows = np.minimum(np.arange(self._rows, dtype=np.int64) + ends[step] - counts[step], last)
            table[step] = places[rows]
        return counts


def as_bytes(array: Array) -> Array:
    """uint16[...] as uint8[... 2], other types as they are."""
    return array.view(np.uint8).reshape(*array.shape, 2) if array.dtype == np.uint16 else array
