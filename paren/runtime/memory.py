"""How much memory there is, how much this process has used, and aligned allocation."""

from __future__ import annotations

import mmap
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paren.text.errors import Note, ParenError
from paren.text.size import show_bytes

ALIGNMENT = 64  # bytes; a page of `mmap` is a multiple of it
HUGE_PAGE = 2 << 20
UNLIMITED = 1 << 60  # control groups write a number near 2^63 for "no limit"

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Available:
    """Bytes that may still be allocated, of how many in all, what sets that limit, in words, and on a card who else
    holds of it, empty where nobody does."""

    bytes: int
    total: int
    limit: str
    others: str = ""


def available_memory(root: Path = Path("/")) -> Available:
    """The least of the machine's available memory and what each enclosing control group leaves.

    `root` is where `/proc` and `/sys` are looked for. Where neither says anything (not Linux), half of the physical
    memory is assumed if that is known, else 1 GiB.
    """
    found = [_machine(root), *_control_groups(root)]
    known = [entry for entry in found if entry is not None]
    if known:
        return min(known, key=lambda entry: entry.bytes)
    return Available(1 << 30, 1 << 30, "assumption of 1 GiB")


def usable_memory(free: Available, allowed: int | None) -> Available:
    """What a run may use: what is available, or less if PAREN_MEMORY allows only `allowed` bytes."""
    return free if allowed is None or allowed > free.bytes else Available(allowed, allowed, "value of PAREN_MEMORY")


def _machine(root: Path) -> Available | None:
    sizes = {line.partition(":")[0]: line.split()[1] for line in read_lines(root / "proc/meminfo") if ":" in line}
    if "MemAvailable" not in sizes:
        return None
    free = int(sizes["MemAvailable"]) * 1024
    return Available(free, int(sizes.get("MemTotal", sizes["MemAvailable"])) * 1024, "available memory of the machine")


def _control_groups(root: Path) -> Iterator[Available]:
    """What version 2 and version 1 control groups leave, from the process's group up to the root."""
    for folder in _group_folders(root, "memory"):
        for limit, usage in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            entry = _control_group(folder, limit, usage)
            if entry is not None:
                yield entry


def _group_folders(root: Path, controller: str) -> Iterator[Path]:
    """The folders of the control groups that this process is in, each followed by those around it.

    In a container a group's own path may not be visible below the mount; then the mount itself is the group.
    """
    base = root / "sys/fs/cgroup"
    for line in read_lines(root / "proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        unified = number == "0" and not controllers
        if unified or controller in controllers.split(","):
            top = base if unified else base / controller
            group = top / path.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder == top or top in folder.parents)


def _control_group(folder: Path, limit: str, usage: str) -> Available | None:
    largest, used = _number(folder / limit), _number(folder / usage)
    if largest is None or largest >= UNLIMITED:
        return None
    # Pages of files that were read count as used but are given back under pressure.
    cached = 0
    for line in read_lines(folder / "memory.stat"):
        if line.startswith(("inactive_file ", "total_inactive_file ")):
            cached = max(cached, int(line.split()[1]))
    free = max(0, largest - max(0, (used or 0) - cached))
    return Available(free, largest, "memory limit of the control group")


def _number(path: Path) -> int | None:
    lines = read_lines(path)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def read_lines(path: Path) -> list[str]:
    """The lines of a file of the kernel's, none if it does not exist or may not be read."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def processor_quota(root: Path = Path("/")) -> int | None:
    """Whole processors that the control groups' quotas of time allow, rounded up; None without a quota."""
    quotas = []
    for folder in _group_folders(root, "cpu"):
        for line in read_lines(folder / "cpu.max"):
            quota, period = line.split()
            if quota != "max":
                quotas.append(-(-int(quota) // int(period)))
        share, length = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if share and length:
            quotas.append(-(-share // length))
    return min(quotas, default=None)


def peak_resident() -> int:
    """The greatest resident memory of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_bytes() -> int:
    """Anonymous resident memory of this process, in bytes. Where the system does not tell, its peak of all memory.

    It takes about two microseconds, so a loop may ask at every step.
    """
    file = _sizes_in_pages()
    if file is None:
        return peak_resident()
    sizes = os.pread(file, 128, 0).split()
    return (int(sizes[1]) - int(sizes[2])) * mmap.PAGESIZE  # resident, less what belongs to files or is shared


@cache
def _sizes_in_pages() -> int | None:
    """The system's file of this process's sizes, open as long as the process lives."""
    try:
        return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_sizes_in_pages.cache_clear)  # the open file tells of the parent


def allocate(size: int, *, sparse: bool = False) -> Bytes:
    """`size` bytes of zeros, aligned to 64 bytes or better. Large ones ask for huge pages, and `sparse` ones, which are
    touched here and there only, for small ones, as a page takes memory as a whole.

    The memory belongs to the array and its views. Raises `ParenError` E-MEM-002 if the system refuses.
    """
    length = max(size, 1)
    try:
        pages = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as refusal:
        free = available_memory()
        raise ParenError(
            "E-MEM-002",
            f"{show_bytes(size)} could not be allocated, {show_bytes(free.bytes)} are free",
            notes=[Note(f"the limit is the {free.limit}"), Note(f"the system said: {refusal}")],
            fix="make the model or the microbatch smaller, or end other programs",
        ) from refusal
    if length >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # systems without huge pages refuse the advice; the memory is as good without it
            pages.madvise(mmap.MADV_NOHUGEPAGE if sparse else mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype=np.uint8)[:size]
