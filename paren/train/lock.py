"""One run at a time in a directory: an operating-system lock, and a file that says who holds it."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

import filelock

from paren.text.errors import ParenError
from paren.text.json import parse_json
from paren.train.files import Files, not_writable, write_atomically
from paren.train.status import now

LOCK = "lock"
HOLDER = "holder.json"
ENDING = 1.0  # seconds in which the system takes the memory of a killed holder, which keeps the lock until then
PATIENCE = 10.0  # seconds in which a holder that just got the lock writes its name


@dataclass(frozen=True)
class Holder:
    host: str
    pid: int
    started: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.started}"


class RunLock:
    """The lock of a run directory, released when its `with` block ends or its process does, however it does.

    Raises E-RUN-004 if another process holds it, with that process' host, id and start; E-RUN-005 if the directory
    cannot be written.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        self._lock = filelock.FileLock(out / LOCK, thread_local=False, is_singleton=False)

    def __enter__(self) -> RunLock:
        holder = Holder(socket.gethostname(), os.getpid(), now())
        try:
            self._lock.acquire(timeout=ENDING)
            self._held = os.stat(self._out / LOCK)
            write_atomically(Files(), self._out / HOLDER, json.dumps(asdict(holder)).encode(), durable=False)
        except filelock.Timeout:
            raise self._taken() from None
        except OSError as error:
            self._lock.release()
            raise not_writable(self._out, error) from error
        return self

    def prove(self) -> None:
        """Raises E-RUN-016 unless the locked file is still the directory's."""
        try:
            if os.path.samestat(os.stat(self._out / LOCK), self._held):
                return
        except FileNotFoundError:
            pass
        raise ParenError(
            "E-RUN-016",
            f"{self._out} was deleted or replaced while the run wrote to it",
            fix="start again; what was in the folder is lost",
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        (self._out / HOLDER).unlink(missing_ok=True)
        self._lock.release()

    def _taken(self) -> ParenError:
        holder = _wait_for_holder(self._out)
        who = str(holder) if holder else "a process that has not written its name yet"
        return ParenError(
            "E-RUN-004",
            f"{self._out} is in use by {who}",
            fix="wait until it ends, stop it, or take another --out",
        )


def _wait_for_holder(out: Path) -> Holder | None:
    """The holder's name. For a moment after a takeover the file is missing, or names a process that is dead."""
    deadline = time.monotonic() + PATIENCE
    while True:
        holder = _read_holder(out)
        if holder is not None and _may_live(holder):
            return holder
        if time.monotonic() > deadline:
            return holder
        time.sleep(0.01)


def _read_holder(out: Path) -> Holder | None:
    try:
        return Holder(**parse_json((out / HOLDER).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _may_live(holder: Holder) -> bool:
    if holder.host != socket.gethostname():
        return True
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
