"""What a profile measured, region by region, beside what the machine can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from paren.inspect.explain import Explanation
from paren.inspect.regions import Region, sum_seconds
from paren.inspect.screen import WIDTH, show_number, show_place, show_seconds
from paren.plan.cost import Cost
from paren.text.brevity import shorten
from paren.text.json import Json
from paren.text.size import count_of
from paren.train.profile import Profile

MOST_ROWS = 30
LEAST_SHARE = 0.002  # of the time of a step, for a row of its own


@dataclass(frozen=True)
class ProfileRow:
    """Equal regions of one graph: how many in a step (or in a call of a graph that no step runs), the sum of their
    costs, the measured seconds, and the least that the limits of the machine allow."""

    graph: str
    region: Region
    count: int
    cost: Cost
    seconds: float
    least: float | None

    @property
    def flop_rate(self) -> float:
        """Operations of products a second."""
        return self.cost.flops / self.seconds

    @property
    def byte_rate(self) -> float:
        """Bytes read and written a second."""
        return self.cost.bytes / self.seconds

    @property
    def data(self) -> dict[str, Json]:
        region = self.region
        return {
            "graph": self.graph,
            "kind": region.kind,
            "name": region.name,
            "result": region.result,
            "place": region.place,
            "count": self.count,
            "seconds": self.seconds,
            "least_seconds": self.least,
            "read": self.cost.read,
            "written": self.cost.written,
            "flops": self.cost.flops,
            "flops_per_second": self.flop_rate,
            "bytes_per_second": self.byte_rate,
        }


def describe_regions(
    report: Explanation, names: Mapping[str, str]
) -> Callable[[str, int], tuple[str, Mapping[str, Json]]]:
    """What `Profile` asks for: name and arguments of a region. `names`: graph -> the graph of the report that has its
    plan."""
    graphs = {graph.name: graph for graph in report.graphs}

    def describe(graph: str, number: int) -> tuple[str, Mapping[str, Json]]:
        region = graphs[names[graph]].regions[number]
        return f"{region.kind} {region.name}".strip(), {"graph": graph, "number": number, **region.data}

    return describe


def profile_rows(report: Explanation, names: Mapping[str, str], profile: Profile) -> list[ProfileRow]:
    """The rows of all graphs, those that took longest first: for graphs of the step their share of a step, for others
    that of a call. Each region counts with the least of its sampled times, as a busy machine only adds to them."""
    graphs = {graph.name: graph for graph in report.graphs}
    least: dict[tuple[str, int], float] = {}
    for time in profile.region_times:
        key = (names[time.graph], time.number)
        least[key] = min(least.get(key, inf), max(time.end - time.begin, 1e-9))
    groups: dict[tuple[str, str, str, str, str], list[tuple[Region, float]]] = {}
    for (name, number), seconds in least.items():
        region = graphs[name].regions[number]
        groups.setdefault((name, region.kind, region.name, region.result, region.place), []).append((region, seconds))
    rows = []
    for (name, *_), members in groups.items():
        calls = max(1, graphs[name].calls)
        known = sum_seconds(region.seconds for region, _ in members)
        rows.append(
            ProfileRow(
                name,
                members[0][0],
                calls * len(members),
                sum((region.cost for region, _ in members), Cost()).times(calls),
                calls * sum(seconds for _, seconds in members),
                None if known is None else calls * known,
            )
        )
    return sorted(rows, key=lambda row: -row.seconds)


def draw_profile(report: Explanation, rows: Sequence[ProfileRow], profile: Profile) -> list[str]:
    """The table: regions of a step with time, share, achieved rates, and how much of the machine's limit they reach."""
    of_step = {graph.name for graph in report.graphs if graph.calls}
    step = [row for row in rows if row.graph in of_step]
    if not step:
        return ["profile: no step was sampled"]
    total = sum(row.seconds for row in step)
    lines = [
        f"profile    {show_seconds(total)} a step region by region, the least of {profile.sampled_steps}"
        f"{_others(profile)}"
    ]
    limits = report.target.limits
    if limits is not None:
        products = ", ".join(f"{name} {show_number(rate / 1e9)} GFLOP/s" for name, rate in limits.products.items())
        lines.append(f"           limits: products of {products}; {show_number(limits.traffic / 1e9)} GB/s")
    lines.append(
        f"{'time':>8} {'step':>6} {'count':>6}  {'region':<32} {'result':<24} {'GFLOP/s':>7} {'GB/s':>6} "
        f"{'of limit' if limits is not None else '':>8}  place"
    )
    telling = [row for row in step if row.seconds >= LEAST_SHARE * total][:MOST_ROWS]
    for row in telling:
        region = row.region
        reached = f"{100 * row.least / row.seconds:.0f} %" if row.least is not None else ""
        lines.append(
            f"{show_seconds(row.seconds):>8} {100 * row.seconds / total:>4.1f} % {row.count:>6}  "
            f"{shorten(f'{region.kind} {region.name}', 32):<32} {shorten(region.result, 24):<24} "
            f"{show_number(row.flop_rate / 1e9):>7} {show_number(row.byte_rate / 1e9):>6} {reached:>8}  "
            f"{show_place(region.place, report.program.path)}"
        )
    rest = step[len(telling) :]
    if rest:
        seconds = sum(row.seconds for row in rest)
        lines.append(
            f"{show_seconds(seconds):>8} {100 * seconds / total:>4.1f} %         {count_of(len(rest), 'more kind')}"
        )
    for graph in report.graphs:
        seconds = sum(row.seconds for row in rows if row.graph == graph.name)
        if not graph.calls and seconds:
            lines.append(f"{show_seconds(seconds):>8}                 a call of {graph.name}, region by region")
    return [shorten(line.rstrip(), WIDTH) for line in lines]


def _others(profile: Profile) -> str:
    """What the other steps took, whose regions ran in one call: their median."""
    times = sorted(
        (event.end - event.begin) / int(str(event.arguments.get("steps", 1)))
        for event in profile.events
        if event.category == "step" and not event.arguments.get("sampled")
    )
    return f"; other steps took {show_seconds(times[len(times) // 2])}" if times else ""
