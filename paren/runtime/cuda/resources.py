"""What a compiled kernel takes of a card, read from what NVRTC's assembler reports with `--ptxas-options=-v`."""

from __future__ import annotations

import re
from dataclasses import dataclass

REPORT = "--ptxas-options=-v"

_ENTRY = re.compile(
    r"Compiling entry function '(?P<name>\w+)'"
    r".*?(?P<stack>\d+) bytes stack frame, (?P<stored>\d+) bytes spill stores, (?P<loaded>\d+) bytes spill loads"
    r".*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Resources:
    """Registers and bytes of local memory (stack) of a thread, bytes of static shared memory of a block, and bytes of
    registers that a thread stores to and loads from local memory because it has too few: spills."""

    registers: int
    shared: int
    stack: int
    spilled: int


def read_resources(log: str) -> dict[str, Resources]:
    """The resources of each kernel of a module, by its name, from the log of its compilation."""
    found = {}
    for match in _ENTRY.finditer(log):
        shared = _SHARED.search(match["rest"])
        found[match["name"]] = Resources(
            int(match["registers"]),
            int(shared[1]) if shared else 0,
            int(match["stack"]),
            int(match["stored"]) + int(match["loaded"]),
        )
    return found
