"""The environment variables that paren reads, and nothing else reads any: `PAREN_*`, CUDA's, what a terminal can show.

`read_environment` reads `PAREN_*` all at once into a frozen record, so that a misspelt name or a wrong value is found
before anything runs. `docs/environment.md` is generated from `VARIABLES`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from paren.text.errors import ParenError, nearest
from paren.text.size import count_of

PREFIX = "PAREN_"
CARD_GRADIENTS = "PAREN_CARD_GRADIENTS"

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]i?B|B)?", re.IGNORECASE)
_UNITS = {"B": 1} | {
    f"{letter}{middle}B": base**power
    for power, letter in enumerate("KMGT", start=1)
    for middle, base in (("", 1000), ("I", 1024))
}


@dataclass(frozen=True)
class Variable:
    """One variable: `values` says what may stand in it, `default` what holds when it is unset or empty."""

    name: str
    values: str
    default: str
    meaning: str


VARIABLES = (
    Variable(
        "PAREN_DEVICE",
        "`cpu`, `cuda`, `cuda:N`, `auto` or `reference`",
        "`cpu`",
        "The device that runs, where `--device` is not given.",
    ),
    Variable(
        "PAREN_MEMORY",
        "a size: `24GiB`, `512MiB`, `2GB`, or a number of bytes",
        "the free memory, or the limit of the container",
        "Plans as if the device had only this much memory.",
    ),
    Variable(
        "PAREN_CACHE",
        "a folder",
        "the user's cache folder of the system, `paren` in it",
        "Where compiled kernels, plans, what was measured to be fastest, trained tokenizers and checks of data files "
        "are kept.",
    ),
    Variable(
        "PAREN_DEVICES",
        "ordinals of devices in rank order: `0,1`",
        "one rank on the CPU, every visible GPU on CUDA",
        "The devices of this node, one rank for each.",
    ),
    Variable(
        "PAREN_NODES",
        "a number of nodes",
        "`1`",
        "How many machines, each with one `paren run`, train together.",
    ),
    Variable(
        "PAREN_NODE_RANK",
        "`0` to nodes - 1",
        "none; needed with several nodes",
        "Which node this is. Node 0 writes metrics, status and checkpoints.",
    ),
    Variable(
        "PAREN_RENDEZVOUS",
        "`host:port`",
        "none; needed with several nodes",
        "Where node 0 listens for the others.",
    ),
    Variable(
        "PAREN_RENDEZVOUS_TIMEOUT",
        "seconds",
        "`300`",
        "How long nodes wait for each other at the start.",
    ),
    Variable(
        "PAREN_STEP_TIMEOUT",
        "seconds",
        "`300`",
        "How long a rank may keep the others waiting in a step or an evaluation before it counts as stuck.",
    ),
    Variable(
        "PAREN_WORK_TIMEOUT",
        "seconds",
        "`7200`",
        "How long a rank may keep the others waiting with other work: preparing data, compiling, restoring, saving.",
    ),
    Variable(
        "PAREN_NODE_GRADIENTS",
        "`f32` or `bf16`",
        "`f32` on the CPU, `bf16` on CUDA",
        "The type in which gradients travel between nodes; bf16 halves the bytes and carries what rounding takes off.",
    ),
    Variable(
        CARD_GRADIENTS,
        "`nccl` or `hosts`",
        "`nccl`, where it connects the cards",
        "The way of gradients from card to card; `hosts` is slower, for a machine on which NCCL stands still.",
    ),
    Variable(
        "PAREN_DATA",
        "a folder",
        "the folder of the paren file",
        "What relative paths in data forms start from, where `--data-root` is not given.",
    ),
    Variable(
        "PAREN_LAUNCHER",
        "a process",
        "set by paren",
        "For the ranks that paren starts: which process started them and watches them.",
    ),
)

# Those of them that say which ranks there are.
OF_RANKS = (
    "PAREN_DEVICES",
    "PAREN_NODES",
    "PAREN_NODE_RANK",
    "PAREN_RENDEZVOUS",
    "PAREN_RENDEZVOUS_TIMEOUT",
    "PAREN_STEP_TIMEOUT",
    "PAREN_WORK_TIMEOUT",
    "PAREN_NODE_GRADIENTS",
    "PAREN_LAUNCHER",
)

# torchrun's, which make a process one of several ranks.
LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # the launcher serves the ranks' store
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"  # Gloo's own: the interfaces it listens on, with commas between
AGENT_FILE = "TORCHELASTIC_ERROR_FILE"  # where a rank tells torchrun of its error
AGENT_ATTEMPT = "TORCHELASTIC_RESTART_COUNT"  # how often torchrun started the ranks anew
OF_AGENT = (AGENT_STORE, AGENT_ATTEMPT)


@dataclass(frozen=True)
class Environment:
    """The variables' values. `memory` is in bytes; None where a variable is unset and has no fixed default. `ranks`:
    those that say which ranks there are, as they are written, torchrun's included. `by_hosts`: whether gradients of
    cards are to go through the hosts."""

    device: str
    memory: int | None
    cache: Path
    data: Path | None
    ranks: Mapping[str, str] = field(default_factory=dict)
    by_hosts: bool = False


def read_environment(variables: Mapping[str, str] | None = None) -> Environment:
    """Reads `variables`, by default those of the process. Raises E-ENV-001 and E-ENV-002."""
    given = os.environ if variables is None else variables
    values = {name: value.strip() for name, value in given.items() if name.startswith(PREFIX)}
    for name in sorted(values):
        _check_name(name)
    memory = values.get("PAREN_MEMORY")
    cache = values.get("PAREN_CACHE")
    data = values.get("PAREN_DATA")
    return Environment(
        device=values.get("PAREN_DEVICE") or "cpu",
        memory=parse_size(memory, "PAREN_MEMORY") if memory else None,
        cache=Path(cache).expanduser() if cache else Path(platformdirs.user_cache_dir("paren")),
        data=_existing_folder("PAREN_DATA", data) if data else None,
        ranks={name: given[name] for name in (*OF_RANKS, *LAUNCHED, *OF_AGENT) if given.get(name, "").strip()},
        by_hosts=_goes_by_hosts(values.get(CARD_GRADIENTS) or "nccl"),
    )


def inherited_variables() -> dict[str, str]:
    """All variables of this process, for one that it starts."""
    return dict(os.environ)


def given_names() -> list[str]:
    """The names of the `PAREN_*` variables that are set, sorted."""
    return sorted(name for name in os.environ if name.startswith(PREFIX))


def visible_devices() -> str | None:
    """The value of CUDA's own CUDA_VISIBLE_DEVICES, which hides cards from this process; None where it is not set."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def agent_file() -> Path | None:
    """Where this process is to write what torchrun shows of its error; None where torchrun has not started it."""
    path = os.environ.get(AGENT_FILE)
    return Path(path) if path else None


def leads() -> bool:
    """Whether this process, if it is one of several ranks, is the first, which speaks for all."""
    return os.environ.get("RANK", "0").strip() in ("", "0")


def bound_busy_waiting() -> None:
    """Lets OpenMP's threads sleep after some microseconds of waiting, unless the user has said how they wait.

    It has to be called before libgomp is loaded, which reads the variable then. Without a bound, a thread whose partner
    is preempted by another process burns its time slice at every barrier: steps of small networks took 30 times as long
    on a busy machine.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")


def chosen_interfaces() -> list[str]:
    """The network interfaces that the user wants Gloo to use; none where nobody has chosen."""
    return [name for name in os.environ.get(GLOO_INTERFACE, "").split(",") if name]


def use_interface(name: str) -> None:
    """Lets Gloo, which asks for its variable when a group is made, listen on a network interface."""
    os.environ[GLOO_INTERFACE] = name


def quieten_stores() -> None:
    """Keeps torch from writing the stack of its own code to stderr when a peer of its store leaves: what that means is
    said by who waits for the peer. It has to be called before torch is loaded."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")


@contextmanager
def drawing_without_screen() -> Iterator[None]:
    """Where nobody has chosen matplotlib's backend, a block that imports it draws without a screen."""
    if "MPLBACKEND" in os.environ or "matplotlib" in sys.modules:
        yield
        return
    os.environ["MPLBACKEND"] = "Agg"
    try:
        yield
    finally:
        del os.environ["MPLBACKEND"]


def wants_colour() -> bool:
    """Whether `NO_COLOR` is unset or empty."""
    return not os.environ.get("NO_COLOR")


def forces_colour() -> bool:
    """Whether `FORCE_COLOR` asks for colours where there is no terminal."""
    return bool(os.environ.get("FORCE_COLOR"))


def can_redraw() -> bool:
    """Whether `TERM` names a terminal that can write over a line."""
    return os.environ.get("TERM") not in ("dumb", "unknown")


LEAST_PLAIN = 1024  # a smaller number without a unit is one whose unit was forgotten


def parse_size(text: str, name: str) -> int:
    """Bytes of a size such as `24GiB` (powers of 1024), `2GB` (powers of 1000) or `4096`; `name` is for the message.

    Raises E-ENV-002 unless it is a positive size, with a unit below 1,024.
    """
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * _UNITS[(match[2] or "B").upper()]) if match else 0
    if size <= 0:
        raise ParenError(
            "E-ENV-002",
            f"{name} is `{text}`, which is not a size in bytes",
            fix="write a number with a unit, 24GiB or 512MiB",
        )
    if match is not None and not match[2] and size < LEAST_PLAIN:
        raise ParenError(
            "E-ENV-002",
            f"{name} is `{text}`, which without a unit is {count_of(size, 'byte')}",
            fix="write a number with a unit, 24GiB or 512MiB",
        )
    return size


def _check_name(name: str) -> None:
    known = [variable.name for variable in VARIABLES]
    if name in known:
        return
    near = nearest(name.removeprefix(PREFIX), [variable.removeprefix(PREFIX) for variable in known])
    suggestion = f" (did you mean {PREFIX}{near}?)" if near else ""
    raise ParenError(
        "E-ENV-001",
        f"unknown environment variable {name}{suggestion}",
        fix=f"unset it; paren reads {', '.join(known)}",
    )


def _goes_by_hosts(value: str) -> bool:
    if value not in ("nccl", "hosts"):
        raise ParenError(
            "E-ENV-002", f"{CARD_GRADIENTS} is `{value}`, which is no way of gradients", fix="set it to nccl or hosts"
        )
    return value == "hosts"


def _existing_folder(name: str, value: str) -> Path:
    folder = Path(value).expanduser()
    if not folder.is_dir():
        raise ParenError("E-ENV-002", f"{name} is `{value}`, which is not a folder", fix="name an existing folder")
    return folder
