"""A large file written past the system's cache of files, from one aligned buffer.

The cache would take a page for each page of a checkpoint, drop what it holds of other files for them, and copy every
byte once more; where memory is given to a virtual machine as it is touched, that costs more than hashing. A file system
that has no such writes, or not of this kind, is written to as ever.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from io import FileIO

import numpy as np

from paren.train.files import Bytes

LARGE = 64 << 20  # bytes of a file from which its buffer and a later reading from the disk are small beside it
BUFFER = 8 << 20  # bytes of each write, a multiple of what any disk asks for


class DirectFile:
    """A new file whose bytes are on the disk, except for those that wait in the buffer, when `write` returns; a `sync`
    of it comes after the last. Memory of the buffer goes with it."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self._buffer = np.frombuffer(mmap.mmap(-1, BUFFER), np.uint8)
        self._filled = 0
        self._direct = False
        self._choose(direct=True)

    def fileno(self) -> int:
        return self._file.fileno()

    def write(self, data: Bytes) -> None:
        done, size = 0, memoryview(data).nbytes
        while done < size:
            count = min(size - done, BUFFER - self._filled)
            self._buffer[self._filled : self._filled + count] = np.frombuffer(data, np.uint8, count, done)
            self._filled += count
            done += count
            if self._filled == BUFFER:
                self._put()

    def flush(self) -> None:
        """Hands over what waits: an end of any length, which the system has to take as ever."""
        if self._filled:
            self._choose(direct=False)
            self._put()

    def _put(self) -> None:
        waiting = self._buffer[: self._filled].data
        while waiting.nbytes:
            try:
                waiting = waiting[self._file.write(waiting) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._choose(direct=False)
        self._filled = 0

    def _choose(self, *, direct: bool) -> None:
        """Changes how the system takes what is written; where it does not offer another way, it stays."""
        flag: int = getattr(os, "O_DIRECT", 0)
        before = fcntl.fcntl(self._file, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._file, fcntl.F_SETFL, before | flag if direct else before & ~flag)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        else:
            self._direct = direct and flag != 0
