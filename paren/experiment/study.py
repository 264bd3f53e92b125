"""A study is launched: its jobs are looked at, then worked on here, or by worker processes on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paren.environment import OF_RANKS, inherited_variables, read_environment
from paren.experiment.claims import sweep
from paren.experiment.functions import Functions, check_functions
from paren.experiment.job_analysis import check_analyses, draw_over_jobs, functions_of
from paren.experiment.job_files import DONE, FAILED, STATUS, announce_job, read_job_status, write_study
from paren.experiment.jobs import Job, check_jobs, count_of, make_jobs
from paren.experiment.launch import Launch
from paren.experiment.launches import record_launch
from paren.experiment.places import place_workers
from paren.experiment.progress import SilentStudy, StudyView
from paren.experiment.standing import Standing, look
from paren.experiment.store import Store
from paren.experiment.training import Trainer, make_trainer
from paren.experiment.worker import Worker
from paren.experiment.workers import Order, run_workers
from paren.ir.program import Program
from paren.parallel.topology import Topology
from paren.run import How, package_versions
from paren.runtime.memory import available_memory, usable_memory
from paren.runtime.threads import default_threads
from paren.text.errors import Note, ParenError, ParenErrors
from paren.train.signals import StopSignals

MOST_NAMED = 8  # jobs that a message names
THREADS_OF_LIBRARIES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class StudyRun:
    """A study that has ended. `exit_code`: 0, or 130 or 143 after a signal. `done` and `left`: numbers of jobs."""

    out: Path
    exit_code: int
    done: int
    left: int


def run_study(program: Program, overrides: Sequence[str], launch: Launch, view: StudyView | None = None) -> StudyRun:
    """Does what is left to do of a study. Raises `ParenError`: the mistakes of all its configurations before anything
    is written, and E-JOB-001 at the end if jobs failed."""
    view = view if view is not None else SilentStudy()
    jobs = make_jobs(program, overrides)
    check_jobs(jobs)
    functions = functions_of(program)
    with StopSignals() as signals:
        try:
            return _Study(program, tuple(overrides), launch, jobs, functions, view, signals).run()
        finally:
            view.end()


@dataclass
class _Study:
    program: Program
    overrides: tuple[str, ...]
    launch: Launch
    jobs: Sequence[Job]
    functions: Functions
    view: StudyView
    signals: StopSignals
    missing: Sequence[Job] = ()  # that are to be analysed, and have no model

    def run(self) -> StudyRun:
        launch, root = self.launch, self.launch.out
        topology = launch.topology
        store = Store(root, notice=self.view.notice)
        trainer = make_trainer(launch, topology, store, self.functions)
        if launch.analyzes:  # as far as the text of the functions shows it; what is finished imports none of them
            check_functions(self.program, self.functions, load=False)
        standings = self._look(trainer)
        self.missing = [each.job for each in standings if each.model is None and not launch.trains]
        left = [each.job for each in standings if not each.finished and each.job not in self.missing]
        before = {job.folder: each.attempt for job in left if (each := read_job_status(root / job.folder)) is not None}
        if launch.analyzes and left:
            check_analyses(left, self.functions)
        if topology.member is None or topology.member.rank == 0:
            write_study(root, self.program, self.overrides, self.jobs, package_versions())
            record_launch(root, self.program.path, self.program.variant, [job.folder for job in self.jobs])
            for standing in standings:
                if not standing.finished:
                    announce_job(root / standing.job.folder, standing.job, store.place(standing.recipe))
        if left:
            self.view.begin(left, len(self.jobs) - len(left))
            self._work(left, trainer, before, topology)
        elif not self.missing:
            self.view.notice(f"{root} holds this study, complete with {count_of(len(self.jobs), 'job')}: nothing to do")
        faulty: list[ParenError] = []
        if launch.analyzes and not self.signals.stop_asked:
            faulty = draw_over_jobs(self._look(trainer) if left else standings, trainer, root, self.view.show)
        sweep(root)
        ended = self._end(left, before)
        if faulty:
            raise faulty[0] if len(faulty) == 1 else ParenErrors(faulty)
        return ended

    def _look(self, trainer: Trainer) -> list[Standing]:
        trains, analyzes = self.launch.trains, self.launch.analyzes
        return [look(job, trainer, self.launch.out, trains=trains, analyzes=analyzes) for job in self.jobs]

    def _work(self, left: Sequence[Job], trainer: Trainer, before: Mapping[str, str], topology: Topology) -> None:
        """Works on the jobs in this process, or has worker processes do it."""
        launch = self.launch
        places = place_workers(launch.how.device, topology, launch.workers)[: len(left)]
        if not launch.apart or topology.member is not None or len(places) == 1:
            analyzes, trains = launch.analyzes, launch.trains
            Worker(launch.out, left, trainer, trains, analyzes, before, self.view.show, self.signals).run()
            return
        trainer.close_data()
        share = max(place.share for place in places)
        order = Order(
            self.program.path,
            self.program.variant,
            self.overrides,
            self.program.sources,
            tuple(job.order for job in left),
            str(launch.out),
            self._shared(share),
            share,
            launch.trains,
            launch.analyzes,
            launch.tensorboard,
            before,
        )
        # Neither ranks of each training, nor one thread more in a library of user code than its part.
        variables = {name: value for name, value in inherited_variables().items() if name not in OF_RANKS}
        threads = {name: str(order.how.threads) for name in THREADS_OF_LIBRARIES} if share > 1 else {}
        run_workers(order, places, threads | variables, self.view.show, lambda: self.signals.received)

    def _shared(self, share: int) -> How:
        """How each of several workers on one device computes: with its part of the memory and of the threads."""
        how = self.launch.how
        if share == 1:
            return how
        threads = how.threads if how.threads is not None else max(1, default_threads() // share)
        if how.device not in ("cpu", "reference"):  # whoever opens a card divides its memory
            return replace(how, threads=threads)
        free = usable_memory(available_memory(), read_environment().memory)
        return replace(how, threads=threads, memory=free.bytes // share)

    def _end(self, left: Sequence[Job], before: Mapping[str, str]) -> StudyRun:
        """What became of the jobs. Raises E-JOB-001 for failed ones, E-JOB-002 for ones that nobody finished."""
        failed: list[Note] = []
        unfinished: list[Job] = []
        for job in left:
            status = read_job_status(self.launch.out / job.folder)
            if status is None or status.state not in (DONE, FAILED) or status.attempt == before.get(job.folder):
                unfinished.append(job)
            elif status.state == FAILED:
                said = f"{status.code}: {status.message}" if status.code else status.message
                failed.append(Note(f"{job.name}: {said} ({job.folder}/{STATUS})"))
        total, open_ = len(self.jobs), len(unfinished)
        if failed and not self.signals.stop_asked:
            more = [Note(f"and {len(failed) - MOST_NAMED} more")] if len(failed) > MOST_NAMED else []
            raise ParenError(
                "E-JOB-001",
                f"{len(failed)} of {count_of(len(self.jobs), 'job')} failed, in {self.launch.out}",
                notes=[*failed[:MOST_NAMED], *more],
                fix="the status.json of each has its traceback; starting again tries them again, and only them",
            )
        if open_ and not self.signals.stop_asked:
            raise ParenError(
                "E-JOB-002",
                f"{open_} of {count_of(len(self.jobs), 'job')} were not finished, as the workers ended before",
                fix="start again: finished jobs are kept, and interrupted ones go on",
            )
        if self.missing and not self.signals.stop_asked:
            named = [Note(job.name) for job in self.missing[:MOST_NAMED]]
            more = [Note(f"and {len(self.missing) - MOST_NAMED} more")] if len(self.missing) > MOST_NAMED else []
            raise ParenError(
                "E-JOB-008",
                f"{len(self.missing)} of {count_of(total, 'job')} have no trained model in {self.launch.out}",
                notes=[*named, *more],
                fix="train them with paren train, or both with paren run",
            )
        code = self.signals.exit_code if self.signals.stop_asked else 0
        return StudyRun(self.launch.out, code, total - open_ - len(failed) - len(self.missing), open_ + len(failed))
