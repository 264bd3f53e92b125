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
