"""The heart of a rank: a thread that tells the store that it runs, and ends it as soon as the run has failed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from paren.parallel.agent import tell_agent
from paren.parallel.failure import Failure, read_failure
from paren.parallel.sign import INTERVAL, OVER, PREPARING, Place, Sign, read_place, read_stopped, tell_stopped
from paren.parallel.store import Store
from paren.parallel.watch import FROZEN, Watch
from paren.text.errors import ParenError, describe_cause

Ending = Callable[[ParenError], None]


class Heart:
    """The signs of one rank. `step` and what it is `doing` are what the training keeps up to date. `endings` are called
    with the error before this rank is ended for another one's failure. While it is `joining` the others, this gives the
    exit code to end with at once: with None it waits on.

    `parent`: the process without which this one ends, None for any. Where no launcher of paren's watches the ranks,
    `watch` looks after some, and `say` shows a line about the error that this rank ends with.
    """

    def __init__(
        self,
        rank: int,
        store: Store,
        parent: int | None,
        watch: Watch | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.rank = rank
        self.step: int | None = None
        self._phase = PREPARING
        self.endings: list[Ending] = []
        self.joining: Callable[[], int | None] | None = None
        self._store = store
        self._watch = watch
        self._parent = parent
        self._say = say
        self._place = Place.here()
        self._count = self._met = self._inside = 0
        self._told: Failure | None = None
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._place.tell(store, rank)
        self._tell()
        self._thread = threading.Thread(target=self._beat, name="paren-heart", daemon=True)
        self._thread.start()

    @contextmanager
    def meeting(self) -> Iterator[None]:
        """A block that all ranks come to, in which this one may wait for others."""
        with self._lock:
            self._met += 1
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1

    def doing(self, phase: str) -> None:
        """Tells what this rank does from now on."""
        self._phase = phase
        with suppress(RuntimeError):  # that the store is gone is seen to by the next sign
            self._tell()

    def fail(self, error: BaseException) -> None:
        """Tells why this rank ends, unless another told of its end before: then this one waits to be ended."""
        failure = self._told = Failure(self.rank, self._place.host, self._sign().where, describe_cause(error))
        with suppress(RuntimeError):  # without a store nobody is left to tell
            failure.record(self._store)
        tell_agent(describe_cause(failure.error()))

    def stop(self) -> None:
        """No more signs."""
        self._over.set()
        self._thread.join()
        self.doing(OVER)

    def _sign(self) -> Sign:
        with self._lock:
            return Sign(self._count, self.step, self._met, self._inside > 0, self._phase)

    def _tell(self) -> None:
        self._sign().tell(self._store, self.rank)
        with self._lock:
            self._count += 1

    def _beat(self) -> None:
        silence = 0.0
        while not self._over.wait(INTERVAL):
            if self._parent is not None and os.getppid() != self._parent:
                os._exit(1)  # nobody is left to answer to, and no rank may outlive its run
            joining = self.joining
            code = joining() if joining is not None else None
            if code is not None:
                self._stop_joining(code)
            try:
                if joining is not None and (code := read_stopped(self._store)) is not None:
                    os._exit(code)
                self._tell()
                if self._watch is not None:
                    self._watch.look()
                failure = read_failure(self._store)
                silence = 0.0
            except RuntimeError:
                silence += INTERVAL
                if silence < FROZEN:
                    continue
                failure = Failure(0, "its host", self._sign().where, f"its store has been gone for {FROZEN:g} s")
            if failure is not None and failure != self._told:
                self._end(failure)

    def _stop_joining(self, code: int) -> None:
        """Ends this process: without all ranks nothing can be agreed on, and nothing is there to be saved."""
        try:
            tell_stopped(self._store, code)
        finally:
            os._exit(code)

    def _end(self, failure: Failure) -> None:
        """Ends this process, whatever its other threads do, and even if what it still wants to tell fails."""
        try:
            if failure.lives and failure.rank != self.rank:
                self._kill(read_place(self._store, failure.rank))
            error = failure.error()
            why = "waited for it" if self._inside else "ends with it"  # an ending may end what it waits in
            tell_agent(describe_cause(error))
            for ending in self.endings:
                ending(error)
            if self._say is not None:
                self._say(f"{describe_cause(error)} (rank {self.rank} {why})")
        finally:
            os._exit(1)

    def _kill(self, place: Place) -> None:
        """Ends a rank of this machine that cannot end itself."""
        if self._watch is not None and self._place.sees(place):
            with suppress(ProcessLookupError):
                os.kill(place.process, signal.SIGKILL)
