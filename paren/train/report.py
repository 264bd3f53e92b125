"""Lines of metrics: when a step has one, and what was measured since the line before."""

from __future__ import annotations

from paren.text.json import Json
from paren.train.session import Pace, Session, Step


def is_regular(session: Session, step: int) -> bool:
    """Whether a step has a line in any case. Depends on the step alone, never on where a start begins or ends."""
    return step in (1, session.total) or step % session.experiment.run.log_every == 0


def report(session: Session, step: Step) -> None:
    """Writes the line of a step, if it is due, and shows the step."""
    note_memory(session)
    if is_regular(session, session.state.step) or step.notable:
        write(session, measured(session, step.record))
    session.progress.step(session.state.step, step.record)


def note_memory(session: Session) -> None:
    """Raises the peak to what the plan takes now."""
    session.peak_bytes = max(session.peak_bytes, session.engine.used_bytes())


def measured(session: Session, record: dict[str, Json]) -> dict[str, Json]:
    """The record of a step that has a line, with what was measured since the line before; measuring begins anew."""
    record |= series_of(session.pace, session.peak_bytes)
    session.pace = Pace()
    return record


def series_of(pace: Pace, peak_bytes: int) -> dict[str, Json]:
    """What was measured since the line before, by the name of its series."""
    seconds = max(pace.seconds, 1e-9)
    found: dict[str, Json] = {
        "tokens-per-second": pace.weight / seconds,
        "examples-per-second": pace.examples / seconds,
        "runtime/step-ms": 1e3 * pace.seconds / pace.steps,
        "runtime/peak_bytes": peak_bytes,
    }
    exchanged = pace.exchanged
    if exchanged.steps:
        found["runtime/exchange-ms"] = 1e3 * exchanged.seconds / exchanged.steps
        found["runtime/exchange-hidden-ms"] = 1e3 * exchanged.hidden / exchanged.steps
        found["runtime/exchange-bytes"] = (exchanged.within + exchanged.between) // exchanged.steps
    return found


def write(session: Session, *records: dict[str, Json]) -> None:
    """Writes lines to everything that keeps lines."""
    session.metrics.write(*records)
    if session.events is not None:
        for record in records:
            session.events.write(record)
