"""Records that run in one native call, by as many threads as their work is worth."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from paren.codegen.driver import FIRST_PACE, Kind, Pace
from paren.runtime.meetings import Reach, find_meetings
from paren.runtime.task import Addresses, Cell, Words

RUN = ctypes.CFUNCTYPE(
    ctypes.c_int64,
    *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p),
)
TEAM_WORK = 1 << 20  # scalar operations of all records, some 8 us: below, starting a team costs more than it saves
SHORT_WORK = 1 << 28  # below, meetings of the threads cost enough for it to be measured whether a team pays
LONG_RECORD = 1 << 22  # a record's, from which on a meeting before each does not count
KIND, PARTS, MEETS = 0, 3, 5  # words of a record


class NativeCall:
    """Runs records (int64[count WORDS]) in place; what they point to, code included, lives as long as the call.

    `reaches` has one entry for each record, or is empty where what they touch is not known; the threads of a team then
    meet between all records that are not for one thread alone. What is known holds for the addresses at the first
    call: if they change, it is known no longer.
    """

    def __init__(
        self, run: Callable[..., int], table: Addresses, records: Words, reaches: Sequence[Reach], keep: object
    ) -> None:
        self._run = run
        self._keep = (table, records, keep)
        self._table, self._records, self._count = table.ctypes.data, records, len(records)
        self._address = records.ctypes.data
        work = sum(reach.work for reach in reaches) if reaches else SHORT_WORK
        self._team = int(records[:, PARTS].max()) if work >= TEAM_WORK else 1
        self._pace = first_pace() if self._team > 1 and work < SHORT_WORK else None
        self._reaches = reaches if self._team > 1 and work < LONG_RECORD * len(records) else ()
        self._moves = -1
        self._known: bytes | None = None
        if self._team > 1:
            self._meet_always()

    def __call__(self, times: int = 1) -> int:
        if self._reaches and self._moves != Cell.moves:
            self._look()
        pace = None if self._pace is None else self._pace.ctypes.data
        return int(self._run(self._address, self._count, self._table, times, self._team, pace))

    def _look(self) -> None:
        """Finds where the threads meet, or sees whether that still holds."""
        self._moves = Cell.moves
        addresses = b"".join(reach.pointers.tobytes() for reach in self._reaches)
        if self._known is None:
            self._known = addresses
            self._records[:, MEETS] = find_meetings(self._reaches, self._team)
        elif self._known != addresses:
            self._meet_always()
            self._reaches = ()

    def _meet_always(self) -> None:
        """A record of one part runs on the first thread, like its neighbours of one part; every thread asks a flag."""
        shared = (self._records[:, PARTS] != 1) | (self._records[:, KIND] == Kind.STOP_IF)
        self._records[0, MEETS] = 0
        self._records[1:, MEETS] = shared[1:] | shared[:-1]


def first_pace() -> Words:
    """What a call knows that has not run yet."""
    pace = np.zeros(len(Pace), np.int64)
    for word, value in FIRST_PACE.items():
        pace[word] = value
    return pace
