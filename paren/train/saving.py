"""When checkpoints are written: before the next step, or from a copy of the state while training goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate
from types import TracebackType

from paren.ir.op import Array
from paren.runtime.array import AnyArray, fetch
from paren.runtime.memory import ALIGNMENT, allocate
from paren.text.errors import ParenError
from paren.train.best import BestStore
from paren.train.checkpoint import Checkpoint, CheckpointStore
from paren.train.state import LoopState


class Saver:
    """Publishes the states of a run one after another; a save waits for the one before it.

    With `copies`, a state is copied and a thread writes the copy. Its error is raised by `settle`, by the next `save`,
    or by leaving the `with` block, in which no write is then under way. If the block ends with another error, `notice`
    is told of a write that failed. `state` is the live one: the best parameters that it names are kept.
    """

    def __init__(
        self,
        checkpoints: CheckpointStore,
        best: BestStore,
        state: LoopState,
        slots: Mapping[str, AnyArray],
        roles: Mapping[str, str],
        notice: Callable[[str], None],
        *,
        copies: bool,
    ) -> None:
        self._checkpoints = checkpoints
        self._best = best
        self._state = state
        self._slots = slots
        self._roles = roles
        self._notice = notice
        self._copy = _allocate_like(slots) if copies else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="paren-saving")
        self._writing: Future[Checkpoint] | None = None
        self.aside = 0
        self.between = 0

    def save(self, metrics_bytes: int, ready: Callable[[], None], *, goes_on: bool) -> None:
        """Publishes the state, whose metrics end after `metrics_bytes`; `ready` is called before, wherever that is.

        It stands on the disk when this returns, unless training `goes_on` and there is a copy to write from. Raises
        E-CKPT-008 and E-CKPT-009 of this save, if it was made at once, and of the one before.
        """
        self.settle(wait=True)
        state = replace(self._state)

        def write(slots: Mapping[str, AnyArray]) -> Checkpoint:
            ready()
            return self._checkpoints.save(slots, self._roles, state, metrics_bytes)

        if goes_on and self._copy is not None:
            for name, array in self._slots.items():
                fetch(array, self._copy[name])
            self._writing = self._thread.submit(write, self._copy)
            self.aside += 1
        else:
            write(self._slots)
            self.between += 1
            self._retire()

    def settle(self, *, wait: bool = False) -> None:
        """Takes note of a write that has ended; with `wait`, of one that is under way too. Raises its error."""
        if self._writing is not None and (wait or self._writing.done()):
            writing, self._writing = self._writing, None
            writing.result()
            self._retire()

    def describe(self) -> str:
        """`2 written while training went on, 1 between steps`; empty if there was none."""
        counted = ((self.aside, "while training went on"), (self.between, "between steps"))
        first, *rest = [f"{count} {when}" for count, when in counted if count] or [""]
        return ", ".join([first.replace(" ", " written ", 1), *rest])

    def __enter__(self) -> Saver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.settle(wait=True)
        except ParenError as failure:
            if error is None:
                raise
            self._notice(str(failure))
        finally:
            self._thread.shutdown(wait=True)

    def _retire(self) -> None:
        """Deletes the best parameters that neither the state nor a checkpoint needs. Not while a checkpoint is written,
        whose manifest may need others."""
        kept = [each.manifest.loop.best for each in self._checkpoints.all()[0]]
        self._best.retire({best.file for best in [*kept, self._state.best] if best is not None})


def _allocate_like(slots: Mapping[str, AnyArray]) -> dict[str, Array]:
    """Room in host memory for a copy of every slot, in one allocation whose pages are touched by the first copy."""
    ends = list(accumulate(-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in slots.values()))
    block = allocate(ends[-1])
    places = zip(slots.items(), [0, *ends], strict=False)
    return {
        name: block[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
        for (name, array), begin in places
    }
