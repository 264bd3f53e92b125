"""Many steps in one call of the engine, as long as nothing is due between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paren.data.resident import Table
from paren.text.json import Json
from paren.train.engine import StepSeries
from paren.train.experiment import Batches
from paren.train.report import measured, note_memory, write
from paren.train.session import Session, Step

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
    lines: dict[int, dict[str, Json]] = {}
    for end in _lines(session, first, last - 1):
        _advance(session, columns, first, end, each)
        lines[end] = measured(session, columns.record(first, end))
    _advance(session, columns, first, last, each)
    write(session, *lines.values())
    for step, line in lines.items():
        session.progress.step(step, line)
    return Step(columns.record(first, last))


def _lines(session: Session, first: int, last: int) -> list[int]:
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
        loss = np.divide(series.loss, series.weight).tolist()
        return cls(loss, series.norm.tolist(), rate, examples.tolist(), weights.tolist())

    def record(self, first: int, step: int) -> dict[str, Json]:
        """The record of a step of a call that began after step `first`."""
        number = step - first - 1
        record: dict[str, Json] = {"step": step, "loss": self.loss[number], "gradient-norm": self.norm[number]}
        if self.rate is not None:
            record["rate"] = self.rate[number]
        return record


def _advance(session: Session, columns: _Columns, first: int, end: int, seconds: float) -> None:
    """Counts the steps up to `end` of a call that began after step `first`; each took `seconds`."""
    state, pace = session.state, session.pace
    before, after = state.step - first, end - first
    examples = columns.examples[after] - columns.examples[before]
    state.step = end
    state.samples += examples
    state.updates += after - before
    pace.seconds += (after - before) * seconds
    pace.steps += after - before
    pace.examples += examples
    pace.weight += columns.weights[after] - columns.weights[before]
