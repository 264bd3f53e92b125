"""How many threads a run takes if nobody says."""

from __future__ import annotations

import os
from pathlib import Path

from paren.runtime.memory import processor_quota, read_lines


def default_threads(root: Path = Path("/")) -> int:
    """Physical cores among the processors that this process may use, and no more than its control group's quota."""
    if hasattr(os, "sched_getaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
    else:
        allowed = list(range(os.cpu_count() or 1))
    cores = set()
    for processor in allowed:
        siblings = root / f"sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
        lines = read_lines(siblings)
        cores.add(lines[0] if lines else str(processor))
    return max(1, min(len(cores), processor_quota(root) or len(cores)))
