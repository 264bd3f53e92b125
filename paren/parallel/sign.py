"""What a rank tells of itself: where it is, and once a second that it runs, what it does and whether it waits."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass

from paren.parallel.store import Store
from paren.runtime.host import process_space

INTERVAL = 1.0  # seconds between two signs
TRAINING, EVALUATING, JOINING, PREPARING, OVER = "training", "evaluating", "joining", "preparing", "over"
BRIEF = (TRAINING, EVALUATING)  # what all ranks do alike; anything else may be long work of one rank


@dataclass(frozen=True)
class Place:
    """Where a rank runs. Processes of equal `machine` see each other's numbers; it is empty where that is unknown."""

    host: str
    process: int
    machine: str

    @classmethod
    def here(cls) -> Place:
        """This process."""
        return cls(socket.gethostname(), os.getpid(), process_space())

    def tell(self, store: Store, rank: int) -> None:
        """Lets everybody know."""
        store.set(f"place/{rank}", json.dumps(asdict(self)))

    def sees(self, other: Place) -> bool:
        """Whether the process of another place can be looked for, and ended, from this one."""
        return bool(self.machine) and self.machine == other.machine


UNKNOWN = Place("an unknown host", 0, "")


def read_place(store: Store, rank: int) -> Place:
    """Where a rank said that it runs; `UNKNOWN` before."""
    return Place(**json.loads(store.get(f"place/{rank}"))) if store.check([f"place/{rank}"]) else UNKNOWN


@dataclass(frozen=True)
class Sign:
    """A sign of life. `count`: of the signs so far, from 0. `step`: positions done, None before that is known. `met`:
    how many meetings with the other ranks it has come to, of which all ranks have the same in the same order; `waits`:
    whether it is in one. `phase`: what it does, in words."""

    count: int
    step: int | None
    met: int
    waits: bool
    phase: str

    @property
    def where(self) -> str:
        """Where in the run that is, in words."""
        if self.step is None:
            return f"at the start ({self.phase})"
        return f"in step {self.step + 1}" if self.phase == TRAINING else f"after step {self.step} ({self.phase})"

    def tell(self, store: Store, rank: int) -> None:
        """Lets everybody know."""
        store.set(f"sign/{rank}", json.dumps(asdict(self)))


NEVER = Sign(-1, None, -1, False, JOINING)
STOPPED = "stopped"  # the key of the exit code with which all end, where a stop was asked for before all had joined


def tell_stopped(store: Store, code: int) -> None:
    """Lets everybody who has not joined yet end with an exit code."""
    store.set(STOPPED, str(code))


def read_stopped(store: Store) -> int | None:
    """That exit code, if a stop was asked for."""
    return int(store.get(STOPPED)) if store.check([STOPPED]) else None


def read_sign(store: Store, rank: int) -> Sign:
    """A rank's last sign; `NEVER` before the first."""
    return Sign(**json.loads(store.get(f"sign/{rank}"))) if store.check([f"sign/{rank}"]) else NEVER
