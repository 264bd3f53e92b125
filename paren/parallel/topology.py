"""Which ranks a run has, on which nodes and devices, and which of them this process is. A pure function of variables.

A rank is one process with one device. Ranks come from torchrun's variables, from `PAREN_NODES` and its companions (one
`paren run` on each node), or there is one node; on a node, `PAREN_DEVICES` names the devices in rank order. Ranks count
node after node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paren.environment import AGENT_ATTEMPT, AGENT_STORE, LAUNCHED
from paren.text.errors import Note, ParenError
from paren.text.size import count_of, form_of

OF_NODES = ("PAREN_NODES", "PAREN_NODE_RANK", "PAREN_RENDEZVOUS")
EXCHANGES = ("f32", "bf16")
LAST_PORT = 65535


@dataclass(frozen=True)
class Address:
    """A host, by name or number, and a port. IPv6 hosts stand in brackets when written."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Member:
    """This process as one of several ranks; `meeting` is where the ranks' store is, which the launcher serves, or else
    the first rank. `launcher`: the process of paren that started this one, None if torchrun did. `attempt`: how
    often torchrun has started the ranks anew, with the store they had."""

    rank: int
    local_rank: int
    meeting: Address
    served: bool
    launcher: int | None = None
    attempt: int = 0


@dataclass(frozen=True)
class Patience:
    """Seconds that ranks may keep the others waiting: until they `join`, in a `step` or an evaluation, and with `work`
    that may take one rank long."""

    join: float = 300.0
    step: float = 300.0
    work: float = 7200.0


@dataclass(frozen=True)
class Visible:
    """The devices of this node that a process may use: how many, of what kind ("cpu" or "cuda"), and what limits them,
    in words."""

    kind: str
    count: int
    limit: str


@dataclass(frozen=True)
class Topology:
    """All ranks of a run as this node sees them.

    `devices`: ordinals of this node's devices in rank order. `rendezvous`: where node 0 listens, with several nodes.
    `patience`: how long ranks and nodes wait for each other. `exchange`: the type in which gradients travel between
    nodes. `member`: this process, if a launcher started it as one rank; None for a process that has to start its ranks
    itself, and for the only rank.
    """

    nodes: int
    node: int
    devices: tuple[int, ...]
    rendezvous: Address | None
    patience: Patience
    exchange: str
    member: Member | None

    @property
    def ranks(self) -> int:
        """How many ranks the run has."""
        return self.nodes * len(self.devices)

    @property
    def starts_ranks(self) -> bool:
        """Whether this process is to start ranks instead of being one."""
        return self.member is None and self.ranks > 1


def find_topology(variables: Mapping[str, str], visible: Visible, ordinal: int | None = None) -> Topology:
    """The topology that environment `variables` describe; empty ones count as unset. `ordinal` is that of a device like
    `cuda:1`, which is for one rank only.

    Raises E-DP-001 for devices, E-DP-005 for the variables of nodes, E-DP-009 where two sources of ranks disagree.
    """
    given = {name: value.strip() for name, value in variables.items() if value.strip()}
    launched = _is_launched(given)
    listed = _listed(given, visible)
    if launched:
        found = _launched(given, listed, visible)
    else:
        nodes, node, rendezvous = _nodes(given)
        devices = listed if listed is not None else _all(visible, ordinal)
        found = Topology(nodes, node, devices, rendezvous, _patience(given), _exchange(given, visible), None)
    if ordinal is not None and (found.ranks > 1 or listed is not None):
        raise ParenError(
            "E-DP-001",
            f"device {visible.kind}:{ordinal} names one device, and the run has {count_of(found.ranks, 'rank')}",
            fix=f"use {visible.kind}; each rank takes its own device",
        )
    return found


def split_evenly(microbatches: int, ranks: int) -> int:
    """The microbatches of each rank. Raises E-DP-003 with the nearest numbers of ranks that divide them."""
    if microbatches % ranks == 0:
        return microbatches // ranks
    divisors = [count for count in range(1, microbatches + 1) if microbatches % count == 0]
    below = max(count for count in divisors if count < ranks)
    above = min((count for count in divisors if count > ranks), default=None)
    nearest = f"{below}" if above is None else f"{below} or {above}"
    raise ParenError(
        "E-DP-003",
        f"{ranks} ranks cannot share {count_of(microbatches, 'microbatch', 'microbatches')} evenly",
        fix=f"take {nearest} of them, or choose :microbatches that {ranks} divides",
    )


# Devices ------------------------------------------------------------------------------------------------------------


def _listed(given: Mapping[str, str], visible: Visible) -> tuple[int, ...] | None:
    """The ordinals of PAREN_DEVICES, each among the visible ones."""
    text = given.get("PAREN_DEVICES")
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise _device_error(f"PAREN_DEVICES is `{text}`, which is no list of ordinals", visible)
    ordinals = tuple(map(int, parts))
    repeated = next((each for each in ordinals if ordinals.count(each) > 1), None)
    if repeated is not None:
        raise _device_error(f"PAREN_DEVICES is `{text}`, which names device {repeated} more than once", visible)
    hidden = next((each for each in ordinals if each >= visible.count), None)
    if hidden is not None:
        raise _device_error(f"PAREN_DEVICES is `{text}`, and device {hidden} is not visible", visible)
    return ordinals


def _all(visible: Visible, ordinal: int | None) -> tuple[int, ...]:
    """The devices of a node where none are listed: one rank on the CPU, every visible GPU. Where there is none, whoever
    opens the device says what is missing."""
    if visible.kind == "cpu" or visible.count == 0:
        return (0,)
    return (ordinal,) if ordinal is not None else tuple(range(visible.count))


def _device_error(message: str, visible: Visible) -> ParenError:
    names = {"cpu": ("processor", "processors"), "cuda": ("GPU", "GPUs")}[visible.kind]
    seen = f"visible: {count_of(visible.count, *names)}"
    if visible.count > 1:
        seen += f", ordinals 0 to {visible.count - 1}"
    notes = [Note(seen)] + ([Note(visible.limit)] if visible.limit else [])
    fix = "list visible ordinals once each, PAREN_DEVICES=0,1" if visible.count else "paren doctor says what is missing"
    return ParenError("E-DP-001", message, notes=notes, fix=fix)


# Launched by torchrun -----------------------------------------------------------------------------------------------


def _is_launched(given: Mapping[str, str]) -> bool:
    """Whether a launcher has started this process as a rank. One that says so by half is refused: the process would
    train alone, beside others that do."""
    for name, other, alone in (("RANK", "WORLD_SIZE", "0"), ("WORLD_SIZE", "RANK", "1")):
        if given.get(name, alone) != alone and other not in given:
            raise ParenError(
                "E-DP-009",
                f"{name} is `{given[name]}`, and {other} is not set",
                fix="start with torchrun, which sets them all, or unset RANK and WORLD_SIZE",
            )
    return "RANK" in given and "WORLD_SIZE" in given


def _launched(given: Mapping[str, str], listed: tuple[int, ...] | None, visible: Visible) -> Topology:
    missing = [name for name in LAUNCHED if name not in given]
    if missing:
        raise ParenError(
            "E-DP-009",
            f"RANK and WORLD_SIZE are set, {_are(missing)} not",
            fix="start with torchrun, which sets them all, or unset RANK and WORLD_SIZE",
        )
    both = [name for name in OF_NODES if name in given]
    if both:
        raise ParenError(
            "E-DP-009",
            f"{_are(both)} set under torchrun, which has nodes of its own",
            fix="start with torchrun alone, or with paren alone on every node",
        )
    rank, ranks, local, here, port = (
        _whole(given, name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
    )
    if here == 0 or ranks % here or rank >= ranks or local != rank % here:
        raise ParenError(
            "E-DP-009",
            f"rank {rank} of {ranks} is local rank {local} of {here}: nodes differ in their ranks, or ranks are not "
            "numbered node after node",
            fix="start the same number of ranks on every node",
        )
    if not 0 < port <= LAST_PORT:
        raise ParenError(
            "E-DP-009",
            f"MASTER_PORT is {port}, which is no port",
            fix=f"start torchrun with --standalone, or with --master-port and a number from 1 to {LAST_PORT}",
        )
    if listed is not None and len(listed) != here:
        raise ParenError(
            "E-DP-009",
            f"PAREN_DEVICES lists {count_of(len(listed), 'device')}, torchrun started {count_of(here, 'rank')} here",
            fix=f"list {here}, or start torchrun with --nproc-per-node {len(listed)}",
        )
    if listed is None and visible.kind == "cuda" and here > visible.count:
        raise _device_error(f"this node has {here} ranks for {count_of(visible.count, 'visible GPU')}", visible)
    devices = listed if listed is not None else tuple(range(here)) if visible.kind == "cuda" else (0,) * here
    served = given.get(AGENT_STORE) == "True"
    launcher = _whole(given, "PAREN_LAUNCHER") if "PAREN_LAUNCHER" in given else None
    address = Address(given["MASTER_ADDR"], port)
    attempt = _whole(given, AGENT_ATTEMPT) if AGENT_ATTEMPT in given and served and launcher is None else 0
    member = Member(rank, local, address, served, launcher, attempt) if ranks > 1 else None
    exchange = _exchange(given, visible)
    return Topology(ranks // here, rank // here, devices, None, _patience(given), exchange, member)


def _are(names: Sequence[str]) -> str:
    """`RANK is`, `RANK and WORLD_SIZE are`."""
    return f"{' and '.join(names)} {form_of(len(names), 'is', 'are')}"


def _whole(given: Mapping[str, str], name: str) -> int:
    if not given[name].isdecimal():
        raise ParenError("E-DP-009", f"{name} is `{given[name]}`, which is no number", fix="start with torchrun")
    return int(given[name])


# Nodes --------------------------------------------------------------------------------------------------------------


def _nodes(given: Mapping[str, str]) -> tuple[int, int, Address | None]:
    """The number of nodes, this one's index, and where node 0 listens."""
    nodes = _number(given, "PAREN_NODES", "which is no count of nodes") if "PAREN_NODES" in given else 1
    told = [name for name in OF_NODES if name in given]
    if told and "PAREN_NODES" not in given:  # else each of several nodes would train alone
        raise _node_error(f"{_are(told)} set, and PAREN_NODES is not")
    if nodes < 1:
        raise _node_error("PAREN_NODES is `0`, which is no count of nodes")
    node = _number(given, "PAREN_NODE_RANK", "which is no index of a node") if "PAREN_NODE_RANK" in given else None
    rendezvous = _address(given["PAREN_RENDEZVOUS"]) if "PAREN_RENDEZVOUS" in given else None
    if node is not None and node >= nodes:
        raise _node_error(f"PAREN_NODE_RANK is {node}, and nodes are numbered 0 to {nodes - 1}")
    if nodes == 1:
        return 1, 0, None
    missing = [name for name, value in (("PAREN_NODE_RANK", node), ("PAREN_RENDEZVOUS", rendezvous)) if value is None]
    if missing or node is None:
        raise _node_error(f"PAREN_NODES is {nodes}, and {_are(missing)} not set")
    return nodes, node, rendezvous


def _number(given: Mapping[str, str], name: str, wrong: str) -> int:
    if not given[name].isdecimal():
        raise _node_error(f"{name} is `{given[name]}`, {wrong}")
    return int(given[name])


def _address(text: str) -> Address:
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]]+)):([0-9]{1,5})", text)
    if found is None or not 0 < int(found[3]) <= LAST_PORT:
        raise _node_error(f"PAREN_RENDEZVOUS is `{text}`, which is not host:port")
    return Address(found[1] or found[2], int(found[3]))


def _patience(given: Mapping[str, str]) -> Patience:
    usual = Patience()
    return Patience(
        _seconds(given, "PAREN_RENDEZVOUS_TIMEOUT", usual.join),
        _seconds(given, "PAREN_STEP_TIMEOUT", usual.step),
        _seconds(given, "PAREN_WORK_TIMEOUT", usual.work),
    )


def _seconds(given: Mapping[str, str], name: str, usual: float) -> float:
    text = given.get(name)
    if text is None:
        return usual
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) is None or float(text) <= 0:
        raise ParenError(
            "E-DP-005",
            f"{name} is `{text}`, which is no number of seconds",
            fix=f"write seconds, such as {usual:g}, or leave it out",
        )
    return float(text)


def _exchange(given: Mapping[str, str], visible: Visible) -> str:
    """Between nodes gradients of the CPU travel exactly, where nothing is said; those of GPUs in half the bytes."""
    text = given.get("PAREN_NODE_GRADIENTS")
    if text is None:
        return "bf16" if visible.kind == "cuda" else "f32"
    if text not in EXCHANGES:
        raise ParenError(
            "E-DP-005",
            f"PAREN_NODE_GRADIENTS is `{text}`, which is not {' or '.join(EXCHANGES)}",
            fix="set it to one of them, the same on every node, or leave it out",
        )
    return text


def _node_error(message: str) -> ParenError:
    fix = "set PAREN_NODES, PAREN_NODE_RANK (0 to nodes - 1) and PAREN_RENDEZVOUS (host:port of node 0) on every node"
    return ParenError("E-DP-005", message, fix=fix)
