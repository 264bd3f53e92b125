"""The Python interface: load a file, look at it, run it, take the trained model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from paren.environment import parse_size, read_environment
from paren.experiment.jobs import check_jobs, is_study, make_jobs
from paren.experiment.launch import JOBS, Launch
from paren.experiment.plan import StudyPlan, plan_study
from paren.experiment.progress import StudyView
from paren.experiment.python.functions import Functions, check_functions
from paren.experiment.restored_job import restore
from paren.experiment.study import StudyRun, run_study
from paren.forecast.plans import Plans, make_plans
from paren.forecast.saving import choose_saving
from paren.forecast.stacking import first_candidate, most_stacked, predict
from paren.forecast.target import absent_target, is_card, present_target
from paren.inspect.compiling import compile_plans
from paren.inspect.cudnn_gain import what_cudnn_changes
from paren.inspect.explain import Explanation, explain
from paren.inspect.stages import SHOWN
from paren.ir.program import Program, Value
from paren.lang.elaborate import elaborate
from paren.lang.value import show
from paren.parallel.cards import refusal_of, through_hosts
from paren.parallel.topology import find_topology
from paren.parallel.visible import ordinal_of, visible_devices
from paren.pipeline import Planning
from paren.plan.traits import CUDA, traits_of
from paren.restored import sample
from paren.run import How, Run, default_out, open_own, package_versions, run_program, shared_program
from paren.runtime.cache import PlanCache
from paren.runtime.limits import limits_of
from paren.runtime.memory import available_memory
from paren.text.errors import ParenError, did_you_mean
from paren.text.size import form_of
from paren.train.experiment import RunOptions
from paren.train.progress import ProgressView, Silent

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


@dataclass(frozen=True, repr=False)
class Experiment:
    """A loaded file. Loading and looking compute nothing and read no data."""

    program: Program
    overrides: tuple[str, ...] = ()

    def __repr__(self) -> str:
        program = self.program
        variant = f", variant {program.variant}" if program.variant else ""
        count = sum(slot.type.size for slot in program.parameters)
        return f"<Experiment {program.path}{variant}: {count:,} {form_of(count, 'parameter')}>"

    @cached_property
    def plans(self) -> Plans:
        """The plans of all graphs of a run."""
        return make_plans(self.program, Planning(cache=PlanCache(read_environment().cache)))

    def check(self) -> dict[str, object]:
        """What the file amounts to: settings, data, parameters, rows of a microbatch, jobs of a study, notes. Raises
        what is wrong with the Python functions of its analyses, as far as their text shows it, and with any job."""
        program = self.program
        check_functions(program, Functions.of(Path(program.path).parent), load=False)
        jobs = make_jobs(program, self.overrides) if is_study(program) else ()
        check_jobs(jobs)
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
            "jobs": len(jobs) or None,
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

        On this machine it is the report of one of the ranks that the environment asks for. With both `device` and
        `memory`, the device has only so much memory; if it is `cuda`, it need not be there.
        `stacking`, `patterns` and `tf32` as for `run`; without a stacking the predicted one is taken, which a run may
        measure instead.
        """
        environment = read_environment()
        if card is not None or arch is not None or (memory is not None and (device is None or is_card(device))):
            target = absent_target(device, card, memory, arch, tf32)
            target = target.within(environment.memory if memory is None else None)
            planning = Planning(patterns, traits=CUDA, cache=PlanCache(environment.cache))
            first = first_candidate(self.program, planning, target.memory)
            choice = predict(first, stacking, target.memory, target.limits)
            candidate = choice.candidate
            choice = replace(choice, most=most_stacked(first, target.memory))
            code = None
            if arch is not None:
                from paren.inspect.card_code import compile_for_card  # the emitter for cards, which nothing else needs

                code = compile_for_card(candidate.plans, arch, environment.cache)
            gain = what_cudnn_changes(candidate.program, candidate.plans, target.limits)
            report = explain(candidate.program, candidate.plans, target, None, gain, choice.told, code)
            return replace(report, remarks=self._remarks())
        name = device or environment.device
        topology = find_topology(environment.ranks, visible_devices(name), ordinal_of(name))
        opened = open_own(name, topology, threads, tf32)
        size = parse_size(memory, "--memory") if memory is not None else environment.memory
        limits = limits_of(opened, environment.cache) if opened.target else None
        source = "--memory" if memory is not None else "PAREN_MEMORY"
        target = present_target(opened, limits, size, source, len(topology.devices))
        shared = shared_program(self.program, topology)
        if topology.ranks > 1 and opened.link is not None:
            refusal = refusal_of(opened.link, environment.by_hosts)
            opened.link.unused = through_hosts(refusal) if refusal else ""
            shared = replace(shared, linked=not refusal)
        traits, cache = traits_of(opened.name), PlanCache(environment.cache)
        planning = Planning(patterns, traits=traits, threads=opened.threads, cache=cache)
        plans = (lambda: self.plans) if shared is self.program else None
        first = first_candidate(shared, planning, target.memory, plans)
        choice = predict(first, stacking, target.memory, target.limits)
        # Copies of the state lie in the host's memory.
        room = target.memory if size is not None or topology.ranks > 1 else target.memory // 2
        candidate = choose_saving(choice.candidate, available_memory().bytes // 2 if opened.own_memory else room)
        compiling = compile_plans(candidate.plans, opened)
        report = explain(candidate.program, candidate.plans, target, compiling, opened.notes, choice.told)
        return replace(report, remarks=({"device": opened.reason} if opened.reason else {}) | self._remarks())

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
        progress: ProgressView | StudyView | None = None,
        workers: int | None = None,
        parallel: str | None = None,
        single: bool = False,
    ) -> Run | StudyRun:
        """Trains, and gives the ended run; a file that declares a study trains and analyses all its jobs, as `train`
        and `analyze` do, unless it is to be a `single` run of the file's own values. Raises `ParenError` for whatever
        stops it.

        Without `out` the run goes to `outputs/<file stem>[-<variant>]`. `steps` stops after so many in total. `profile`
        writes `report/trace.json`, and tells where the time of a step goes. `stacking` is the number of microbatches
        that one call of the training graph takes; without it, paren chooses. Without `patterns`, large values are kept
        whole, none is made again, and products run apart from the kernels after them; results agree to rounding.
        `tf32` lets CUDA round the operands of float32 products of matrices to TF32.
        """
        how = self._how(device, threads, data_root, stacking, patterns, tf32, profile)
        if self.is_study and not single:
            given = {
                "--steps": steps is not None,
                "--resume": resume not in (None, "auto"),
                "--overwrite": overwrite,
                "--checkpoints": checkpoints is not None,
                "--allow-new-layout": allow_new_layout,
                "--profile": profile,
            }
            self._refuse_for_studies([option for option, chosen in given.items() if chosen])
            launch = Launch(self._out(out), how, True, True, workers, parallel, tensorboard)
            return run_study(
                self.program, self.overrides, launch, progress if isinstance(progress, StudyView) else None
            )
        if workers is not None or parallel == JOBS:
            option = "--workers" if workers is not None else "--parallel jobs"
            raise ParenError(
                "E-JOB-007",
                f"{self.program.path} declares one training, and {option} is for several",
                fix="declare a defsweep, defcohort or defgrid, or leave the option out",
            )
        view = progress if progress is not None and not isinstance(progress, StudyView) else Silent()
        options = RunOptions(
            self._out(out),
            steps,
            resume,
            overwrite,
            allow_new_layout,
            str(checkpoints) if checkpoints is not None else None,
            tensorboard,
            package_versions(),
        )
        return run_program(self.program, self.overrides, options, how, view, lambda: self.plans)

    @property
    def is_study(self) -> bool:
        """Whether the file declares a sweep, a cohort, a grid or an analysis."""
        return is_study(self.program)

    def plan(
        self,
        out: str | Path | None = None,
        device: str | None = None,
        threads: int | None = None,
        data_root: str | Path | None = None,
        stacking: int | None = None,
        patterns: bool = True,
        tf32: bool = False,
    ) -> StudyPlan:
        """The jobs that `train` and `analyze` would find in `out`: what is there, what would be made and why, memory
        and costs. Computes nothing, runs no function of the user's for data, and writes nothing."""
        how = self._how(device, threads, data_root, stacking, patterns, tf32)
        return plan_study(self.program, self.overrides, Launch(self._out(out), how))

    def train(
        self,
        out: str | Path | None = None,
        device: str | None = None,
        threads: int | None = None,
        tensorboard: bool = False,
        data_root: str | Path | None = None,
        stacking: int | None = None,
        patterns: bool = True,
        tf32: bool = False,
        progress: StudyView | None = None,
        workers: int | None = None,
        parallel: str | None = None,
    ) -> StudyRun:
        """Trains the model of each job that has none in `out`, and goes on with those that were interrupted.

        `workers` processes take jobs side by side, or with `parallel="jobs"` one on each device; else jobs follow each
        other in this process. Raises the mistakes of all configurations before anything is written, and E-JOB-001 at
        the end if jobs have failed; they do not stop the others.
        """
        how = self._how(device, threads, data_root, stacking, patterns, tf32)
        launch = Launch(self._out(out), how, True, False, workers, parallel, tensorboard)
        return run_study(self.program, self.overrides, launch, progress)

    def analyze(
        self,
        out: str | Path | None = None,
        device: str | None = None,
        threads: int | None = None,
        data_root: str | Path | None = None,
        progress: StudyView | None = None,
        workers: int | None = None,
        parallel: str | None = None,
    ) -> StudyRun:
        """Computes the products, metrics and plots that are not in `out`, with models that are there, whatever device
        trained them. Raises what `train` raises, and E-JOB-008 for jobs without a model."""
        how = self._how(device, threads, data_root)
        launch = Launch(self._out(out), how, False, True, workers, parallel)
        return run_study(self.program, self.overrides, launch, progress)

    def _remarks(self) -> dict[str, str]:
        """That a report of one training is not one of a study."""
        alone = "of this study only the training of the file's own values; paren plan shows all jobs"
        return {"study": alone} if self.is_study else {}

    def _out(self, out: str | Path | None) -> Path:
        return Path(out) if out is not None else default_out(self.program)

    @staticmethod
    def _how(
        device: str | None,
        threads: int | None,
        data_root: str | Path | None,
        stacking: int | None = None,
        patterns: bool = True,
        tf32: bool = False,
        profile: bool = False,
    ) -> How:
        return How(device or read_environment().device, threads, profile, stacking, patterns, tf32, data_root)

    def _refuse_for_studies(self, options: Sequence[str]) -> None:
        """E-JOB-004 for options of one training."""
        if options:
            raise ParenError(
                "E-JOB-004",
                f"{self.program.path} declares a study, and {options[0]} is for one training",
                fix="leave it out, or give --single to train the file's own values alone",
            )


__all__ = ["Experiment", "Run", "Settings", "StudyPlan", "StudyRun", "Value", "load", "restore", "sample"]
