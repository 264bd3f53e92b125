"""One worker: takes jobs that nobody works on, one after another, until all are finished or have failed."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paren.data.python_file import last_line
from paren.experiment.analysis.analyze import analyze_job
from paren.experiment.events import NOTICE, Event, JobProgress, Tell
from paren.experiment.job_analysis import subject_of
from paren.experiment.job_files import (
    DONE,
    FAILED,
    RUNNING,
    WAITING,
    JobStatus,
    read_job_file,
    read_job_status,
    read_products,
    write_job,
    write_job_status,
)
from paren.experiment.jobs import Job
from paren.experiment.standing import Standing, look
from paren.experiment.store.artifact import Artifact
from paren.experiment.store.claims import LEASE, Claim, claim
from paren.experiment.training import MODEL, Stopped, Trainer
from paren.experiment.worker_pool import Death
from paren.pipeline import keeping_plans
from paren.text.errors import ParenError
from paren.train.signals import StopSignals, TakenOver

DIED = "E-JOB-009"
PAUSE = 0.2  # seconds between two looks at jobs that others work on


@dataclass
class Worker:
    """`trains` and `analyzes`: the stages of a job that are asked for. `before`: the attempts at the jobs, by their
    folders, that had ended when the study was launched; a job with a later one needs no more work. `apart`: whether a
    job that ends this process leaves a launch that goes on."""

    root: Path
    jobs: Sequence[Job]
    trainer: Trainer
    trains: bool
    analyzes: bool
    before: Mapping[str, str]
    tell: Tell
    signals: StopSignals
    apart: bool = False

    def run(self) -> None:
        """Ends when no job is left that could be worked on, or at a stop signal."""
        with keeping_plans():
            self._work_off(list(self.jobs))

    def _work_off(self, left: Sequence[Job]) -> None:
        while left and not self.signals.stop_asked:
            others = [job for job in left if not self._settle(job)]
            if len(others) == len(left) and not self.signals.stop_asked:
                time.sleep(PAUSE)
            left = others

    def _settle(self, job: Job) -> bool:
        """Takes a job if nobody has it; gives whether it needs no more work."""
        if self.signals.stop_asked:
            return False
        held = claim(self.root, job.folder)
        if held is None:
            return False
        with held:
            found = read_job_status(self.root / job.folder)
            if found is not None and found.state == RUNNING:
                left = f"{found.worker} ended in stage {found.stage} of {job.name}, which is tried again"
                if not self.apart:
                    left += "; should the job end its process, --workers 1 lets the others go on"
                self.tell(Event(job.order, NOTICE, text=left))
            elif found is not None and found.state in (DONE, FAILED) and self._settles(job, found):
                self.tell(Event(job.order, found.state, found.stage or "", text=found.message or ""))
                return True
            return self._work(job, held)

    def _settles(self, job: Job, found: JobStatus) -> bool:
        """Whether what another worker came to meanwhile is of this job. In one output folder, a job of another file may
        have the same folder: what it came to says nothing of this one."""
        if self.before.get(job.folder) == found.attempt:
            return False
        try:
            now = look(job, self.trainer, self.root, trains=self.trains, analyzes=self.analyzes)
        except ParenError:  # as the other worker was told
            return found.state == FAILED
        model = self.trainer.store.place(now.recipe) if now.model is None else now.model.folder
        named = (read_job_file(self.root / job.folder) or {}).get(MODEL)
        return now.finished or (found.state == FAILED and Path(str(named)).name == model.name)

    def _work(self, job: Job, held: Claim) -> bool:
        """Whether the job has ended; False if a signal stopped it, or another host took it over."""
        folder = self.root / job.folder
        attempt = _Attempt(self, job, folder, held, JobStatus(RUNNING, device=self.trainer.how.device))
        try:
            return self._try(attempt)
        except TakenOver:
            text = f"another host is at {job.name} now, as this process gave no sign for {LEASE:g} s"
            self.tell(Event(job.order, NOTICE, text=text))
            return False

    def _try(self, attempt: _Attempt) -> bool:
        """Whether the job has ended; False if a signal stopped it."""
        try:
            attempt.run()
        except Stopped:
            attempt.end(WAITING)
            return False
        except TakenOver:
            raise
        except ParenError as error:
            attempt.fail(error.code, error.message, "".join(traceback.format_exception(error)), last_line(error))
        except Exception as error:  # whatever a job does wrong is told by its status and must not stop the others
            message = f"{type(error).__name__}: {error}"
            attempt.fail(None, message, "".join(traceback.format_exception(error)))
        else:
            attempt.end(DONE)
        self.trainer.renew_device()
        return True


def fail_job(root: Path, job: Job, death: Death, tell: Tell) -> None:
    """Notes that the worker process at a job ended in it, unless another is at the job already."""
    held = claim(root, job.folder)
    if held is None:
        return
    with held:
        found = read_job_status(root / job.folder)
        if found is None or found.state != RUNNING or not found.worker.startswith(f"process {death.pid} on "):
            return
        message = f"the worker process at this job {death.how}"
        write_job_status(root / job.folder, replace(found, state=FAILED, code=DIED, message=message))
        tell(Event(job.order, FAILED, found.stage or "", text=f"{DIED}: {message}"))


@dataclass
class _Attempt:
    """One try at a job, whose claim is `held`."""

    worker: Worker
    job: Job
    folder: Path
    held: Claim
    status: JobStatus
    _since: float = 0.0

    def run(self) -> None:
        worker, job = self.worker, self.job
        self._stage("data")
        trainer = worker.trainer
        standing = look(job, trainer, worker.root, trains=worker.trains, analyzes=False)
        place = trainer.store.place(standing.recipe) if standing.model is None else standing.model.folder
        self._write(place, standing.data_key, read_products(self.folder))
        model = standing.model
        if model is None:
            model = self._train(standing, JobProgress(job.order, worker.tell))
        products = read_products(self.folder)
        if worker.analyzes:
            subject = subject_of(job, trainer, worker.root, model, standing.data_key)
            made = analyze_job(subject, trainer.functions, trainer.store, self._analysis)
            products = {name: each.folder for name, each in made.items()}
        self._write(model.folder, standing.data_key, products)

    def _write(self, model: Path, data_key: str, products: Mapping[str, Path]) -> None:
        """Says what the job is and where its artifacts lie, or will lie."""
        data = self.worker.trainer.data_folder(data_key)
        write_job(self.folder, self.job, model, data, products)

    def _train(self, standing: Standing, view: JobProgress) -> Artifact:
        """The model, trained now if that is asked for."""
        worker, job = self.worker, self.job
        if not worker.trains:
            raise ParenError("E-JOB-008", f"{job.name} has no trained model", fix="train it with paren train")
        data = worker.trainer.data(job, view)
        self._stage("training")
        return worker.trainer.train(job, standing.recipe, data, view, worker.signals)

    def _analysis(self, name: str) -> None:
        """Says which analysis is computed now. Between two of them, a signal stops the job."""
        if self.worker.signals.stop_asked:
            raise Stopped
        self._stage(name)

    def _stage(self, name: str) -> None:
        """Says what is done now."""
        self._end_stage()
        self.status = replace(self.status, stage=name)
        self._write_status()
        self.worker.tell(Event(self.job.order, RUNNING, name))

    def _write_status(self) -> None:
        """Raises `TakenOver` where another host is at the job now."""
        if self.held.is_lost():
            raise TakenOver
        write_job_status(self.folder, self.status)

    def _end_stage(self) -> None:
        """Notes how long the stage took that ends, if there was one."""
        now, stage, seconds = time.monotonic(), self.status.stage, dict(self.status.seconds)
        if stage is not None:
            seconds[stage] = seconds.get(stage, 0.0) + round(now - self._since, 3)
        self._since = now
        self.status = replace(self.status, seconds=seconds)

    def end(self, state: str) -> None:
        """The last word on an attempt that did not fail."""
        self._end_stage()
        stage = None if state == DONE else self.status.stage
        self.status = replace(self.status, state=state, stage=stage)
        self._write_status()
        self.worker.tell(Event(self.job.order, state, stage or ""))

    def fail(self, code: str | None, message: str, text: str, line: str | None = None) -> None:
        """The last word on one that did; `text` is its traceback, `line` is as in `JobStatus`."""
        self._end_stage()
        self.status = replace(self.status, state=FAILED, code=code, message=message, traceback=text, line=line)
        self._write_status()
        told = f"{code}: {message}" if code else message
        self.worker.tell(Event(self.job.order, FAILED, self.status.stage or "", text=told))
