"""Everything that takes part in a start of a run, and what a step of it gave."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from paren.parallel.company import ALONE, Company
from paren.parallel.exchange import NO_STEPS, Exchanged
from paren.parallel.sign import TRAINING
from paren.runtime.array import AnyArray
from paren.text.json import Json
from paren.train.engine import Engine
from paren.train.event_files import EventFiles
from paren.train.experiment import Experiment, TrainingData
from paren.train.profile import Profile
from paren.train.progress import ProgressView
from paren.train.signals import StopSignals
from paren.train.state import BestRecord, LoopState


@dataclass
class Pace:
    """Time, examples and weight of the steps since the last line of metrics, and what their sums over ranks took, where
    there are several."""

    seconds: float = 0.0
    steps: int = 0
    examples: int = 0
    weight: float = 0.0
    exchanged: Exchanged = NO_STEPS

    def count(self, steps: int, examples: int, weight: float, seconds: float) -> None:
        """Adds steps that took so many seconds together."""
        self.seconds += seconds
        self.steps += steps
        self.examples += examples
        self.weight += weight


class Lines(Protocol):
    """Where lines of metrics go. `size`: bytes so far."""

    @property
    def size(self) -> int: ...

    def write(self, *records: Mapping[str, Json]) -> None: ...

    def sync(self) -> None: ...


class Saves(Protocol):
    """What publishes the state, as `paren.train.saving.Saver` does."""

    def save(self, metrics_bytes: int, ready: Callable[[], None], *, goes_on: bool) -> None: ...

    def settle(self, *, wait: bool = False) -> None: ...

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class KeepsBest(Protocol):
    """What keeps the parameters of the best evaluation, as `paren.train.best.BestStore` does."""

    def save(
        self, slots: Mapping[str, AnyArray], roles: Mapping[str, str], step: int, metric: str, value: float
    ) -> BestRecord: ...


class Reports(Protocol):
    """Who is told what the run does, as `paren.train.status.StatusFile` is."""

    def running(self, phase: str) -> None: ...

    def progress(self, step: int, samples: int) -> None: ...


@dataclass
class Session:
    """Everything that takes part in a start of a run. `state` and the engine's slots are all that training changes.

    `total`: steps of the experiment. `stop`: where this start ends, at most `total`. `evaluate_every`: steps between
    evaluations, None for none before the last step. `step_seconds`: the time of a step, as the last call
    took it; None when the next step has to be made alone.
    """

    experiment: Experiment
    engine: Engine
    data: TrainingData
    state: LoopState
    total: int
    stop: int
    evaluate_every: int | None
    saver: Saves
    best: KeepsBest
    metrics: Lines
    events: EventFiles | None
    status: Reports
    progress: ProgressView
    signals: StopSignals
    company: Company = ALONE
    profile: Profile | None = None
    clock: Callable[[], float] = time.perf_counter
    peak_bytes: int = 0
    pace: Pace = field(default_factory=Pace)
    exchanged: Exchanged = NO_STEPS
    step_seconds: float | None = None
    stopping: bool = False

    def doing(self, phase: str) -> None:
        """Lets everybody know what the run does now."""
        self.progress.phase("" if phase == TRAINING else phase)
        self.status.running(phase)
        self.company.doing(phase)

    def ask_to_stop(self) -> None:
        """Notes whether any rank was asked to stop: then all of them stop at the border of this step."""
        self.stopping = self.company.any(self.signals.stop_asked)


@dataclass(frozen=True)
class Step:
    """What a position gave: `record` by series name. `notable`: it has its line in the metrics at any `:log-every`."""

    record: dict[str, Json]
    notable: bool = False
