"""One run at a time under a prefix: an object that says who holds it, written on a condition and renewed by its holder.

A bucket has no locks that end with a process. A holder that has not renewed its object for `LEASE` seconds, by the
store's own clock, is taken to be dead; one on this machine is looked for. A holder that was taken to be dead and was
not (it stood still) finds another's object where its own was, and publishes nothing more.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType

from paren.runtime.host import process_space
from paren.text.errors import ParenError
from paren.text.json import parse_json
from paren.train.places.object_store import AFTERWARDS, IN_RUN, Bucket, Conflict
from paren.train.status import now

HOLDER = "holder.json"
LEASE = 60.0  # seconds after which a holder that does not renew is dead
RENEWAL = 15.0  # seconds between two renewals
LOOKING = 1.0  # seconds between two looks at another's object


@dataclass(frozen=True)
class Holder:
    """Who holds a prefix. `process` tells a process from all others of its machine, dead ones included; `machine` the
    machine, since its start; both empty where the system does not tell. `renewed` counts."""

    host: str
    pid: int
    started: str
    token: str
    machine: str
    process: str
    renewed: int = 0

    @classmethod
    def here(cls) -> Holder:
        machine = process_space()
        return cls(socket.gethostname(), os.getpid(), now(), secrets.token_hex(8), machine, _process(os.getpid()) or "")

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.started}"

    @property
    def lives_here(self) -> bool | None:
        """Whether it is a live process of this machine; None if that cannot be told."""
        if not self.machine or self.machine != process_space():
            return None
        return _process(self.pid) == self.process


class Lease:
    """Held inside its block. Raises E-RUN-004 if another run holds the prefix, or E-S3-*."""

    def __init__(self, bucket: Bucket, prefix: str, notice: Callable[[str], None]) -> None:
        self._bucket = bucket
        self._key = f"{prefix}{HOLDER}"
        self._place = f"s3://{bucket.name}/{prefix.rstrip('/')}"
        self._notice = notice
        self._own = Holder.here()
        self._tag = ""
        self._lost = False
        self._conditions = True
        self._renewing = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="paren-lease", daemon=True)

    def __enter__(self) -> Lease:
        self._take()
        self._bucket.notice, self._bucket.patience, self._bucket.lease = self._notice, IN_RUN, self
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._bucket.lease, self._bucket.patience = None, AFTERWARDS
        try:
            found = self._look()
            if found is not None and found[0].token == self._own.token:
                self._bucket.delete(self._key)
        except ParenError as failure:
            self._notice(f"{self._place} stays locked for {LEASE:g} s: {failure.message}")

    def prove(self) -> None:
        """Raises E-RUN-004 unless this run still holds the prefix."""
        self._renew()
        if self._lost:
            raise self._taken(self._look())

    def _take(self) -> None:
        told, seen = False, ""
        while True:
            try:
                self._tag = self._bucket.put(self._key, self._content(), new=True)
                break
            except Conflict:
                found = self._look()
            except ParenError as error:
                if not error.message.endswith("NotImplemented"):
                    raise
                self._conditions = False
                found = self._look()
            if found is None:
                if self._conditions:
                    continue
                self._tag = self._bucket.put(self._key, self._content())
                break
            holder, tag, age = found
            if holder.token == self._own.token:  # the answer to an earlier try was lost
                self._tag = tag
                break
            lives = holder.lives_here
            if lives or (seen and tag != seen):
                raise self._taken(found)
            if lives is False or age > LEASE:
                try:
                    self._tag = self._bucket.put(self._key, self._content(), replaces=tag if self._conditions else None)
                    break
                except Conflict:
                    continue
            if not told:
                self._notice(f"{self._place} was in use by {holder}: waiting up to {LEASE:g} s to see whether it lives")
                told = True
            seen = tag
            time.sleep(LOOKING)
        self._check_conditions()

    def _check_conditions(self) -> None:
        """A store may know nothing of conditions, and write on."""
        if self._conditions:
            try:
                self._tag = self._bucket.put(self._key, self._content(), new=True)
            except Conflict:
                return
            self._conditions = False
        self._notice(f"{self._place}: the store has no conditional writes, so two runs that start at once both go on")

    def _keep(self) -> None:
        while not self._ended.wait(RENEWAL):
            try:
                self._renew()
            except ParenError:
                continue  # a save would find out the same, and say it

    def _renew(self) -> None:
        with self._renewing:
            if self._lost:
                return
            self._own = replace(self._own, renewed=self._own.renewed + 1)
            try:
                if not self._conditions:
                    found = self._look()
                    if found is not None and found[0].token != self._own.token:
                        raise Conflict
                self._tag = self._bucket.put(
                    self._key, self._content(), replaces=self._tag if self._conditions else None
                )
            except (Conflict, FileNotFoundError):
                found = self._look()
                if found is not None and found[0].token == self._own.token:  # the answer to an earlier try was lost
                    self._tag = found[1]
                else:
                    self._lost = True

    def _look(self) -> tuple[Holder, str, float] | None:
        """The holder, the tag of its object, and the seconds since it was renewed."""
        try:
            content, stat = self._bucket.look(self._key)
            return Holder(**parse_json(content)), stat.tag, stat.age
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise ParenError(
                "E-S3-007",
                f"s3://{self._bucket.name}/{self._key} does not say who uses the place",
                fix="delete that object if no run does",
            ) from None

    def _content(self) -> bytes:
        return json.dumps(asdict(self._own)).encode()

    def _taken(self, found: tuple[Holder, str, float] | None) -> ParenError:
        who = str(found[0]) if found else "nobody any more: its holder's name was deleted"
        return ParenError(
            "E-RUN-004", f"{self._place} is in use by {who}", fix="wait until it ends, stop it, or take another folder"
        )


def _process(pid: int) -> str | None:
    """When a process started, in the system's ticks; None if there is none, or it is dead and not yet buried."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if state[0] in "ZX" else state[19]
