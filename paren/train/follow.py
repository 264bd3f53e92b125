"""A rank that does not lead: it trains as the first rank does, and writes nothing.

The first rank decides (what is resumed, the stacking) and tells the others; they get its state before the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType

from paren.parallel.ranks import START, STATE, Ranks
from paren.runtime.array import AnyArray
from paren.text.errors import InternalError
from paren.text.json import Json
from paren.train.experiment import (
    Experiment,
    Prepared,
    RunOptions,
    TrainingData,
    evaluate_every,
    steps_to_do,
    total_steps,
)
from paren.train.loop import AT_SIGNAL, train
from paren.train.progress import Silent
from paren.train.run import NOTHING_TO_DO, Outcome, ran_out
from paren.train.session import Session
from paren.train.signals import StopSignals
from paren.train.state import BestRecord, LoopState


class _Nothing:
    """Lines, checkpoints, status and best parameters that go nowhere."""

    size = 0

    def write(self, *records: Mapping[str, Json]) -> None: ...

    def sync(self) -> None: ...

    def running(self, phase: str) -> None: ...

    def progress(self, step: int, samples: int) -> None: ...

    def settle(self, *, wait: bool = False) -> None: ...

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class _NoCheckpoints(_Nothing):
    def save(self, metrics_bytes: int, ready: Callable[[], None], *, goes_on: bool) -> None: ...


class _NoBest(_Nothing):
    def save(
        self, slots: Mapping[str, AnyArray], roles: Mapping[str, str], step: int, metric: str, value: float
    ) -> BestRecord:
        return BestRecord(step, metric, value, "", 0, "")


@dataclass
class Follow:
    """Trains along. `prepare` gets what the first rank decided instead of a checkpoint's identity."""

    experiment: Experiment
    options: RunOptions
    data: TrainingData
    prepare: Callable[[Mapping[str, Json] | None], Prepared]
    ranks: Ranks
    signals: StopSignals

    def run(self) -> Outcome:
        """Raises ParenError for all that can go wrong on this rank."""
        run, out = self.experiment.run, self.options.out
        total = total_steps(run, self.data.steps_per_epoch)
        told = self.ranks.hear(START)
        if told["ended"]:
            return self._nothing(told["step"])
        prepared = self.prepare(told)
        self.ranks.doing("compiling")
        engine = prepared.make_engine()
        found = self.ranks.hear(STATE)
        if found["ended"]:
            return self._nothing(found["step"])
        state = LoopState.from_json(found)
        self.ranks.at(state.step)
        self.ranks.hand_on([*engine.slots().values(), *(engine.owe().values() if found["owes"] else ())])
        nothing = _Nothing()
        session = Session(
            experiment=self.experiment,
            engine=engine,
            data=prepared.data,
            state=state,
            total=total,
            stop=steps_to_do(self.options.steps, total),
            evaluate_every=evaluate_every(run, self.data),
            saver=_NoCheckpoints(),
            best=_NoBest(),
            metrics=nothing,
            events=None,
            status=nothing,
            progress=Silent(),
            signals=self.signals,
            company=self.ranks,
        )
        try:
            ended = train(session)
        except MemoryError as error:
            raise ran_out(error, engine.memory().get("planned", 0), state.step) from error
        finally:
            engine.close()
        self.ranks.any(False)  # the run has ended well only if the first rank has written what there is to write
        return Outcome(ended, self.signals.exit_code if ended == AT_SIGNAL else 0, state.step, out)

    def _nothing(self, step: Json) -> Outcome:
        """The end of a run in which the first rank found nothing to do after so many steps."""
        if not isinstance(step, int):
            raise InternalError("parallel", f"the first rank is at step {step!r}")
        return Outcome(NOTHING_TO_DO, 0, step, self.options.out)
