"""How the nodes of a run meet, as real processes, and everything that is refused before a step is trained."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from rank_processes import free_port
from rank_runs import HOST, LIMIT, TWO, finish, last_line, node, parameters, start, write_experiment

from paren.cli.app import main
from paren.parallel.route import describe_route
from paren.parallel.topology import Address

THREE = ("--set", "microbatches=3")
TOGETHER = "  fix: start every node with that address; PAREN_RENDEZVOUS_TIMEOUT gives them more time\n"
LOOPBACK = (
    "  note: 127.0.0.1 is reached from 127.0.0.1\n"
    "  note: that is the loopback interface, which leads to this machine only\n"
)


def refused(file: Path, out: Path, *arguments: str, **variables: str) -> str:
    """What a run says that is refused."""
    code, said = finish(start(file, out, *arguments, variables=variables))
    assert code == 1
    return said


# The order and the number of nodes -----------------------------------------------------------------------------------


def test_the_order_in_which_nodes_come_is_not_their_number(file: Path, two: Path, tmp_path: Path) -> None:
    """And a place where an earlier run met can be used again."""
    port = free_port()
    for attempt in range(2):
        outs = [tmp_path / f"{attempt} node {index}" for index in range(2)]
        second = start(file, outs[1], "--stacking", "1", variables=node(1, port))
        time.sleep(1)  # long enough to try the address a few times
        first = start(file, outs[0], "--stacking", "1", variables=node(0, port))
        for process in (first, second):
            code, said = finish(process)
            assert code == 0, said
        assert parameters(outs[0]) == parameters(two)


def test_a_node_that_does_not_come_is_named_on_every_node(file: Path, tmp_path: Path) -> None:
    port = free_port()
    started = [
        start(file, tmp_path / "out", *THREE, variables=node(index, port, 3, PAREN_RENDEZVOUS_TIMEOUT="15"))
        for index in (0, 2)
    ]
    for process in started:
        assert finish(process) == (
            1,
            f"E-DP-007: node 1 did not arrive at 127.0.0.1:{port} within 15 s\n"
            f"  note: arrived: node 0 on {HOST}, 2 on {HOST}\n{LOOPBACK}{TOGETHER}",
        )


def test_two_nodes_with_one_index_are_refused(file: Path, tmp_path: Path) -> None:
    port = free_port()
    started = [start(file, tmp_path / "out", *THREE, variables=node(index, port, 3)) for index in (0, 1, 1)]
    end = time.monotonic() + LIMIT
    while all(process.poll() is None for process in started[1:]) and time.monotonic() < end:
        time.sleep(0.05)
    texts = []
    for process in started:
        ended = process.poll() is not None
        process.kill()
        _, said = process.communicate()
        texts += [said] if ended else []
    assert texts == [
        f"E-DP-006: node 1 is there already, on {HOST}; this is {HOST}\n"
        "  fix: give every node its own PAREN_NODE_RANK\n"
    ]


# The address ----------------------------------------------------------------------------------------------------------


def test_a_place_where_nobody_listens(file: Path, tmp_path: Path) -> None:
    port = free_port()
    said = refused(file, tmp_path / "out", **node(1, port, PAREN_RENDEZVOUS_TIMEOUT="1"))
    first, cause, *rest = said.splitlines(keepends=True)
    assert first == f"E-DP-007: node 1 on {HOST} did not reach node 0 at 127.0.0.1:{port} within 1 s\n"
    assert cause.startswith("  note: ")
    assert "".join(rest).rstrip() == LOOPBACK + "  fix: start node 0 too, and let every node reach that address"


def test_a_host_that_nobody_knows(file: Path, tmp_path: Path) -> None:
    variables = node(1, 29500, PAREN_RENDEZVOUS_TIMEOUT="1") | {"PAREN_RENDEZVOUS": "node-0.invalid:29500"}
    said = refused(file, tmp_path / "out", **variables)
    assert said.startswith(f"E-DP-007: node 1 on {HOST} did not reach node 0 at node-0.invalid:29500 within 1 s\n")
    assert "\n  note: this machine does not know the host node-0.invalid (" in said


def test_a_port_that_is_taken(file: Path, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = refused(file, tmp_path / "out", **node(0, port, PAREN_RENDEZVOUS_TIMEOUT="2"))
    assert said.startswith(f"E-DP-007: node 0 on {HOST} could not listen at 127.0.0.1:{port}\n")
    assert said.rstrip().endswith(
        "fix: let PAREN_RENDEZVOUS name this machine and a free port, as every node reaches it"
    )


def test_the_route_to_an_address_is_described() -> None:
    assert describe_route(Address("127.0.0.1", 80)) == [
        "127.0.0.1 is reached from 127.0.0.1",
        "that is the loopback interface, which leads to this machine only",
    ]
    named = describe_route(Address("localhost", 80))
    assert named[0] in ("localhost is 127.0.0.1 here", "localhost is ::1 here")
    assert named[2] == "that is the loopback interface, which leads to this machine only"


# What differs ---------------------------------------------------------------------------------------------------------


def test_devices_of_nodes_have_to_be_as_many(file: Path, tmp_path: Path) -> None:
    port = free_port()
    first = start(file, tmp_path / "out", variables=node(0, port))
    message = "E-DP-006: the number of devices is 2 on node 1, and 1 on node 0"
    said = refused(file, tmp_path / "out", **node(1, port, **TWO))
    assert said.rstrip() == f"{message}\n  fix: start every node with the same variables and devices"
    code, said = finish(first)
    assert (code, last_line(said)) == (1, f"E-DP-008: rank 2 on {HOST} failed at the start (joining): {message}")


def test_gradients_have_to_travel_in_one_type(file: Path, tmp_path: Path) -> None:
    port = free_port()
    first = start(file, tmp_path / "out", variables=node(0, port, PAREN_NODE_GRADIENTS="bf16"))
    said = refused(file, tmp_path / "out", **node(1, port))
    assert said.startswith("E-DP-006: PAREN_NODE_GRADIENTS is f32 on node 1, and bf16 on node 0\n")
    assert finish(first)[0] == 1


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--set", "rows=200"), "the setting rows is 200 on rank 1 (node 1), and 128 on rank 0"),
        (("--set", "seed=1"), "the setting seed is 1 on rank 1 (node 1), and 0 on rank 0"),
        (("--stacking", "2"), "--stacking is 2 on rank 1 (node 1), and not given on rank 0"),
        (("--resume", "auto"), "--resume is auto on rank 1 (node 1), and not given on rank 0"),
    ],
)
def test_a_node_that_would_train_something_else_is_refused(
    file: Path, tmp_path: Path, arguments: tuple[str, ...], what: str
) -> None:
    port = free_port()
    started = [start(file, tmp_path / "out", *more, variables=node(i, port)) for i, more in enumerate(((), arguments))]
    ends = [finish(process) for process in started]
    for code, said in ends:
        assert code == 1
        place = f"E-DP-008: rank 1 on {HOST} failed at the start (preparing): E-DP-006: "
        assert last_line(said).startswith(place + what.partition(" [")[0])
    assert not (tmp_path / "out" / "checkpoints").exists()


# One process is enough to say no --------------------------------------------------------------------------------------


def test_microbatches_that_cannot_be_shared_are_refused_before_any_rank_starts(file: Path, tmp_path: Path) -> None:
    assert refused(file, tmp_path / "out", *THREE, **TWO).rstrip() == (
        "E-DP-003: 2 ranks cannot share 3 microbatches evenly\n"
        "  fix: take 1 or 3 of them, or choose :microbatches that 2 divides"
    )


def test_devices_that_are_not_there(file: Path, tmp_path: Path) -> None:
    said = refused(file, tmp_path / "out", PAREN_DEVICES="0,4096")
    assert said.startswith("E-DP-001: PAREN_DEVICES is `0,4096`, and device 4096 is not visible\n  note: visible: ")
    assert said.rstrip().endswith("  fix: list visible ordinals once each, PAREN_DEVICES=0,1")


def test_variables_of_nodes_that_are_wrong(file: Path, tmp_path: Path) -> None:
    assert refused(file, tmp_path / "out", PAREN_NODES="2", PAREN_NODE_RANK="2").rstrip() == (
        "E-DP-005: PAREN_NODE_RANK is 2, and nodes are numbered 0 to 1\n"
        "  fix: set PAREN_NODES, PAREN_NODE_RANK (0 to nodes - 1) and PAREN_RENDEZVOUS (host:port of node 0) "
        "on every node"
    )


def test_nodes_under_torchrun(file: Path, tmp_path: Path) -> None:
    torchrun = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    torchrun |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400"}
    assert refused(file, tmp_path / "out", PAREN_NODES="2", **torchrun).rstrip() == (
        "E-DP-009: PAREN_NODES is set under torchrun, which has nodes of its own\n"
        "  fix: start with torchrun alone, or with paren alone on every node"
    )


def test_rounded_gradients_are_not_reproducible(file: Path, tmp_path: Path) -> None:
    own = write_experiment(tmp_path)
    own.write_text(own.read_text().replace("(defrun\n", "(defrun\n  :reproducible-over 4\n"))
    said = refused(own, tmp_path / "out", **TWO, PAREN_NODE_GRADIENTS="bf16")
    assert "E-DP-005: PAREN_NODE_GRADIENTS is `bf16`, and :reproducible-over needs exact sums\n" in said


@pytest.mark.parametrize("number", range(1, 10))
def test_help_explains_every_code(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    code = f"E-DP-{number:03d}"
    assert main(["help", code]) == 0
    assert code in capsys.readouterr().out


def test_memory_is_agreed_on(file: Path, tmp_path: Path) -> None:
    """What fits on the node with less memory is what both take, or neither starts."""
    ends = {}
    for little in ("200KiB", "418KiB"):
        port = free_port()
        started = [
            start(file, tmp_path / "out", "--steps", "2", variables=node(index, port, PAREN_MEMORY=size))
            for index, size in enumerate(("1GiB", little))
        ]
        ends[little] = [finish(process) for process in started]
    (code, said), (other_code, other_said) = ends["200KiB"]
    assert (code, other_code) == (1, 1)
    assert "KiB, and 200 KiB are free\n" in said
    assert "\n  note: the limit is the value of PAREN_MEMORY on rank 1\n" in said + other_said
    assert last_line(said) == last_line(other_said)
    (code, said), (other_code, _) = ends["418KiB"]
    assert (code, other_code) == (0, 0), ends
    assert "KiB planned of 418 KiB (value of PAREN_MEMORY on rank 1): fits\n" in said
    assert "stacking   1 of 4 microbatches a call, the only one that fits\n" in said
    assert "ranks      2, each with 2 of 4 microbatches of 32 rows: batches of 127 examples\n" in said
