"""Many steps in one call of the engine, as long as nothing is due between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paren.data.resident import Table
from paren.text.json import Json
from paren.train.engine import StepSeries
from paren.train.experiment import Batches
from paren.train.report import note_memory, series_of, write
from paren.train.session import Pace, Session, Step

SECONDS = 0.05  # that a call should take: a signal waits no longer


def chunk_length(session: Session) -> int:
    """How many steps the next call makes: up to the next at which something is due, and no longer than `SECONDS`.

    How many it is changes nothing but the time they take.
    """
    if session.step_seconds is None:
        return 1
    if session.profile is not None and session.state.step < session.profile.sampled_until:
        return 1
    return max(1, min(_fitting(session.step_seconds), session.engine.longest, _steps_to_border(session)))


def _fitting(seconds: float) -> int:
    """How many steps of so many seconds a call makes."""
    return int(SECONDS / max(seconds, 1e-9))


def _steps_to_border(session: Session) -> int:
    """The steps up to the next evaluation, checkpoint or end, or up to the one before the next diagnostic, which is
    sampled between two steps."""
    position, run = session.state.step, session.experiment.run
    evaluations = session.evaluate_every if session.data.has_evaluation else None
    borders = [_next(position, every) for every in (evaluations, run.checkpoint_every) if every is not None]
    borders += [_next(position, each.every) - 1 for each in session.experiment.diagnostics.values()]
    return min(session.stop, *borders) - position if borders else session.stop - position


def _next(position: int, every: int) -> int:
    return (position // every + 1) * every


def train_chunk(session: Session, batches: Batches, count: int) -> Step | None:
    """Up to `count` positions in one call. Gives the last of them; the lines of those before are written.

    It ends before a position at which there is no update: None if that is the first. What is to be done about it is
    decided when the position is trained alone, which is what comes next.
    """
    state = session.state
    begin = session.clock()
    table = batches.table(state.step, count)
    series = session.engine.steps(table, state.updates + 1)
    done = len(series.loss)
    if done < len(table.counts):
        session.step_seconds = None
    if done == 0:
        return None
    each = (session.clock() - begin) / done
    if session.step_seconds is not None:
        session.step_seconds = each
    state.skipped_in_row = 0
    note_memory(session)
    columns = _Columns.of(table, series)
    first, last = state.step, state.step + done
    lines = _lines_of(session, columns, first, last, each)
    state.step = last
    state.samples += columns.examples[done]
    state.updates += done
    write(session, *lines.values())
    for step, line in lines.items():
        session.progress.step(step, line)
    return Step(columns.record(done, last))


def _lines_of(session: Session, columns: _Columns, first: int, last: int, each: float) -> dict[int, dict[str, Json]]:
    """The lines of the steps `first < step < last` of a call, each of which took `each` seconds. What is measured
    begins anew with each line, so equal numbers of steps and examples give the same."""
    lines: dict[int, dict[str, Json]] = {}
    known: dict[tuple[int, int, float], dict[str, Json]] = {}
    before = first
    for end in _steps_with_lines(session, first, last - 1):
        counted = columns.counted(before - first, end - first)
        values = known.get(counted) if lines else None
        if values is None:
            session.pace.count(*counted, counted[0] * each)
            values = series_of(session.pace, session.peak_bytes)
            session.pace = Pace()
            if lines:
                known[counted] = values
        lines[end] = columns.record(end - first, end) | values
        before = end
    counted = columns.counted(before - first, last - first)
    session.pace.count(*counted, counted[0] * each)
    return lines


def _steps_with_lines(session: Session, first: int, last: int) -> list[int]:
    """The steps after `first` up to `last` that have a line."""
    every = session.experiment.run.log_every
    found = {step for step in (1, session.total) if first < step <= last}
    return sorted(found | set(range(_next(first, every), last + 1, every)))


@dataclass(frozen=True)
class _Columns:
    """What the steps of a call gave, as Python's numbers; `examples` and `weights` are sums over the steps before each,
    and over all."""

    loss: list[float]
    norm: list[float]
    rate: list[float] | None
    examples: list[int]
    weights: list[float]

    @classmethod
    def of(cls, table: Table, series: StepSeries) -> _Columns:
        examples, weights = (np.concatenate(([0], np.cumsum(each))) for each in (table.counts, series.weight))
        rate = None if series.rate is None else series.rate.tolist()
        if rate is not None and len(set(rate)) == 1:
            rate = rate[:1] * len(rate)  # one number, which a line's text is made of once
        loss = np.divide(series.loss, series.weight).tolist()
        return cls(loss, series.norm.tolist(), rate, examples.tolist(), weights.tolist())

    def record(self, number: int, step: int) -> dict[str, Json]:
        """The record of the step that is number `number` of the call, from 1."""
        record: dict[str, Json] = {"step": step, "loss": self.loss[number - 1], "gradient-norm": self.norm[number - 1]}
        if self.rate is not None:
            record["rate"] = self.rate[number - 1]
        return record

    def counted(self, begin: int, end: int) -> tuple[int, int, float]:
        """How many steps, examples and what weight there are from the step `begin` up to `end`, by their numbers."""
        return end - begin, self.examples[end] - self.examples[begin], self.weights[end] - self.weights[begin]
