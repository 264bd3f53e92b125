"""What is said where the store of a run is not reached, is gone, or serves a node that does not end; and of a rank that
ended when no other is left to tell where the run was."""

from __future__ import annotations

from contextlib import nullcontext
from io import BytesIO
from types import SimpleNamespace

import pytest
from rank_processes import free_port
from rank_runs import HOST

from paren.parallel.failure import read_failure
from paren.parallel.group import PeerLost
from paren.parallel.join import joined
from paren.parallel.launch import _Rank, _record
from paren.parallel.meet import leave, lost
from paren.parallel.ranks import Ranks
from paren.parallel.route import LOOPBACK
from paren.parallel.sign import Sign
from paren.parallel.store import open_store
from paren.parallel.topology import Address, Member, Patience, Topology
from paren.text.errors import ParenError

BRIEF = Patience(join=1.0)


def told(error: ParenError) -> tuple[str, str, list[str], str | None]:
    return error.code, error.message, [note.message for note in error.notes], error.fix


def test_a_store_that_a_rank_does_not_reach() -> None:
    meeting = Address(LOOPBACK, free_port())
    member = Member(rank=1, local_rank=1, meeting=meeting, served=True)
    topology = Topology(1, 0, (0, 1), None, BRIEF, "f32", member)
    with pytest.raises(ParenError) as caught, joined(topology, member, lambda: nullcontext(lambda: None)):
        raise AssertionError("there is no store")
    assert told(caught.value) == (
        "E-DP-007",
        f"rank 1 on {HOST} did not reach the store at {meeting} within 1 s",
        ["127.0.0.1 is reached from 127.0.0.1", "that is the loopback interface, which leads to this machine only"],
        "start every node, and let them reach that address",
    )


def test_a_store_that_is_gone() -> None:
    error = RuntimeError("Connection reset by peer\n#0 a stack that nobody reads")
    assert told(lost(error)) == (
        "E-DP-007",
        "node 0 left the run: its store is gone",
        ["Connection reset by peer"],
        "restart every node with --resume latest",
    )


def test_a_store_that_goes_while_a_rank_waits_for_what_another_tells() -> None:
    """It is the other's end, of which the heart hears, and no fault of paren."""

    class Gone:
        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("Failed to recv, got 0 bytes")

    ranks = Ranks(1, 2, Gone(), None, SimpleNamespace(meeting=nullcontext))  # type: ignore[arg-type]
    with pytest.raises(PeerLost, match="Failed to recv, got 0 bytes"):
        ranks.hear("start")


def test_a_node_that_does_not_end() -> None:
    store = open_store(Address(LOOPBACK, 0), 3, True, 5.0)
    store.set("node done/1", "")
    with pytest.raises(ParenError) as caught:
        leave(Topology(3, 0, (0,), Address(LOOPBACK, store.port), BRIEF, "f32", None), store)
    assert told(caught.value) == (
        "E-DP-007",
        "node 2 did not end within 1 s after node 0",
        [],
        "see to that node; this run's checkpoints are whole",
    )


def test_a_rank_that_ended_when_the_others_of_its_node_had_ended() -> None:
    store = open_store(Address(LOOPBACK, 0), 4, True, 5.0)
    ended = [_Rank(number, SimpleNamespace(poll=lambda: 1), BytesIO()) for number in (2, 3)]  # type: ignore[arg-type]
    Sign(count=9, step=77, met=400, waits=True, phase="training").tell(store, 2)
    _record(store, ended[0], ended, "it ended with exit code 1", lives=False)
    failure = read_failure(store)
    assert failure is not None
    assert failure.error().message == f"rank 2 on {HOST} failed in step 78: it ended with exit code 1"
