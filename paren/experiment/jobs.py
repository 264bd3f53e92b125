"""The jobs of a study: each configuration with each member of its cohort, evaluated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from paren.experiment.configurations import Values, combine, configuration_folder, member_folder, show_values
from paren.experiment.layout import RUNS
from paren.ir.identity import program_identity
from paren.ir.program import Factor, Program, Setting, Value, same_value
from paren.lang.elaborate import elaborate
from paren.lang.value import show
from paren.text.errors import Note, ParenError, Report
from paren.text.source import Span


@dataclass(frozen=True)
class Job:
    """One model to be trained, with its analysis.

    `order`: its place among the jobs. `changed` and `member`: the values of the sweep's or grid's factors that differ
    from the baseline, and those of the cohort's factors. `configuration` and `folder` are relative to the output root.
    `base` is the program of the baseline, evaluated with the `--set` texts `overrides`.
    """

    order: int
    changed: Values
    member: Values
    configuration: str
    folder: str
    base: Program = field(repr=False)
    overrides: tuple[str, ...] = ()

    @cached_property
    def program(self) -> Program:
        """Evaluated when it is first asked for, from the texts of the baseline. Raises what is wrong with it."""
        return _evaluate(self.base, self.overrides, {**self.changed, **self.member})

    @property
    def settings(self) -> Values:
        """All settings, resolved."""
        return {**_settings(self.base), **self.changed, **self.member}

    @property
    def texts(self) -> tuple[str, ...]:
        """The `--set` texts with which the file's own values become this job's."""
        pinned = {text.partition("=")[0].strip() for text in self.overrides}
        values = {**self.changed, **self.member}
        return (*self.overrides, *(f"{name}={show(value)}" for name, value in values.items() if name not in pinned))

    @property
    def name(self) -> str:
        """What tells it from the other jobs: `rate 0.01, prior "uniform"`, or `baseline`."""
        return show_values({**self.changed, **self.member})

    @cached_property
    def identity(self) -> str:
        """What decides about the trained model, beside data and device."""
        return program_identity(self.program)


def is_study(program: Program) -> bool:
    """Whether a file declares more than one training."""
    study = program.study
    return bool(study.sweep or study.cohort or study.grid or study.analyses)


def make_jobs(program: Program, overrides: Sequence[str]) -> tuple[Job, ...]:
    """The jobs of a program that was evaluated with these `--set` texts. None of them is evaluated yet."""
    baseline = _settings(program)
    pinned = {text.partition("=")[0].strip() for text in overrides}
    cohort = [factor.name for factor in program.study.cohort]
    jobs: list[Job] = []
    for configuration in combine(program.study, baseline, pinned):
        changed = configuration.changed
        folder = f"{RUNS}/{configuration_folder(changed, {**baseline, **changed}, cohort)}"
        for member in configuration.members:
            place = f"{folder}/{member_folder(member)}"
            jobs.append(Job(len(jobs), changed, member, folder, place, program, tuple(overrides)))
    return tuple(jobs)


def check_jobs(jobs: Sequence[Job], check: Callable[[Job], object] = lambda job: job.program) -> None:
    """Raises what `check` finds wrong with any configuration, by default with its program, at once; each mistake says
    where it was found."""
    found: dict[tuple[str, str, str], tuple[ParenError, list[Note]]] = {}
    for job in jobs:
        try:
            check(job)
        except ParenError as error:
            where = Note(f"in the configuration {job.name}", _place(job))
            for single in error.errors:
                key = (single.code, str(single.span), single.message)
                found.setdefault(key, (single, []))[1].append(where)
    Report([_with_notes(error, notes) for error, notes in found.values()]).finish()


def _settings(program: Program) -> dict[str, Value]:
    return {setting.name: setting.value for setting in program.settings}


def _evaluate(program: Program, overrides: Sequence[str], values: Values) -> Program:
    """The program with these values of its factors; itself where they are in force already."""
    now, factors = _settings(program), _factors(program)
    swept = [
        Setting(name, value, factors[name].span) for name, value in values.items() if not same_value(now[name], value)
    ]
    if not swept:
        return program

    def read_file(file: Path) -> bytes:
        try:
            return program.sources[str(file)].encode()
        except KeyError:
            raise FileNotFoundError(file) from None

    return elaborate(program.path, variant=program.variant, overrides=overrides, swept=swept, read_file=read_file)


def _factors(program: Program) -> dict[str, Factor]:
    study = program.study
    return {factor.name: factor for factor in (*study.sweep, *study.cohort, *study.grid)}


def _place(job: Job) -> Span | None:
    """Where the first of its values is listed."""
    factors = _factors(job.base)
    return next((factors[name].span for name in {**job.changed, **job.member}), None)


def _with_notes(error: ParenError, notes: Sequence[Note]) -> ParenError:
    """The mistake, and where it was found: the first configuration, and how many more."""
    first = notes[0]
    if len(notes) > 1:
        more = f" and {len(notes) - 1} more"
        first = Note(first.message + more, first.span)
    return ParenError(error.code, error.message, error.span, notes=[*error.notes, first], fix=error.fix)
