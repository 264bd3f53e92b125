"""A study is launched: its jobs are looked at, then worked on here, or by worker processes on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paren.environment import OF_RANKS, inherited_variables, leads, read_environment
from paren.experiment.idle import idle_factors, made_of
from paren.experiment.job_analysis import check_analyses, draw_over_jobs, functions_of
from paren.experiment.job_files import DONE, FAILED, announce_job, read_job_status, write_study
from paren.experiment.jobs import Job, check_jobs, make_jobs
from paren.experiment.launch import Launch
from paren.experiment.layout import STATUS
from paren.experiment.progress import SilentStudy, StudyView
from paren.experiment.python.functions import Functions, check_functions
from paren.experiment.standing import Standing, look
from paren.experiment.store.claims import let_go_of_all, sweep
from paren.experiment.store.launches import record_launch
from paren.experiment.store.store import Store
from paren.experiment.training import Trainer, make_trainer
from paren.experiment.worker import Worker, fail_job
from paren.experiment.worker_places import place_workers
from paren.experiment.worker_pool import Death, Order, run_workers
from paren.ir.program import Program
from paren.parallel.topology import Topology
from paren.run import How, package_versions
from paren.runtime.memory import available_memory, usable_memory
from paren.runtime.threads import default_threads
from paren.text.errors import Note, ParenError, Report
from paren.text.size import count_of, form_of
from paren.train.run_directory import becoming_study, refuse_single_run
from paren.train.signals import StopSignals

MOST_NAMED = 8  # jobs that a message names
BORDER = "at the next step border, or after the function that is computing now"
THREADS_OF_LIBRARIES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class StudyRun:
    """A study that has ended. `exit_code`: 0, or 130 or 143 after a signal. `done` and `left`: numbers of jobs,
    both 0 for a process of torchrun that leaves the work to the first."""

    out: Path
    exit_code: int
    done: int
    left: int


def run_study(program: Program, overrides: Sequence[str], launch: Launch, view: StudyView | None) -> StudyRun:
    """Does what is left to do of a study. Raises `ParenError`: the mistakes of all its configurations before anything
    is written, and E-JOB-001 at the end if jobs failed."""
    view = view if view is not None else SilentStudy()
    jobs = make_jobs(program, overrides)
    check_jobs(jobs)
    refuse_single_run(launch.out)
    functions = functions_of(program)
    with StopSignals(border=BORDER, at_once=let_go_of_all) as signals:
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

    def run(self) -> StudyRun:
        launch, root = self.launch, self.launch.out
        topology = launch.topology
        if topology.member is None and not leads():
            return StudyRun(root, 0, 0, 0)  # torchrun's first process starts the ranks of each training
        view = self.view if leads() else SilentStudy()
        store = Store(root, notice=view.notice)
        trainer = make_trainer(launch, topology, store, self.functions)
        if launch.analyzes:  # as far as the text of the functions shows it; what is finished imports none of them
            check_functions(self.program, self.functions, load=False)
        standings = self._look(trainer)
        missing = [each.job for each in standings if each.model is None and not launch.trains]
        left = [each.job for each in standings if not each.finished and (each.model is not None or launch.trains)]
        before = self._ended_attempts(left)
        check_jobs([each.job for each in standings if each.model is None and launch.trains], trainer.check)
        if launch.analyzes and left:
            check_analyses(left, self.functions)
        if launch.analyzes:
            made = {each.job.folder: made_of(each.job, trainer, each.data_key) for each in standings}
            for sentence in idle_factors(self.jobs, made):
                view.notice(sentence)
        if leads():
            python = self.functions.sources.texts
            with becoming_study(root):
                write_study(root, self.program, self.overrides, self.jobs, package_versions(), python)
            plots = {each.name: each.over for each in self.program.study.analyses if each.kind == "plot"}
            record_launch(root, self.program.path, self.program.variant, [job.folder for job in self.jobs], plots)
            for standing in standings:
                if not standing.finished:
                    announce_job(root / standing.job.folder, standing.job, store.place(standing.recipe))
        if left:
            view.begin(left, len(self.jobs) - len(left))
            self._work(left, trainer, before, topology, view)
            standings = self._look(trainer) if launch.analyzes and not self.signals.stop_asked else standings
        elif not missing:
            view.notice(f"{root} holds this study, complete with {count_of(len(self.jobs), 'job')}: nothing to do")
        errors: list[ParenError] = []
        if launch.analyzes and not self.signals.stop_asked:
            errors = draw_over_jobs(standings, trainer, root, view.show)
        sweep(root)
        failed, unfinished = self._ends(left, before)
        if not self.signals.stop_asked:
            Report([*self._complaints(failed, unfinished, missing), *errors]).finish()
        code = self.signals.exit_code if self.signals.stop_asked else 0
        undone = len(failed) + len(unfinished) + len(missing)
        return StudyRun(root, code, len(self.jobs) - undone, undone)

    def _ended_attempts(self, jobs: Sequence[Job]) -> dict[str, str]:
        """The attempts at jobs that have ended already. What is tried now by workers of another launch is not."""
        found = {job.folder: read_job_status(self.launch.out / job.folder) for job in jobs}
        return {name: each.attempt for name, each in found.items() if each and each.state in (DONE, FAILED)}

    def _look(self, trainer: Trainer) -> list[Standing]:
        trains, analyzes = self.launch.trains, self.launch.analyzes
        return [look(job, trainer, self.launch.out, trains=trains, analyzes=analyzes) for job in self.jobs]

    def _work(
        self,
        left: Sequence[Job],
        trainer: Trainer,
        before: Mapping[str, str],
        topology: Topology,
        view: StudyView,
    ) -> None:
        """Works on the jobs in this process, or has worker processes do it."""
        launch = self.launch
        places = place_workers(launch.how.device, topology, launch.workers)[: len(left)]
        if not launch.apart or topology.member is not None:
            analyzes, trains = launch.analyzes, launch.trains
            Worker(launch.out, left, trainer, trains, analyzes, before, view.show, self.signals).run()
            return
        trainer.close_data()
        share = max(place.share for place in places)
        order = Order(
            path=self.program.path,
            variant=self.program.variant,
            overrides=self.overrides,
            texts=self.program.sources,
            jobs=tuple(job.order for job in left),
            root=str(launch.out),
            how=self._shared(share),
            share=share,
            trains=launch.trains,
            analyzes=launch.analyzes,
            tensorboard=launch.tensorboard,
            before=before,
        )
        # Neither ranks of each training, nor one thread more in a library of user code than its part.
        variables = {name: value for name, value in inherited_variables().items() if name not in OF_RANKS}
        threads = {name: str(order.how.threads) for name in THREADS_OF_LIBRARIES} if share > 1 else {}
        by_order = {job.order: job for job in left}

        def fail(death: Death) -> None:
            if death.job in by_order:
                fail_job(launch.out, by_order[death.job], death, view.show)

        run_workers(order, places, threads | variables, view.show, self.signals, fail, lambda: sweep(launch.out))

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

    def _ends(self, left: Sequence[Job], before: Mapping[str, str]) -> tuple[list[Note], list[Job]]:
        """What became of jobs: the failed ones with their errors, and those that nobody finished."""
        failed: list[Note] = []
        unfinished: list[Job] = []
        for job in left:
            status = read_job_status(self.launch.out / job.folder)
            if status is None or status.state not in (DONE, FAILED) or status.attempt == before.get(job.folder):
                unfinished.append(job)
            elif status.state == FAILED:
                said = f"{status.code}: {status.message}" if status.code else status.message
                line = f"; {status.line}" if status.line else ""
                failed.append(Note(f"{job.name}: {said} ({job.folder}/{STATUS}){line}"))
        return failed, unfinished

    def _complaints(
        self, failed: Sequence[Note], unfinished: Sequence[Job], missing: Sequence[Job]
    ) -> Iterator[ParenError]:
        total, out = count_of(len(self.jobs), "job"), self.launch.out
        if failed:
            yield ParenError(
                "E-JOB-001",
                f"{len(failed)} of {total} failed, in {out}",
                notes=_first(failed),
                fix="the status.json of each has its traceback; starting again tries them again, and only them",
            )
        if unfinished:
            yield ParenError(
                "E-JOB-002",
                f"{len(unfinished)} of {total} {form_of(len(unfinished), 'was', 'were')} not finished, "
                "as the workers ended before",
                fix="start again: finished jobs are kept, and interrupted ones go on",
            )
        if missing:
            yield ParenError(
                "E-JOB-008",
                f"{len(missing)} of {total} {form_of(len(missing), 'has', 'have')} no trained model in {out}",
                notes=_first([Note(job.name) for job in missing]),
                fix="train them with paren train, or both with paren run",
            )


def _first(notes: Sequence[Note]) -> list[Note]:
    """As many notes as a message shows."""
    more = [Note(f"and {len(notes) - MOST_NAMED} more")] if len(notes) > MOST_NAMED else []
    return [*notes[:MOST_NAMED], *more]
