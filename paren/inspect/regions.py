"""The regions of plans: every step with its bytes, operations, predicted time and place, and the groups of equal ones.

A region is what runs at once: a fused kernel, a product, a copy, or several of them as a loop over tiles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from paren.plan.cost import Cost, step_cost
from paren.plan.epilogue import epilogues_of
from paren.plan.limits import Limits, step_seconds
from paren.plan.memory import busiest_step, kernels_of
from paren.plan.plan import Attention, Buffer, Copy, Launch, Loop, Place, Plan, Product, Step
from paren.text.json import Json
from paren.text.size import count_of

# Kinds of regions that are one step; others are loops over tiles of several.
SINGLE = ("kernel", "product", "attention", "copy")
PEAK_BUFFERS = 3  # buffers named where most memory is alive


@dataclass(frozen=True)
class Region:
    """One step. `name`: what a kernel fuses, or the sizes of a product; `result`: the type of what it writes first.
    `seconds` is predicted, None where nothing is known about speed."""

    kind: str
    name: str
    result: str
    cost: Cost
    seconds: float | None
    place: str

    @property
    def data(self) -> dict[str, Json]:
        return {
            "kind": self.kind,
            "name": self.name,
            "result": self.result,
            **cost_data(self.cost),
            "seconds": self.seconds,
            "place": self.place,
        }


@dataclass(frozen=True)
class RegionGroup:
    """Equal regions of equal graphs: `count` of them, with the sum of their costs and seconds."""

    region: Region
    count: int
    cost: Cost
    seconds: float | None


@dataclass(frozen=True)
class PeakBuffers:
    """Values of one type that are alive where most is: how many, the bytes of all, the place of the first."""

    type: str
    count: int
    bytes: int
    place: str


@dataclass(frozen=True)
class GraphReport:
    """One graph. `calls`: how often a training step runs it, 0 for a graph that runs at other times, and `when` says
    when in words. `peak`: the place where most of its arena is alive, and the largest buffers there."""

    name: str
    calls: int
    when: str
    regions: tuple[Region, ...]
    kernels: int
    arena_bytes: int
    peak: str
    peak_buffers: tuple[PeakBuffers, ...]
    not_fused: Mapping[str, int] = field(default_factory=dict)

    @property
    def cost(self) -> Cost:
        """The sum over its regions, of one call."""
        return sum((region.cost for region in self.regions), Cost())

    @property
    def seconds(self) -> float | None:
        """Predicted seconds of one call, None where nothing is known about speed."""
        return sum_seconds(region.seconds for region in self.regions)

    def count(self, kind: str) -> int:
        """How many regions are of a kind: kernel, product or copy."""
        return sum(region.kind == kind for region in self.regions)

    @property
    def tiles(self) -> int:
        """How many regions are loops over tiles, of several steps."""
        return sum(region.kind not in SINGLE for region in self.regions)

    @property
    def data(self) -> dict[str, Json]:
        regions: list[Json] = [region.data for region in self.regions]
        buffers: list[Json] = [vars(each) for each in self.peak_buffers]
        return {
            "name": self.name,
            "calls": self.calls,
            "when": self.when,
            "steps": len(self.regions),
            "kernels": self.kernels,
            "products": self.count("product"),
            "attention": self.count("attention"),
            "tiles": self.tiles,
            "copies": self.count("copy"),
            **cost_data(self.cost),
            "seconds": self.seconds,
            "arena_bytes": self.arena_bytes,
            "peak": {"place": self.peak, "buffers": buffers},
            "not_fused": dict(self.not_fused),
            "regions": regions,
        }


def report_graph(
    name: str, plan: Plan, calls: int, when: str, limits: Limits | None, joined: Collection[str] = ()
) -> GraphReport:
    """The report of one plan. `joined`: forms of epilogues that are one step with their products."""
    refusals = Counter(refusal.reason for refusal in plan.refusals)
    return GraphReport(
        name=name,
        calls=calls,
        when=when,
        regions=tuple(_regions_of(plan, limits, joined)),
        kernels=len(kernels_of(plan)),
        arena_bytes=plan.arena_bytes,
        peak=str(plan.steps[busiest_step(plan)].spans[0]) if plan.steps else "",
        peak_buffers=_largest_alive(plan),
        not_fused=dict(refusals.most_common()),
    )


def _regions_of(plan: Plan, limits: Limits | None, joined: Collection[str]) -> list[Region]:
    """The regions of a plan. A product that is one step with its kernel has the work of both, and the kernel has none
    left; a step's number stays its region's."""
    buffers = {buffer.id: buffer for buffer in plan.buffers}
    regions = [region_of(step, buffers, limits) for step in plan.steps]
    for number, epilogue in epilogues_of(plan).items():
        if epilogue.form in joined:
            product, kernel = regions[number : number + 2]
            size = epilogue.result_bytes
            both = product.cost + kernel.cost
            cost = replace(both, read=both.read - size, written=both.written - (0 if epilogue.keeps else size))
            seconds = None if limits is None else step_seconds(epilogue.product, buffers, limits, cost)
            name = f"{product.name} {kernel.name}"
            regions[number] = replace(product, name=name, result=kernel.result, cost=cost, seconds=seconds)
            nothing = None if limits is None else 0.0
            regions[number + 1] = replace(kernel, name="in its product", cost=Cost(), seconds=nothing)
    return regions


def region_of(step: Step, buffers: Mapping[int, Buffer], limits: Limits | None) -> Region:
    """The region of a step; `buffers` are its plan's, by id."""
    inside = {step.scratch} if isinstance(step, Loop) else set()
    written = [buffers[id_] for id_ in step.writes if id_ not in inside]
    kind, name = _kind_and_name(step)
    cost = step_cost(step, buffers)
    return Region(
        kind,
        name,
        str(written[0].type) if written else "",
        cost,
        None if limits is None else step_seconds(step, buffers, limits, cost),
        str(step.spans[0]),
    )


def group_regions(regions: Iterable[Region]) -> list[RegionGroup]:
    """Regions of the same kind, name, result and place as one, in the order of the first of each."""
    groups: dict[tuple[str, str, str, str], list[Region]] = {}
    for region in regions:
        groups.setdefault((region.kind, region.name, region.result, region.place), []).append(region)
    return [
        RegionGroup(
            members[0],
            len(members),
            sum((member.cost for member in members), Cost()),
            sum_seconds(member.seconds for member in members),
        )
        for members in groups.values()
    ]


def sum_seconds(parts: Iterable[float | None]) -> float | None:
    """The sum, None if a part is not known."""
    total = 0.0
    for part in parts:
        if part is None:
            return None
        total += part
    return total


def cost_data(cost: Cost) -> dict[str, Json]:
    """A cost for JSON."""
    return {"read": cost.read, "written": cost.written, "flops": cost.flops, "operations": cost.operations}


def _kind_and_name(step: Step) -> tuple[str, str]:
    match step:
        case Launch(kernel):
            return "kernel", kernel.name
        case Product(m=m, k=k, n=n, batch=batch):
            return "product", "x".join(map(str, (m, k, n))) + (f" for {' '.join(map(str, batch))}" if batch else "")
        case Attention(queries=queries, keys=keys, width=width, examples=examples, heads=heads):
            name = "backward" if step.backward else "forward"
            return "attention", f"{name} {queries}x{keys}x{width} for {examples} {heads}"
        case Loop(name=name, iterations=iterations, body=body, steps=steps):
            return name, f"{iterations * len(body) // len(steps)} of {count_of(len(steps), 'step')}"
        case Copy():
            return "copy", ""


def _largest_alive(plan: Plan) -> tuple[PeakBuffers, ...]:
    """What takes most of the arena at its peak, values of one type together."""
    busiest = busiest_step(plan)
    scratch = {step.scratch for step in plan.steps if isinstance(step, Loop)}
    groups: dict[str, list[Buffer]] = {}
    for buffer in plan.buffers:
        if buffer.place is Place.ARENA and buffer.first <= busiest <= buffer.last:
            groups.setdefault("scratch of tiles" if buffer.id in scratch else str(buffer.type), []).append(buffer)
    sums = [PeakBuffers(t, len(g), sum(b.type.bytes for b in g), str(g[0].span)) for t, g in groups.items()]
    return tuple(sorted(sums, key=lambda each: -each.bytes)[:PEAK_BUFFERS])
