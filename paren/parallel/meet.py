"""The launchers of several nodes meet at node 0, whose store serves the run, compare what they were given, and part."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from paren.parallel.failure import Failure, read_failure
from paren.parallel.route import LOOPBACK, describe_route
from paren.parallel.sign import NEVER, read_stopped, tell_stopped
from paren.parallel.store import Store, open_store, reach_store
from paren.parallel.topology import Address, Topology
from paren.text.errors import Note, ParenError, describe_cause, first_line

PAUSE = 0.1  # seconds between two looks
HEARING = 10.0  # seconds in which the other nodes hear of a failure
NODE, DONE, LATE = "node", "node done", "node late"  # keys


class Stopped(Exception):
    """A stop was asked for before all nodes had come; `code` is the exit code of all of them."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def meet(topology: Topology, received: Callable[[], signal.Signals | None]) -> tuple[Store, Address]:
    """The store of the run and its address, once every node is there. `received` gives a stop signal that came.

    Raises `Stopped` if one came to any node, E-DP-007 if a node is not there, E-DP-006 if one differs from node 0,
    E-DP-008 if one failed meanwhile.
    """
    patience = topology.patience.join
    if topology.nodes == 1:
        store = open_store(Address(LOOPBACK, 0), topology.ranks, True, patience)
        return store, Address(LOOPBACK, store.port)
    address = topology.rendezvous
    assert address is not None  # several nodes have one

    def heed() -> None:
        if (number := received()) is not None:
            raise Stopped(128 + number)

    try:
        if topology.node == 0:
            store = open_store(address, topology.ranks, True, patience)
        else:
            store = reach_store(address, topology.ranks, patience, heed)
    except RuntimeError as error:
        raise _not_reached(topology, address, first_line(error)) from error
    own = {
        "nodes": topology.nodes,
        "devices": len(topology.devices),
        "exchange": topology.exchange,
        "host": socket.gethostname(),
    }
    try:
        try:
            _arrive(topology, store, address, own, heed)
            _wait_for_nodes(topology, store, address, heed)
        except Stopped as stopped:
            tell_stopped(store, stopped.code)
            leave_failed(topology, store)
            raise
    except RuntimeError as error:
        raise lost(error) from error
    return store, address


def lost(error: RuntimeError) -> ParenError:
    """E-DP-007 where the store of node 0 is gone."""
    return ParenError(
        "E-DP-007",
        "node 0 left the run: its store is gone",
        notes=[Note(first_line(error))],
        fix="restart every node with --resume latest",
    )


def leave(topology: Topology, store: Store) -> None:
    """Node 0, which serves the store, stays until the ranks of every node have ended."""
    missing = _wait_for_ends(topology, store, topology.patience.join)
    failure = read_failure(store) if missing else None
    if failure is not None:
        raise failure.error()
    if missing:
        raise ParenError(
            "E-DP-007",
            f"node {_listed(missing)} did not end within {topology.patience.join:g} s after node 0",
            fix="see to that node; this run's checkpoints are whole",
        )


def leave_failed(topology: Topology, store: Store) -> None:
    """After a failure node 0 stays until the other nodes have heard of it, but not for long."""
    with suppress(RuntimeError):  # node 0 did not wait for this one
        _wait_for_ends(topology, store, HEARING, failed=True)


def _wait_for_ends(topology: Topology, store: Store, limit: float, *, failed: bool = False) -> list[int]:
    """Says that this node has ended; on node 0, waits for the others. Gives those that did not say so within `limit`
    seconds, or before a failure was told of."""
    if topology.nodes == 1:
        return []
    store.set(f"{DONE}/{topology.node}", "")
    deadline = time.monotonic() + limit
    others = list(range(topology.nodes)) if topology.node == 0 else []
    if failed:  # of nodes that never came, nobody hears
        others = [node for node in others if store.check([f"{NODE}/{node}"])]
    while True:
        missing = [node for node in others if not store.check([f"{DONE}/{node}"])]
        if not missing or time.monotonic() > deadline or (not failed and read_failure(store) is not None):
            return missing
        time.sleep(PAUSE)


def _arrive(
    topology: Topology, store: Store, address: Address, own: Mapping[str, object], heed: Callable[[], None]
) -> None:
    """Tells of this node, and compares it with node 0."""
    text = json.dumps(own)
    other = store.compare_set(f"{NODE}/{topology.node}", "", text)
    if other.decode() != text or (topology.node and _already(store, topology.node)):
        host = json.loads(other)["host"]
        raise ParenError(
            "E-DP-006",
            f"node {topology.node} is there already, on {host}; this is {own['host']}",
            fix="give every node its own PAREN_NODE_RANK",
        )
    deadline = time.monotonic() + topology.patience.join
    while not store.check([f"{NODE}/0"]):
        heed()
        if time.monotonic() > deadline:
            raise _not_reached(topology, address, "the store that is there is of something else")
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
            # The other nodes must not wait for this one.
            rank = topology.node * len(topology.devices)
            Failure(rank, str(own["host"]), NEVER.where, describe_cause(error)).record(store)
            raise error


def _wait_for_nodes(topology: Topology, store: Store, address: Address, heed: Callable[[], None]) -> None:
    """Returns once every node is there. Node 0 decides that it has waited long enough, and lets the others know."""
    deadline = time.monotonic() + topology.patience.join
    while True:
        hosts = {
            node: json.loads(store.get(f"{NODE}/{node}"))["host"]
            for node in range(topology.nodes)
            if store.check([f"{NODE}/{node}"])
        }
        missing = [node for node in range(topology.nodes) if node not in hosts]
        if not missing:
            return
        heed()
        if (code := read_stopped(store)) is not None:
            raise Stopped(code)
        failure = read_failure(store)
        late = time.monotonic() > deadline and topology.node == 0
        if late:
            store.set(LATE, "")
        if late or store.check([LATE]):
            leave_failed(topology, store)
            arrived = ", ".join(f"{node} on {host}" for node, host in hosts.items())
            raise ParenError(
                "E-DP-007",
                f"node {_listed(missing)} did not arrive at {address} within {topology.patience.join:g} s",
                notes=[Note(line) for line in (f"arrived: node {arrived}", *describe_route(address))],
                fix="start every node with that address; PAREN_RENDEZVOUS_TIMEOUT gives them more time",
            )
        if failure is not None:
            leave_failed(topology, store)
            raise failure.error()
        time.sleep(PAUSE)


def _already(store: Store, node: int) -> bool:
    """Whether another process took this node's place: each counts itself once."""
    return store.add(f"{NODE} {node} count", 1) > 1


def _not_reached(topology: Topology, address: Address, why: str) -> ParenError:
    what = "could not listen at" if topology.node == 0 else "did not reach node 0 at"
    other = "start node 0 too, and let every node reach that address"
    own = "let PAREN_RENDEZVOUS name this machine and a free port, as every node reaches it"
    within = "" if topology.node == 0 else f" within {topology.patience.join:g} s"
    return ParenError(
        "E-DP-007",
        f"node {topology.node} on {socket.gethostname()} {what} {address}{within}",
        notes=[Note(why), *(Note(line) for line in describe_route(address))],
        fix=own if topology.node == 0 else other,
    )


def _listed(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, nodes))
