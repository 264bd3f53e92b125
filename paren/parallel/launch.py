"""Starts the ranks of a node and watches them: one that ends, stands still or tells of an error ends the run.

The launcher serves the store (on node 0), so it outlives every rank, and says which rank failed. Its ranks are told of
a stop by signals that it passes on once; a failure that is on record wins over a stop.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from paren.parallel.heart import FAILURE, FROZEN, Failure, beat_key
from paren.parallel.store import Store, open_store
from paren.parallel.topology import OF_NODES, Address, Topology
from paren.text.errors import Note, ParenError, first_line

PAUSE = 0.1  # seconds between two looks
LOOPBACK = "127.0.0.1"
STOPPED = (130, 143)  # exit codes of ranks that saved and ended after a signal
NODE, DONE = "node", "node done"  # keys


@dataclass
class _Rank:
    """A started rank, what it says to nobody (rank 0 says it to the user), the count that its last sign had, and when
    that was seen."""

    number: int
    process: subprocess.Popen[bytes]
    said: IO[bytes]
    count: int = -1
    step: int = 0
    seen: float = field(default_factory=time.monotonic)


def launch(
    topology: Topology,
    command: Sequence[str],
    variables: Mapping[str, str],
    received: Callable[[], signal.Signals | None],
) -> int:
    """Runs the command once for each device of this node, and waits; gives the exit code of the ranks: 0, 130 or 143.

    `variables`: of the ranks' environment. `received` gives a stop signal that came. Raises E-DP-008 if a rank fails,
    E-DP-007 for nodes that do not come or leave, E-DP-006 for nodes that do not fit together.
    """
    store, address = _meet(topology)
    said = [tempfile.TemporaryFile() for _ in topology.devices]  # noqa: SIM115  # closed below
    ranks = [_start(topology, place, command, variables, address, file) for place, file in enumerate(said)]
    try:
        code = _watch(store, ranks, received)
        _part(topology, store)
        return code
    finally:
        for rank in ranks:
            if rank.process.poll() is None:
                rank.process.kill()
            rank.process.wait()
            rank.said.close()


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
    }
    process = subprocess.Popen(
        list(command),
        env={name: value for name, value in variables.items() if name not in OF_NODES} | own,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # the launcher says where the run is
        stderr=None if number == 0 else said,
        start_new_session=True,
    )
    return _Rank(number, process, said)


def _watch(store: Store, ranks: Sequence[_Rank], received: Callable[[], signal.Signals | None]) -> int:
    passed_on = False
    while True:
        number = received()
        if number is not None and not passed_on:
            passed_on = True
            for rank in ranks:
                if rank.process.poll() is None:
                    os.kill(rank.process.pid, number)
        _look(store, ranks)
        codes = [rank.process.poll() for rank in ranks]
        if all(code is not None for code in codes):
            return max(code or 0 for code in codes)
        time.sleep(PAUSE)


def _look(store: Store, ranks: Sequence[_Rank]) -> None:
    """Raises E-DP-008 if a rank of this node, or of another, has failed."""
    try:
        failed = next((rank for rank in ranks if rank.process.poll() not in (None, 0, *STOPPED)), None)
        if failed is not None and not store.check([FAILURE]):
            _record(store, failed, _ending(failed))
        if not store.check([FAILURE]):
            for rank in ranks:
                if rank.process.poll() is None and _is_frozen(store, rank):
                    _record(store, rank, f"it gave no sign of life for {FROZEN:g} s")
        if store.check([FAILURE]):
            raise Failure.from_json(store.get(FAILURE)).error()
    except RuntimeError as error:
        raise ParenError(
            "E-DP-007",
            "node 0 left the run: its store is gone",
            notes=[Note(first_line(error))],
            fix="restart every node with --resume latest",
        ) from error


def _record(store: Store, rank: _Rank, cause: str) -> None:
    Failure.here(rank.number, rank.step, cause).record(store)


def _is_frozen(store: Store, rank: _Rank) -> bool:
    """Whether the signs of a rank have stopped. Before its first sign a rank has as long as it needs."""
    now = time.monotonic()
    if store.check([beat_key(rank.number)]):
        count, rank.step = json.loads(store.get(beat_key(rank.number)))
        if count != rank.count:
            rank.count, rank.seen = count, now
    return rank.count >= 0 and now - rank.seen > FROZEN


def _ending(rank: _Rank) -> str:
    """How a rank ended that did not tell why, in words."""
    code = rank.process.returncode
    if code >= 0:
        rank.said.seek(0)
        lines = rank.said.read().decode(errors="replace").split("\n")
        said = next((line.strip() for line in lines if line.strip()), "")
        return f"it ended with exit code {code}" + (f" ({said})" if said else "")
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"


# Nodes --------------------------------------------------------------------------------------------------------------


def _meet(topology: Topology) -> tuple[Store, Address]:
    """The store of the run and its address, once every node is there."""
    if topology.nodes == 1:
        store = open_store(Address(LOOPBACK, 0), topology.ranks, True, topology.timeout)
        return store, Address(LOOPBACK, store.port)
    address = topology.rendezvous
    assert address is not None  # several nodes have one
    own = {
        "nodes": topology.nodes,
        "devices": len(topology.devices),
        "exchange": topology.exchange,
        "host": socket.gethostname(),
    }
    try:
        store = open_store(address, topology.ranks, topology.node == 0, topology.timeout)
    except RuntimeError as error:
        raise _not_reached(topology, address, error) from error
    _arrive(topology, store, own)
    return store, address


def _arrive(topology: Topology, store: Store, own: Mapping[str, object]) -> None:
    """Tells of this node, compares it with node 0, and waits for all others."""
    text = json.dumps(own)
    other = store.compare_set(f"{NODE}/{topology.node}", "", text)
    if other.decode() != text or (topology.node and _already(store, topology.node)):
        host = json.loads(other)["host"]
        raise ParenError(
            "E-DP-006",
            f"node {topology.node} is there already, on {host}; this is {own['host']}",
            fix="give every node its own PAREN_NODE_RANK",
        )
    deadline = time.monotonic() + topology.timeout
    while True:
        missing = [node for node in range(topology.nodes) if not store.check([f"{NODE}/{node}"])]
        if not missing:
            break
        if time.monotonic() > deadline:
            arrived = ", ".join(str(node) for node in range(topology.nodes) if node not in missing)
            raise ParenError(
                "E-DP-007",
                f"node {', '.join(map(str, missing))} did not arrive at {topology.rendezvous} within "
                f"{topology.timeout:g} s",
                notes=[Note(f"arrived: {arrived}")],
                fix="start every node; PAREN_RENDEZVOUS_TIMEOUT gives them more time",
            )
        time.sleep(PAUSE)
    first = json.loads(store.get(f"{NODE}/0"))
    words = {"nodes": "PAREN_NODES", "devices": "the number of devices", "exchange": "PAREN_NODE_GRADIENTS"}
    for name, word in words.items():
        if first[name] != own[name]:
            error = ParenError(
                "E-DP-006",
                f"{word} is {own[name]} on node {topology.node}, and {first[name]} on node 0",
                fix="start every node with the same variables and devices",
            )
            rank = topology.node * len(topology.devices)
            # The other nodes must not wait for this one.
            Failure.here(rank, 0, f"{error.code}: {error.message}").record(store)
            raise error


def _part(topology: Topology, store: Store) -> None:
    """Node 0, which serves the store, stays until the ranks of every node have ended."""
    if topology.nodes == 1:
        return
    store.set(f"{DONE}/{topology.node}", "")
    deadline = time.monotonic() + topology.timeout
    others = [f"{DONE}/{node}" for node in range(topology.nodes)] if topology.node == 0 else []
    while others and not store.check(others):
        if store.check([FAILURE]):
            raise Failure.from_json(store.get(FAILURE)).error()
        if time.monotonic() > deadline:
            missing = [key.rpartition("/")[2] for key in others if not store.check([key])]
            raise ParenError(
                "E-DP-007",
                f"node {', '.join(missing)} did not end within {topology.timeout:g} s after node 0",
                fix="see to that node; this run's checkpoints are whole",
            )
        time.sleep(PAUSE)


def _already(store: Store, node: int) -> bool:
    """Whether another process took this node's place: each counts itself once."""
    return store.add(f"{NODE} {node} count", 1) > 1


def _not_reached(topology: Topology, address: Address, error: RuntimeError) -> ParenError:
    what = "could not listen at" if topology.node == 0 else "did not reach node 0 at"
    within = "" if topology.node == 0 else f" within {topology.timeout:g} s"
    return ParenError(
        "E-DP-007",
        f"node {topology.node} on {socket.gethostname()} {what} {address}{within}",
        notes=[Note(first_line(error))],
        fix="start node 0 too, and let every node reach that address",
    )
