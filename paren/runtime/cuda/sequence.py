"""Sequences of work on a card: started call by call the first time, then as one captured graph.

A graph cannot end in the middle. A sequence with flags has a word `ended` on the card, cleared at its start; a flag
that is found set sets it, and whatever comes later, in the same repetition or another, looks at it and does nothing.
Products cannot look: where they write what lasts, the processor looks at the flags, and there is no graph of it all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from paren.runtime.array import DeviceArray
from paren.runtime.cuda.builtin import BEGIN, COUNT
from paren.runtime.cuda.driver import Driver
from paren.runtime.task import Addresses, Cell, Runs, Task
from paren.text.errors import InternalError

# Of a graph with several repetitions, which saves the time between graphs: how many, and how many tasks in all.
REPETITIONS = 32
MOST_TASKS = 1024


@dataclass(frozen=True)
class Work(Task):
    """A task of this device. `issue(ended)` starts it; `ended` is the address of a sequence's word, or 0. `cells`: all
    whose addresses it uses. `unguarded`: it writes lasting memory without looking at the word."""

    issue: Callable[[int], None] = lambda ended: None
    cells: tuple[Cell, ...] = ()
    unguarded: bool = False


def check_cells(cells: Sequence[Cell]) -> None:
    """Refuses arrays that do not lie on a card."""
    for cell in cells:
        if not isinstance(cell.array, DeviceArray):
            raise InternalError("cuda", f"an array of {cell.array.dtype} lies in host memory")


def make_sequence(
    driver: Driver, builtin: dict[str, object], allocate: Callable[[int], DeviceArray], tasks: Sequence[Task]
) -> Runs:
    """The tasks in order; `builtin` are the functions of `paren.runtime.cuda.builtin` by name."""
    works = [task for task in tasks if isinstance(task, Work)]
    if len(works) != len(tasks):
        raise InternalError("cuda", "a sequence has tasks of another device")
    flagged = any(work.flag is not None for work in works)
    if flagged and any(work.unguarded for work in works):
        return _checked(driver, works)
    if flagged:
        return _Guarded(driver, builtin, allocate(64), works)
    return _Graph(driver, works)


class _Graph:
    """Work without flags. `ended`: the word that all of it looks at, or 0."""

    def __init__(self, driver: Driver, works: Sequence[Work], ended: int = 0) -> None:
        self._driver = driver
        self._works = works
        self._ended = ended
        self._cells = list({id(cell): cell for work in works for cell in work.cells}.values())
        self._addresses: Addresses = np.zeros(len(self._cells), np.uint64)
        self._issued: Addresses | None = None
        self._replays: dict[int, Callable[[], None]] = {}  # by how many repetitions the graph has
        self._most = max(1, min(REPETITIONS, MOST_TASKS // max(1, len(works))))
        self._graphs = len(works) > 1
        if self._graphs:  # a single task is started afresh each time
            for place, cell in enumerate(self._cells):
                cell.watch(self._addresses, place)

    def __call__(self, times: int = 1) -> int:
        """Starts all work so many times. The first time after a cell's array moved it is started call by call, which
        also loads what libraries load at their first call."""
        left = times
        while left > 0:
            if not self._graphs or self._issued is None or not np.array_equal(self._issued, self._addresses):
                self._replays, self._issued = {}, self._addresses.copy()
                self._issue(1)
                left -= 1
                continue
            count = self._most if left >= self._most else 1
            if count not in self._replays:
                self._replays[count] = self._driver.capture(partial(self._issue, count))
            self._replays[count]()
            left -= count
        return times

    def _issue(self, times: int) -> None:
        check_cells(self._cells)
        for _ in range(times):
            for work in self._works:
                work.issue(self._ended)


class _Guarded:
    """Work with flags: a word `ended` and, on eight bytes, the number of whole repetitions, in `words` (uint8[64]).

    No work refers to this object: what a run holds of a card goes back when the run ends, and not when cycles are next
    looked for.
    """

    def __init__(self, driver: Driver, builtin: dict[str, object], words: DeviceArray, works: Sequence[Work]) -> None:
        self._driver = driver
        self._begin = builtin[BEGIN]
        self._words = words
        self._ended, self._count = words.address, words.address + 8
        repetitions = self._count

        def count(ended: int) -> None:
            driver.launch(builtin[COUNT], 1, 1, (ended, 0, 1, repetitions))

        self._graph = _Graph(driver, [*works, Work(lambda: None, issue=count)], self._ended)

    def __call__(self, times: int = 1) -> int:
        self._driver.launch(self._begin, 1, 1, (0, 0, 1, self._ended, self._count))
        self._graph(times)
        return int(self._words[8:16].view(np.int64).reshape(()))


def _checked(driver: Driver, works: Sequence[Work]) -> Runs:
    """Work whose products write what lasts: the processor looks at each flag before anything after it is started."""
    parts: list[tuple[_Graph, Cell | None]] = []
    begin = 0
    for number, work in enumerate(works):
        if work.flag is not None or number == len(works) - 1:
            parts.append((_Graph(driver, works[begin : number + 1]), work.flag))
            begin = number + 1

    def run(times: int = 1) -> int:
        for done in range(times):
            for graph, flag in parts:
                graph()
                if flag is not None and flag.array:
                    return done
        return times

    return run
