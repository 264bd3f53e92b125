"""The lowering report: a view of the plans, as data and as a table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from html import escape
from io import StringIO
from math import prod

from rich.console import Console, Group, RenderableType
from rich.table import Table

from paren.forecast.memory import memory_of
from paren.forecast.plans import Plans
from paren.ir.program import Program
from paren.plan.memory import kernels_of, reads_of, writes_of
from paren.plan.plan import Buffer, Launch, Plan, Product, Step
from paren.train.state import Json

# Wider than any table: as text nothing is cut off.
_WIDEST = 1000


@dataclass(frozen=True, repr=False)
class Explanation:
    """`data` is the report for scripts; `table()` draws it for people."""

    data: dict[str, Json]

    def table(self) -> RenderableType:
        """Memory, then the regions of every graph."""
        return Group(_memory_table(self.data), *(_graph_table(graph) for graph in _list(self.data["graphs"])))

    def __rich__(self) -> RenderableType:
        return self.table()

    def __str__(self) -> str:
        """The table as plain text, never cut off."""
        console = Console(width=_WIDEST, file=StringIO(), color_system=None)
        with console.capture() as capture:
            console.print(self.table())
        return "\n".join(line.rstrip() for line in capture.get().splitlines())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """The table for notebooks."""
        return f"<pre>{escape(str(self))}</pre>"


def explain(program: Program, plans: Plans) -> Explanation:
    """The report of a program's plans; computes nothing."""
    graphs: list[Json] = [_graph(name, plan) for name, plan in plans.all.items()]
    return Explanation(
        {"program": program.path, "rows": program.rows, "memory": _memory(program, plans), "graphs": graphs}
    )


def _memory(program: Program, plans: Plans) -> dict[str, Json]:
    memory = memory_of(program, plans)
    peak: Json = {"graph": memory.peak_graph, "place": memory.peak_place}
    return {**memory.parts, "planned": memory.planned, "peak": peak}


def _graph(name: str, plan: Plan) -> dict[str, Json]:
    buffers = {buffer.id: buffer for buffer in plan.buffers}
    regions: list[Json] = [_region(step, buffers) for step in plan.steps]
    refusals = Counter(refusal.reason for refusal in plan.refusals)
    return {
        "name": name,
        "steps": len(plan.steps),
        "kernels": len(kernels_of(plan)),
        "products": sum(isinstance(step, Product) for step in plan.steps),
        "arena_bytes": plan.arena_bytes,
        "regions": regions,
        "not_fused": dict(refusals.most_common()),
    }


def _region(step: Step, buffers: dict[int, Buffer]) -> dict[str, Json]:
    touched = dict.fromkeys((*reads_of(step), *writes_of(step)))
    written = [buffers[id_] for id_ in writes_of(step)]
    region: dict[str, Json] = {
        "kind": "kernel" if isinstance(step, Launch) else type(step).__name__.lower(),
        "name": step.kernel.name if isinstance(step, Launch) else "",
        "shape": str(written[0].type) if written else "",
        "bytes": sum(buffers[id_].type.bytes for id_ in touched),
        "place": str(step.spans[0]),
    }
    if isinstance(step, Product):
        region["name"] = f"{step.m}x{step.k}x{step.n}"
        region["flops"] = 2 * step.m * step.n * step.k * prod(step.batch)
    return region


def _memory_table(data: dict[str, Json]) -> Table:
    table = Table(title=f"memory of {data['program']}, {data['rows']} examples a call", title_justify="left")
    table.add_column("part")
    table.add_column("MiB", justify="right")
    memory = _dict(data["memory"])
    for part, value in memory.items():
        if isinstance(value, int):
            table.add_row(part, f"{value / 2**20:.1f}")
    peak = _dict(memory["peak"])
    table.add_row("most alive in", f"{peak['graph']} at {peak['place']}")
    return table


def _graph_table(entry: Json) -> Table:
    graph = _dict(entry)
    title = f"{graph['name']}: {graph['steps']} steps, {graph['kernels']} kernels, {graph['products']} products"
    table = Table(title=title, title_justify="left")
    for column, justify in (
        ("count", "right"),
        ("region", "left"),
        ("result", "left"),
        ("MB", "right"),
        ("place", "left"),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    counts: Counter[tuple[str, str, str, str]] = Counter()
    bytes_: dict[tuple[str, str, str, str], int] = {}
    for item in _list(graph["regions"]):
        region = _dict(item)
        key = (str(region["kind"]), str(region["name"]), str(region["shape"]), str(region["place"]))
        counts[key] += 1
        bytes_[key] = bytes_.get(key, 0) + int(str(region["bytes"]))
    for key, count in counts.items():
        table.add_row(str(count), f"{key[0]} {key[1]}", key[2], f"{bytes_[key] / 1e6:.1f}", key[3])
    return table


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _dict(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}
