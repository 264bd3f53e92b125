"""SIGTERM and Ctrl-C: noted at any time, obeyed at the next step border; the second one ends the process at once."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
SHOW_CURSOR = "\x1b[?25h"


class TakenOver(Exception):
    """What this process works on is another's now: it stops, and writes nothing more there."""


class StopSignals:
    """A `with` block in which SIGTERM and SIGINT ask for a stop instead of ending the process.

    It is entered before anything slow starts (compiling, reading data), so no phase of a run misses a signal. In
    another thread than the main one Python can set no handlers: nothing is caught there, and `request` still works.
    Processes that user code forks (`multiprocessing`) have the handlers too, and end at the first signal as ever.
    `quiet`: whoever passed the signal on says what it means. `border`: in words, where a stop is obeyed. `at_once` is
    called before the second signal ends the process.
    """

    def __init__(
        self,
        quiet: bool = False,
        border: str = "at the next step border",
        at_once: Callable[[], None] = lambda: None,
    ) -> None:
        self._quiet = quiet
        self._border = border
        self.at_once = at_once
        self._follows = False
        self._prove: Callable[[], None] = lambda: None
        self._process = os.getpid()
        self.received: signal.Signals | None = None
        self._previous: dict[signal.Signals, signal.Handlers | int | None] = {}

    @property
    def stop_asked(self) -> bool:
        """Asked wherever a stop is obeyed. Raises what `only_while` has to raise."""
        return self.look() is not None

    def look(self) -> signal.Signals | None:
        """The signal that asks for a stop, if one came. Raises as `stop_asked` does."""
        self._prove()
        return self.received

    @contextmanager
    def only_while(self, prove: Callable[[], None]) -> Iterator[None]:
        """A block in which work goes on only while `prove` raises nothing: what it raises, as `TakenOver`, ends the
        work where a stop would."""
        outer = self._prove

        def both() -> None:
            outer()
            prove()

        self._prove = both
        try:
            yield
        finally:
            self._prove = outer

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, 143 after SIGTERM."""
        return EXIT_CODES[self.received or signal.SIGTERM]

    def follow(self, *, quiet: bool) -> None:
        """This process is one of several that a launcher passes signals on to. It may get each twice, as a batch system
        and a terminal signal all processes themselves: the second one says nothing new. Who wants all to end at once
        ends the launcher."""
        self._follows = True
        self._quiet = quiet

    def request(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Asks for a stop at the next step border."""
        self.received = number

    @contextmanager
    def heard_at_once(self) -> Iterator[Callable[[], int | None]]:
        """A block in which the main thread may be inside of a call that does not return. Handlers run in that thread
        only, after the call; what this gives tells any thread the exit code of a stop signal that came, None before."""
        if not self._previous:
            yield lambda: self.exit_code if self.stop_asked else None
            return
        hearing, telling = socket.socketpair()
        with hearing, telling:
            hearing.setblocking(False)
            telling.setblocking(False)
            before = signal.set_wakeup_fd(telling.fileno(), warn_on_full_buffer=False)

            def code() -> int | None:
                if self.stop_asked:
                    return self.exit_code
                with suppress(OSError):  # nothing came, or the block is over
                    for number in hearing.recv(64, socket.MSG_PEEK):
                        if number in EXIT_CODES:
                            return EXIT_CODES[signal.Signals(number)]
                return None

            try:
                yield code
            finally:
                signal.set_wakeup_fd(before)

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in EXIT_CODES:
                self._previous[number] = signal.signal(number, self._note)  # type: ignore[assignment]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if self.received is None:
            self.received = signal.Signals(number)
            again = "" if self._follows else " (again: stop at once)"
            self._say(f"\n{self.received.name}: stopping {self._border}{again}\n")
            return
        if self._follows:
            return
        self.at_once()
        self._say(f"{SHOW_CURSOR if sys.stderr.isatty() else ''}\nstopped at once; the last checkpoint stands\n")
        os._exit(EXIT_CODES[signal.Signals(number)])

    def _say(self, text: str) -> None:
        """Straight to the terminal: the handler may have interrupted a write to the buffered stream."""
        if self._quiet:
            return
        try:
            os.write(2, text.encode())
        except OSError:
            return
