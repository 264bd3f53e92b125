"""The Python interface: load a file, look at it, run it, take the trained model."""

from __future__ import annotations

import gc
import hashlib
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import numpy as np

from paren.data.checks import check_data
from paren.data.dataset import Dataset
from paren.data.loader import WHOLE
from paren.data.open import open_data
from paren.environment import inherited_variables, parse_size, read_environment
from paren.forecast.fit import refuse_if_too_large
from paren.forecast.memory import memory_of
from paren.forecast.plans import Plans, lay_out, make_plans
from paren.forecast.saving import choose_saving
from paren.forecast.stacking import Candidate, most_stacked, predict, shrink
from paren.forecast.target import absent_target, is_card, present_target
from paren.inspect.compiling import compile_plans
from paren.inspect.cudnn_gain import what_cudnn_changes
from paren.inspect.explain import Explanation, explain
from paren.inspect.profiling import Profiling
from paren.inspect.stages import SHOWN
from paren.ir.op import Array
from paren.ir.program import Program, Value
from paren.ir.show import show_graph
from paren.lang.elaborate import elaborate, elaborate_again
from paren.lang.value import show
from paren.parallel.join import Combination, compare_facts, joined
from paren.parallel.launch import launch
from paren.parallel.ranks import Ranks
from paren.parallel.topology import Topology, find_topology, split_evenly
from paren.parallel.tree import leaves_of
from paren.parallel.visible import ordinal_of, visible_devices
from paren.pipeline import PLAIN, Planning
from paren.plan.traits import CUDA, traits_of
from paren.prepare import Preparation
from paren.restored import RestoredModel, read_model, sample_text
from paren.runtime.device import Device, open_device
from paren.runtime.limits import limits_of
from paren.runtime.memory import available_memory, usable_memory
from paren.runtime.threads import default_threads
from paren.text.errors import ParenError, did_you_mean
from paren.train import experiment as training
from paren.train.experiment import RunOptions
from paren.train.follow import Follow
from paren.train.loop import AT_SIGNAL, AT_STEPS, COMPLETE
from paren.train.progress import ProgressView, Silent
from paren.train.read_run import read_metrics
from paren.train.run import Outcome, Start
from paren.train.signals import StopSignals
from paren.train.state import Json
from paren.train.status import read_status

Settings = Mapping[str, object] | Sequence[str]


@contextmanager
def _uncollected() -> Iterator[None]:
    """No search for cycles inside: graphs and plans are trees of many small records that live on, which each search
    would look through again. It took a fifth of the time of planning. What was made counts as old when it ends."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.freeze()
            gc.unfreeze()  # into the oldest generation
            gc.enable()


def load(path: str | Path, variant: str | None = None, set: Settings = ()) -> Experiment:
    """The experiment that a file declares. Raises `ParenError` (all mistakes of the file at once).

    `variant` names a `defvariant`. `set` overrides settings: `{"rate": 1e-3}`, or texts `"rate=1e-3"` as on the
    command line.
    """
    if isinstance(set, str):
        overrides = [set]
    else:
        overrides = [f"{name}={_text(value)}" for name, value in set.items()] if isinstance(set, Mapping) else list(set)
    with _uncollected():
        return Experiment(elaborate(path, variant=variant, overrides=overrides), tuple(overrides))


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
    overrides: tuple[str, ...] = ()

    def __repr__(self) -> str:
        program = self.program
        variant = f", variant {program.variant}" if program.variant else ""
        return f"<Experiment {program.path}{variant}: {sum(s.type.size for s in program.parameters):,} parameters>"

    @cached_property
    def plans(self) -> Plans:
        """The plans of all graphs of a run."""
        with _uncollected():
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
        stacking: int | None = None,
        patterns: bool = True,
        tf32: bool = False,
    ) -> Explanation:
        """The lowering report: of a run on this machine, whose kernels are compiled for it, or on a card that is not
        there, by its name (`h100-80g`) or by its memory (`24GiB`) and architecture (`sm_90`), for which the kernels
        are compiled where NVRTC is installed. Trains nothing.

        With both `device` and `memory`, the device has only so much memory; if it is `cuda`, it need not be there.
        `stacking`, `patterns` and `tf32` as for `run`; without a stacking the predicted one is taken, which a run may
        measure instead.
        """
        if card is not None or arch is not None or (memory is not None and (device is None or is_card(device))):
            target = absent_target(device, card, memory, arch, tf32)
            first = self._first(Planning(patterns, traits=CUDA), target.memory)
            choice = predict(first, stacking, target.memory, target.limits)
            candidate = choice.candidate
            choice = replace(choice, most=most_stacked(first, target.memory))
            code = None
            if arch is not None:
                from paren.inspect.card_code import compile_for_card  # the emitter for cards, which nothing else needs

                code = compile_for_card(candidate.plans, arch, read_environment().cache / "kernels")
            gain = what_cudnn_changes(candidate.program, candidate.plans, target.limits)
            return explain(candidate.program, candidate.plans, target, None, gain, choice.told, code)
        environment = read_environment()
        opened = open_device(device or environment.device, threads, environment.cache / "kernels", tf32)
        size = parse_size(memory, "--memory") if memory is not None else environment.memory
        limits = limits_of(opened, environment.cache) if opened.target else None
        target = present_target(opened, limits, size, "--memory" if memory is not None else "PAREN_MEMORY")
        first = self._first(Planning(patterns, traits=traits_of(opened.name)), target.memory)
        choice = predict(first, stacking, target.memory, target.limits)
        # Copies of the state lie in the host's memory.
        room = target.memory if size is not None else target.memory // 2
        candidate = choose_saving(choice.candidate, available_memory().bytes // 2 if opened.own_memory else room)
        compiling = compile_plans(candidate.plans, opened)
        return explain(candidate.program, candidate.plans, target, compiling, opened.notes, choice.told)

    def _first(self, planning: Planning, limit: int) -> Candidate:
        """The plans for one microbatch a call, with values computed again if they need more than `limit` bytes."""
        plans = self.plans if planning == PLAIN else make_plans(self.program, planning)
        return shrink(Candidate(self.program, plans, memory_of(self.program, plans)), limit)

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
        stacking: int | None = None,
        patterns: bool = True,
        tf32: bool = False,
        progress: ProgressView | None = None,
    ) -> Run:
        """Trains, and gives the ended run. Raises `ParenError` for whatever stops it.

        Without `out` the run goes to `outputs/<file stem>[-<variant>]`. `steps` stops after so many in total. `profile`
        writes `report/trace.json`, and tells where the time of a step goes. `stacking` is the number of microbatches
        that one call of the training graph takes; without it, paren chooses. Without `patterns`, large values are kept
        whole and none is made again; results agree to rounding. `tf32` lets CUDA round the operands of float32 products
        to TF32.
        """
        view = progress if progress is not None else Silent()
        environment = read_environment()
        options = RunOptions(
            Path(out) if out is not None else default_out(self.program),
            steps,
            resume,
            overwrite,
            allow_new_layout,
            Path(checkpoints) if checkpoints is not None else None,
            tensorboard,
            _versions(),
        )
        how = _How(device or environment.device, threads, profile, stacking, patterns, tf32, data_root)
        with StopSignals() as signals:
            try:
                topology = find_topology(environment.ranks, visible_devices(how.device), ordinal_of(how.device))
                if topology.starts_ranks:
                    _shared(self.program, topology.ranks)  # what cannot be shared out is refused before any rank starts
                    _refuse_rounding(self.program, environment.ranks)
                    code = launch(
                        topology, self._command(options, how), inherited_variables(), lambda: signals.received
                    )
                    return _ended(options.out, code)
                if topology.member is None:
                    outcome = self._train(options, how, view, signals, topology, None)
                else:
                    with joined(topology, topology.member) as ranks:
                        outcome = self._train(options, how, view, signals, topology, ranks)
            finally:
                view.end()
        return Run(outcome.out, outcome.ended, outcome.exit_code, outcome.step)

    def _train(
        self,
        options: RunOptions,
        how: _How,
        view: ProgressView,
        signals: StopSignals,
        topology: Topology,
        ranks: Ranks | None,
    ) -> Outcome:
        """Trains in this process, alone or as one of several ranks."""
        environment = read_environment()
        leads = ranks is None or ranks.leads
        view = view if leads else Silent()
        profiling = Profiling() if how.profile and leads else None
        here = len(topology.devices)
        threads = how.threads if how.threads is not None or here == 1 else max(1, default_threads() // here)
        opened = open_device(_own_device(how.device, topology), threads, environment.cache / "kernels", how.tf32)
        if opened.reason:
            view.notice(f"device {opened.name}: {opened.reason}")
        program = _shared(self.program, topology.ranks)
        for note in (*program.notes, *opened.notes):
            view.notice(note)
        free = usable_memory(opened.available(), environment.memory)
        if ranks is not None:
            free = ranks.least(free, 1 if opened.own_memory else here)
        planning = Planning(how.patterns, traits=traits_of(opened.name))
        planned = self if ranks is None else Experiment(program)  # alone, what was planned already is kept
        first = planned._first(planning, free.bytes)
        refuse_if_too_large(first, free)
        data = self._open_data(how.data_root, view)
        digest = self.digest(data)
        combine = None
        if ranks is not None:
            facts = {"the experiment": digest, **how.facts, **options.facts, **options.versions}
            compare_facts(ranks, facts, here)
            tree = program.run.reproducible_over is not None
            combine = Combination.of(ranks, topology, lay_out(program).trained, tree)
        preparation = Preparation(
            first,
            data,
            opened,
            environment.cache,
            free.bytes if ranks is not None else environment.memory,
            how.stacking,
            _identity(opened, how.patterns, topology),
            options.versions,
            options.out,
            view,
            profiling,
            combine,
            ranks.share if ranks is not None else WHOLE,
        )
        experiment = training.Experiment.of(self.program, digest)
        splits = preparation.splits(first)
        if ranks is not None and not leads:
            return Follow(experiment, options, splits, preparation, ranks, signals).run()
        profiled = profiling.profile if profiling is not None else None
        start = Start(experiment, options, splits, preparation, view, signals, profile=profiled, ranks=ranks)
        try:
            return start.run()
        finally:
            for line in profiling.finish(options.out) if profiling is not None else ():
                view.notice(line)

    def _command(self, options: RunOptions, how: _How) -> list[str]:
        """The command line of a rank that trains this."""
        program = self.program
        command = [sys.executable, "-m", "paren", "run", program.path]
        if program.variant is not None:
            command += ["--variant", program.variant]
        for override in self.overrides:
            command += ["--set", override]
        return command + options.arguments + how.arguments

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


def default_out(program: Program) -> Path:
    """`outputs/<file stem>[-<variant>]`."""
    variant = f"-{program.variant}" if program.variant else ""
    return Path("outputs") / f"{Path(program.path).stem}{variant}"


@dataclass(frozen=True)
class _How:
    """How a run computes; none of it belongs to the experiment."""

    device: str
    threads: int | None
    profile: bool
    stacking: int | None
    patterns: bool
    tf32: bool
    data_root: str | Path | None

    @property
    def facts(self) -> dict[str, str]:
        """What has to be equal on all ranks, by the words of a message."""
        return {
            "--stacking": str(self.stacking),
            "--patterns": "on" if self.patterns else "off",
            "--tf32": str(self.tf32),
            "the device": self.device.partition(":")[0],
        }

    @property
    def arguments(self) -> list[str]:
        """As options of the command line."""
        given = ["--device", self.device, "--patterns", "on" if self.patterns else "off"]
        for option, value in (("--threads", self.threads), ("--stacking", self.stacking)):
            given += [option, str(value)] if value is not None else []
        given += ["--data-root", str(self.data_root)] if self.data_root is not None else []
        flags = (("--profile", self.profile), ("--tf32", self.tf32))
        return given + [option for option, chosen in flags if chosen]


def _shared(program: Program, ranks: int) -> Program:
    """The program for so many ranks: where the file gives no number of microbatches, one for each of them."""
    if ranks == 1:
        return program
    if "microbatches" not in program.run.spans:
        program = elaborate_again(program, microbatches=ranks)
    split_evenly(program.run.microbatches, ranks)
    if program.run.reproducible_over is not None:
        leaves_of(program.run.reproducible_over, ranks)
    return replace(program, ranks=ranks)


def _refuse_rounding(program: Program, variables: Mapping[str, str]) -> None:
    """E-DP-005 for gradients that are to be rounded between nodes and to be the same over numbers of ranks."""
    if program.run.reproducible_over is not None and variables.get("PAREN_NODE_GRADIENTS", "").strip() == "bf16":
        raise ParenError(
            "E-DP-005",
            "PAREN_NODE_GRADIENTS is `bf16`, and :reproducible-over needs exact sums",
            program.run.spans.get("reproducible-over"),
            fix="set it to f32, or leave it out",
        )


def _own_device(name: str, topology: Topology) -> str:
    """The name of this rank's device."""
    if not name.startswith("cuda") or topology.member is None:
        return name
    return f"cuda:{topology.devices[topology.member.local_rank]}"


def _ended(out: Path, code: int) -> Run:
    """What the ranks of a run left behind."""
    found = read_status(out)
    ended = AT_SIGNAL if code else COMPLETE if found is not None and found.state == COMPLETE else AT_STEPS
    return Run(out, ended, code, found.step if found is not None else 0)


def _identity(device: Device, patterns: bool, topology: Topology) -> dict[str, Json]:
    """What decides about bits besides the experiment: device, its target, patterns, ranks."""
    identity: dict[str, Json] = {"device": device.name, "ranks": topology.ranks}
    if topology.nodes > 1:
        identity |= {"nodes": topology.nodes, "gradients between nodes": topology.exchange}
    if device.target:
        identity["target"] = device.target
    return identity if patterns else identity | {"patterns": "off"}


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
