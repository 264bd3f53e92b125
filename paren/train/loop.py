"""The training loop.

A step's loss is the sum over the global batch divided by its weight: gradients of the weighted sum are accumulated
over the microbatches, and the one division is part of the update's scale. So no split of a batch changes a step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable

from paren.data.loader import GlobalBatch, Microbatch
from paren.ir.program import Best
from paren.parallel.company import ALONE, Company
from paren.parallel.sign import EVALUATING, TRAINING
from paren.text.errors import InternalError
from paren.text.json import Json
from paren.train.best import count_early, is_better
from paren.train.chunk import chunk_length, train_chunk
from paren.train.diagnostics import reduce_samples, sample
from paren.train.engine import Engine
from paren.train.experiment import Batches
from paren.train.nonfinite import Origin, check_weight, describe_origin, find_origin, limit_error, stop_error
from paren.train.profile import profiled, profiled_step
from paren.train.report import note_memory, report, write
from paren.train.session import Session, Step

COMPLETE, AT_STEPS, AT_SIGNAL = "complete", "steps", "signal"


def train(session: Session) -> str:
    """Trains from the state's position up to `stop`; the state is saved when it ends.

    Returns `complete` (all steps, or stopped early), `steps` (`--steps` came first) or `signal`. Raises E-NUM codes
    for values that are not finite, E-CKPT-008 and E-CKPT-009 for a checkpoint that cannot be, E-RUN-012.
    """
    state, run = session.state, session.experiment.run
    first = saved = state.step
    if state.stopped_early:
        return COMPLETE
    session.progress.begin(first, session.stop)
    session.status.running(TRAINING)
    session.company.at(first)
    session.company.doing(TRAINING)
    if session.profile is not None:
        session.profile.begin(first, session.stop)
    session.ask_to_stop()
    with session.saver, session.data.batches(first, session.stop) as batches:
        while state.step < session.stop and not session.stopping:
            step = train_steps(session, batches)
            session.status.progress(state.step, state.samples)
            session.company.at(state.step)
            session.saver.settle()
            if _evaluation_due(session):
                evaluated = evaluate(session)
                _judge(session, evaluated)
                step = Step({**step.record, **evaluated}, notable=True)
            report(session, step)
            if _checkpoint_due(session, run.checkpoint_every):
                saved = save(session)
            if state.stopped_early:
                session.progress.notice(f"step {state.step}: stopped early, the last evaluations were no better")
                break
            session.ask_to_stop()
        if state.step not in (first, saved):
            save(session)
        session.company.doing("saving")  # what was begun beside the training
    if state.stopped_early or state.step == session.total:
        return COMPLETE
    if session.stopping:
        return AT_SIGNAL
    if session.data.has_evaluation and not _evaluation_due(session):
        # After the checkpoint's end of the metrics, so that a run that goes on drops this line again.
        record: dict[str, Json] = {"step": state.step, **evaluate(session)}
        write(session, record)
        session.progress.step(state.step, record)
    return AT_STEPS


def train_steps(session: Session, batches: Batches) -> Step:
    """The next position, or as many as one call makes: gives the last of them."""
    count, first, begin = chunk_length(session), session.state.step, session.clock()
    if count > 1:
        step = train_chunk(session, batches, count)
        if step is not None:
            if session.profile is not None:
                session.profile.steps(first, session.state.step, begin)
            return step
    begin = session.clock()
    batch = batches.batch(session.state.step)
    if session.profile is not None:
        session.profile.waited(begin)
    with profiled_step(session.profile, batch.position):
        step = train_step(session, batch)
    session.step_seconds = session.clock() - begin
    session.pace.seconds += session.step_seconds
    return step


def train_step(session: Session, batch: GlobalBatch) -> Step:
    """One position: gradients of all microbatches, one update, the record of what was computed.

    The position advances in any case. There is no update if the batch has no weight, or (by policy) if its loss or
    gradient is not finite.
    """
    engine, state = session.engine, session.state
    samples = sample(engine, session.experiment.diagnostics, batch)
    sums = engine.step(batch, state.updates + 1)
    _advance(session, batch, sums.weight)
    session.pace.exchanged = session.pace.exchanged.plus(sums.exchanged)
    session.exchanged = session.exchanged.plus(sums.exchanged)
    record: dict[str, Json] = {"step": state.step}
    if not math.isfinite(sums.loss) or not math.isfinite(sums.weight):
        record["loss"] = loss = sums.loss / sums.weight if sums.weight else math.nan
        return _without_update(session, batch, record, "loss", loss)
    check_weight(state, sums.weight)
    if sums.weight == 0.0:
        state.padding += 1
        write(session, {"step": state.step, "annotation": "padding", "padding": state.padding})
        return Step({**record, "loss": 0.0}, notable=True)
    record |= {"loss": sums.loss / sums.weight, "gradient-norm": sums.norm}
    if sums.lowered is not None:
        return _with_lower_scale(session, record, sums.lowered)
    if not math.isfinite(sums.norm):
        return _without_update(session, batch, record, "gradient norm", sums.norm)
    state.updates += 1
    state.skipped_in_row = 0
    if sums.rate is not None:
        record["rate"] = sums.rate
    diagnosed = reduce_samples(session.experiment.diagnostics, samples, session.company)
    return Step({**record, **diagnosed}, notable=bool(diagnosed))


def evaluate(session: Session) -> dict[str, Json]:
    """`evaluation/loss` and the metrics: weighted means over the whole split, exact for any split into batches."""
    session.doing(EVALUATING)
    with profiled(session.profile, "evaluation", "evaluate"):
        means = weighted_means(session.engine, session.data.evaluation(), session.company)
    session.doing(TRAINING)
    return {f"evaluation/{name}": value for name, value in means.items()}


def weighted_means(engine: Engine, microbatches: Iterable[Microbatch], company: Company = ALONE) -> dict[str, float]:
    """Loss and metrics by name, each as sum / weight over the microbatches of all ranks, added in their order; nan
    where the weight is 0."""
    parts = [[number for pair in engine.evaluate(each).values() for number in pair] for each in microbatches]
    totals = [0.0] * (2 * len(engine.evaluated))
    for row in company.merge(parts, turns=True):
        totals = [total + part for total, part in zip(totals, row, strict=True)]
    pairs = zip(engine.evaluated, totals[::2], totals[1::2], strict=True)
    return {name: total / weight if weight else math.nan for name, total, weight in pairs}


def save(session: Session) -> int:
    """Publishes a checkpoint of the state, or begins to; returns its step."""
    state = session.state
    goes_on = not (state.step == session.stop or state.stopped_early or session.stopping)
    session.doing("saving")
    if session.events is not None:
        session.events.flush()
    session.company.agree(session.engine.slots(), state.step)
    session.company.collect()
    note_memory(session)
    with profiled(session.profile, f"checkpoint {state.step}", "save"):
        session.saver.save(session.metrics.size, session.metrics.sync, goes_on=goes_on)
    session.doing(TRAINING)
    return state.step


def _advance(session: Session, batch: GlobalBatch, weight: float) -> None:
    state, pace = session.state, session.pace
    state.step = batch.position + 1
    state.samples += len(batch.indices)
    pace.steps += 1
    pace.examples += len(batch.indices)
    pace.weight += weight


def _with_lower_scale(session: Session, record: dict[str, Json], scale: float) -> Step:
    """A step in float16 whose gradients left its range: no update, and the next one with a smaller scale."""
    state = session.state
    state.skipped += 1
    write(session, {"step": state.step, "annotation": "loss-scale", "scale": scale, "skipped": state.skipped})
    return Step(record, notable=True)


def _without_update(session: Session, batch: GlobalBatch, record: dict[str, Json], quantity: str, value: float) -> Step:
    """A step whose `quantity` is not finite: skipped by policy, or the error that ends the run, its line written."""
    state, run = session.state, session.experiment.run
    state.skipped += 1
    state.skipped_in_row += 1
    stops = run.on_nonfinite != "skip"
    origin: Origin = None
    place: dict[str, Json] = {}
    if stops or state.skipped_in_row == 1 or state.skipped_in_row > run.skip_limit:
        # The search runs the step again, node by node: once for a row of skipped steps.
        origin = find_origin(session.engine, batch.microbatches, batch.position)
        places = session.company.texts(json.dumps(describe_origin(origin)))
        finder = next((rank for rank, text in enumerate(places) if text != "{}"), 0)
        place = json.loads(places[finder])
    if stops or state.skipped_in_row > run.skip_limit:
        write(session, record)
        session.company.leave_to(finder)
        raise stop_error(state, quantity, value, origin) if stops else limit_error(run, state, quantity, value, origin)
    write(session, {"step": state.step, "annotation": "skipped", "cause": quantity, "skipped": state.skipped, **place})
    return Step(record, notable=True)


def _judge(session: Session, record: dict[str, Json]) -> None:
    """Keeps the best parameters and counts towards early stopping."""
    state, run = session.state, session.experiment.run
    if run.keep_best is not None:
        rule = run.keep_best
        value = _value(record, rule)
        if is_better(value, state.best.value if state.best else None, rule.mode):
            engine = session.engine
            session.company.doing("saving the best")
            state.best = session.best.save(engine.slots(), engine.roles, state.step, rule.metric, value)
            session.company.doing(TRAINING)
    if run.stop_early is not None:
        count_early(state, run.stop_early, _value(record, run.stop_early))


def _value(record: dict[str, Json], rule: Best) -> float:
    value = record.get(rule.metric)
    if not isinstance(value, float):
        raise InternalError("train", f"the evaluation gives no series '{rule.metric}'")
    return value


def _evaluation_due(session: Session) -> bool:
    if not session.data.has_evaluation:
        return False
    every, step = session.evaluate_every, session.state.step
    return step == session.total or (every is not None and step % every == 0)


def _checkpoint_due(session: Session, every: int | None) -> bool:
    return every is not None and session.state.step % every == 0
