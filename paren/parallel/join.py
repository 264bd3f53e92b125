"""Becoming one of the ranks of a run: the store, the groups, and the proof that all ranks run the same."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress

from paren.environment import GLOO_INTERFACE
from paren.parallel.group import Groups, PeerLost, peers
from paren.parallel.heart import Heart
from paren.parallel.interface import choose_interface
from paren.parallel.ranks import FACTS, Ranks
from paren.parallel.route import describe_route
from paren.parallel.store import Store, open_store, reach_store
from paren.parallel.topology import Member, Topology
from paren.parallel.watch import Watch
from paren.text.errors import Note, ParenError

GRACE = 30.0  # seconds in which the failure of another rank comes to light
DIGEST, SHOWN = "digest", 12  # the last word of facts that are long numbers; of these so many digits are shown
PATIENCE = 365 * 24 * 3600.0  # seconds of a collective: whether a rank is alive is watched, and not timed
Stops = Callable[[], AbstractContextManager[Callable[[], int | None]]]


@contextmanager
def joined(topology: Topology, member: Member, stops: Stops) -> Iterator[Ranks]:
    """A block in which this process is a rank, which begins once every rank has come: it gives signs of life, and tells
    why it fails. `stops` is a block, of the time until then, that gives what tells any thread the exit code of a stop
    that was asked for, None before. Raises E-DP-007 if the store is not reached.

    An exchange that another rank left is not the cause of anything: then it waits to be ended by its heart, which hears
    of the cause.
    """
    parent = member.launcher if member.launcher is not None else os.getppid() if member.served else None
    with ExitStack() as joining:
        asked = joining.enter_context(stops())
        store, own = _open_stores(topology, member, lambda: _end_if_left(parent, asked()))
        heart = _give_heart(topology, member, own, parent)
        heart.joining, resting = asked, joining.pop_all()
    try:
        with resting:
            groups = _make_groups(topology, member, store, heart)
            heart.joining = None
        ranks = Ranks(member.rank, topology.ranks, store, groups, heart)
        with ranks.held:
            yield ranks
    except PeerLost as error:
        with heart.meeting():
            time.sleep(GRACE)
        broken = ParenError("E-DP-008", f"an exchange broke, and no rank said why: {error}")
        heart.fail(broken)
        raise broken from error
    except BaseException as error:
        heart.fail(error)
        raise
    finally:
        heart.stop()
    groups.close()


def _end_if_left(parent: int | None, code: int | None) -> None:
    """Ends this process before it has joined: nobody is left to answer to, or a stop was asked for."""
    if parent is not None and os.getppid() != parent:
        os._exit(1)
    if code is not None:
        os._exit(code)


def _open_stores(topology: Topology, member: Member, look: Callable[[], None]) -> tuple[Store, Store]:
    """The store, twice: for the training, and for the signs of life, which nothing may keep waiting."""
    limit, serves = topology.patience.join, member.rank == 0 and not member.served
    try:
        if serves:
            store = open_store(member.meeting, topology.ranks, True, limit)
        else:
            store = reach_store(member.meeting, topology.ranks, limit, look, member.attempt)
        return store, reach_store(member.meeting, topology.ranks, limit, look, member.attempt)
    except RuntimeError as error:
        raise ParenError(
            "E-DP-007",
            f"rank {member.rank} on {socket.gethostname()} did not reach the store at {member.meeting} within "
            f"{limit:g} s",
            notes=[Note(line) for line in describe_route(member.meeting)],
            fix="start every node, and let them reach that address",
        ) from error


def _make_groups(topology: Topology, member: Member, store: Store, heart: Heart) -> Groups:
    """The groups that this rank belongs to. Raises E-DP-007 if the ranks do not reach each other."""
    with peers(), heart.meeting():
        interface = choose_interface(topology, member.meeting, store)
    try:
        return Groups(topology, member.rank, store, PATIENCE, heart.meeting)
    except PeerLost as error:
        with heart.meeting():
            time.sleep(GRACE)  # a rank may have ended, which is the cause then
        raise ParenError(
            "E-DP-007",
            f"rank {member.rank} on {socket.gethostname()} and the others did not reach each other",
            notes=[Note(f"it listened on interface {interface}"), Note(f"Gloo said: {error}")],
            fix=f"let the nodes reach each other at every port, or name the interface between them in {GLOO_INTERFACE}",
        ) from error


def _give_heart(topology: Topology, member: Member, store: Store, parent: int | None) -> Heart:
    """The heart of this rank. Where no launcher of paren's watches, ranks do."""
    rank = member.rank
    if member.launcher is not None:
        return Heart(rank, store, parent)
    watched = watched_by(rank, topology.ranks, len(topology.devices))
    watch = Watch(store, watched, topology.patience, say if rank == 0 else None, near=True)
    return Heart(rank, store, parent, watch, say)


def watched_by(rank: int, ranks: int, here: int) -> Sequence[int]:
    """The ranks that one looks after, of nodes of `here` ranks: the first all of them, as it says who is stuck; each
    other the next one, and the next one of its node, whose process it sees even where that never gave a sign."""
    if rank == 0:
        return range(ranks)
    node = rank // here * here
    return sorted({(rank + 1) % ranks, node + (rank + 1 - node) % here} - {rank})


def say(text: str) -> None:
    """Writes a line to stderr, from any thread and whatever the others do with the stream."""
    with suppress(OSError):
        os.write(2, f"{text}\n".encode())


def compare_facts(ranks: Ranks, facts: Mapping[str, str], settings: Mapping[str, str], here: int) -> None:
    """Raises E-DP-006 unless what decides about a run is the same as on rank 0. `settings` are looked at where a digest
    differs, which they may explain. `here`: ranks of a node."""
    if ranks.leads:
        ranks.tell(FACTS, {**facts, **settings})
        return
    wanted = ranks.hear(FACTS)
    different = next((name for name, value in facts.items() if wanted.get(name) != value), None)
    if different is None:
        return
    own, its = facts[different], str(wanted.get(different))
    if different.endswith(DIGEST):
        own, its = own[:SHOWN], its[:SHOWN]
        for name, value in settings.items():
            if wanted.get(name) != value:
                different, own, its = name, value, str(wanted.get(name, "not there"))
                break
    raise ParenError(
        "E-DP-006",
        f"{different} is {own} on rank {ranks.rank} (node {ranks.rank // here}), and {its} on rank 0",
        fix="start every rank with the same file, settings, options, data and checkpoints",
    )
