"""What the loop needs to know of a program, and what a caller asks of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from paren.data.dataset import Split
from paren.data.fields import ArraySplit
from paren.data.loader import WHOLE, GlobalBatch, Loader, Microbatch, Schedule, Share, evaluation_batches
from paren.data.resident import ResidentBatches, Source, Table, sources_of
from paren.data.stream import TokenSplit
from paren.ir.program import Diagnostic, Program, RunForm, Value
from paren.runtime.walk import Walk
from paren.text.errors import ParenError
from paren.text.json import Json
from paren.text.size import count_of
from paren.train.engine import Engine


@dataclass(frozen=True)
class Experiment:
    """A program as the loop sees it. `digest` identifies the experiment: sources, settings, data.

    `sources`: path -> text of the file and its imports. `path`: the program's file, as the user named it.
    """

    digest: str
    run: RunForm
    diagnostics: Mapping[str, Diagnostic]
    settings: Mapping[str, Value]
    variant: str | None
    sources: Mapping[str, str]
    path: str

    @classmethod
    def of(cls, program: Program, digest: str) -> Experiment:
        return cls(
            digest,
            program.run,
            {name: diagnostic for name, (diagnostic, _) in program.diagnostics.items()},
            {setting.name: setting.value for setting in program.settings},
            program.variant,
            program.sources,
            program.path,
        )

    @property
    def weights(self) -> Path | None:
        """The file of the first weights, where the run names one."""
        return first_weights(self.path, self.run)


def first_weights(path: str, run: RunForm) -> Path | None:
    """The file of `:from`, relative to the program's, which is at `path`."""
    return Path(path).parent / run.start_from if run.start_from is not None else None


def show_option(value: object) -> str:
    """The value of an option of the command line, in words."""
    return "not given" if value is None or value is False else "given" if value is True else str(value)


@dataclass(frozen=True)
class RunOptions:
    """What a caller asks of one start. None of it belongs to the experiment's identity.

    `steps`: stop after so many in total. `resume`: None, `auto`, `latest`, the number of a checkpoint, or where it is.
    `checkpoints`: where they go instead of `out/checkpoints`, a folder or `s3://BUCKET/PREFIX`. `versions`: name ->
    version of what computes.
    """

    out: Path
    steps: int | None = None
    resume: str | None = None
    overwrite: bool = False
    allow_new_layout: bool = False
    checkpoints: str | None = None
    tensorboard: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, str]:
        """What has to be equal on all ranks, by the words of a message."""
        options = {"--steps": self.steps, "--resume": self.resume, "--overwrite": self.overwrite}
        return {name: show_option(value) for name, value in options.items()}

    @property
    def arguments(self) -> list[str]:
        """As options of the command line."""
        given = ["--out", str(self.out)]
        for option, value in (("--steps", self.steps), ("--resume", self.resume), ("--checkpoints", self.checkpoints)):
            given += [option, str(value)] if value is not None else []
        flags = (
            ("--overwrite", self.overwrite),
            ("--allow-new-layout", self.allow_new_layout),
            ("--tensorboard", self.tensorboard),
        )
        return given + [option for option, chosen in flags if chosen]


class Batches(Protocol):
    """Batches by position, asked for in ascending order."""

    def batch(self, position: int) -> GlobalBatch:
        """The batch of a position."""
        ...

    def table(self, position: int, count: int) -> Table:
        """Where the examples of at least one and at most `count` positions from `position` on lie. Called only if the
        data lie in memory, where the engine finds them."""
        ...


class TrainingData(Protocol):
    """The batches of a run, by position, and the batches of an evaluation."""

    @property
    def steps_per_epoch(self) -> int: ...

    @property
    def has_evaluation(self) -> bool: ...

    def batches(self, start: int, stop: int) -> AbstractContextManager[Batches]:
        """The batches of positions `start <= position < stop`; leaving the block ends the reading ahead."""
        ...

    def evaluation(self) -> Iterator[Microbatch]:
        """The evaluation split from its beginning, each example once."""
        ...


@dataclass(frozen=True)
class SplitData:
    """Training and evaluation splits of an opened data set, in calls of `rows` and `evaluation_rows` rows.

    `stacking`: microbatches in a call of training. `evaluation_limit`: at most so many examples of the evaluation
    split. `share`: the part of each batch, and of an evaluation, that this rank computes. `walk`: what computes the
    order of samples faster.
    """

    run: RunForm
    rows: int
    evaluation_rows: int
    training: Split
    validation: Split | None
    stacking: int = 1
    evaluation_limit: int | None = None
    share: Share = WHOLE
    walk: Walk | None = None

    @classmethod
    def of(
        cls,
        program: Program,
        training: Split,
        validation: Split | None,
        share: Share = WHOLE,
        walk: Walk | None = None,
    ) -> SplitData:
        """The splits as a program takes them."""
        limit = program.data.options.get("evaluation-count")
        if isinstance(training, ArraySplit):
            training = replace(training, walk=walk)
        return cls(
            program.run,
            program.rows,
            program.evaluation_rows,
            training,
            validation,
            program.stacking,
            limit if isinstance(limit, int) else None,
            share,
            walk,
        )

    @property
    def steps_per_epoch(self) -> int:
        return Schedule(self.training.count, self.run.batch, self.run.seed).steps_per_epoch

    @property
    def has_evaluation(self) -> bool:
        return self.validation is not None

    @property
    def sources(self) -> dict[str, Source] | None:
        """Where the training examples lie in memory, if a step makes one call, on one rank, and native code can read
        them."""
        alone = self.share.ranks == 1 and self.run.microbatches == self.stacking
        return sources_of(self.training) if alone else None

    def batches(self, start: int, stop: int) -> Loader | ResidentBatches:
        training = self.training
        if self.sources is not None and isinstance(training, ArraySplit | TokenSplit):
            return ResidentBatches(training, self.run, self.rows, stop, self.walk)
        seed, stacking, share, walk = self.run.seed, self.stacking, self.share, self.walk
        return Loader(training, self.run, self.rows, start, stop, seed=seed, stacking=stacking, share=share, walk=walk)

    def evaluation(self) -> Iterator[Microbatch]:
        if self.validation is None:
            return iter(())
        return evaluation_batches(self.validation, self.evaluation_rows, self.evaluation_limit, self.share)


@dataclass(frozen=True)
class Prepared:
    """What a start trains with. `identity`: device and layout, as far as they decide about bits. `annotations`: kind ->
    values of lines that the metrics of a new run begin with. `peak`: `peak_graph` and `peak_place`, where the memory
    plan has most alive. `retried`: bytes of each allocation of this start that the device made at the second try."""

    identity: Mapping[str, Json]
    data: TrainingData
    make_engine: Callable[[], Engine]
    annotations: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    peak: Mapping[str, Json] = field(default_factory=dict)
    retried: Callable[[], Sequence[int]] = tuple


def total_steps(run: RunForm, steps_per_epoch: int) -> int:
    """The steps of the whole experiment. Raises E-RUN-007 if there are none."""
    total = run.steps if run.steps is not None else (run.epochs or 0) * steps_per_epoch
    if total < 1:
        raise ParenError(
            "E-RUN-007",
            "the experiment has 0 steps, so it would train nothing",
            run.spans.get("steps") or run.spans.get("epochs"),
            fix="give :steps or :epochs of at least 1",
        )
    return total


def steps_to_do(asked: int | None, total: int) -> int:
    """Where this start ends: `--steps`, or the whole experiment. Raises E-RUN-007 for a count that makes no sense."""
    if asked is None:
        return total
    if asked < 1:
        raise ParenError("E-RUN-007", f"--steps {asked} would train nothing", fix="give at least 1")
    if asked > total:
        raise ParenError(
            "E-RUN-007",
            f"--steps {asked} is more than the {count_of(total, 'step')} of the experiment",
            fix="--steps only stops earlier; change :steps or :epochs to train longer",
        )
    return asked


def evaluate_every(run: RunForm, data: TrainingData) -> int | None:
    """Steps between evaluations: `:evaluate-every`, else the steps of an epoch if the run counts epochs.

    Raises E-RUN-013 if the program asks for evaluations and the data have no split for them.
    """
    if data.has_evaluation:
        return run.evaluate_every or (data.steps_per_epoch if run.epochs is not None else None)
    for option, asked in (
        ("evaluate-every", run.evaluate_every),
        ("keep", run.keep_best),
        ("stop-early", run.stop_early),
    ):
        if asked is not None:
            raise ParenError(
                "E-RUN-013",
                f":{option} needs a split to evaluate on, and the data have none",
                run.spans.get(option),
                fix="give the data a second split, :split ((train 0.9) (validation 0.1))",
            )
    return None
