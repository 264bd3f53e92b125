"""Becoming one of the ranks of a run: the store, the groups, and the proof that all ranks run the same."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from paren.parallel.group import Groups, PeerLost
from paren.parallel.heart import Failure, Heart
from paren.parallel.ranks import FACTS, Ranks
from paren.parallel.store import open_store
from paren.parallel.topology import Member, Topology
from paren.text.errors import ParenError

GRACE = 20.0  # seconds in which the failure of another rank comes to light
PATIENCE = 365 * 24 * 3600.0  # seconds of a collective: whether a rank is alive is watched, and not timed


def join(topology: Topology, member: Member) -> Ranks:
    """This process as a rank. It returns once every rank has come. Raises E-DP-007 if the store is not reached."""
    serves = member.rank == 0 and not member.served
    try:
        store = open_store(member.meeting, topology.ranks, serves, topology.timeout)
    except RuntimeError as error:
        raise ParenError(
            "E-DP-007",
            f"rank {member.rank} on {socket.gethostname()} did not reach the store at {member.meeting} within "
            f"{topology.timeout:g} s",
            fix="start every node, and let them reach that address",
        ) from error
    heart = Heart(member.rank, open_store(member.meeting, topology.ranks, False, topology.timeout), member.served)
    return Ranks(member.rank, topology.ranks, store, Groups(topology, member.rank, store, PATIENCE), heart)


@contextmanager
def joined(topology: Topology, member: Member) -> Iterator[Ranks]:
    """A block in which this process is a rank: it gives signs of life, and tells why it fails.

    An exchange that another rank left is not the cause of anything: then it waits to be ended by whoever watches.
    """
    ranks = join(topology, member)
    try:
        yield ranks
    except PeerLost as error:
        time.sleep(GRACE)
        raise Failure.here(ranks.rank, ranks.heart.step, f"an exchange broke: {error}").error() from error
    except BaseException as error:
        ranks.heart.fail(error)
        raise
    finally:
        ranks.heart.stop()
    ranks.groups.close()


def compare_facts(ranks: Ranks, facts: Mapping[str, str], here: int) -> None:
    """Raises E-DP-006 unless what decides about a run is the same as on rank 0. `here`: ranks of a node."""
    if ranks.leads:
        ranks.tell(FACTS, dict(facts))
        return
    wanted = ranks.hear(FACTS)
    for name, value in facts.items():
        if wanted.get(name) != value:
            raise ParenError(
                "E-DP-006",
                f"{name} is {value} on rank {ranks.rank} (node {ranks.rank // here}), and {wanted.get(name)} on rank 0",
                fix="start every rank with the same file, settings, options, data and checkpoints",
            )
