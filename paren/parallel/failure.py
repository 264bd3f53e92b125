"""The first failure of a run: told once, in the store, and read by all its ranks and launchers."""

from __future__ import annotations

import json
import signal
from dataclasses import asdict, dataclass

from paren.parallel.sign import Sign, read_place
from paren.parallel.store import Store
from paren.text.errors import ParenError

KEY = "failure"


@dataclass(frozen=True)
class Failure:
    """Why a run cannot go on: which rank, on which host, where in the run, and the cause in words. `lives`: its process
    is there and will not end by itself."""

    rank: int
    host: str
    where: str
    cause: str
    lives: bool = False

    @classmethod
    def of(cls, store: Store, rank: int, sign: Sign, cause: str, *, lives: bool) -> Failure:
        """The failure of a rank whose last sign was this one."""
        return cls(rank, read_place(store, rank).host, sign.where, cause, lives)

    def record(self, store: Store) -> None:
        """Tells of it, unless another was told of before."""
        store.compare_set(KEY, "", json.dumps(asdict(self)))

    def error(self) -> ParenError:
        """E-DP-008, which is one line: the last that a run says."""
        return ParenError("E-DP-008", f"rank {self.rank} on {self.host} failed {self.where}: {self.cause}")


def read_failure(store: Store) -> Failure | None:
    """The failure that was told of, if any was."""
    return Failure(**json.loads(store.get(KEY))) if store.check([KEY]) else None


def describe_end(code: int) -> str:
    """How a process ended, by its exit code as Python gives it, in words: `was ended by SIGKILL`."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
