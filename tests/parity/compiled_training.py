"""Training steps as a run makes them, on batches that a test gives: the compiled engine under the real loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from paren.data.loader import GlobalBatch, Schedule, cut, microbatch_ranges
from paren.data.open import open_data
from paren.engine import CompiledEngine
from paren.forecast.plans import make_plans
from paren.ir.program import Program
from paren.lang.elaborate import elaborate
from paren.passes.assemble import UPDATES, WEIGHT
from paren.pipeline import Planning
from paren.plan.traits import traits_of
from paren.runtime.device import Device, open_device
from paren.train.experiment import Experiment
from paren.train.loop import train_step
from paren.train.progress import Silent
from paren.train.session import Session
from paren.train.signals import StopSignals
from paren.train.state import LoopState

EXAMPLES = Path(__file__).parents[2] / "examples"
Arrays = dict[str, np.ndarray]


def program(text: str, **arguments: Any) -> Program:
    """The program of a text."""
    return elaborate("test.paren", read_file=lambda _path: text.encode(), **arguments)


@cache
def device_of(name: str, threads: int) -> Device:
    """One device for all tests, which compiles equal kernels once."""
    return open_device(name, threads)


class Lines(list[dict[str, Any]]):
    """The lines of metrics that the loop writes itself: annotations, and the line of a step that ends the run."""

    def write(self, record: Mapping[str, Any]) -> None:
        self.append(dict(record))


class Trainer:
    """A compiled program, its state initialised, and the loop's step on any batch. `joined` is as in
    `Plans`."""

    def __init__(
        self,
        made: Program,
        device: str | Device = "cpu",
        threads: int = 1,
        joined: frozenset[str] = frozenset(),
    ) -> None:
        self.made = made
        opened = device_of(device, threads) if isinstance(device, str) else device
        plans = replace(make_plans(made, Planning(traits=traits_of(opened.name))), joined=joined)
        self.engine = CompiledEngine(made, plans, opened)
        self.restart()

    def restart(self) -> None:
        """As before the first step; `initialize` takes the moments of a new engine to be 0."""
        made = self.made
        for name, array in self.engine.slots().items():
            if self.engine.roles[name] == "moment":
                array[...] = 0
        self.engine.initialize(made.run.seed)
        self.lines = Lines()
        self.state = LoopState()
        unused: Any = SimpleNamespace()
        self.session = Session(
            experiment=Experiment.of(made, "test"),
            engine=self.engine,
            data=unused,
            state=self.state,
            total=made.run.steps or 0,
            stop=made.run.steps or 0,
            evaluate_every=None,
            saver=unused,
            best=unused,
            metrics=self.lines,  # type: ignore[arg-type]
            events=None,
            status=unused,
            progress=Silent(),
            signals=StopSignals(),
        )
        self.weight = 0.0

    @property
    def parameters(self) -> Arrays:
        """Copies of all parameters."""
        return {slot.name: np.array(self.engine.slots()[slot.name]) for slot in self.made.parameters}

    def set(self, parameters: Mapping[str, np.ndarray]) -> None:
        slots = self.engine.slots()
        for name, value in parameters.items():
            slots[name][...] = value

    def batch(self, fields: Arrays) -> GlobalBatch:
        """The examples of a position, fewer than `:batch` at the end of an epoch, cut as the loader cuts them."""
        count = len(next(iter(fields.values())))
        ranges = microbatch_ranges(self.made.run.batch, self.made.run.microbatches)
        indices = np.arange(count, dtype=np.int64)
        return GlobalBatch(self.state.step, 0, indices, cut(fields, count, ranges, self.made.rows))

    def step(self, fields: Arrays) -> dict[str, Any]:
        """One step of the loop; gives its record. `weight` becomes that of the batch."""
        before = self.session.pace.weight
        step = train_step(self.session, self.batch(fields))
        self.weight = self.session.pace.weight - before
        return dict(step.record)

    @property
    def gradients(self) -> Arrays:
        """The gradient of the last step's loss, before clipping."""
        trained = [slot.name for slot in self.made.parameters if slot.group >= 0]
        summed = self.engine._gradients
        return {name: self.engine.layout.view(summed, name) / np.float32(self.weight or 1) for name in trained}

    def update(self, gradients: Mapping[str, np.ndarray], number: int) -> None:
        """One update from given gradients, which `:clip` applies to."""
        engine = self.engine
        engine.clear_sums()
        for name, value in gradients.items():
            engine.layout.view(engine._gradients, name)[...] = value
        engine._registers[WEIGHT][...] = 1
        engine._registers[UPDATES][...] = number - 1
        assert engine._finish_step() == 1


def examples(made: Program, cache: Path, steps: int) -> list[Arrays]:
    """What the first positions of a smoke variant train on; tokens are drawn, as a tokenizer takes long to train."""
    if made.data.kind == "python-stdlib":
        generator = np.random.default_rng(0)
        types = {field.name: field.type for field in made.data.fields}
        shape = (made.run.batch, *types["tokens"].shape)
        return [{name: generator.integers(0, 64, shape).astype(np.int32) for name in types} for _ in range(steps)]
    data = open_data(made.data, root=EXAMPLES, cache=cache, seed=made.run.seed, announce=lambda _text: None)
    split = data.splits["train"]
    schedule = Schedule(split.count, made.run.batch, made.run.seed)
    return [split.read(schedule.batch_at(position)[1]) for position in range(steps)]


def assert_gradients_agree(found: Arrays, wanted: Arrays, tolerance: float = 1e-4) -> None:
    """Each to `tolerance` of its own norm, or of a millionth of the norm of all, whichever is larger."""
    assert found.keys() == wanted.keys()
    whole = np.sqrt(sum(float(np.sum(np.square(value, dtype=np.float64))) for value in wanted.values()))
    for name, value in wanted.items():
        difference = float(np.linalg.norm((found[name] - value).astype(np.float64).ravel()))
        own = float(np.linalg.norm(value.astype(np.float64).ravel()))
        assert difference <= tolerance * max(own, 1e-6 * whole), f"{name}: {difference:.3g} of {own:.3g}"
