"""The Python interface: load a file, look at it, run it, take the trained model."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import numpy as np

from paren.data.checks import check_data
from paren.data.dataset import Dataset
from paren.data.open import open_data
from paren.data.resident import Source
from paren.data.splits import TRAIN, VALIDATION
from paren.engine import CompiledEngine
from paren.environment import parse_size, read_environment
from paren.forecast.fit import refuse_if_too_large
from paren.forecast.plans import Plans, make_plans
from paren.forecast.target import absent_target, present_target
from paren.inspect.compiling import compile_plans, compiling_since
from paren.inspect.explain import Explanation, explain
from paren.inspect.profiling import Profiling
from paren.inspect.stages import SHOWN
from paren.ir.op import Array
from paren.ir.program import Program, Value
from paren.ir.show import show_graph
from paren.lang.elaborate import elaborate
from paren.lang.value import show
from paren.restored import TOKENIZER, RestoredModel, read_model, sample_text
from paren.runtime.device import Device, open_device
from paren.runtime.limits import limits_of, read_limits
from paren.runtime.memory import available_memory
from paren.text.errors import ParenError, did_you_mean
from paren.train import experiment as training
from paren.train.experiment import RunOptions, SplitData
from paren.train.files import Files
from paren.train.progress import ProgressView, Silent
from paren.train.read_run import read_metrics
from paren.train.run import Start
from paren.train.signals import StopSignals
from paren.train.state import Json

Settings = Mapping[str, object] | Sequence[str]


def load(path: str | Path, variant: str | None = None, set: Settings = ()) -> Experiment:
    """The experiment that a file declares. Raises `ParenError` (all mistakes of the file at once).

    `variant` names a `defvariant`. `set` overrides settings: `{"rate": 1e-3}`, or texts `"rate=1e-3"` as on the
    command line.
    """
    if isinstance(set, str):
        overrides = [set]
    else:
        overrides = [f"{name}={_text(value)}" for name, value in set.items()] if isinstance(set, Mapping) else list(set)
    return Experiment(elaborate(path, variant=variant, overrides=overrides))


def _text(value: object) -> str:
    """A Python value in the language's syntax."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, list | tuple):
        return f"[{' '.join(_text(item) for item in value)}]"
    if isinstance(value, bool | int | float | str):
        return show(value)
    raise TypeError(f"a setting is a number, a boolean, a string or a list of those, not {type(value).__name__}")


@dataclass(frozen=True)
class Run:
    """A run that has ended. `ended`: complete, steps, signal or done; `step`: steps done in total."""

    out: Path
    ended: str
    exit_code: int
    step: int

    def metrics(self) -> dict[str, Array]:
        """The run's metrics as columns, NaN where a line has none."""
        return dict(read_metrics(self.out))

    def restore(self, device: str = "cpu", *, best: bool = False) -> RestoredModel:
        """The trained model."""
        return restore(self.out, device, best=best)


@dataclass(frozen=True, repr=False)
class Experiment:
    """A loaded file. Loading and looking compute nothing and read no data."""

    program: Program

    def __repr__(self) -> str:
        program = self.program
        variant = f", variant {program.variant}" if program.variant else ""
        return f"<Experiment {program.path}{variant}: {sum(s.type.size for s in program.parameters):,} parameters>"

    @cached_property
    def plans(self) -> Plans:
        """The plans of all graphs of a run."""
        return make_plans(self.program)

    def check(self) -> dict[str, object]:
        """What the file amounts to: settings, data, parameters, rows of a microbatch, notes."""
        program = self.program
        return {
            "variant": program.variant,
            "settings": {setting.name: setting.value for setting in program.settings},
            "data": {field.name: str(field.type) for field in program.data.fields},
            "parameters": {slot.name: str(slot.type) for slot in program.parameters},
            "parameter count": sum(slot.type.size for slot in program.parameters),
            "batch": program.run.batch,
            "microbatches": program.run.microbatches,
            "rows": program.rows,
            "steps": program.run.steps,
            "epochs": program.run.epochs,
            "notes": list(program.notes),
        }

    def show(self, stage: str) -> str:
        """The text of a stage: forms, program, graph, fused, plan or code."""
        if stage not in SHOWN:
            raise ParenError(
                "E-API-002", f"no stage {stage}{did_you_mean(stage, SHOWN)}", fix=f"use one of {', '.join(SHOWN)}"
            )
        return SHOWN[stage](self.program)

    def explain(
        self,
        device: str | None = None,
        card: str | None = None,
        memory: str | None = None,
        arch: str | None = None,
        threads: int | None = None,
    ) -> Explanation:
        """The lowering report: of a run on this machine, whose kernels are compiled for it, or on a card that is not
        there, by its name (`h100-80g`) or by its memory (`24GiB`) and architecture (`sm_90`). Trains nothing.

        With both `device` and `memory`, the device has only so much memory.
        """
        if card is not None or arch is not None or (memory is not None and device is None):
            return explain(self.program, self.plans, absent_target(device, card, memory, arch))
        environment = read_environment()
        opened = open_device(device or environment.device, threads, environment.cache / "kernels")
        size = parse_size(memory, "--memory") if memory is not None else environment.memory
        compiling = compile_plans(self.plans, opened)
        limits = limits_of(opened, environment.cache) if opened.target else None
        target = present_target(opened, limits, size, "--memory" if memory is not None else "PAREN_MEMORY")
        return explain(self.program, self.plans, target, compiling, opened.notes)

    def digest(self, data: Dataset) -> str:
        """What identifies the experiment: its graphs, its run settings and its data, not its text or place."""
        program = self.program
        content = hashlib.sha256()
        graphs = [program.initialize, program.loss, program.evaluate]
        graphs += [graph for group in program.updates for graph in group.graphs.values()]
        graphs += [graph for _, graph in program.diagnostics.values()]
        for graph in graphs:
            content.update(show_graph(graph, spans=False).encode())
        run = asdict(program.run)
        del run["spans"]
        for name in ("keep_best", "stop_early"):
            if run[name] is not None:
                del run[name]["span"]
        groups = [(group.number, group.parameters, group.moments) for group in program.updates]
        sampled = [(each.name, each.every, each.reduce) for each, _ in program.diagnostics.values()]
        evaluated = program.data.options.get("evaluation-count")
        parts = (sorted(run.items()), groups, program.metrics, sampled, evaluated, data.identity)
        content.update(repr(parts).encode())
        return content.hexdigest()

    def run(
        self,
        out: str | Path | None = None,
        device: str | None = None,
        steps: int | None = None,
        resume: str | None = None,
        overwrite: bool = False,
        checkpoints: str | Path | None = None,
        threads: int | None = None,
        tensorboard: bool = False,
        data_root: str | Path | None = None,
        allow_new_layout: bool = False,
        profile: bool = False,
        progress: ProgressView | None = None,
    ) -> Run:
        """Trains, and gives the ended run. Raises `ParenError` for whatever stops it.

        Without `out` the run goes to `outputs/<file stem>[-<variant>]`. `steps` stops after so many in total. `profile`
        writes `report/trace.json`, and tells where the time of a step goes.
        """
        view = progress if progress is not None else Silent()
        environment = read_environment()
        profiling = Profiling() if profile else None
        with StopSignals() as signals:
            try:
                opened = open_device(device or environment.device, threads, environment.cache / "kernels")
                if opened.reason:
                    view.notice(f"device {opened.name}: {opened.reason}")
                for note in (*self.program.notes, *opened.notes):
                    view.notice(note)
                refuse_if_too_large(self.program, self.plans, environment.memory or available_memory().bytes)
                start = self._start(
                    opened,
                    self._open_data(data_root, view),
                    RunOptions(
                        Path(out) if out is not None else default_out(self.program),
                        steps,
                        resume,
                        overwrite,
                        allow_new_layout,
                        Path(checkpoints) if checkpoints is not None else None,
                        tensorboard,
                        _identity(opened),
                        _versions(),
                    ),
                    view,
                    signals,
                    profiling,
                )
                try:
                    outcome = start.run()
                finally:
                    for line in profiling.finish(start.options.out) if profiling is not None else ():
                        view.notice(line)
            finally:
                view.end()
        return Run(outcome.out, outcome.ended, outcome.exit_code, outcome.step)

    def _open_data(self, data_root: str | Path | None, view: ProgressView) -> Dataset:
        environment = read_environment()
        root = data_root or environment.data or Path(self.program.path).parent
        cache = environment.cache / "data"
        form, run = self.program.data, self.program.run
        data = open_data(form, root=Path(root), cache=cache, seed=run.seed, announce=view.notice)
        for note in data.notes:
            view.notice(note)
        check_data(data, self.program.bounds, run, cache=cache)
        return data

    def _start(
        self,
        device: Device,
        data: Dataset,
        options: RunOptions,
        view: ProgressView,
        signals: StopSignals,
        profiling: Profiling | None,
    ) -> Start:
        program = self.program
        count = program.data.options.get("evaluation-count")
        splits = SplitData(
            program.run,
            program.rows,
            data.splits[TRAIN],
            data.splits.get(VALIDATION),
            count if isinstance(count, int) else None,
        )

        def make_engine() -> CompiledEngine:
            if data.tokenizer is not None:
                data.tokenizer.save(options.out / TOKENIZER)
            return self._compile(device, options.out, view, splits.sources, profiling)

        experiment = training.Experiment.of(program, self.digest(data))
        watched = profiling.profile if profiling is not None else None
        return Start(experiment, options, splits, make_engine, view, signals, profile=watched)

    def _compile(
        self,
        device: Device,
        out: Path,
        view: ProgressView,
        sources: Mapping[str, Source] | None,
        profiling: Profiling | None,
    ) -> CompiledEngine:
        """The engine; the short report says what a run of it takes, and `report/lowering.json` has all of it."""
        environment = read_environment()
        limits = None
        if device.target:
            cache = environment.cache
            limits = read_limits(device, cache) if profiling is None else limits_of(device, cache, again=True)
        compiled, reused, begin = device.compiled, device.reused, time.perf_counter()
        engine = CompiledEngine(self.program, self.plans, device, sources)
        target = present_target(device, limits, environment.memory, "PAREN_MEMORY")
        compiling = compiling_since(device, compiled, reused, begin)
        report = explain(self.program, self.plans, target, compiling, device.notes)
        report.write(out, Files())
        for line in report.short:
            view.notice(line)
        if profiling is not None:
            profiling.attach(engine, report)
        return engine


def default_out(program: Program) -> Path:
    """`outputs/<file stem>[-<variant>]`."""
    variant = f"-{program.variant}" if program.variant else ""
    return Path("outputs") / f"{Path(program.path).stem}{variant}"


def _identity(device: Device) -> dict[str, Json]:
    """What decides about bits besides the experiment: device, instruction set, threads (they decide about products)."""
    identity: dict[str, Json] = {"device": device.name, "ranks": 1}
    if device.target:
        identity |= {"target": device.target, "threads": device.threads}
    return identity


def _versions() -> dict[str, str]:
    packages = ("paren", "torch", "numpy", "llvmlite")
    return {name: version(name) for name in packages} | {"python": platform.python_version()}


def restore(
    out: str | Path, device: str = "cpu", *, best: bool = False, checkpoints: str | Path | None = None
) -> RestoredModel:
    """The trained model of a run, from its newest checkpoint or, with `best`, its best evaluation. All hashes are
    verified."""
    opened = open_device(device, None, read_environment().cache / "kernels")
    return read_model(Path(out), opened, best=best, checkpoints=Path(checkpoints) if checkpoints else None)


def sample(
    out: str | Path,
    prompt: str = "",
    length: int = 200,
    temperature: float = 1.0,
    seed: int = 0,
    checkpoints: str | Path | None = None,
) -> Iterator[str]:
    """Text from the language model of a run, piece by piece; `checkpoints` says where its checkpoints are, if not in
    its folder."""
    return sample_text(restore(out, checkpoints=checkpoints), prompt, length, temperature, seed)


__all__ = ["Experiment", "Run", "Settings", "Value", "load", "restore", "sample"]
