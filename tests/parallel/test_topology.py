"""Where ranks come from, and every message about variables that say it wrongly."""

from __future__ import annotations

import pytest
from fake_probes import several

from paren.parallel.topology import Address, Member, Patience, Topology, Visible, find_topology, split_evenly
from paren.parallel.visible import visible_devices
from paren.text.errors import ParenError

CPU = Visible("cpu", 8, "")
CARDS = Visible("cuda", 4, "")
MASKED = Visible("cuda", 2, "CUDA_VISIBLE_DEVICES is `2,3`")
NONE = Visible("cuda", 0, "CUDA_VISIBLE_DEVICES is empty, which hides every card")
NODES = {"PAREN_NODES": "2", "PAREN_NODE_RANK": "1", "PAREN_RENDEZVOUS": "node-0:29500"}


def torchrun(rank: int, ranks: int, here: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank % here),
        "LOCAL_WORLD_SIZE": str(here),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29400",
    }


def refused(code: str, variables: dict[str, str], visible: Visible = CPU, ordinal: int | None = None) -> ParenError:
    with pytest.raises(ParenError) as caught:
        find_topology(variables, visible, ordinal)
    assert caught.value.code == code
    return caught.value


def test_nothing_said_is_one_rank_on_the_cpu_and_every_visible_card() -> None:
    assert find_topology({}, CPU) == Topology(1, 0, (0,), None, Patience(300.0, 300.0, 7200.0), "f32", None)
    found = find_topology({}, CARDS)
    assert (found.devices, found.ranks, found.starts_ranks) == ((0, 1, 2, 3), 4, True)
    assert not find_topology({}, CPU).starts_ranks
    assert find_topology({}, CARDS, ordinal=2).devices == (2,)


def test_devices_are_listed_in_rank_order_and_one_is_the_path_of_one_rank() -> None:
    assert find_topology({"PAREN_DEVICES": " 3, 1 "}, CARDS).devices == (3, 1)
    assert find_topology({"PAREN_DEVICES": "1"}, CARDS).ranks == 1
    assert find_topology({"PAREN_DEVICES": "0,1"}, CPU).ranks == 2
    assert find_topology({"PAREN_DEVICES": ""}, CPU).ranks == 1


def test_nodes_have_an_index_and_a_place_to_meet() -> None:
    limits = {"PAREN_RENDEZVOUS_TIMEOUT": "2.5", "PAREN_STEP_TIMEOUT": "7", "PAREN_WORK_TIMEOUT": "8"}
    found = find_topology({**NODES, "PAREN_DEVICES": "0,1", **limits}, CPU)
    assert (found.nodes, found.node, found.ranks, found.patience) == (2, 1, 4, Patience(2.5, 7.0, 8.0))
    assert found.rendezvous == Address("node-0", 29500)
    assert find_topology({"PAREN_NODES": "1"}, CPU).nodes == 1
    assert str(find_topology({**NODES, "PAREN_RENDEZVOUS": "[::1]:29500"}, CPU).rendezvous) == "[::1]:29500"


def test_gradients_between_nodes_of_cards_travel_in_half_the_bytes_if_nothing_is_said() -> None:
    assert find_topology(NODES, CPU).exchange == "f32"
    assert find_topology(NODES, CARDS).exchange == "bf16"
    assert find_topology({**NODES, "PAREN_NODE_GRADIENTS": "f32"}, CARDS).exchange == "f32"


def test_under_torchrun_the_process_is_a_rank() -> None:
    found = find_topology(torchrun(3, 4, 2), CARDS)
    assert found.member == Member(3, 1, Address("127.0.0.1", 29400), served=False)
    assert (found.nodes, found.node, found.devices, found.starts_ranks) == (2, 1, (0, 1), False)
    assert find_topology({**torchrun(1, 2, 2), "PAREN_DEVICES": "2,3"}, CARDS).devices == (2, 3)
    assert find_topology(torchrun(1, 2, 2), CPU).devices == (0, 0)
    assert find_topology(torchrun(0, 1, 1), CPU).member is None
    assert find_topology({"WORLD_SIZE": "1"}, CPU).member is None
    again = {**torchrun(1, 2, 2), "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "3"}
    assert find_topology(again, CPU).member == Member(1, 1, Address("127.0.0.1", 29400), served=True, attempt=3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,,1", "PAREN_DEVICES is `0,,1`, which is no list of ordinals"),
        ("-1", "PAREN_DEVICES is `-1`, which is no list of ordinals"),
        ("GPU-8932f937", "PAREN_DEVICES is `GPU-8932f937`, which is no list of ordinals"),
        ("0,1,0", "PAREN_DEVICES is `0,1,0`, which names device 0 more than once"),
        ("0,4", "PAREN_DEVICES is `0,4`, and device 4 is not visible"),
    ],
)
def test_a_list_of_devices_that_cannot_be(text: str, message: str) -> None:
    error = refused("E-DP-001", {"PAREN_DEVICES": text}, CARDS)
    assert error.message == message
    assert [note.message for note in error.notes] == ["visible: 4 GPUs, ordinals 0 to 3"]
    assert error.fix == "list visible ordinals once each, PAREN_DEVICES=0,1"


def test_ordinals_count_among_the_visible_and_the_mask_is_named() -> None:
    error = refused("E-DP-001", {"PAREN_DEVICES": "2,3"}, MASKED)
    assert error.message == "PAREN_DEVICES is `2,3`, and device 2 is not visible"
    assert [note.message for note in error.notes] == [
        "visible: 2 GPUs, ordinals 0 to 1",
        "CUDA_VISIBLE_DEVICES is `2,3`",
    ]
    assert find_topology({"PAREN_DEVICES": "0,1"}, MASKED).devices == (0, 1)


def test_no_card_is_visible() -> None:
    error = refused("E-DP-001", {"PAREN_DEVICES": "0"}, NONE)
    assert error.message == "PAREN_DEVICES is `0`, and device 0 is not visible"
    assert [note.message for note in error.notes] == [
        "visible: 0 GPUs",
        "CUDA_VISIBLE_DEVICES is empty, which hides every card",
    ]
    assert error.fix == "paren doctor says what is missing"
    assert find_topology({}, NONE).ranks == 1  # opening the device says what is missing


@pytest.mark.parametrize(
    ("mask", "seen", "listed", "said", "notes"),
    [
        ("2,3", 2, "0,1", None, []),
        ("GPU-22,GPU-33", 2, "0,1", None, []),
        (" 3 , 2 ", 2, "1", None, []),
        ("2,3", 2, "2,3", "device 2 is not visible", ["visible: 2 GPUs, ordinals 0 to 1", "is `2,3`"]),
        ("GPU-22", 1, "0,1", "device 1 is not visible", ["visible: 1 GPU", "is `GPU-22`"]),
        ("2,2", 0, "0", "device 0 is not visible", ["visible: 0 GPUs", "`2` repeats a card, and then CUDA shows none"]),
        ("", 0, "0", "device 0 is not visible", ["visible: 0 GPUs", "is empty, which hides every card"]),
        ("-1", 0, "0", "device 0 is not visible", ["visible: 0 GPUs", "`-1` hides every card from there on"]),
        ("0,-1,1", 1, "0,1", "device 1 is not visible", ["visible: 1 GPU", "`-1` hides every card from there on"]),
        (
            "GPU-77",
            0,
            "0",
            "device 0 is not visible",
            ["visible: 0 GPUs", "`GPU-77` names no card of this machine, so it and what follows are ignored"],
        ),
        ("MIG-1234", 1, "0,1", "device 1 is not visible", ["visible: 1 GPU", "is `MIG-1234`"]),
    ],
)
def test_a_mask_and_a_list_of_devices(mask: str, seen: int, listed: str, said: str | None, notes: list[str]) -> None:
    """A list means ordinals among the visible; what the mask is, what is visible and what was asked are all said."""
    visible = visible_devices("cuda", several(4, mask, seen))
    if said is None:
        assert find_topology({"PAREN_DEVICES": listed}, visible).devices == tuple(map(int, listed.split(",")))
        return
    error = refused("E-DP-001", {"PAREN_DEVICES": listed}, visible)
    assert error.message == f"PAREN_DEVICES is `{listed}`, and {said}"
    found = [note.message for note in error.notes]
    assert found[0] == notes[0]
    assert found[1].startswith("CUDA_VISIBLE_DEVICES is ")
    assert found[1].endswith(notes[1])


def test_four_workers_and_one_visible_card() -> None:
    visible = visible_devices("cuda", several(4, "3", 1))
    error = refused("E-DP-001", torchrun(2, 4, 4), visible)
    assert error.message == "this node has 4 ranks for 1 visible GPU"
    assert [note.message for note in error.notes] == ["visible: 1 GPU", "CUDA_VISIBLE_DEVICES is `3`"]


def test_more_ranks_than_cards() -> None:
    error = refused("E-DP-001", torchrun(0, 4, 4), MASKED)
    assert error.message == "this node has 4 ranks for 2 visible GPUs"


@pytest.mark.parametrize("variables", [torchrun(0, 2, 2), {"PAREN_DEVICES": "0,1"}])
def test_one_card_is_no_device_for_several_ranks(variables: dict[str, str]) -> None:
    error = refused("E-DP-001", variables, CARDS, ordinal=0)
    assert error.message == "device cuda:0 names one device, and the run has 2 ranks"
    assert error.fix == "use cuda; each rank takes its own device"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"PAREN_NODES": "two"}, "PAREN_NODES is `two`, which is no count of nodes"),
        ({"PAREN_NODES": "0"}, "PAREN_NODES is `0`, which is no count of nodes"),
        ({"PAREN_NODE_RANK": "-1"}, "PAREN_NODE_RANK is `-1`, which is no index of a node"),
        ({"PAREN_NODE_RANK": "2"}, "PAREN_NODE_RANK is 2, and nodes are numbered 0 to 1"),
        ({"PAREN_NODE_RANK": ""}, "PAREN_NODES is 2, and PAREN_NODE_RANK is not set"),
        ({"PAREN_RENDEZVOUS": ""}, "PAREN_NODES is 2, and PAREN_RENDEZVOUS is not set"),
        (
            {"PAREN_NODE_RANK": "", "PAREN_RENDEZVOUS": ""},
            "PAREN_NODES is 2, and PAREN_NODE_RANK and PAREN_RENDEZVOUS are not set",
        ),
        ({"PAREN_NODES": "1", "PAREN_NODE_RANK": "1"}, "PAREN_NODE_RANK is 1, and nodes are numbered 0 to 0"),
        ({"PAREN_NODES": ""}, "PAREN_NODE_RANK and PAREN_RENDEZVOUS are set, and PAREN_NODES is not"),
        ({"PAREN_NODES": "", "PAREN_NODE_RANK": ""}, "PAREN_RENDEZVOUS is set, and PAREN_NODES is not"),
        ({"PAREN_RENDEZVOUS": "node-0"}, "PAREN_RENDEZVOUS is `node-0`, which is not host:port"),
        ({"PAREN_RENDEZVOUS": "node-0:99999"}, "PAREN_RENDEZVOUS is `node-0:99999`, which is not host:port"),
        ({"PAREN_RENDEZVOUS": "::1:29500"}, "PAREN_RENDEZVOUS is `::1:29500`, which is not host:port"),
    ],
)
def test_variables_of_nodes_that_are_wrong(changed: dict[str, str], message: str) -> None:
    error = refused("E-DP-005", {**NODES, **changed})
    assert error.message == message
    assert error.fix == (
        "set PAREN_NODES, PAREN_NODE_RANK (0 to nodes - 1) and PAREN_RENDEZVOUS (host:port of node 0) on every node"
    )


@pytest.mark.parametrize(
    ("name", "value", "wrong", "fix"),
    [
        ("PAREN_RENDEZVOUS_TIMEOUT", "5m", "no number of seconds", "write seconds, such as 300, or leave it out"),
        ("PAREN_RENDEZVOUS_TIMEOUT", "0", "no number of seconds", "write seconds, such as 300, or leave it out"),
        ("PAREN_STEP_TIMEOUT", "-1", "no number of seconds", "write seconds, such as 300, or leave it out"),
        ("PAREN_WORK_TIMEOUT", "long", "no number of seconds", "write seconds, such as 7200, or leave it out"),
        (
            "PAREN_NODE_GRADIENTS",
            "fp8",
            "not f32 or bf16",
            "set it to one of them, the same on every node, or leave it out",
        ),
    ],
)
def test_a_variable_that_is_wrong_by_itself(name: str, value: str, wrong: str, fix: str) -> None:
    error = refused("E-DP-005", {**NODES, name: value})
    assert (error.message, error.fix) == (f"{name} is `{value}`, which is {wrong}", fix)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"RANK": "0", "WORLD_SIZE": "2"},
            "RANK and WORLD_SIZE are set, LOCAL_RANK and LOCAL_WORLD_SIZE and MASTER_ADDR and MASTER_PORT are not",
        ),
        (
            {**torchrun(0, 2, 2), **NODES},
            "PAREN_NODES and PAREN_NODE_RANK and PAREN_RENDEZVOUS are set under torchrun, which has nodes of its own",
        ),
        (
            {**torchrun(0, 2, 2), "PAREN_NODES": "2"},
            "PAREN_NODES is set under torchrun, which has nodes of its own",
        ),
        (
            {**torchrun(0, 2, 2), "PAREN_DEVICES": "1"},
            "PAREN_DEVICES lists 1 device, torchrun started 2 ranks here",
        ),
        ({**torchrun(0, 2, 2), "RANK": "first"}, "RANK is `first`, which is no number"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is `2`, and RANK is not set"),
        ({"RANK": "1"}, "RANK is `1`, and WORLD_SIZE is not set"),
        (
            {**torchrun(0, 3, 1), "LOCAL_WORLD_SIZE": "2"},
            "rank 0 of 3 is local rank 0 of 2: nodes differ in their ranks, or ranks are not numbered node after node",
        ),
        (
            {**torchrun(0, 2, 1), "LOCAL_WORLD_SIZE": "0"},
            "rank 0 of 2 is local rank 0 of 0: nodes differ in their ranks, or ranks are not numbered node after node",
        ),
        ({**torchrun(0, 2, 2), "MASTER_PORT": "0"}, "MASTER_PORT is 0, which is no port"),
        ({**torchrun(0, 2, 2), "MASTER_PORT": "65536"}, "MASTER_PORT is 65536, which is no port"),
    ],
)
def test_two_sources_of_ranks_that_contradict_each_other(variables: dict[str, str], message: str) -> None:
    assert refused("E-DP-009", variables).message == message


def test_a_port_that_is_none_says_how_torchrun_gets_one() -> None:
    fix = refused("E-DP-009", {**torchrun(0, 2, 2), "MASTER_PORT": "0"}).fix
    assert fix == "start torchrun with --standalone, or with --master-port and a number from 1 to 65535"


def test_microbatches_are_split_evenly_or_the_nearest_numbers_of_ranks_are_named() -> None:
    assert [split_evenly(8, ranks) for ranks in (1, 2, 4, 8)] == [8, 4, 2, 1]
    with pytest.raises(ParenError) as caught:
        split_evenly(8, 3)
    assert (caught.value.code, caught.value.message) == ("E-DP-003", "3 ranks cannot share 8 microbatches evenly")
    assert caught.value.fix == "take 2 or 4 of them, or choose :microbatches that 3 divides"
    with pytest.raises(ParenError) as caught:
        split_evenly(1, 2)
    assert caught.value.message == "2 ranks cannot share 1 microbatch evenly"
    assert caught.value.fix == "take 1 of them, or choose :microbatches that 2 divides"
