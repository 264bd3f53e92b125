"""What a contestant reports while it trains: lines of JSON on stdout, which `bench.watch` reads.

A contestant calls `begin` when everything is set up, `first` after its first optimizer step, `start` where timing
starts, `unit` after each timed step or epoch (or `stop` after all), and `finish`. Standard library only: contestants
live in environments of their own.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """Seconds of processor time so far: of this process (user, kernel) and of all the machine; and of the wall."""

    user: float
    kernel: float
    machine: float
    wall: float


def read_clock() -> Clock:
    """The clock now."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(field) for field in file.readline().split()[1:9]]
    idle = ticks[3] + ticks[4]
    return Clock(used.ru_utime, used.ru_stime, (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK"), time.perf_counter())


class Recorder:
    """Collects times and losses. `count`: how many units will be timed, so that the last one stops the clock."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.seconds: list[float] = []
        self.losses: list[float] = []
        self._started = self._stopped = read_clock()
        self._last = 0.0

    def begin(self) -> None:
        """All is ready: what follows is the first step."""
        say("begin", at=time.monotonic())

    def first(self) -> None:
        """The first step is over and its loss was read."""
        say("first", at=time.monotonic())

    def start(self) -> None:
        """Timed units follow."""
        self._started = read_clock()
        self._last = time.perf_counter()

    def loss(self, value: float) -> None:
        """A loss that was read, in the order of the steps (epochs)."""
        self.losses.append(value)

    def unit(self) -> None:
        """A timed unit is over."""
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        self._last = now
        if len(self.seconds) == self.count:
            self._stopped = read_clock()

    def stop(self, seconds: list[float]) -> None:
        """The last timed unit is over; `seconds` of all of them, for a contestant that knows them only at its end."""
        self._stopped = read_clock()
        self.seconds = seconds

    def finish(self, versions: dict[str, str], **more: object) -> None:
        """Reports, and waits until the watcher has looked at this process."""
        before, after = self._started, self._stopped
        wall = after.wall - before.wall
        own = after.user + after.kernel - before.user - before.kernel
        say(
            "result",
            seconds=self.seconds,
            losses=[*self.losses[:3], *self.losses[3:][-1:]],
            busy=own / wall,
            kernel=(after.kernel - before.kernel) / wall,
            others=(after.machine - before.machine - own) / wall,
            versions=versions,
            **more,
        )
        sys.stdin.read()


def time_steps(recorder: Recorder, step: Callable[[int], float], untimed: int) -> None:
    """Runs `untimed` steps and then the timed ones. `step(i)` runs step i to its end and gives its loss."""
    recorder.begin()
    for number in range(untimed + recorder.count):
        if number == untimed:
            recorder.start()
        recorder.loss(step(number))
        if number == 0:
            recorder.first()
        if number >= untimed:
            recorder.unit()


def time_epochs(recorder: Recorder, epoch: Callable[[int], float]) -> None:
    """Runs the timed epochs. `epoch(i)` runs epoch i to its end and gives its mean loss."""
    recorder.start()
    for number in range(recorder.count):
        recorder.loss(epoch(number))
        recorder.unit()


def say(event: str, **values: object) -> None:
    """Reports an event to the watcher. With `waits`, the watcher answers with a line on stdin when it has looked."""
    print(json.dumps({"event": event, **values}), flush=True)
