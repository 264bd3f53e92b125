"""`paren` and `python -m paren`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

INTERRUPTED = 130


def main() -> int:
    """Runs the command line; Ctrl-C ends it with 130, even while it is being loaded or objects are destroyed."""
    sys.unraisablehook = _end_if_interrupted
    _fill_streams()
    try:
        from paren.cli.app import main as run  # loading takes a tenth of a second, in which Ctrl-C may come

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED


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
