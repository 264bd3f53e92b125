"""Workers as processes of this machine: started, listened to, told of a stop signal once, and waited for."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import IO, Any, Self

from paren.experiment.events import SAID, Event, Tell
from paren.experiment.worker_places import WorkerPlace
from paren.parallel.failure import describe_end
from paren.run import How

PAUSE = 0.1  # seconds between two looks at signals
STOPPED = (130, 143)  # exit codes of workers that were stopped by a signal
MODULE = "paren.experiment.worker_process"


@dataclass(frozen=True)
class Order:
    """What a worker process is to do: everything that `Worker` needs, as plain values. `texts`: of the file and its
    imports, so that all workers read the same. `jobs`: the numbers (`Job.order`) of the jobs that are left."""

    path: str
    variant: str | None
    overrides: tuple[str, ...]
    texts: Mapping[str, str]
    jobs: tuple[int, ...]
    root: str
    how: How
    share: int
    trains: bool
    analyzes: bool
    tensorboard: bool
    before: Mapping[str, str]

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_line(cls, line: str) -> Self:
        """The order that `to_line` wrote."""
        content: dict[str, Any] = json.loads(line)
        content["how"] = How(**content["how"])
        content["overrides"], content["jobs"] = tuple(content["overrides"]), tuple(content["jobs"])
        return cls(**content)


def run_workers(
    order: Order,
    places: Sequence[WorkerPlace],
    variables: Mapping[str, str],
    tell: Tell,
    received: Callable[[], signal.Signals | None],
) -> None:
    """Runs a worker at each place and waits for all. `variables`: of their environment. `received` gives a stop signal
    that came, which every worker is told of once."""
    told: queue.SimpleQueue[Event] = queue.SimpleQueue()
    workers: list[_Process] = []
    passed_on = False
    try:
        for number, place in enumerate(places):
            own = replace(order, how=replace(order.how, device=place.device), share=place.share)
            workers.append(_Process(number, own, variables, told.put))
        while True:
            stop = received()
            if stop is not None and not passed_on:
                passed_on = True
                for worker in workers:
                    worker.stop(stop)
            ended = all(worker.has_ended() for worker in workers)
            try:
                while True:
                    tell(told.get(timeout=0 if ended else PAUSE))
            except queue.Empty:
                if ended:
                    return
    finally:
        for worker in workers:
            worker.end()


class _Process:
    """One worker process, in a session of its own, so that a terminal's signals come through `stop` only. It stops by
    itself when its standard input ends, which the end of this process, however it comes, brings about."""

    def __init__(self, number: int, order: Order, variables: Mapping[str, str], tell: Tell) -> None:
        self._number = number
        self._tell = tell
        self._known = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            env=dict(variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="backslashreplace",
            start_new_session=True,
        )
        assert self._process.stdin is not None  # pipes were asked for
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._listeners = [
            self._listen(self._process.stdout, lambda line: tell(Event.from_line(line))),
            self._listen(self._process.stderr, lambda line: tell(Event(-1, SAID, text=line.rstrip("\n")))),
        ]
        try:
            self._process.stdin.write(order.to_line() + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:  # it has ended already, and `has_ended` says how
            return

    def _listen(self, stream: IO[str], hear: Callable[[str], None]) -> threading.Thread:
        def listen() -> None:
            for line in stream:
                hear(line)

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        return thread

    def has_ended(self) -> bool:
        """Whether it has ended and all it said was heard; the first time, one that did not end by itself is told of."""
        code = self._process.poll()
        if code is None or any(thread.is_alive() for thread in self._listeners):
            return False
        if not self._known and code not in (0, *STOPPED):
            text = f"worker {self._number} {describe_end(code)}; its job is free for the others"
            self._tell(Event(-1, SAID, text=text))
        self._known = True
        return True

    def stop(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            os.kill(self._process.pid, number)

    def end(self) -> None:
        """Ends it if it still runs, and closes its pipes."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
