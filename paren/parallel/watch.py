"""Watching ranks by their signs: one that gives none is frozen, one that keeps the others waiting for long is stuck.

Whoever watches counts seconds only while it runs itself, so a machine that slept accuses nobody.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from paren.parallel.failure import Failure
from paren.parallel.sign import BRIEF, INTERVAL, JOINING, NEVER, OVER, Place, Sign, read_place, read_sign
from paren.parallel.store import Store
from paren.parallel.topology import Patience
from paren.runtime.host import stopped_sibling

FROZEN = 10.0  # seconds without a sign after which a rank counts as frozen
GONE = 2.0  # after which its process is looked for, where no launcher does so
SAID, SAID_OF_STEPS = 5.0, 30.0  # seconds of waiting between two lines about it


@dataclass
class _Seen:
    """What was seen of a rank: its last sign, the seconds since, for how many seconds the others have waited for it
    while it did nothing new, and how many of these a line has told of."""

    sign: Sign = NEVER
    silent: float = 0.0
    kept: float = 0.0
    told: float = 0.0


class Watch:
    """Watches some ranks of a run. The first failure that it sees is recorded in the store.

    With `say`, it also looks for ranks that are stuck, for which it has to see all ranks of the run, and says whom the
    others wait for. With `near`, it looks for the processes of this machine.
    """

    def __init__(
        self,
        store: Store,
        ranks: Iterable[int],
        patience: Patience,
        say: Callable[[str], None] | None,
        near: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._seen = {rank: _Seen() for rank in ranks}
        self._patience = patience
        self._say = say
        self._near = near
        self._clock = clock
        self._place = Place.here()
        self._last = clock()
        self._still = 0.0

    def look(self) -> None:
        """Takes note of what the ranks tell. To be called often; it looks as often as there are signs."""
        now = self._clock()
        passed = min(now - self._last, 2 * INTERVAL)
        if passed < INTERVAL / 2:
            return
        self._last = now
        moved = False
        for rank, seen in self._seen.items():
            before, seen.sign = seen.sign, read_sign(self._store, rank)
            seen.silent = 0.0 if seen.sign.count != before.count else seen.silent + passed
            if _progress(seen.sign) != _progress(before):
                moved, seen.kept, seen.told = True, 0.0, 0.0
        self._still = 0.0 if moved else self._still + passed
        self._find_frozen()
        if self._say is not None:
            self._find_stuck(passed, self._say)

    def _find_frozen(self) -> None:
        for rank, seen in self._seen.items():
            if seen.sign.phase == OVER:
                continue
            if seen.sign.count < 0:
                if self._near:
                    self._find_missing(rank, seen)
                continue
            if seen.silent > FROZEN:
                self._record(rank, f"it gave no sign of life for {FROZEN:g} s")
            elif self._near and seen.silent > GONE and self._is_gone(read_place(self._store, rank)):
                self._record(rank, "its process is gone")

    def _find_missing(self, rank: int, seen: _Seen) -> None:
        """Without a launcher of paren's nobody has seen the process of a rank that never gave a sign; one that the
        same agent has started is looked for."""
        if seen.silent > FROZEN and (process := stopped_sibling(f"RANK={rank}")) is not None:
            cause = f"it gave no sign of life for {FROZEN:g} s"
            Failure(rank, self._place.host, NEVER.where, cause, lives=True).record(self._store)
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        elif self._say is None and seen.silent > self._patience.join:
            limit = f"{self._patience.join:g} s, the limit of PAREN_RENDEZVOUS_TIMEOUT"
            self._record(rank, f"it did not join within {limit}")

    def _is_gone(self, place: Place) -> bool:
        """Whether a process of this machine has ended."""
        if not self._place.sees(place):
            return False
        try:
            os.kill(place.process, 0)
        except ProcessLookupError:
            return True
        return False

    def _find_stuck(self, passed: float, say: Callable[[str], None]) -> None:
        """A rank that others wait for has come to fewer meetings than they. If all are in the same one, and it does not
        end, nobody can be named but the connection between them."""
        signs = [seen.sign for seen in self._seen.values()]
        ahead = max((sign.met for sign in signs if sign.waits), default=-1)
        for rank, seen in self._seen.items():
            sign = seen.sign
            if sign.waits or sign.phase == OVER or sign.met >= ahead:
                seen.kept = seen.told = 0.0
                continue
            seen.kept += passed
            limit, variable = self._limit(sign)
            if seen.kept > limit:
                self._record(rank, f"the others waited {limit:g} s for it, the limit of {variable}")
            elif seen.kept - seen.told >= (SAID_OF_STEPS if sign.phase in BRIEF else SAID):
                seen.told = seen.kept
                host = read_place(self._store, rank).host
                say(f"waiting for rank {rank} on {host} ({sign.phase}), {seen.kept:.0f} s")
        if signs and all(sign.waits for sign in signs) and self._still > self._patience.step:
            waited = f"{self._patience.step:g} s, the limit of PAREN_STEP_TIMEOUT"
            self._record(0, f"all ranks waited for each other in one exchange for {waited}")

    def _limit(self, sign: Sign) -> tuple[float, str]:
        """Seconds that a rank may keep the others waiting in what it does, and the variable that says so."""
        if sign.phase == JOINING:
            return self._patience.join, "PAREN_RENDEZVOUS_TIMEOUT"
        if sign.phase in BRIEF:
            return self._patience.step, "PAREN_STEP_TIMEOUT"
        return self._patience.work, "PAREN_WORK_TIMEOUT"

    def _record(self, rank: int, cause: str) -> None:
        """A last sign may be of an earlier step; the others, which wait for the rank, are at the one that it was at."""
        sign = self._seen[rank].sign
        if sign.step is not None:
            sign = replace(sign, step=max(each.sign.step or 0 for each in self._seen.values()))
        Failure.of(self._store, rank, sign, cause, lives=True).record(self._store)


def _progress(sign: Sign) -> tuple[int | None, int, str]:
    """What changes while a rank gets on."""
    return sign.step, sign.met, sign.phase
