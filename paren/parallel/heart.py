"""Signs of life: a thread of each rank tells the store that it runs, and at which step it is."""

from __future__ import annotations

import json
import os
import socket
import threading
from dataclasses import dataclass

from paren.parallel.store import Store
from paren.text.errors import ParenError

INTERVAL = 1.0  # seconds between two signs
FROZEN = 10.0  # seconds without a sign after which a rank counts as frozen
FAILURE = "failure"  # the key of the first failure


@dataclass(frozen=True)
class Failure:
    """Why a run cannot go on: which rank, where, at which step (positions done), and the cause in words."""

    rank: int
    host: str
    step: int
    cause: str

    @classmethod
    def here(cls, rank: int, step: int, cause: str) -> Failure:
        """The failure of a rank on this host."""
        return cls(rank, socket.gethostname(), step, cause)

    def record(self, store: Store) -> None:
        """Tells of it, unless another was told of before."""
        store.compare_set(FAILURE, "", self.to_json())

    def error(self) -> ParenError:
        """E-DP-008."""
        return ParenError(
            "E-DP-008",
            f"rank {self.rank} on {self.host} failed at step {self.step}: {self.cause}",
            fix="see to the cause, then continue with --resume latest",
        )

    def to_json(self) -> str:
        return json.dumps([self.rank, self.host, self.step, self.cause])

    @classmethod
    def from_json(cls, text: str | bytes) -> Failure:
        rank, host, step, cause = json.loads(text)
        return cls(rank, host, step, cause)


class Heart:
    """The signs of one rank. `step` is what the training loop keeps up to date. With `orphan`, the process ends if the
    one that started it is gone."""

    def __init__(self, rank: int, store: Store, orphan: bool) -> None:
        self.rank = rank
        self.step = 0
        self._store = store
        self._parent = os.getppid() if orphan else None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="paren-heart", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        count = 0
        while True:
            if self._parent is not None and os.getppid() != self._parent:
                os._exit(1)  # nobody is left to answer to, and no rank may outlive its run
            try:
                self._store.set(beat_key(self.rank), json.dumps([count, self.step]))
            except RuntimeError:
                if self._parent is None:
                    return  # the run is over, or whoever watches it ends this rank
            count += 1
            if self._over.wait(INTERVAL):
                return

    def fail(self, error: BaseException) -> None:
        """Tells why this rank ends, unless another told of its end before."""
        kind, text = (
            (error.code, error.message) if isinstance(error, ParenError) else (type(error).__name__, str(error))
        )
        try:
            Failure.here(self.rank, self.step, f"{kind}: {text}").record(self._store)
        except RuntimeError:
            return  # see above

    def stop(self) -> None:
        """No more signs."""
        self._over.set()
        self._thread.join()


def beat_key(rank: int) -> str:
    """The key of a rank's signs: the count of them, and the step."""
    return f"beat/{rank}"
