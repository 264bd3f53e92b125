"""What a person sees while a run goes on: a bar on a terminal, now and then a line in a pipe."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Protocol, TextIO

from paren.environment import can_redraw, wants_colour
from paren.text.json import Json

BEFORE, AFTER = ("loss",), ("rate",)  # series shown around those of evaluations, before the speed
TOKENS, EXAMPLES = "tokens-per-second", "examples-per-second"
EVALUATION = "evaluation/"
BAR, LONG_BAR, WIDE = 10, 40, 140  # columns of the bar, and of a terminal that has room for a longer one
BESIDE = 22  # columns of the phase, the time left and the gaps
REDRAWN = 0.1  # seconds between two states of the bar
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0  # seconds between the plain lines: the pause doubles up to the longest


class ProgressView(Protocol):
    """Told by the loop what happens. Nothing of it may change the training."""

    def begin(self, done: int, stop: int) -> None:
        """Positions `done` up to `stop` are to be trained."""
        ...

    def step(self, step: int, record: Mapping[str, Json]) -> None:
        """A step is done; `record` is what was computed in it, in the names of the metrics file."""
        ...

    def phase(self, name: str) -> None:
        """Something other than training starts: compiling, evaluating, saving. An empty name ends it."""
        ...

    def notice(self, text: str) -> None:
        """A sentence for the user."""
        ...

    def end(self) -> None:
        """Nothing more will come. Called by whoever made the view."""
        ...


class Silent:
    """Shows nothing."""

    def begin(self, done: int, stop: int) -> None: ...

    def step(self, step: int, record: Mapping[str, Json]) -> None: ...

    def phase(self, name: str) -> None: ...

    def notice(self, text: str) -> None: ...

    def end(self) -> None: ...


class PlainLines:
    """Lines for a pipe or a log file: the first step, every evaluation, the last step, and some between."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stop = 0
        self._pause = FIRST_PAUSE
        self._last = float("-inf")

    def begin(self, done: int, stop: int) -> None:
        self._stop = stop
        if done:
            self._say(f"going on at step {done} of {stop}")

    def step(self, step: int, record: Mapping[str, Json]) -> None:
        now = time.monotonic()
        due = now - self._last >= self._pause
        if due or step == self._stop or f"{EVALUATION}loss" in record:  # which every evaluation gives
            self._say(f"step {step}/{self._stop}{_values(record)}")
            self._last = now
            if due:
                self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def phase(self, name: str) -> None: ...

    def notice(self, text: str) -> None:
        self._say(text)

    def end(self) -> None: ...

    def _say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class Bar:
    """A bar with the loss, the last evaluation and the time left, without what a narrow terminal has no room for."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console  # only a terminal shows a bar, and rich takes as long to import as NumPy
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(file=stream, color_system="auto" if wants_colour() else None)
        self._bar = LONG_BAR if console.width >= WIDE else BAR
        self._progress = Progress(
            TextColumn("{task.fields[phase]}"),
            BarColumn(self._bar),
            MofNCompleteColumn(),
            TextColumn("{task.fields[values]}"),
            TimeRemainingColumn(),
            console=console,
            refresh_per_second=5,
        )
        self._task = self._progress.add_task("", total=None, phase="starting", values="")
        self._counter = 0
        self._shown: dict[str, Json] = {}
        self._last = float("-inf")
        self._pending: tuple[int, Mapping[str, Json]] | None = None
        self._progress.start()

    def begin(self, done: int, stop: int) -> None:
        self._counter = 2 * len(str(stop)) + 1
        self._progress.update(self._task, completed=done, total=stop, phase="training")

    def step(self, step: int, record: Mapping[str, Json]) -> None:
        self._shown |= record
        self._pending = (step, self._shown)
        if time.monotonic() - self._last >= REDRAWN:
            self._draw()

    def phase(self, name: str) -> None:
        self._progress.update(self._task, phase=name or "training")

    def notice(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)

    def end(self) -> None:
        self._draw()
        self._progress.stop()

    def _draw(self) -> None:
        """Shows the last step, if it is not shown yet."""
        if self._pending is not None:
            step, shown = self._pending
            room = self._progress.console.width - self._bar - self._counter - BESIDE
            self._progress.update(self._task, completed=step, values=_values(shown, room).strip())
            self._pending = None
            self._last = time.monotonic()


def view_for(stream: TextIO) -> ProgressView:
    """A bar if the stream is a terminal that can redraw, else plain lines."""
    redraws = stream.isatty() and can_redraw()
    return Bar(stream) if redraws else PlainLines(stream)


def _values(record: Mapping[str, Json], room: float = math.inf) -> str:
    """The series that are shown, as many of the first as there is room for. Where the loss gives one value an example,
    the speed is in examples."""
    text = ""
    speed = EXAMPLES if record.get(TOKENS) == record.get(EXAMPLES) else TOKENS
    for name in (*BEFORE, *(name for name in record if name.startswith(EVALUATION)), *AFTER, speed):
        value = record.get(name)
        if isinstance(value, int | float):
            part = f"  {name} {value:,.0f}" if name.endswith("second") else f"  {name} {value:.5g}"
            if len(text) + len(part) > room:
                break
            text += part
    return text
