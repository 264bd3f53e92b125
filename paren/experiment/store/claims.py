"""Claims: who works on a job or builds an artifact, so that nobody else does.

On one host an operating-system lock decides, which the system frees when its process dies. Across hosts a lease does:
a file beside it, which its holder touches every few seconds, and which counts for nothing once it was not touched for
a minute. Times are those that the file system gives, so the clocks of hosts do not matter.

    locks/ID.HOST    locked by the process on that host that holds or asks for the claim
    locks/ID.lease   who holds it among the hosts, as JSON

Both vanish when a claim ends. What a killed holder leaves is taken over by the next who asks, or deleted by `sweep`.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import os
import re
import secrets
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from paren.experiment.layout import LOCKS
from paren.runtime.host import boot_identity
from paren.text.errors import ParenError, system_reason
from paren.text.json import parse_json
from paren.train.files import json_bytes
from paren.train.signals import TakenOver
from paren.train.status import now

LEASE = 60.0  # seconds without a sign after which the holder on another host counts as dead
INTERVAL = 5.0  # seconds between two signs
_SHORTEST_WAIT, _LONGEST_WAIT = 0.02, 0.5  # seconds between two looks at a claim that another has; they grow
_TRIES, _PAUSE = 50, 0.002  # how often, and after how many seconds, a lock that nobody holds by name is asked for again


@dataclass(frozen=True)
class Holder:
    """Who holds a claim. `machine` tells hosts of one name apart, and a host before and after it was started anew."""

    claim: str
    host: str
    machine: str
    pid: int
    started: str
    token: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.started}"


class Claim:
    """A claim that this process holds until `release`, the end of its `with` block, or its own end."""

    def __init__(self, root: Path, holder: Holder, descriptor: int) -> None:
        self.holder = holder
        self._places = _places(root, holder.claim, holder.machine)
        self._descriptor: int | None = descriptor
        self._changing = threading.Lock()  # so that no sign is given for a claim that has just ended
        self._lost = False
        _heart.add(self)

    def is_lost(self) -> bool:
        """Whether another host took it over, because no sign of this process was seen for `LEASE` seconds. Looks."""
        self.give_sign()
        return self._lost

    def prove(self) -> None:
        """Raises `TakenOver` if another host was seen to have it when the last sign was to be given."""
        if self._lost:
            raise TakenOver

    def release(self) -> None:
        """Ends the claim; a second time does nothing."""
        _heart.remove(self)
        with self._changing:
            if self._descriptor is None:
                return
            lock, lease = self._places
            if _read(lease) == self.holder:
                lease.unlink(missing_ok=True)
            _free(lock, self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def give_sign(self) -> None:
        """Touches the lease, or puts it back where somebody deleted it."""
        lease = self._places[1]
        with self._changing, contextlib.suppress(OSError):  # a sign that could not be given is given with the next one
            if self._descriptor is not None and not self._lost:
                if _read(lease) == self.holder:
                    os.utime(lease)
                else:
                    self._lost = not _take(lease, self.holder)

    def let_go(self) -> None:
        """Removes what stands for the claim, in a process that ends at once: the system frees the lock itself. Nothing
        is waited for, as a signal may have come in the middle of anything."""
        lock, lease = self._places
        with contextlib.suppress(OSError):
            if _read(lease) == self.holder:
                lease.unlink(missing_ok=True)
            lock.unlink(missing_ok=True)

    def forget(self) -> None:
        """Closes the lock in a forked child, which would otherwise hold it on after this process' death."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class _Heart:
    """Gives the signs of all claims of this process, from one thread: a claim costs no start of a thread."""

    def __init__(self) -> None:
        self._claims: set[Claim] = set()  # changed and copied by single operations, so that threads may share it
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._forget)

    def add(self, claim: Claim) -> None:
        self._claims.add(claim)
        if self._thread is None:
            self._thread = threading.Thread(target=self._beat, name="paren-claims", daemon=True)
            self._thread.start()

    def remove(self, claim: Claim) -> None:
        self._claims.discard(claim)

    def let_go(self) -> None:
        for claim in list(self._claims):
            claim.let_go()

    def _beat(self) -> None:
        while True:
            time.sleep(INTERVAL)
            for claim in list(self._claims):
                claim.give_sign()

    def _forget(self) -> None:
        for claim in self._claims:
            claim.forget()
        self._claims, self._thread = set(), None


_heart = _Heart()


def let_go_of_all() -> None:
    """Leaves nothing of the claims of this process, which ends at once."""
    _heart.let_go()


def claim(root: Path, name: str, host: str | None = None) -> Claim | None:
    """The claim of a name (a job's folder, an artifact) below an output root; None while another holds it, in this
    process or elsewhere. `host` stands for this host's name. Raises E-STORE-003 if the folder cannot be written."""
    host = host or socket.gethostname()
    holder = Holder(name, host, _machine(host), os.getpid(), now(), secrets.token_hex(8))
    lock, lease = _places(root, name, holder.machine)
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _lock_unless_held(lock, lease)
        if descriptor is None:
            return None
        try:
            taken = _take(lease, holder)
        except BaseException:
            _free(lock, descriptor)
            raise
    except OSError as error:
        raise not_writable(lock.parent, error) from error
    if not taken:
        _free(lock, descriptor)
        return None
    return Claim(root, holder, descriptor)


@contextlib.contextmanager
def waiting_for(root: Path, name: str) -> Iterator[Claim]:
    """The claim of a name for the length of a block, once whoever holds it is done or dead."""
    pause = _SHORTEST_WAIT
    while (held := claim(root, name)) is None:
        time.sleep(pause)
        pause = min(_LONGEST_WAIT, 1.5 * pause)
    with held:
        yield held


def holders(root: Path, host: str | None = None) -> list[Holder]:
    """Whoever holds a claim now, as far as it can be seen from this host, in the order of the claims' names."""
    machine = _machine(host or socket.gethostname())
    found = []
    for lease in (root / LOCKS).glob("*.lease"):
        holder = _read(lease)
        if holder is not None and _lives(lease, holder, machine):
            found.append(holder)
    return sorted(found, key=lambda holder: holder.claim)


def sweep(root: Path, host: str | None = None) -> None:
    """Deletes what dead holders left: those of this host, and those of others whose lease ran out."""
    folder, machine = root / LOCKS, _machine(host or socket.gethostname())
    starts = {path.name.removeprefix(".").rpartition(".")[0] for path in folder.glob("*")}
    for start in sorted(starts):
        lock, lease = folder / f"{start}.{machine}", folder / f"{start}.lease"
        descriptor = _lock(lock)
        if descriptor is None:
            continue
        probe = folder / f".{start}.{machine}-probe"
        probe.touch()
        _remove_if_dead(lease, machine, probe)
        for left in folder.glob(f".{glob.escape(start)}.{machine}-*"):
            left.unlink()
        _free(lock, descriptor)


def not_writable(path: Path, error: OSError) -> ParenError:
    """E-STORE-003, with the system's reason."""
    return ParenError(
        "E-STORE-003",
        f"{path} cannot be written ({system_reason(error)})",
        fix="make room or make the folder writable, then start again: what is finished is kept",
    )


def _places(root: Path, name: str, machine: str) -> tuple[Path, Path]:
    """The lock of a host and the lease; their names begin alike for every host."""
    words = re.sub(r"[^A-Za-z0-9.-]+", "_", name)[:80].strip(".")
    start = f"{words}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:12]}"
    return root / LOCKS / f"{start}.{machine}", root / LOCKS / f"{start}.lease"


def _machine(host: str) -> str:
    """A word for a running system: two of one name must not take each other's locks for their own."""
    boot = boot_identity() or str(uuid.getnode())
    return hashlib.sha256(f"{host} {boot}".encode()).hexdigest()[:12]


def _lock(path: Path) -> int | None:
    """Locks a file, made if need be; None if another has it. A file that was deleted by its holder between opening and
    locking protects nothing, so the name must still mean the file that was locked."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock_unless_held(lock: Path, lease: Path) -> int | None:
    """Locks a file, or returns None if a live process has it. Without a lease of one, whoever has the lock is about to
    take the claim or to let go of it, or only looks."""
    for _ in range(_TRIES):
        descriptor = _lock(lock)
        if descriptor is not None:
            return descriptor
        found = _read(lease)
        if found is not None and _runs(found.pid):
            return None
        time.sleep(_PAUSE)
    return None


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _free(path: Path, descriptor: int) -> None:
    path.unlink(missing_ok=True)
    os.close(descriptor)


def _take(lease: Path, holder: Holder) -> bool:
    """Puts the holder's lease in place unless a live one stands there. The caller has the lock of its host."""
    written = lease.with_name(f".{lease.stem}.{holder.machine}-{holder.token}")
    written.write_bytes(json_bytes(asdict(holder)))
    try:
        while True:
            with contextlib.suppress(FileExistsError):
                os.link(written, lease)
                return True
            if not _remove_if_dead(lease, holder.machine, written):
                return False
    finally:
        written.unlink(missing_ok=True)


def _remove_if_dead(lease: Path, machine: str, written: Path) -> bool:
    """Takes a dead lease away; gives False for a live one of another host: one that was touched within `LEASE` seconds
    before `written` is, by the clock of the file system.

    A lease that was let go of meanwhile is none: what stands under its name next is not touched. Two hosts may take the
    same one away at once: the second would take the first one's new lease, so it looks at what it took and puts that
    back."""
    try:
        found = _parse(lease.read_bytes())
        os.utime(written)
        if (
            found is not None
            and found.machine != machine
            and os.stat(written).st_mtime - os.stat(lease).st_mtime < LEASE
        ):
            return False
        taken = written.with_name(f"{written.name}-old")
        os.rename(lease, taken)
    except FileNotFoundError:
        return True
    if _read(taken) != found:
        with contextlib.suppress(FileExistsError):
            os.link(taken, lease)
    taken.unlink()
    return True


def _lives(lease: Path, holder: Holder, machine: str) -> bool:
    """Whether a holder still holds its claim, as far as it can be seen from a machine."""
    if holder.machine == machine:
        lock = lease.with_suffix(f".{machine}")
        try:
            descriptor = _lock(lock)
        except OSError:
            return False
        if descriptor is None:
            return True
        _free(lock, descriptor)
        return False
    try:
        return time.time() - os.stat(lease).st_mtime < 2 * LEASE  # looked at from outside: with room for clocks
    except FileNotFoundError:
        return False


def _read(lease: Path) -> Holder | None:
    """The holder; None without a lease that can be read."""
    try:
        return _parse(lease.read_bytes())
    except OSError:
        return None


def _parse(content: bytes) -> Holder | None:
    """The holder; None where a crash of the machine left half of a lease."""
    try:
        return Holder(**parse_json(content))
    except (ValueError, TypeError):
        return None
