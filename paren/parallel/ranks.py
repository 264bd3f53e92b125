"""What the ranks of a run say to each other: sums, agreements, and what rank 0 decided for all.

Everything that is added is added in rank order, so all ranks hold the same bits. Waiting for one rank's long work
(preparing, restoring) is not done in a collective but on keys of the store, whose time has no limit: whether a rank is
alive is watched elsewhere.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from paren.data.loader import Share
from paren.parallel.group import Groups, PeerLost, peers
from paren.parallel.heart import Heart
from paren.parallel.store import Store
from paren.parallel.tree import sum_as_tree
from paren.runtime.array import AnyArray, fetch, parts
from paren.runtime.memory import Available
from paren.text.errors import InternalError, ParenError
from paren.text.json import Json

if TYPE_CHECKING:
    from paren.parallel.carried import Carried

PAUSE = 0.05  # seconds between two looks at a key
START, STATE, FACTS = "start", "state", "facts"  # keys of what rank 0 tells
CHUNK = 1 << 20  # bytes of a state that are handed on, or looked at, at a time
SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: neighbouring places get very different factors
Numbers = npt.NDArray[np.float64]
Number = TypeVar("Number", np.float64, np.uint64, np.uint8)


@dataclass
class Ranks:
    """This process among the ranks of a run."""

    rank: int
    count: int
    store: Store
    groups: Groups
    heart: Heart
    carried: Carried | None = None  # what rounding took off, where sums between nodes are rounded
    held: ExitStack = field(default_factory=ExitStack)  # what ends when the run does, and how the run ended

    @property
    def share(self) -> Share:
        return Share(self.rank, self.count)

    @property
    def leads(self) -> bool:
        """Whether this rank decides and writes for all."""
        return self.rank == 0

    def at(self, step: int) -> None:
        self.heart.step = step

    def doing(self, phase: str) -> None:
        self.heart.doing(phase)

    # Numbers --------------------------------------------------------------------------------------------------------

    def gather(self, own: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """[ranks n] of every rank's [n]."""
        every = np.empty((self.count, own.size), own.dtype)
        self.groups.every.gather(own.view(np.uint8), every.reshape(-1).view(np.uint8))
        return every

    def add(self, own: Numbers, tree: bool) -> Numbers:
        """The sum over ranks, in their order or as a tree: float64[n]."""
        every = self.gather(own)
        return sum_as_tree(every, np.add) if tree else functools.reduce(np.add, every)

    def least(self, free: Available, share: int) -> Available:
        """What every rank has, of whose memory `share` ranks have to take equal parts."""
        sizes = self.gather(np.array([free.bytes // share, free.total], np.uint64))
        rank, limits = int(sizes[:, 0].argmin()), self.texts(free.limit)
        least, total = map(int, sizes[rank])
        others = free.others if rank == self.rank else ""
        return Available(least, total, f"{limits[rank]} on rank {rank}", others)

    def any(self, flag: bool) -> bool:
        return bool(self.gather(np.array([float(flag)])).any())

    def texts(self, own: str) -> list[str]:
        content = np.frombuffer(own.encode(), np.uint8)
        sizes = self.gather(np.array([content.size], np.uint64)).reshape(-1)
        padded = np.zeros(int(sizes.max()), np.uint8)
        padded[: content.size] = content
        rows = self.gather(padded) if padded.size else np.zeros((self.count, 0), np.uint8)
        return [row[: int(size)].tobytes().decode() for row, size in zip(rows, sizes, strict=True)]

    def leave_to(self, rank: int) -> None:
        if rank != self.rank:
            raise PeerLost(f"rank {rank} ends the run")

    def merge(self, own: Sequence[Sequence[float]], *, turns: bool) -> list[list[float]]:
        columns = len(own[0]) if own else 0
        sizes = self.gather(np.array([len(own), columns], np.float64))
        most, width = int(sizes[:, 0].max()), int(sizes[:, 1].max())
        if not most:
            return []
        padded = np.zeros((most, width))
        padded[: len(own)] = np.asarray(own, np.float64).reshape(len(own), width)
        every = self.gather(padded.reshape(-1)).reshape(self.count, most, width)
        places = [(number, rank) for rank in range(self.count) for number in range(int(sizes[rank, 0]))]
        return [every[rank, number].tolist() for number, rank in (sorted(places) if turns else places)]

    # State ----------------------------------------------------------------------------------------------------------

    def agree(self, slots: Mapping[str, AnyArray], step: int) -> None:
        every = self.gather(np.array([digest_of(array) for array in slots.values()], np.uint64))
        for name, values in zip(slots, every.T, strict=True):
            keeper = int(np.argmax([(values == value).sum() for value in values]))  # the first of the most
            others = [rank for rank, value in enumerate(values) if value != values[keeper]]
            if others:
                self.leave_to(others[0])
                raise ParenError(
                    "E-DP-004",
                    f"at step {step} rank {others[0]} holds another {name} than rank {keeper}",
                    fix="continue with --resume latest from the checkpoint before, and report it",
                )

    def collect(self) -> None:
        if self.carried is not None:
            self.carried.gather()

    def hand_on(self, arrays: Sequence[AnyArray]) -> None:
        """Every rank gets what rank 0 has: the state, and its part of what ranks carry."""
        if self.carried is not None:
            self.carried.spread()
        for array in arrays:
            for part in parts(array, CHUNK):
                host = np.empty(part.shape, part.dtype)
                if self.leads:
                    fetch(part, host)
                self.groups.every.broadcast(host.view(np.uint8))
                if not self.leads:
                    part[...] = host

    # Decisions ------------------------------------------------------------------------------------------------------

    def tell(self, key: str, values: Mapping[str, Json]) -> None:
        """Lets every rank `hear` values."""
        with peers(), self.heart.meeting():
            self.store.set(key, json.dumps(dict(values)))

    def hear(self, key: str) -> dict[str, Json]:
        """The values that a rank tells, once it does."""
        with peers(), self.heart.meeting():
            while not self.store.check([key]):
                time.sleep(PAUSE)
            told = json.loads(self.store.get(key))
        if not isinstance(told, dict):
            raise InternalError("parallel", f"a rank told {told!r}")
        return told


def digest_of(array: AnyArray) -> int:
    """64 bits that any single changed byte of an array changes: a sum of its words, each times an odd number of its
    place, so that equal words at exchanged places differ too."""
    total, done = np.uint64(array.nbytes), 0
    with np.errstate(over="ignore"):
        for part in parts(array, CHUNK):
            host = np.empty(part.shape, part.dtype)
            fetch(part, host)
            content = host.view(np.uint8)
            words = np.zeros(-(-content.size // 8), np.uint64)
            words.view(np.uint8)[: content.size] = content
            places = np.arange(done, done + words.size, dtype=np.uint64) * SPREAD
            total = total + (words * (places | np.uint64(1))).sum(dtype=np.uint64)
            done += words.size
    return int(total)
