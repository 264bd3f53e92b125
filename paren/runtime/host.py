"""Which running system this is, and which processes can be seen from here."""

from __future__ import annotations

import os
from pathlib import Path


def boot_identity() -> str | None:
    """What no other system has, nor this one after it starts again; None where it does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


def process_space() -> str:
    """Equal for processes that see each other's numbers: on one system since its start, and in one container; empty
    where that is not known."""
    boot = boot_identity()
    try:
        return f"{boot} {os.readlink('/proc/self/ns/pid')}" if boot is not None else ""
    except OSError:
        return ""


def stopped_sibling(variable: str) -> int | None:
    """A process that was started by who started this one, with a variable (`NAME=value`) in its environment, and that a
    signal has stopped; None if there is none, or the system does not tell."""
    for children in Path(f"/proc/{os.getppid()}/task").glob("*/children"):
        for child in map(Path, _read(children).split()):
            state = _read("/proc" / child / "stat").rpartition(")")[2].split()
            if state and state[0] in "Tt" and variable in _read("/proc" / child / "environ").split("\0"):
                return int(str(child))
    return None


def _read(path: Path) -> str:
    """What a file of the system says; nothing if it is gone, or not for this process."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
