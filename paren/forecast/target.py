"""What a plan is compared with: a device that is there, or a card that is not."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from paren.environment import parse_size
from paren.forecast.cards import MIB, check_arch, find_card
from paren.plan.limits import Limits
from paren.runtime.cuda.requirements import RESERVE
from paren.runtime.device import Device
from paren.text.errors import ParenError


@dataclass(frozen=True)
class Target:
    """`memory`: bytes that a plan may use, and `limit`, in words, what sets them. `limits` are None where nothing is
    known about speed. `there`: whether the device is on this machine, so that a run would be what is explained.
    `reserve`: bytes of a card beside `memory`, which stay free for CUDA and its libraries."""

    name: str
    memory: int
    limit: str
    limits: Limits | None
    there: bool
    reserve: int = 0

    def within(self, allowed: int | None) -> Target:
        """With no more memory than PAREN_MEMORY allows, if it is set."""
        if allowed is None or allowed >= self.memory:
            return self
        return replace(self, memory=allowed, limit="PAREN_MEMORY")


def is_card(device: str) -> bool:
    """Whether the name of a device is that of a card: `cuda`, `cuda:1`."""
    return re.fullmatch(r"cuda(:[0-9]+)?", device) is not None


def present_target(device: Device, limits: Limits | None, size: int | None, source: str, ranks: int = 1) -> Target:
    """A device of this machine; `size` bytes, which `source` asked for, stand for the memory that is free. Of memory
    that is not the device's own, each of `ranks` has an equal part."""
    threads = f", {device.threads} threads" if device.threads > 1 else ""
    memory, limit, reserve = size, source, 0
    if memory is None:
        free = device.available()
        memory, limit, reserve = free.bytes, free.limit, RESERVE if device.own_memory else 0
    if ranks > 1 and not device.own_memory:
        memory, limit = memory // ranks, f"{limit}, shared by {ranks} ranks"
    return Target(f"{device.name}{threads}", memory, limit, limits, there=True, reserve=reserve)


def absent_target(
    device: str | None, card: str | None, memory: str | None, arch: str | None, tf32: bool = False
) -> Target:
    """A card by its name, or a card of so much memory, as written on the command line, without the reserve.

    A device may be given too, if it is a card. Raises E-DEV-012 if the options contradict each other, E-DEV-010,
    E-DEV-011, E-DEV-013, and E-ENV-002 for a wrong size.
    """
    other = None if device is None or is_card(device) else device
    given = {"--device": other, "--card": card, "--memory": memory, "--arch": arch}
    for one, two in (("--card", "--device"), ("--card", "--memory"), ("--card", "--arch"), ("--arch", "--device")):
        if given[one] is not None and given[two] is not None:
            what = f"{two} {device}" if two == "--device" else two
            raise ParenError("E-DEV-012", f"{one} and {what} contradict each other", fix="give one of them")
    if card is not None:
        known = find_card(card)
        return _of_size(f"{known.name} ({known.arch})", known.memory * MIB, known.limits(tf32))
    if memory is None:
        raise ParenError("E-DEV-012", "--arch says nothing about memory", fix="give --memory SIZE too, or --card NAME")
    name = f"a card of {memory.strip()}" + (f" ({check_arch(arch)})" if arch is not None else "")
    total = parse_size(memory, "--memory")
    if total <= RESERVE:
        raise ParenError(
            "E-ENV-002",
            f"--memory is `{memory}`, and 1 GiB of a card stays free for CUDA's libraries, so nothing is left",
            fix="give the whole memory of the card, such as 24GiB",
        )
    return _of_size(name, total, None)


def _of_size(name: str, total: int, limits: Limits | None) -> Target:
    limit = "its memory without 1 GiB for CUDA's libraries"
    return Target(name, max(0, total - RESERVE), limit, limits, there=False, reserve=RESERVE)
