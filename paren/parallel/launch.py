"""Starts the ranks of a node and watches them: one that ends, stands still or tells of an error ends the run.

The launcher serves the store (on node 0), so it outlives every rank, and says which rank failed. Its ranks are told of
a stop by signals that it passes on once; a failure that is on record wins over a stop.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO

from paren.environment import AGENT_FILE
from paren.parallel.failure import Failure, describe_end, read_failure
from paren.parallel.meet import Stopped, leave, leave_failed, lost, meet
from paren.parallel.sign import INTERVAL, NEVER, OVER, read_sign, read_stopped, tell_stopped
from paren.parallel.store import Store
from paren.parallel.topology import OF_NODES, Address, Topology
from paren.parallel.watch import FROZEN, Watch

PAUSE = 0.1  # seconds between two looks
REPORTING, NOTING = 10.0, 10.0  # seconds in which a failed rank says why, and rank 0 takes note of it
SIGNS = 5 * INTERVAL  # seconds in which the others give their next sign, also on a busy machine
REPORT = 100  # last lines of a failed rank that are shown
STOPPED = (130, 143)  # exit codes of ranks that saved and ended after a signal


@dataclass
class _Rank:
    """A started rank, what it says to nobody (rank 0 says it to the user), and since when it was seen stopped."""

    number: int
    process: subprocess.Popen[bytes]
    said: IO[bytes]
    stopped: float | None = None


def launch(
    topology: Topology,
    command: Sequence[str],
    variables: Mapping[str, str],
    received: Callable[[], signal.Signals | None],
    say: Callable[[str], None],
) -> int:
    """Runs the command once for each device of this node, and waits; gives the exit code of the ranks: 0, 130 or 143.

    `variables`: of the ranks' environment. `received` gives a stop signal that came. `say` shows a line. Raises
    E-DP-008 if a rank fails, E-DP-007 for nodes that do not come or leave, E-DP-006 for nodes that do not fit together.
    """
    try:
        store, address = meet(topology, received)
    except Stopped as stopped:
        say("stopped before step 1")
        return stopped.code
    said = [tempfile.TemporaryFile() for _ in topology.devices]  # noqa: SIM115  # closed below
    ranks: list[_Rank] = []
    leads = topology.node == 0
    watch = Watch(store, range(topology.ranks), topology.patience, say, near=False) if leads else None
    try:
        for place, file in enumerate(said):
            ranks.append(_start(topology, place, command, variables, address, file))
        code = _wait(store, ranks, watch, received)
        if code and received() is None:
            say("stopped, as a rank or another node was asked to")
        leave(topology, store)
        return code
    except _Failed as failed:
        _end(store, ranks, failed.failure, say)
        leave_failed(topology, store)
        raise failed.failure.error() from None
    except RuntimeError as error:
        raise lost(error) from error
    finally:
        for rank in ranks:
            if rank.process.poll() is None:
                rank.process.kill()
            rank.process.wait()
        for file in said:
            file.close()


def _start(
    topology: Topology,
    place: int,
    command: Sequence[str],
    variables: Mapping[str, str],
    address: Address,
    said: IO[bytes],
) -> _Rank:
    """Starts one rank in a session of its own, so that a terminal's signals come through the launcher only."""
    here = len(topology.devices)
    number = topology.node * here + place
    own = {
        "RANK": str(number),
        "WORLD_SIZE": str(topology.ranks),
        "LOCAL_RANK": str(place),
        "LOCAL_WORLD_SIZE": str(here),
        "MASTER_ADDR": address.host,
        "MASTER_PORT": str(address.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "PAREN_LAUNCHER": str(os.getpid()),
    }
    process = subprocess.Popen(
        list(command),
        env={name: value for name, value in variables.items() if name not in (*OF_NODES, AGENT_FILE)} | own,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # the launcher says where the run is
        stderr=None if number == 0 else said,
        start_new_session=True,
    )
    return _Rank(number, process, said)


class _Failed(Exception):
    """A failure is on record."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


def _wait(
    store: Store, ranks: Sequence[_Rank], watch: Watch | None, received: Callable[[], signal.Signals | None]
) -> int:
    passed_on = False
    while True:
        number = received()
        if number is not None and not passed_on:
            passed_on = True
            tell_stopped(store, 128 + number)
            for rank in ranks:
                if rank.process.poll() is None:
                    os.kill(rank.process.pid, number)
        _look(store, ranks, watch)
        codes = [rank.process.poll() for rank in ranks]
        if all(code is not None for code in codes):
            return max(_exit_code(code) for code in codes if code is not None)
        time.sleep(PAUSE)


def _look(store: Store, ranks: Sequence[_Rank], watch: Watch | None) -> None:
    """Raises _Failed if a rank of this node, or of another, has failed."""
    for rank in ranks:
        code = rank.process.poll()
        if code is not None and not _may_end(store, rank, code):
            _record(store, rank, ranks, _ending(rank), lives=False)
        elif _is_stopped(rank):
            _record(store, rank, ranks, f"it gave no sign of life for {FROZEN:g} s", lives=True)
    if watch is not None:
        watch.look()
    failure = read_failure(store)
    if failure is not None:
        raise _Failed(failure)


def _may_end(store: Store, rank: _Rank, code: int) -> bool:
    """Whether a rank that has ended with an exit code was done, or was stopped before all had joined. A stop may come
    to a rank alone, and before it can tell anybody: then the others are told here."""
    sign, ended = read_sign(store, rank.number), _exit_code(code)
    if sign.phase == OVER:
        return code in (0, *STOPPED)
    if sign == NEVER and ended in STOPPED:
        tell_stopped(store, ended)
    return ended == read_stopped(store)


def _exit_code(code: int) -> int:
    """That of a process, also if it was ended by a signal, as a shell counts."""
    return code if code >= 0 else 128 - code


def _record(store: Store, rank: _Rank, ranks: Sequence[_Rank], cause: str, *, lives: bool) -> None:
    """Records a failure, unless one is on record, of the rank itself for instance. A rank's last sign may be of an
    earlier step; the others, which now wait for it, are at the one that it was at."""
    if read_failure(store) is not None:
        return
    own = read_sign(store, rank.number)
    before = {each.number: read_sign(store, each.number).count for each in ranks if each.process.poll() is None}
    deadline = time.monotonic() + (0.0 if own.step is None else SIGNS)
    while time.monotonic() < deadline and any(read_sign(store, each).count == count for each, count in before.items()):
        time.sleep(PAUSE)
    steps = [sign.step for sign in (read_sign(store, each) for each in before) if sign.step is not None]
    if own.step is not None:
        own = replace(own, step=max([own.step, *steps]))
    Failure(rank.number, socket.gethostname(), own.where, cause, lives).record(store)


def _is_stopped(rank: _Rank) -> bool:
    """Whether a signal has stopped a rank's process for as long as makes it frozen; it may not have begun its signs."""
    try:
        found = os.waitid(os.P_PID, rank.process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False  # it has ended
    now = time.monotonic()
    rank.stopped = None if found is None else now if rank.stopped is None else rank.stopped
    return rank.stopped is not None and now - rank.stopped > FROZEN


def _end(store: Store, ranks: Sequence[_Rank], failure: Failure, say: Callable[[str], None]) -> None:
    """Ends the ranks of this node, those that have something to do last a little later, and says what led to the
    failure: the report of the rank that failed, and who waited for it."""
    begin = time.monotonic()
    last = {rank.number: 0.0 for rank in ranks}
    if 0 in last and read_sign(store, 0).count >= 0:
        last[0] = NOTING
    if failure.rank in last:
        last[failure.rank] = 0.0 if failure.lives else REPORTING
    while alive := [rank for rank in ranks if rank.process.poll() is None]:
        for rank in alive:
            if time.monotonic() - begin >= last[rank.number]:
                rank.process.kill()
        time.sleep(PAUSE)
    for rank in ranks:
        if rank.number == failure.rank:
            for line in _lines(rank)[-REPORT:]:
                say(line)
    others = [str(rank.number) for rank in ranks if rank.number != failure.rank]
    if others:
        say(f"rank {', '.join(others)} waited for rank {failure.rank}")


def _ending(rank: _Rank) -> str:
    """How a rank ended that did not tell why, in words."""
    code = rank.process.returncode
    said = next(iter(_lines(rank)), "").strip() if code >= 0 else ""
    return f"it {describe_end(code)}" + (f" ({said})" if said else "")


def _lines(rank: _Rank) -> list[str]:
    """What a rank said, without empty lines."""
    rank.said.seek(0)
    return [line for line in rank.said.read().decode(errors="replace").splitlines() if line.strip()]
