"""A rank's part in the sums of a step: gradients, losses and weights are added over the ranks.

Gradients are summed bucket after bucket. Where a step is cut into stages (see `paren.engine`), a thread of its own sums
the buckets that a stage has completed while the next stages are computed. On cards it starts all sums, each of which
waits there for its stage, and awaits them together. Which bucket comes when is the same on every rank; it does not show
in bits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np

from paren.ir.op import Array
from paren.ir.program import Program
from paren.parallel.cards import Cards
from paren.parallel.carried import Carried
from paren.parallel.exchange import (
    BUCKET,
    NO_STEPS,
    Exchange,
    Exchanged,
    Floats,
    HostSums,
    Needs,
    Traffic,
    buckets,
)
from paren.parallel.ranks import Ranks
from paren.runtime.array import AnyArray, DeviceArray, fetch
from paren.runtime.link import Link

Read = Callable[[AnyArray], float]


class _Stages:
    """How far a step has come: told by who computes, awaited by who exchanges. `marks`: where the device began, and
    where it will have computed each stage."""

    def __init__(self, begin: object) -> None:
        self._changed = threading.Condition()
        self._done = 0
        self.marks = [begin]

    def tell(self, done: int, mark: object) -> None:
        with self._changed:
            self._done = done
            self.marks.append(mark)
            self._changed.notify_all()

    def wait(self, wanted: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._done >= wanted)


class Combination:
    """Adds gradients, of `length` elements, losses and weights over the ranks, for the engine of a program. `views`
    gives the parameters' parts of a vector of gradients. `cards`: what sends and adds gradients that lie on cards;
    without them the hosts do. All ranks make one at the same place."""

    def __init__(
        self,
        ranks: Ranks,
        program: Program,
        length: int,
        views: Callable[[Floats], Mapping[str, Array]],
        cards: Cards | None,
    ) -> None:
        self._ranks = ranks
        self._length = length
        self._rounds = program.rounds
        self._drops = program.drops_sums
        self._tree = program.run.reproducible_over is not None
        self._views = views
        self._cards = cards
        self._order: list[int] = []
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._spans: list[tuple[float, float]] = []  # when buckets were summed in this step
        self._points: list[tuple[object, object]] = []  # the same on cards
        self.last = NO_STEPS  # of the last step
        # What the library takes for itself it takes now, and not after the plan's memory has begun to be counted.
        for group in (ranks.groups.within, ranks.groups.between, ranks.groups.every):
            group.gather(np.zeros(1, np.uint8), np.zeros(group.size, np.uint8))

    @cached_property
    def buckets(self) -> Sequence[tuple[int, int]]:
        """The elements (begin, end) of the gradients that are summed at a time."""
        return buckets(self._length)

    @property
    def on_cards(self) -> bool:
        """Whether cards sum, which begin when a stage has been started, and not when it has been computed."""
        return self._cards is not None

    def prepare(self, gradients: AnyArray, weight: Callable[[Read], float], stages: Sequence[int]) -> None:
        """Takes the memory that the plan has for sums of these gradients. `weight` gives what this rank's part would be
        divided by, of values that it reads in the given way. `stages`: how many stages of a step have been computed
        when each bucket is complete, and where sums are rounded the weight too; all of one number where there is
        nothing to compute meanwhile."""
        groups, cards = self._ranks.groups, self._cards
        flags = self._rounds, self._tree, self._drops
        if cards is None:
            sums = HostSums(Needs.of(self._length, groups.within.size, groups.between.size, self._rounds).wide)
            self.exchange = Exchange(groups.within, groups.between, sums, self._length, *flags)
        else:
            self.exchange = Exchange(cards.within, cards.between, cards.link, self._length, *flags)
        if self.exchange.carried.size:
            self._ranks.carried = Carried(self._ranks, self.exchange, self._length, self._views)
        self._gradients, self._weight = gradients, weight
        self._own_stages = stages
        crosses = isinstance(gradients, DeviceArray) and cards is None
        self._host = np.empty(min(BUCKET, self._length) if crosses else 0, np.float32)

    def begin(self) -> None:
        """Begins the sums of a step whose first stage is still to be computed: a thread waits for the stages."""
        self._agree()
        self._stages = stages = _Stages(self._mark())

        def wait(stage: int) -> None:
            stages.wait(stage)
            if self._cards is not None:
                self._cards.link.follow(stages.marks[stage])

        def follow() -> None:
            try:
                self._sum_all(wait)
            except BaseException as error:
                self._error = error  # which `end` raises

        self._thread = threading.Thread(target=follow, name="paren-exchange", daemon=True)
        self._thread.start()

    def computed(self, stages: int) -> None:
        """Tells that so many stages of the step have been computed, or where cards sum, that they have been started."""
        self._stages.tell(stages, self._mark())

    def end(self, loss: float, weight: float) -> tuple[float, float]:
        """Ends the sums of a step, all of which has been computed: the gradients are those of all ranks. Gives the sums
        of losses and weights."""
        computed = time.perf_counter()
        if self._thread is None:
            self._agree()
            self._stages = _Stages(self._mark())
            self._sum_all(lambda _: None)
        else:
            self._thread.join()
            self._thread = None
            if self._error is not None:
                raise self._error
        if self._cards is not None:
            computed = self._read_clock(self._cards.link)
        seconds = sum(end - begin for begin, end in self._spans)
        hidden = sum(max(0.0, min(end, computed) - begin) for begin, end in self._spans)
        sent, self.exchange.traffic = self.exchange.traffic, Traffic()
        self.last = Exchanged(1, seconds, hidden, sent.within, sent.between)
        self._spans = []
        total = self._ranks.add(np.array([loss, weight]), self._tree)
        return float(total[0]), float(total[1])

    def accept(self) -> None:
        """The sums of the last step were used for an update: what rounding took off is carried into the next."""
        self.exchange.accept()

    def _mark(self) -> object:
        """Where the device will have computed what it was given up to now; nothing where cards do not sum."""
        return None if self._cards is None else self._cards.link.mark()

    def _read_clock(self, link: Link) -> float:
        """Finds when buckets were summed, in seconds from the step's begin; gives when it was computed."""
        origin, last = self._stages.marks[0], self._stages.marks[-1]
        self._spans = [(link.seconds(origin, begin), link.seconds(origin, end)) for begin, end in self._points]
        self._points = []
        return link.seconds(origin, last)

    def _sum_all(self, wait: Callable[[int], None]) -> None:
        """Sums the buckets, each after waiting for the stages that complete it."""
        for place, number in enumerate(self._order):
            wait(self._own_stages[number])
            if place == 0 and self._rounds:
                own = self._weight(float if self._cards is None else self._cards.link.read)
                self.exchange.weight = float(self._ranks.add(np.array([own]), tree=False)[0])
            self._sum_bucket(number)
        if self._cards is not None:
            self._cards.wait()

    def _sum_bucket(self, number: int) -> None:
        begin, end = self.buckets[number]
        part = self._gradients[begin:end]
        if self._cards is not None:
            point = self._cards.link.point()
            self.exchange.sum_bucket(number, part)
            self._points.append((point, self._cards.link.point()))
            return
        start = time.perf_counter()
        if isinstance(part, DeviceArray):
            host = self._host[: end - begin]
            fetch(part, host)
            self.exchange.sum_bucket(number, host)
            part[...] = host
        else:
            self.exchange.sum_bucket(number, part)
        self._spans.append((start, time.perf_counter()))

    def _agree(self) -> None:
        """Finds the order of the buckets at the first step, that of the first rank's stages: another rank's plan may
        complete buckets in another one."""
        if not self._order:
            first = self._ranks.gather(np.array(self._own_stages, np.float64))[0]
            self._order = [int(number) for number in np.argsort(first, kind="stable")]
