"""What a worker tells of its jobs while it works, and how a training's progress becomes that."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Self

from paren.experiment.job_files import RUNNING
from paren.text.json import Json

PAUSE = 0.1  # seconds between two signs of a training
NOTICE, SAID = "notice", "said"


@dataclass(frozen=True)
class Event:
    """`kind`: the state that a job is in now (running, done, failed, waiting); `notice`, a sentence that the user needs
    once; or `said`, a line that a worker or user code in it wrote.

    `job`: its order; -1 for a notice about none. `stage`, `step` and `steps` say how far it is, `text` why it failed or
    what its results are.
    """

    job: int
    kind: str
    stage: str = ""
    step: int = 0
    steps: int = 0
    text: str = ""

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Self:
        """The event that `to_line` wrote."""
        return cls(**json.loads(line))


Tell = Callable[[Event], None]


class JobProgress:
    """The view of one job's training: signs of life, and what it says of its device and data. Its lowering report is in
    its folder, and its end is told by the job's own line."""

    def __init__(self, job: int, tell: Tell) -> None:
        self._job = job
        self._tell = tell
        self._stop = 0
        self._prepared = False
        self._last = float("-inf")

    def begin(self, done: int, stop: int) -> None:
        self._stop = stop
        self._tell(Event(self._job, RUNNING, "training", done, stop))

    def step(self, step: int, record: Mapping[str, Json]) -> None:
        now = time.monotonic()
        if now - self._last >= PAUSE:
            self._last = now
            self._tell(Event(self._job, RUNNING, "training", step, self._stop))

    def phase(self, name: str) -> None:
        self._prepared = self._prepared or name == "compiling"
        if name and not self._stop:
            self._tell(Event(self._job, RUNNING, name))

    def notice(self, text: str) -> None:
        if not self._prepared:
            self._tell(Event(self._job, NOTICE, text=text))

    def end(self) -> None: ...
