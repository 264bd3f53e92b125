"""Where the time of a run goes: events on one clock, for a trace that Chrome and Perfetto show, and sampled regions.

A few steps are run region by region, with a clock around each; all others run as ever, so that what is measured of them
is not disturbed. A region run alone computes the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from paren.text.json import Json
from paren.train.files import Files, json_bytes, not_writable, write_atomically
from paren.train.run_directory import make_folder

TRACE = Path("report") / "trace.json"
WARM = 2  # steps before the first that is sampled
SAMPLED = 3  # steps, and calls of any other graph
MOST_EVENTS = 200_000


@dataclass(frozen=True)
class Event:
    """What took from `begin` to `end`, in seconds of the profile's clock. `category`: step, wait, evaluate, save, graph
    or region."""

    name: str
    category: str
    begin: float
    end: float
    arguments: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class RegionTime:
    """One run of one step of a graph's plan, alone. `number` is its place among the plan's steps."""

    graph: str
    number: int
    begin: float
    end: float


@dataclass(frozen=True)
class GraphObserver:
    """What an executable asks before each call of its graph, and tells after it: see `paren.runtime.executor`."""

    profile: Profile
    graph: str
    of_step: bool

    @property
    def clock(self) -> Callable[[], float]:
        return self.profile.clock

    def wants(self) -> bool:
        return self.profile.wants(self.graph, self.of_step)

    def regions(self, times: list[tuple[float, float]]) -> None:
        self.profile.regions(self.graph, times)


class Profile:
    """Collects events. The loop calls `begin`, `step`, `waited` and `span`; executables have an observer.

    `describe(graph, number)` gives the name and the arguments of a region for its event.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.describe: Callable[[str, int], tuple[str, Mapping[str, Json]]] = lambda graph, number: (graph, {})
        self.events: list[Event] = []
        self.region_times: list[RegionTime] = []
        self.sampled_steps = 0
        self.sampling = False  # whether this step is run region by region
        self._start = clock()
        self._sampled: range = range(0)
        self._calls: dict[str, int] = {}

    def observer(self, graph: str, *, of_step: bool) -> GraphObserver:
        """The observer of a graph; `of_step`: every training step runs it."""
        return GraphObserver(self, graph, of_step)

    def begin(self, first: int, stop: int) -> None:
        """Positions `first` up to `stop` will be trained: the first of them warm up, as far as there are others."""
        warm = max(0, min(WARM, stop - first - 1))
        self._sampled = range(first + warm, min(stop, first + warm + SAMPLED))

    @property
    def sampled_until(self) -> int:
        """The position before which steps are to be made one by one."""
        return self._sampled.stop

    def steps(self, first: int, end: int, begin: float) -> None:
        """The positions `first` up to `end` were trained in one call, from `begin` on the profile's clock until now."""
        name = f"steps {first + 1} to {end}"
        self.add(Event(name, "step", begin, self.clock(), {"sampled": False, "steps": end - first}))

    @contextmanager
    def step(self, position: int) -> Iterator[None]:
        """Around one training step."""
        self.sampling = position in self._sampled
        self.sampled_steps += self.sampling
        try:
            with self.span(f"step {position + 1}", "step", sampled=self.sampling):
                yield
        finally:
            self.sampling = False

    @contextmanager
    def span(self, name: str, category: str, **arguments: Json) -> Iterator[None]:
        """Around anything that takes time."""
        begin = self.clock()
        try:
            yield
        finally:
            self.add(Event(name, category, begin, self.clock(), arguments))

    def waited(self, begin: float) -> None:
        """The loop had no batch from `begin`, on the profile's clock, until now."""
        self.add(Event("wait for data", "wait", begin, self.clock()))

    def add(self, event: Event) -> None:
        """Keeps an event; beyond `MOST_EVENTS` it is dropped."""
        if len(self.events) < MOST_EVENTS:
            self.events.append(event)

    def wants(self, graph: str, of_step: bool) -> bool:
        """Whether the next call of a graph is to be run region by region: those of a sampled step, and the first calls
        of a graph that no step runs."""
        if of_step:
            return self.sampling
        calls = self._calls[graph] = self._calls.get(graph, 0) + 1
        return calls <= SAMPLED

    def regions(self, graph: str, times: list[tuple[float, float]]) -> None:
        """The begin and end of every region of one call of a graph, in order."""
        if not times:
            return
        self.add(Event(graph, "graph", times[0][0], times[-1][1]))
        for number, (begin, end) in enumerate(times):
            self.region_times.append(RegionTime(graph, number, begin, end))
            name, arguments = self.describe(graph, number)
            self.add(Event(name, "region", begin, end, arguments))

    @property
    def data(self) -> dict[str, Json]:
        """The trace in Chrome's format: times in microseconds since the beginning."""
        events: list[Json] = [
            {"name": "process_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "paren"}},
            {"name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "training"}},
        ]
        # An event that contains others comes before them.
        for event in sorted(self.events, key=lambda each: (each.begin, -each.end)):
            events.append(
                {
                    "name": event.name,
                    "cat": event.category,
                    "ph": "X",
                    "pid": 1,
                    "tid": 1,
                    "ts": round(1e6 * (event.begin - self._start), 3),
                    "dur": round(1e6 * (event.end - event.begin), 3),
                    "args": dict(event.arguments),
                }
            )
        return {"displayTimeUnit": "ms", "traceEvents": events}

    def write(self, out: Path, files: Files, **more: Json) -> None:
        """Writes `report/trace.json` into the folder of a run, with `more` beside the events. Raises E-RUN-005."""
        path = out / TRACE
        make_folder(path.parent)
        try:
            write_atomically(files, path, json_bytes({**self.data, **more}), durable=False)
        except OSError as error:
            raise not_writable(path, error) from error


def profiled(profile: Profile | None, name: str, category: str) -> AbstractContextManager[None]:
    """`Profile.span`, or nothing where there is no profile."""
    return nullcontext() if profile is None else profile.span(name, category)


def profiled_step(profile: Profile | None, position: int) -> AbstractContextManager[None]:
    """`Profile.step`, or nothing where there is no profile."""
    return nullcontext() if profile is None else profile.step(position)
