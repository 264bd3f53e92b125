"""An engine in a few lines of numpy, data in memory, and the pieces that start a run with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from paren.data.dataset import Chunk
from paren.data.loader import GlobalBatch, Microbatch
from paren.ir.program import Best, Diagnostic, RunForm
from paren.runtime.memory import resident_bytes
from paren.text.source import Source, Span
from paren.train.checkpoint import Checkpoint, CheckpointStore
from paren.train.engine import StepSums
from paren.train.experiment import Experiment, Prepared, RunOptions, SplitData
from paren.train.files import Files
from paren.train.places.disk import DiskFolder
from paren.train.progress import Silent
from paren.train.run import Outcome, Start
from paren.train.signals import StopSignals
from paren.train.state import LoopState

SOURCE = Source("linear.paren", "(log (linear x 1))\n")
SPAN = Span(SOURCE, 0, 18)
WIDTH = 4
COUNT = 22  # examples: with batches of 8, an epoch has 3 steps, the last one short


def run_form(**changes: Any) -> RunForm:
    form = RunForm(
        batch=8,
        microbatches=2,
        steps=12,
        epochs=None,
        seed=3,
        precision="off",
        clip=1.0,
        evaluate_every=5,
        checkpoint_every=4,
        log_every=1,
        keep_checkpoints=100,
        keep_best=Best("evaluation/loss", "min", None, SPAN),
        stop_early=None,
        on_nonfinite="stop",
        skip_limit=3,
        average=0.9,
        start_from=None,
        start_names=(),
        reproducible_over=None,
        spans={},
    )
    return replace(form, **changes)


class ArraySplit:
    """Examples in memory: `x` float32[WIDTH], `y` float32[], `weight` float32[]."""

    def __init__(self, name: str, fields: Mapping[str, np.ndarray]) -> None:
        self.name, self.digest, self.fields = name, name, dict(fields)
        self.count = len(self.fields["y"])
        self.seen: list[list[int]] = []

    def read(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        self.seen.append(indices.tolist())
        return {name: array[indices] for name, array in self.fields.items()}

    def chunks(self, field: str) -> Iterator[Chunk]:
        yield Chunk(self.fields[field], 0, "sample", self.name)


def examples(count: int, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, WIDTH)).astype(np.float32)
    y = (x @ np.arange(1, WIDTH + 1) + 0.1 * random.normal(size=count)).astype(np.float32)
    return {"x": x, "y": y, "weight": np.ones(count, np.float32)}


def split_data(run: RunForm, training: Mapping[str, np.ndarray] | None = None, validation: bool = True) -> SplitData:
    return SplitData(
        run,
        rows=run.rows(1),
        evaluation_rows=run.rows(1),
        training=ArraySplit("train", training or examples(COUNT, 1)),
        validation=ArraySplit("validation", examples(7, 2)) if validation else None,
    )


class LinearEngine:
    """Linear regression: sgd with momentum, an average of the parameters, noise on the inputs keyed like dropout.

    `before` is called with the name of each method and its step, so that tests act in the middle of a run.
    """

    copies_state = False
    longest = 1

    def __init__(
        self,
        before: Callable[[str, int], None] = lambda name, step: None,
        rate: float = 0.05,
        clip: float | None = None,
    ) -> None:
        self.before = before
        self.rate = rate
        self.clip = clip
        self.seed = 0
        self.closed = False
        self.state = {
            "linear.weight": np.zeros(WIDTH, np.float32),
            "linear.bias": np.zeros((), np.float32),
            "linear.weight/momentum": np.zeros(WIDTH, np.float32),
            "linear.bias/momentum": np.zeros((), np.float32),
            "linear.weight/average": np.zeros(WIDTH, np.float32),
            "linear.bias/average": np.zeros((), np.float32),
        }
        self.gradients = {name: np.zeros_like(self.state[name]) for name in ("linear.weight", "linear.bias")}
        kinds = {"momentum": "moment", "average": "average"}
        self.roles = {name: kinds.get(name.partition("/")[2], "parameter") for name in self.state}

    def initialize(self, seed: int) -> None:
        self.seed = seed
        random = np.random.default_rng(seed)
        for name, array in self.state.items():
            array[...] = random.normal(size=array.shape) if self.roles[name] == "parameter" else 0
        for name in self.gradients:
            self.state[f"{name}/average"][...] = self.state[name]

    def slots(self) -> dict[str, np.ndarray]:
        return dict(self.state)

    owes = False

    def owe(self) -> dict[str, np.ndarray]:
        raise AssertionError("nothing is carried here")

    def step(self, batch: GlobalBatch, number: int) -> StepSums:
        for gradient in self.gradients.values():
            gradient[...] = 0
        parts = [self.accumulate(microbatch, batch.position) for microbatch in batch.microbatches]
        loss, weight = (sum(values) for values in zip(*parts, strict=True))
        norm = self.gradient_norm(weight) if weight else math.nan
        rate = None
        if math.isfinite(loss) and math.isfinite(norm) and weight > 0:
            scale = 1.0 / weight
            if self.clip is not None and norm > self.clip:
                scale *= self.clip / norm
            rate = self.update(scale, number)["rate"]
        return StepSums(loss, weight, norm, rate)

    def _forward(self, microbatch: Microbatch, step: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x = microbatch.fields["x"]
        if step is not None:
            noise = [np.random.default_rng((9, step, int(row))).normal(size=WIDTH) for row in microbatch.rows]
            x = x + 0.1 * np.array(noise, np.float32)
        error = x @ self.state["linear.weight"] + self.state["linear.bias"] - microbatch.fields["y"]
        return x, error, microbatch.valid * microbatch.fields["weight"]

    def accumulate(self, microbatch: Microbatch, step: int) -> tuple[float, float]:
        self.before("accumulate", step)
        with np.errstate(invalid="ignore", over="ignore"):
            return self._accumulate(microbatch, step)

    def _accumulate(self, microbatch: Microbatch, step: int) -> tuple[float, float]:
        x, error, weight = self._forward(microbatch, step)
        self.gradients["linear.weight"] += x.T @ (weight * error)
        self.gradients["linear.bias"] += np.sum(weight * error)
        return float(np.sum(0.5 * weight * error.astype(np.float64) ** 2)), float(np.sum(weight))

    def gradient_norm(self, weight: float) -> float:
        return math.sqrt(sum(float(np.sum((g.astype(np.float64) / weight) ** 2)) for g in self.gradients.values()))

    def update(self, scale: float, number: int) -> dict[str, float]:
        self.before("update", number)
        rate = self.rate / math.sqrt(number)
        for name, gradient in self.gradients.items():
            momentum, average = self.state[f"{name}/momentum"], self.state[f"{name}/average"]
            momentum[...] = 0.9 * momentum + gradient * np.float32(scale)
            self.state[name] -= np.float32(rate) * momentum
            average[...] = 0.9 * average + 0.1 * self.state[name]
        return {"rate": rate}

    evaluated = ("loss", "error")

    def evaluate(self, microbatch: Microbatch) -> dict[str, tuple[float, float]]:
        self.before("evaluate", 0)
        _, error, weight = self._forward(microbatch, None)
        total = float(np.sum(weight))
        return {
            "loss": (float(np.sum(0.5 * weight * error**2)), total),
            "error": (float(np.sum(weight * np.abs(error))), total),
        }

    def diagnose(self, name: str, microbatch: Microbatch, step: int) -> tuple[float, float]:
        _, error, weight = self._forward(microbatch, step)
        total = float(np.sum(weight))
        values = np.abs(error[weight > 0])
        if name == "count":
            return total, total
        if name == "mean":
            return float(np.sum(weight * np.abs(error))) / (total or 1.0), total
        return float(getattr(values, name)()) if len(values) else 0.0, total

    def locate_nonfinite(self, microbatch: Microbatch, step: int) -> tuple[str, Span] | None:
        with np.errstate(invalid="ignore"):
            _, error, _ = self._forward(microbatch, step)
        return None if np.isfinite(error).all() else ("log", SPAN)

    def used_bytes(self) -> int:
        return resident_bytes()

    def memory(self) -> dict[str, int]:
        return {"planned": 4096, "parameters": 20}

    def close(self) -> None:
        self.closed = True


@dataclass
class Listener(Silent):
    """Keeps what a user would be told."""

    notices: list[str] = field(default_factory=list)

    def notice(self, text: str) -> None:
        self.notices.append(text)


@dataclass
class Trial:
    """Starts runs in one directory; the last start's parts stay at hand."""

    out: Path
    run: RunForm = field(default_factory=run_form)
    digest: str = "d" * 64
    diagnostics: Mapping[str, Diagnostic] = field(default_factory=dict)
    training: Mapping[str, np.ndarray] | None = None
    validation: bool = True
    files: Files = field(default_factory=Files)
    before: Callable[[str, int], None] = lambda name, step: None
    settings: Mapping[str, Any] = field(default_factory=lambda: {"rate": 0.05})
    identity: Mapping[str, Any] = field(default_factory=lambda: {"device": "cpu"})
    copies_state: bool = False
    engine: LinearEngine | None = None
    listener: Listener = field(default_factory=Listener)
    signals: StopSignals = field(default_factory=StopSignals)

    def start(self, **options: Any) -> Outcome:
        self.listener = Listener()
        self.signals = StopSignals()
        self.data = split_data(self.run, self.training, self.validation)
        experiment = Experiment(
            self.digest, self.run, self.diagnostics, self.settings, None, {SOURCE.name: SOURCE.text}, SOURCE.name
        )
        start = Start(
            experiment,
            RunOptions(self.out, **{"versions": {"paren": "0"}, **options}),
            self.data,
            lambda stored: Prepared(self.identity, self.data, self._make),
            self.listener,
            self.signals,
            self.files,
        )
        return start.run()

    def _make(self) -> LinearEngine:
        self.engine = LinearEngine(self.before, clip=self.run.clip)
        self.engine.copies_state = self.copies_state
        return self.engine

    def state_bytes(self) -> dict[str, bytes]:
        assert self.engine is not None
        return {name: array.tobytes() for name, array in self.engine.slots().items()}


class Killed(BaseException):
    """Stands for SIGKILL: nothing of paren may catch it, so nothing is cleaned up."""


@dataclass
class FaultyFiles(Files):
    """Fails at the operations that `fails` picks, by their number from 0 and their name."""

    fails: Callable[[int, str], BaseException | None] = lambda number, name: None
    count: int = 0

    def _step(self, name: str) -> None:
        error = self.fails(self.count, name)
        self.count += 1
        if error is not None:
            raise error

    def write(self, file: Any, data: Any) -> None:
        try:
            self._step("write")
        except Killed:
            file.write(bytes(data)[: len(data) // 2])
            raise
        super().write(file, data)

    def sync(self, file: Any) -> None:
        self._step("sync")
        super().sync(file)

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename")
        super().rename(source, target)

    def sync_folder(self, folder: Path) -> None:
        self._step("sync_folder")
        super().sync_folder(folder)


def make_store(root: Path, files: Files | None = None, **changes: Any) -> CheckpointStore:
    values = {"run": "r", "program": "p" * 64, "identity": {}, "versions": {"paren": "0"}, "keep": 100}
    return CheckpointStore(DiskFolder(root, files or Files()), **{**values, **changes})


def engine_at(seed: int) -> LinearEngine:
    engine = LinearEngine()
    engine.initialize(seed)
    return engine


def save(store: CheckpointStore, step: int, engine: LinearEngine | None = None) -> Checkpoint:
    engine = engine or engine_at(step)
    return store.save(engine.slots(), engine.roles, LoopState(step=step, samples=8 * step, updates=step), 10 * step)
