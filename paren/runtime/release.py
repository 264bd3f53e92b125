"""Memory that only compiling needed goes back to the system, before a run touches its own."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

LARGE = 1 << 20  # bytes of a library's part from which looking for unused pages pays


def release_unused() -> None:
    """Gives back what the allocator holds free, and the pages of large libraries' code and constants.

    LLVM has 75 MiB of them after compiling; a page that is needed again is mapped again from the file. Nothing happens
    where the system is not Linux with the GNU library.
    """
    process = ctypes.CDLL(None)
    if hasattr(process, "malloc_trim"):
        process.malloc_trim(ctypes.c_size_t(0))
    if not hasattr(process, "madvise") or not hasattr(mmap, "MADV_DONTNEED"):
        return
    with suppress(OSError):  # without /proc nothing is known, and nothing is given back
        for begin, size in unchanged_parts(Path("/proc/self/smaps").read_text()):
            process.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), mmap.MADV_DONTNEED)


def unchanged_parts(smaps: str) -> Iterator[tuple[int, int]]:
    """(address, bytes) of the large parts of files that this process maps, may not write, and has not written: neither
    a page of its own nor a swapped one is among them, so all of them can be had from the file again."""
    begin, size, changed = 0, 0, True
    for line in smaps.splitlines():
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):
            first, last = (int(edge, 16) for edge in name.split("-"))
            access, _, _, file = rest.split()[:4]
            begin, size, changed = first, last - first, "w" in access or "p" not in access or file == "0"
        elif name in ("Anonymous:", "Swap:"):
            changed = changed or rest.split()[0] != "0"
        elif name == "VmFlags:" and not changed and size >= LARGE:
            yield begin, size
