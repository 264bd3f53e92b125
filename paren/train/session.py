"""Everything that takes part in a start of a run, and what a step of it gave."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from paren.train.best import BestStore
from paren.train.engine import Engine
from paren.train.event_files import EventFiles
from paren.train.experiment import Experiment, TrainingData
from paren.train.metrics import MetricsWriter
from paren.train.profile import Profile
from paren.train.progress import ProgressView
from paren.train.saving import Saver
from paren.train.signals import StopSignals
from paren.train.state import Json, LoopState
from paren.train.status import StatusFile


@dataclass
class Pace:
    """Time, examples and weight of the steps since the last line of metrics."""

    seconds: float = 0.0
    steps: int = 0
    examples: int = 0
    weight: float = 0.0


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
    saver: Saver
    best: BestStore
    metrics: MetricsWriter
    events: EventFiles | None
    status: StatusFile
    progress: ProgressView
    signals: StopSignals
    profile: Profile | None = None
    clock: Callable[[], float] = time.perf_counter
    peak_bytes: int = 0
    pace: Pace = field(default_factory=Pace)
    step_seconds: float | None = None


@dataclass(frozen=True)
class Step:
    """What a position gave: `record` by series name. `notable`: it has its line in the metrics at any `:log-every`."""

    record: dict[str, Json]
    notable: bool = False
