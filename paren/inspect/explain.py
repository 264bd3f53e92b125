"""The lowering report: a view of the plans, as data for scripts and as one screen for people."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from paren.forecast.fit import smallest_change
from paren.forecast.memory import MemoryPlan, memory_of
from paren.forecast.plans import Plans, diagnosis_name
from paren.forecast.target import Target
from paren.inspect.compiling import Compiling
from paren.inspect.regions import GraphReport, report_graph, sum_seconds
from paren.inspect.screen import WIDTH, draw_screen, draw_short
from paren.ir.program import Program
from paren.plan.decision import Decision, Pattern
from paren.plan.limits import Limits
from paren.plan.plan import Plan
from paren.text.json import Json
from paren.text.size import count_of
from paren.train.files import Files, json_bytes, not_writable, write_atomically
from paren.train.run_directory import make_folder

if TYPE_CHECKING:
    from paren.inspect.card_code import CardCode

FORMAT = 1
REPORT = Path("report") / "lowering.json"


@dataclass(frozen=True)
class PatternReport:
    """Equal decisions about a pattern: how many in all graphs, the places in the program, the bytes that they save."""

    pattern: Pattern
    fired: bool
    reason: str
    count: int
    places: tuple[str, ...]
    saved_bytes: int

    @property
    def data(self) -> dict[str, Json]:
        return {
            "pattern": self.pattern.value,
            "fired": self.fired,
            "reason": self.reason,
            "count": self.count,
            "places": list(self.places),
            "saved_bytes": self.saved_bytes,
        }


@dataclass(frozen=True, repr=False)
class Explanation:
    """The report. `data` is for scripts; as text it is one screen; `compiling` is None where nothing was compiled, as
    for a card that is not there. `fix`: the smallest change with which it would fit, where it does not. `code`: what
    the kernels take of a card, where they could be compiled for it. `remarks`: what is
    said in front of it, each under a word."""

    program: Program
    target: Target
    memory: MemoryPlan
    graphs: tuple[GraphReport, ...]
    patterns: tuple[PatternReport, ...]
    compiling: Compiling | None
    fallbacks: tuple[str, ...]
    stacking: Mapping[str, Json] = field(default_factory=dict)
    fix: str | None = None
    code: CardCode | None = None
    remarks: Mapping[str, str] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        return self.memory.planned <= self.target.memory

    @property
    def seconds(self) -> float | None:
        """Predicted seconds of a training step, None where nothing is known about speed."""
        parts = (graph.seconds for graph in self.graphs for _ in range(graph.calls))
        return sum_seconds(parts)

    @property
    def data(self) -> dict[str, Json]:
        """The whole report as plain values: bytes, seconds, operations; places as `path:line:column`."""
        program, memory = self.program, self.memory
        graphs: list[Json] = [graph.data for graph in self.graphs]
        patterns: list[Json] = [pattern.data for pattern in self.patterns]
        return {
            "format": FORMAT,
            "program": program.path,
            "variant": program.variant,
            "parameters": sum(slot.type.size for slot in program.parameters),
            "precision": program.run.precision,
            "batch": program.run.batch,
            "microbatches": program.run.microbatches,
            "rows": program.rows,
            "remarks": dict(self.remarks),
            "target": self._target_data(),
            "memory": {
                "parts": dict(memory.parts),
                "planned": memory.planned,
                "host": dict(memory.host_parts),
                "free": self.target.memory,
                "reserve": self.target.reserve,
                "limit": self.target.limit,
                "fits": self.fits,
                "fix": self.fix,
                "peak": {
                    "graph": memory.peak_graph,
                    "place": memory.peak_place,
                    "gradients": memory.peak_gradients,
                },
            },
            "stacking": dict(self.stacking),
            "seconds": self.seconds,
            "compiling": None if self.compiling is None else vars(self.compiling),
            "code": None if self.code is None else self.code.data,
            "fallbacks": list(self.fallbacks),
            "patterns": patterns,
            "graphs": graphs,
        }

    def _target_data(self) -> dict[str, Json]:
        limits = self.target.limits
        known: Json = None
        if limits is not None:
            known = {
                "traffic": limits.traffic,
                "products": dict(limits.products),
                "instructions": limits.instructions,
                "start": limits.start,
            }
        return {"name": self.target.name, "there": self.target.there, "limits": known}

    def __str__(self) -> str:
        """One screen: at most 50 lines of at most 120 columns."""
        return draw_screen(self)

    @property
    def short(self) -> list[str]:
        """The lines that a run prints before its first step, as wide as the terminal that stderr is."""
        return draw_short(self, min(WIDTH, shutil.get_terminal_size().columns) if sys.stderr.isatty() else WIDTH)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """The screen for notebooks."""
        return f"<pre>{escape(str(self))}</pre>"

    def write(self, out: Path, files: Files) -> None:
        """Writes `report/lowering.json` into the folder of a run. Raises E-RUN-005."""
        path = out / REPORT
        make_folder(path.parent)
        try:
            write_atomically(files, path, json_bytes(self.data), durable=False)
        except OSError as error:
            raise not_writable(path, error) from error


def explain(
    program: Program,
    plans: Plans,
    target: Target,
    compiling: Compiling | None = None,
    fallbacks: Sequence[str] = (),
    stacking: Mapping[str, Json] | None = None,
    code: CardCode | None = None,
) -> Explanation:
    """The report of a program's plans on a target. Where they do not fit, more are made to find what would."""
    memory = memory_of(program, plans)
    fits = memory.planned <= target.memory
    return Explanation(
        program,
        target,
        memory,
        tuple(_graphs(program, plans, target.limits)),
        tuple(_patterns(plans)),
        compiling,
        tuple(dict.fromkeys((*fallbacks, *plans.planning.notes))),
        stacking or {},
        None if fits else smallest_change(program, memory.planned, target.memory, plans.planning),
        code,
    )


def _graphs(program: Program, plans: Plans, limits: Limits | None) -> Iterable[GraphReport]:
    """Graphs in the order in which a run meets them, those of a step first; updates that share a plan are one."""
    shared: dict[int, tuple[str, Plan, int]] = {}
    for name, plan in plans.all.items():
        first, _, count = shared.get(id(plan), (name, plan, 0))
        shared[id(plan)] = (first, plan, count + 1)
    reports = [_report(program, name, plan, count, limits, plans.joined) for name, plan, count in shared.values()]
    return sorted(reports, key=lambda report: (not report.calls, report.name == "initialize"))


def _report(
    program: Program, name: str, plan: Plan, count: int, limits: Limits | None, joined: Collection[str]
) -> GraphReport:
    """The report of a graph that stands `count` times in a step."""
    report = partial(report_graph, name, plan, limits=limits, joined=joined)
    if name == "accumulate":
        when = "microbatch" if program.stacking == 1 else f"{program.stacking} microbatches"
        return report(program.calls * count, when)
    if name == "evaluate":
        return report(0, "evaluation")
    if name == "initialize":
        return report(0, "start")
    every = {diagnosis_name(key): diagnostic.every for key, (diagnostic, _) in program.diagnostics.items()}
    if name in every:
        return report(0, count_of(every[name], "step"))
    return report(count, "step")


def _patterns(plans: Plans) -> Iterable[PatternReport]:
    """Equal decisions as one, in the order of the patterns, those that fired first. Arenas of graphs share their bytes,
    so what equal decisions save is the most that they save in one graph."""
    distinct = {id(plan): plan for plan in plans.all.values()}
    order = list(Pattern)
    groups: dict[tuple[Pattern, bool, str], list[tuple[int, Decision]]] = {}
    for graph, decisions in enumerate([plans.decisions, *(plan.decisions for plan in distinct.values())]):
        for each in decisions:
            groups.setdefault((each.pattern, each.fired, each.reason), []).append((graph, each))
    for (pattern, fired, reason), members in sorted(
        groups.items(), key=lambda item: (order.index(item[0][0]), not item[0][1])
    ):
        places = tuple(dict.fromkeys(str(member.span) for _, member in members if member.span is not None))
        saved: Counter[int] = Counter()
        for graph, member in members:
            saved[graph] += member.saved_bytes
        yield PatternReport(pattern, fired, reason, len(members), places, max(saved.values()))
