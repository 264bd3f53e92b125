"""Workers as processes of this machine: started, listened to, told of a stop signal once, and waited for."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import IO, Any, Self

from paren.experiment.events import NOTICE, SAID, Event, Tell
from paren.experiment.job_files import RUNNING
from paren.experiment.worker_places import WorkerPlace
from paren.parallel.failure import describe_end
from paren.run import How
from paren.train.signals import StopSignals

PAUSE = 0.1  # seconds between two looks at signals
KILLS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # what others send
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


@dataclass(frozen=True)
class Death:
    """A worker process that did not end by itself: its number and process, `how` it ended in words, the order of the
    job that it was at, and whether somebody else `killed` it, who may not have meant the job."""

    worker: int
    pid: int
    how: str
    job: int
    killed: bool


def run_workers(
    order: Order,
    places: Sequence[WorkerPlace],
    variables: Mapping[str, str],
    tell: Tell,
    signals: StopSignals,
    fail: Callable[[Death], None],
    sweep: Callable[[], None],
) -> None:
    """Runs a worker at each place and waits for all. `variables`: of their environment. Every worker is told once of a
    stop signal that came; at the second all are killed, and `sweep` takes away what they leave.

    A job whose worker ended in it, by what the job did, is given to `fail`, and another worker takes the place; so is
    one in which a second worker was killed (memory may have run out). What somebody killed is free for the others."""
    pool = _Pool(variables, tell, fail)
    passed_on = False

    def kill() -> None:
        pool.end()
        sweep()
        before()

    before, signals.at_once = signals.at_once, kill
    try:
        for number, place in enumerate(places):
            pool.start(number, replace(order, how=replace(order.how, device=place.device), share=place.share))
        while True:
            stop = signals.received
            ended = pool.has_ended()  # asked first: a worker that ends after deaths were settled is looked at again
            if stop is None:
                pool.settle_deaths()
            elif not passed_on:
                passed_on = True
                pool.stop(stop)
            pool.hear(0 if ended else PAUSE)
            if ended and pool.has_ended():
                return
    finally:
        signals.at_once = before
        pool.end()


@dataclass
class _Pool:
    """The workers of a launch, by their places. `killed`: how many workers were killed in each job."""

    variables: Mapping[str, str]
    tell: Tell
    fail: Callable[[Death], None]
    workers: list[_Process] = field(default_factory=list)
    told: queue.SimpleQueue[Event] = field(default_factory=queue.SimpleQueue)
    killed: Counter[int] = field(default_factory=Counter)

    def start(self, number: int, order: Order) -> None:
        self.workers.append(_Process(number, order, self.variables, self.told.put))

    def settle_deaths(self) -> None:
        """Tells what becomes of the jobs that workers ended in, and gives the places of those that a job ended to
        others. Of workers that ended in one job meanwhile, `fail` sees who was at it last."""
        deaths = [(place, death) for place, worker in enumerate(self.workers) if (death := worker.death()) is not None]
        self.killed.update(death.job for _, death in deaths if death.killed and death.job >= 0)
        for place, death in deaths:
            if death.killed and self.killed[death.job] < 2:  # none where it had told of no job yet
                text = f"worker {death.worker} {death.how}; its job is free for the others"
                self.tell(Event(-1, SAID, text=text))
            else:
                self.fail(death)
            if not death.killed:
                worker = self.workers[place]
                worker.end()
                self.workers[place] = _Process(death.worker, worker.order, self.variables, self.told.put)

    def has_ended(self) -> bool:
        """Whether all workers have ended, and all that they said was heard."""
        return all(worker.has_ended() for worker in self.workers)

    def hear(self, pause: float) -> None:
        """Passes on what workers say, until they say nothing for so many seconds."""
        with suppress(queue.Empty):
            while True:
                self.tell(self.told.get(timeout=pause))

    def stop(self, number: signal.Signals) -> None:
        for worker in self.workers:
            worker.stop(number)

    def end(self) -> None:
        for worker in self.workers:
            worker.end()


class _Process:
    """One worker process, in a session of its own, so that a terminal's signals come through `stop` only. It stops by
    itself when its standard input ends, which the end of this process, however it comes, brings about."""

    def __init__(self, number: int, order: Order, variables: Mapping[str, str], tell: Tell) -> None:
        self.order = order
        self._number = number
        self._job = -1  # the order of the job that it is at
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
            self._listen(self._process.stdout, lambda line: tell(self._noted(Event.from_line(line)))),
            self._listen(self._process.stderr, lambda line: tell(Event(-1, SAID, text=line.rstrip("\n")))),
        ]
        try:
            self._process.stdin.write(order.to_line() + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:  # it has ended already, and `death` says how
            return

    def _listen(self, stream: IO[str], hear: Callable[[str], None]) -> threading.Thread:
        def listen() -> None:
            for line in stream:
                hear(line)

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        return thread

    def _noted(self, event: Event) -> Event:
        if event.job >= 0 and event.kind not in (NOTICE, SAID):
            self._job = event.job if event.kind == RUNNING else -1
        return event

    def has_ended(self) -> bool:
        """Whether it has ended and all it said was heard."""
        return self._process.poll() is not None and not any(thread.is_alive() for thread in self._listeners)

    def death(self) -> Death | None:
        """How it ended, if it has and not by itself; told once."""
        if self._known or not self.has_ended():
            return None
        self._known = True
        code = self._process.returncode
        if code == 0 or (code in STOPPED and self._job < 0):
            return None
        return Death(self._number, self._process.pid, describe_end(code), self._job, -code in KILLS or self._job < 0)

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
