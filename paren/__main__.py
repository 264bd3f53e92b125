"""`paren` and `python -m paren`."""

from __future__ import annotations

import faulthandler
import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

    from _typeshed import ReadableBuffer

INTERRUPTED = 130


def main() -> int:
    """Runs the command line; Ctrl-C ends it with 130, even while it is being loaded or objects are destroyed."""
    sys.unraisablehook = _end_if_interrupted
    _fill_streams()
    faulthandler.enable(2)  # a crash, of user code or of a library, says in which line it was
    encoding = sys.stderr.encoding if sys.stderr is not None else "utf-8"
    sys.stderr = io.TextIOWrapper(_Told(2), encoding, "backslashreplace", line_buffering=True)
    try:
        from paren.cli.app import main as run  # loading takes a tenth of a second, in which Ctrl-C may come

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED


class _Told(io.RawIOBase):
    """What people are told, written to a descriptor at once. What cannot be written, as the disk is full or the reader
    of a pipe went away, is lost: a training of days does not end because a message could not be shown."""

    def __init__(self, number: int) -> None:
        self._number = number

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """Stays open: user code may close what it prints to, and errors are still to be told."""

    def isatty(self) -> bool:
        return os.isatty(self._number)

    def fileno(self) -> int:
        return self._number

    def write(self, content: ReadableBuffer) -> int:
        """Gives the number of bytes: as far as the writer can tell, all of them arrive."""
        left = memoryview(content).cast("B")
        length = len(left)
        with suppress(OSError):
            while left:
                left = left[os.write(self._number, left) :]
        return length


def _fill_streams() -> None:
    """A standard stream that the caller has closed leads nowhere. Else the next file that is opened would have its
    number, and what is written to stderr would go into a checkpoint."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def _end_if_interrupted(ignored: UnraisableHookArgs) -> None:
    """Python would show an interrupt that comes while an object is destroyed, and go on."""
    if not issubclass(ignored.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(ignored)
        return
    sys.stderr.write("interrupted\n")
    sys.stderr.flush()
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
