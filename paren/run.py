"""A program is trained: in this process, as one of several ranks, or by ranks that this process starts."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

from paren.data.checks import check_data
from paren.data.dataset import Dataset
from paren.data.loader import WHOLE
from paren.data.open import open_data
from paren.environment import inherited_variables, read_environment
from paren.forecast.fit import refuse_if_too_large
from paren.forecast.plans import Plans, lay_out
from paren.forecast.stacking import first_candidate
from paren.inspect.profiling import Profiling
from paren.ir.identity import program_identity
from paren.ir.op import Array
from paren.ir.program import Program, RunForm
from paren.lang.elaborate import elaborate_again
from paren.parallel.cards import Cards, connected
from paren.parallel.combination import Combination
from paren.parallel.join import compare_facts, joined
from paren.parallel.launch import launch
from paren.parallel.ranks import Ranks
from paren.parallel.sign import PREPARING
from paren.parallel.topology import Topology, find_topology, split_evenly
from paren.parallel.tree import leaves_of
from paren.parallel.visible import ordinal_of, visible_devices
from paren.pipeline import Planning
from paren.plan.traits import traits_of
from paren.prepare import Preparation
from paren.restored import RestoredModel, restore
from paren.runtime.cache import PlanCache
from paren.runtime.device import Device, open_device
from paren.runtime.memory import usable_memory
from paren.runtime.threads import default_threads
from paren.text.errors import ParenError
from paren.text.json import Json
from paren.text.size import count_of
from paren.train import experiment as training
from paren.train.experiment import RunOptions, show_option
from paren.train.follow import Follow
from paren.train.loop import AT_SIGNAL, AT_STEPS, COMPLETE
from paren.train.places.open import in_bucket
from paren.train.progress import ProgressView, Silent
from paren.train.read_run import read_metrics
from paren.train.run import Outcome, Start, note_failure
from paren.train.signals import StopSignals
from paren.train.status import read_status


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


@dataclass(frozen=True)
class How:
    """How a run computes; none of it belongs to the experiment. `memory`: bytes that it may take, in place of
    PAREN_MEMORY."""

    device: str
    threads: int | None = None
    profile: bool = False
    stacking: int | None = None
    patterns: bool = True
    tf32: bool = False
    data_root: str | Path | None = None
    memory: int | None = None

    @property
    def facts(self) -> dict[str, str]:
        """What has to be equal on all ranks, by the words of a message."""
        return {
            "--stacking": show_option(self.stacking),
            "--patterns": "on" if self.patterns else "off",
            "--tf32": show_option(self.tf32),
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


def run_program(
    program: Program,
    overrides: Sequence[str],
    options: RunOptions,
    how: How,
    view: ProgressView,
    plans: Callable[[], Plans] | None = None,
) -> Run:
    """Trains a program on the ranks that the environment asks for. `overrides` are the `--set` texts that it was
    evaluated with, `plans` makes its ordinary plans, or has them. Raises `ParenError` for
    whatever stops it."""
    variables = read_environment().ranks
    with StopSignals() as signals:
        try:
            topology = find_topology(variables, visible_devices(how.device), ordinal_of(how.device))
            if topology.starts_ranks:
                view.end()  # the first rank shows the progress
                return start_ranks(program, overrides, options, how, topology, signals, view.notice)
            if topology.member is None:
                outcome = train_program(program, options, how, view, signals, topology, None, plans)
            else:
                signals.follow(quiet=topology.member.launcher is not None or topology.member.rank > 0)
                with joined(topology, topology.member, signals.heard_at_once) as ranks:
                    ranks.heart.endings.append(lambda _: view.end())
                    outcome = train_program(program, options, how, view, signals, topology, ranks)
        finally:
            view.end()
    return Run(outcome.out, outcome.ended, outcome.exit_code, outcome.step)


def start_ranks(
    program: Program,
    overrides: Sequence[str],
    options: RunOptions,
    how: How,
    topology: Topology,
    signals: StopSignals,
    say: Callable[[str], None],
) -> Run:
    """Trains a program on ranks that this process starts, as `run_program` does. `say` shows a line about them."""
    shared_program(program, topology)  # what cannot be shared out is refused before any rank starts
    command = _command(program, overrides, options, how)
    try:
        code = launch(topology, command, inherited_variables(), signals.look, say)
    except ParenError as error:
        if topology.node == 0:
            note_failure(options.out, error)
        raise
    return _ended(options.out, code)


def train_program(
    program: Program,
    options: RunOptions,
    how: How,
    view: ProgressView,
    signals: StopSignals,
    topology: Topology,
    ranks: Ranks | None,
    plans: Callable[[], Plans] | None = None,
    device: Device | None = None,
    data: Dataset | None = None,
) -> Outcome:
    """Trains in this process, alone or as one of several ranks. `plans` as for `run_program`, used alone only. `device`
    and `data` are those of `how` and of the program where they are open already."""
    environment = read_environment()
    view = view if ranks is None or ranks.leads else Silent()
    profiling = Profiling() if how.profile and (ranks is None or ranks.leads) else None
    opened = device if device is not None else open_own(how.device, topology, how.threads, how.tf32)
    if opened.reason:
        view.notice(f"device {opened.name}: {opened.reason}")
    shared = shared_program(program, topology)
    for note in shared.notes:
        view.notice(note)
    cards = _connect(ranks, shared, opened, view) if ranks is not None else None
    shared = replace(shared, linked=cards is not None)
    allowed = how.memory if how.memory is not None else environment.memory
    free = usable_memory(opened.available(), allowed)
    if ranks is not None:
        free = ranks.least(free, 1 if opened.own_memory else len(topology.devices))
    uploads = in_bucket(options.checkpoints)
    traits, cache = traits_of(opened.name), PlanCache(environment.cache)
    planning = Planning(how.patterns, traits=traits, uploads=uploads, threads=opened.threads, cache=cache)
    first = first_candidate(shared, planning, free.bytes, plans if ranks is None else None)
    refuse_if_too_large(first, free)
    if ranks is not None:
        ranks.doing("reading data")
    data = data if data is not None else open_program_data(program, how.data_root, view)
    identity = device_identity(opened, how.patterns, replace(topology, exchange="bf16" if shared.rounds else "f32"))
    combine = None
    if ranks is not None:
        ranks.doing(PREPARING)
        _compare(ranks, program, data, shared.rounds, how, options, len(topology.devices))
        layout = lay_out(shared)
        combine = Combination(ranks, shared, layout.trained, layout.trained_views, cards)
    preparation = Preparation(
        first,
        data,
        opened,
        options,
        view,
        environment.cache,
        memory=free.bytes if ranks is not None else allowed,
        memory_limit=free.limit if ranks is not None else "PAREN_MEMORY",
        stacking=how.stacking,
        identity=identity,
        profiling=profiling,
        combine=combine,
        share=ranks.share if ranks is not None else WHOLE,
    )
    return _train(training.Experiment.of(program, run_digest(program, data)), preparation, ranks, signals)


def open_own(name: str, topology: Topology, threads: int | None, tf32: bool) -> Device:
    """The device of a rank, this process if it is one, with its part of the threads."""
    here = len(topology.devices)
    threads = threads if threads is not None or here == 1 else max(1, default_threads() // here)
    return open_device(_own_device(name, topology), threads, read_environment().cache, tf32)


def _connect(ranks: Ranks, shared: Program, device: Device, view: ProgressView) -> Cards | None:
    """What lets the cards of the ranks send each other gradients, until the run ends; None where the hosts do."""
    view.notice(_describe_sharing(shared.run, ranks.count))
    cards, said = ranks.held.enter_context(connected(ranks, device.link, read_environment().by_hosts))
    if said:
        view.notice(said)
    return cards


def _compare(
    ranks: Ranks, program: Program, data: Dataset, rounds: bool, how: How, options: RunOptions, here: int
) -> None:
    """Raises E-DP-006 unless all ranks train the same. `here`: ranks of a node."""
    facts = {"the program's digest": program_identity(program), "the data's digest": data.identity}
    facts["the type of gradients between nodes"] = "bf16" if rounds else "f32"
    settings = {f"the setting {each.name}": json.dumps(each.value) for each in program.settings}
    compare_facts(ranks, {**facts, **how.facts, **options.facts, **options.versions}, settings, here)


def _train(
    experiment: training.Experiment, preparation: Preparation, ranks: Ranks | None, signals: StopSignals
) -> Outcome:
    """Trains with what was prepared: as the rank that writes, or as one that follows it."""
    options, splits = preparation.options, preparation.splits(preparation.first)
    view, profiling = preparation.view, preparation.profiling
    if ranks is not None and not ranks.leads:
        return Follow(experiment, options, splits, preparation, ranks, signals).run()
    profiled = profiling.profile if profiling is not None else None
    start = Start(experiment, options, splits, preparation, view, signals, profile=profiled, ranks=ranks)
    try:
        return start.run()
    finally:
        for line in profiling.finish(options.out) if profiling is not None else ():
            view.notice(line)


def open_program_data(program: Program, data_root: str | Path | None, view: ProgressView) -> Dataset:
    """The data of a program, checked. Relative paths start from `data_root`, PAREN_DATA or the file's folder."""
    environment = read_environment()
    root = data_root or environment.data or Path(program.path).parent
    cache = environment.cache / "data"
    form, run = program.data, program.run
    data = open_data(form, root=Path(root), cache=cache, seed=run.seed, announce=view.notice)
    for note in data.notes:
        view.notice(note)
    check_data(data, program.bounds, run, cache=cache)
    return data


def run_digest(program: Program, data: Dataset) -> str:
    """What identifies a run: its program and its data, in hexadecimal."""
    return hashlib.sha256(f"{program_identity(program)} {data.identity}".encode()).hexdigest()


def default_out(program: Program) -> Path:
    """`outputs/<file stem>[-<variant>]`."""
    variant = f"-{program.variant}" if program.variant else ""
    return Path("outputs") / f"{Path(program.path).stem}{variant}"


@cache
def package_versions() -> dict[str, str]:
    """Versions of what computes, by name."""
    packages = ("paren", "torch", "numpy", "llvmlite")
    return {name: version(name) for name in packages} | {"python": platform.python_version()}


def _command(program: Program, overrides: Sequence[str], options: RunOptions, how: How) -> list[str]:
    """The command line of a rank that trains a program."""
    command = [sys.executable, "-m", "paren", "run", "--single", program.path]
    if program.variant is not None:
        command += ["--variant", program.variant]
    for override in overrides:
        command += ["--set", override]
    return command + options.arguments + how.arguments


def shared_program(program: Program, topology: Topology) -> Program:
    """The program for these ranks: where the file gives no number of microbatches, one for each of them."""
    ranks = topology.ranks
    if ranks == 1:
        return program
    _refuse_rounding(program, read_environment().ranks)
    if "microbatches" not in program.run.spans:
        program = elaborate_again(program, microbatches=ranks)
    split_evenly(program.run.microbatches, ranks)
    if program.run.reproducible_over is not None:
        leaves_of(program.run.reproducible_over, ranks)
    rounds = topology.exchange == "bf16" and topology.nodes > 1 and program.run.reproducible_over is None
    return replace(program, ranks=ranks, nodes=topology.nodes, rounds=rounds)


def _describe_sharing(run: RunForm, ranks: int) -> str:
    """How batches are shared out: `ranks      2, each with 2 of 4 microbatches of 32 rows: batches of 127 examples`."""
    each = split_evenly(run.microbatches, ranks)
    microbatches = f"{each} of {count_of(run.microbatches, 'microbatch')} of {count_of(run.rows(1), 'row')}"
    return f"ranks      {ranks}, each with {microbatches}: batches of {count_of(run.batch, 'example')}"


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


def device_identity(device: Device, patterns: bool, topology: Topology) -> dict[str, Json]:
    """What decides about bits besides the experiment: device, its target, patterns, ranks."""
    identity: dict[str, Json] = {"device": device.name, "ranks": topology.ranks}
    if topology.nodes > 1:
        identity |= {"nodes": topology.nodes, "gradients between nodes": topology.exchange}
    if device.target:
        identity["target"] = device.target
    return identity if patterns else identity | {"patterns": "off"}
