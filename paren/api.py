"""The Python interface: load a file, look at it, run it, take the trained model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from paren.environment import parse_size, read_environment
from paren.forecast.plans import Plans, make_plans
from paren.forecast.saving import choose_saving
from paren.forecast.stacking import Candidate, first_candidate, most_stacked, predict
from paren.forecast.target import absent_target, is_card, present_target
from paren.inspect.compiling import compile_plans
from paren.inspect.cudnn_gain import what_cudnn_changes
from paren.inspect.explain import Explanation, explain
from paren.inspect.stages import SHOWN
from paren.ir.program import Program, Value
from paren.lang.elaborate import elaborate
from paren.lang.value import show
from paren.pipeline import Planning
from paren.plan.traits import CUDA, traits_of
from paren.restored import restore, sample
from paren.run import How, Run, default_out, package_versions, run_program
from paren.runtime.device import open_device
from paren.runtime.limits import limits_of
from paren.runtime.memory import available_memory
from paren.text.errors import ParenError, did_you_mean
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
        return first_candidate(self.program, planning, limit, lambda: self.plans)

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
            package_versions(),
        )
        how = How(device or environment.device, threads, profile, stacking, patterns, tf32, data_root)
        return run_program(self.program, self.overrides, options, how, view, lambda: self.plans)


__all__ = ["Experiment", "Run", "Settings", "Value", "load", "restore", "sample"]
