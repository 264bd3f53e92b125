"""Sizes in bytes as people read them, and the memory of this process."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

UNITS = ("KiB", "MiB", "GiB", "TiB")


def show_bytes(count: int) -> str:
    """`512 bytes`, `1.5 MiB`: three digits at most, in powers of 1,024."""
    if count < 1024:
        return f"{count} bytes"
    value = float(count)
    for unit in UNITS:
        value /= 1024
        if value < 999.5 or unit == UNITS[-1]:
            return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"
    raise AssertionError("the last unit returns")


def resident_bytes() -> int:
    """Anonymous resident memory of this process, in bytes. Where the system does not tell, its peak of all memory."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    found = re.search(r"^RssAnon:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
