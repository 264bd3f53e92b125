"""Where the threads of a team meet: before a record that touches what another thread may still work on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from paren.codegen.touches import Touch


@dataclass(frozen=True)
class Reach:
    """What a record touches. `touches` gives it for a range of units, behind `pointers`; the units are run in `parts`
    ranges, one for each thread, or, with `everywhere`, all of them by every thread. `work`: about how many scalar
    operations it takes."""

    pointers: npt.NDArray[np.uint64]
    touches: Callable[[int, int], Sequence[Touch]]
    units: int
    parts: int
    work: int
    everywhere: bool = False

    def areas(self, threads: int) -> list[list[Area]]:
        """For each thread the bytes of memory that it touches."""
        if self.everywhere:
            return [self._areas(0, self.units)] * threads
        edges = [self.units * part // self.parts for part in range(self.parts + 1)]
        areas = [self._areas(begin, end) if begin < end else [] for begin, end in pairwise(edges)]
        return areas + [[]] * (threads - self.parts)

    def _areas(self, begin: int, end: int) -> list[Area]:
        found = []
        for touch in self.touches(begin, end):
            base = int(self.pointers[touch.pointer])
            found.append(Area(base + touch.first, base + touch.end, touch.writes))
        return found


@dataclass(frozen=True)
class Area:
    """Bytes `first` up to `end` of memory."""

    first: int
    end: int
    writes: bool

    def collides(self, other: Area) -> bool:
        return (self.writes or other.writes) and self.first < other.end and other.first < self.end


def find_meetings(reaches: Sequence[Reach], threads: int) -> list[bool]:
    """Whether the threads meet before each record: where one touches what another has touched since they met last, and
    one of the two writes. Before the first record nothing has been touched."""
    meetings = []
    touched: list[list[Area]] = [[] for _ in range(threads)]
    for reach in reaches:
        areas = reach.areas(threads)
        meets = _collide(touched, areas)
        meetings.append(meets)
        touched = areas if meets else [before + new for before, new in zip(touched, areas, strict=True)]
    return meetings


def _collide(touched: Sequence[Sequence[Area]], areas: Sequence[Sequence[Area]]) -> bool:
    return any(
        area.collides(before)
        for thread, new in enumerate(areas)
        for area in new
        for other, old in enumerate(touched)
        if other != thread
        for before in old
    )
