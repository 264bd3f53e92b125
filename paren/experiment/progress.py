"""What a person sees of a study: how many jobs are done, which are worked on, and a line for each that ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol, TextIO, runtime_checkable

from paren.environment import can_redraw, wants_colour
from paren.experiment.events import NOTICE, SAID, Event
from paren.experiment.job_files import DONE, RUNNING, WAITING
from paren.experiment.jobs import Job
from paren.text.size import count_of, form_of

QUIET = 30.0  # seconds without a line after which plain lines say how far the jobs are


@runtime_checkable
class StudyView(Protocol):
    """Told what happens to the jobs of a study."""

    def begin(self, jobs: Sequence[Job], finished: int) -> None:
        """These jobs are to be done; others, `finished` in number, are done already."""
        ...

    def show(self, event: Event) -> None:
        """Something happened to a job."""
        ...

    def notice(self, text: str) -> None:
        """A sentence for the user."""
        ...

    def end(self) -> None:
        """Nothing more will come."""
        ...


class SilentStudy:
    """Shows nothing."""

    def begin(self, jobs: Sequence[Job], finished: int) -> None: ...

    def show(self, event: Event) -> None: ...

    def notice(self, text: str) -> None: ...

    def end(self) -> None: ...


class StudyLines:
    """Lines for a pipe or a log file: one for each job that ends, each notice once, and a sign of life now and then."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._jobs: dict[int, Job] = {}
        self._ended: set[int] = set()
        self._before = 0
        self._total = 0
        self._now: dict[int, Event] = {}
        self._said: set[str] = set()
        self._since: dict[int, float] = {}
        self._last = time.monotonic()

    def begin(self, jobs: Sequence[Job], finished: int) -> None:
        self._jobs = {job.order: job for job in jobs}
        self._before, self._total = finished, finished + len(jobs)
        if finished:
            self.notice(f"{finished} of {count_of(self._total, 'job')} {form_of(finished, 'is', 'are')} done already")

    def show(self, event: Event) -> None:
        if event.kind in (NOTICE, SAID):
            if event.kind == SAID or event.text not in self._said:
                self._said.add(event.text)
                self.notice(event.text)
            return
        if event.job in self._ended:  # several workers see that a job is done
            return
        if event.kind == RUNNING:
            self._since.setdefault(event.job, time.monotonic())
            self._now[event.job] = event
            if time.monotonic() - self._last > QUIET:
                self.notice(f"{self._finished} of {count_of(self._total, 'job')} done; {self._doing()}")
            return
        self._now.pop(event.job, None)
        seconds = time.monotonic() - self._since.pop(event.job, time.monotonic())
        if event.kind == WAITING:
            self.notice(f"stopped {self._jobs[event.job].name} in stage {event.stage}: it goes on the next time")
            return
        self._ended.add(event.job)
        how = (
            f"done in {max(0.0, seconds):.1f} s"
            if event.kind == DONE
            else f"failed in stage {event.stage}: {event.text}"
        )
        self.notice(f"[{self._finished}/{self._total}] {self._jobs[event.job].name}: {how}")

    @property
    def _finished(self) -> int:
        return self._before + len(self._ended)

    def notice(self, text: str) -> None:
        self._last = time.monotonic()
        print(text, file=self._stream, flush=True)

    def end(self) -> None: ...

    def _doing(self) -> str:
        """What the workers do now."""
        return "; ".join(f"{self._jobs[order].name} {_how_far(event)}" for order, event in sorted(self._now.items()))


def _how_far(event: Event) -> str:
    return f"{event.stage} {event.step}/{event.steps}" if event.steps else event.stage


class StudyBar(StudyLines):
    """The same lines above a bar of the jobs, which shows what is worked on now."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console  # only a terminal shows a bar, and rich takes as long to import as NumPy
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        super().__init__(stream)
        console = Console(file=stream, color_system="auto" if wants_colour() else None)
        self._progress = Progress(
            TextColumn("jobs"),
            BarColumn(20),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[doing]}"),
            console=console,
            refresh_per_second=5,
        )
        self._task = self._progress.add_task("", total=None, doing="")
        self._progress.start()

    def begin(self, jobs: Sequence[Job], finished: int) -> None:
        super().begin(jobs, finished)
        self._progress.update(self._task, completed=finished, total=self._total)

    def show(self, event: Event) -> None:
        super().show(event)
        self._progress.update(self._task, completed=self._finished, doing=self._doing())

    def notice(self, text: str) -> None:
        self._last = time.monotonic()
        self._progress.console.print(text, markup=False, highlight=False)

    def end(self) -> None:
        self._progress.stop()


def study_view(stream: TextIO) -> StudyView:
    """A bar if the stream is a terminal that can redraw, else plain lines."""
    return StudyBar(stream) if stream.isatty() and can_redraw() else StudyLines(stream)
