"""The lowering report as people read it: one screen, and the few lines that a run prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from textwrap import wrap
from typing import TYPE_CHECKING

from paren.inspect.regions import GraphReport, RegionGroup, group_regions
from paren.ir.types import DType
from paren.plan.cost import Cost
from paren.plan.limits import Limits, cost_seconds
from paren.text.brevity import shorten
from paren.text.size import count_of, form_of, show_beside, show_bytes

if TYPE_CHECKING:
    from paren.inspect.explain import Explanation

HEIGHT, WIDTH = 50, 120
LABEL = 11  # columns of the words at the left
Labelled = tuple[str, str]  # a text and the word at the left of its first line, which may be empty
MOST_GRAPHS = 8  # lines for graphs; more of them are summed up
MOST_PATTERNS = 12
PATTERN_WIDTH = 51  # columns before the reason
FEWEST_REGIONS = 6
LEAST_SHARE = 0.004  # of the time of a step, for a line of its own

# Where nothing is known about speed, regions are ordered as on some machine: ten operations in the time of a byte.
NOMINAL = Limits(1.0, {"float32": 10.0}, 10.0, 0.0)


def draw_screen(report: Explanation) -> str:
    """At most `HEIGHT` lines of at most `WIDTH` columns; what does not fit is said to be in the JSON."""
    told = [*_memory(report), *_stacking(report), *_time(report), *_compiling(report), *_code(report)]
    head = [*_header(report), *_lines(told, WIDTH)]
    patterns = _patterns(report)
    graphs = _graphs(report.graphs)
    room = HEIGHT - len(head) - len(patterns) - len(graphs)
    regions = _regions(report, max(FEWEST_REGIONS, room))
    return "\n".join(_cut(line) for line in (*head, *patterns, *graphs, *regions))


def draw_short(report: Explanation, width: int = WIDTH) -> list[str]:
    """What a run says before its first step, in lines of at most so many columns: memory, stacking, time, kernels,
    fallbacks, what patterns saved."""
    fired = [each for each in report.patterns if each.fired]
    saved = sum(each.saved_bytes for each in fired)
    names = ", ".join(dict.fromkeys(each.pattern.value for each in fired))
    patterns = [("patterns", names + (f": {show_bytes(saved)} saved" if saved else ""))] if names else []
    return _lines([*_memory(report), *_stacking(report), *_time(report), *_compiling(report), *patterns], width)


def _header(report: Explanation) -> list[str]:
    program = report.program
    run = program.run
    count = sum(slot.type.size for slot in program.parameters)
    parameters = f"{count:,} {form_of(count, 'parameter')}"
    variant = f" ({program.variant})" if program.variant else ""
    batch = f"batch {run.batch}" + (f" in {run.microbatches} microbatches" if run.microbatches > 1 else "")
    precision = "float32" if run.precision == "off" else run.precision
    text = f"{program.path}{variant}: {parameters}, {batch}, {precision}, on {report.target.name}"
    remarks = _lines(list(report.remarks.items()), WIDTH)
    return [*wrap(text, WIDTH, subsequent_indent=" " * LABEL), *remarks]


def _memory(report: Explanation) -> list[Labelled]:
    memory, target = report.memory, report.target
    fits = "fits" if report.fits else "does not fit"
    free = f"{show_beside(target.memory, memory.planned)} ({target.limit})"
    parts, beside = (
        ", ".join(f"{name} {show_bytes(size)}" for name, size in each.items() if size)
        for each in (memory.parts, memory.host_parts)
    )
    largest = next((graph for graph in report.graphs if graph.name == memory.peak_graph), None)
    peak = f"most is alive in {memory.peak_graph} at {memory.peak_place}"
    if memory.peak_gradients and largest is not None:
        arena = show_bytes(largest.arena_bytes)
        peak = f"{peak}, in live and the {show_bytes(memory.peak_gradients)} of gradients before it, {arena} in all"
    if largest is not None and largest.peak_buffers:
        there = ", ".join(
            (f"{each.count} x " if each.count > 1 else "") + f"{each.type} {show_bytes(each.bytes)}"
            for each in largest.peak_buffers
        )
        peak = f"{peak}, there {there}"
    return [
        ("memory", f"{show_beside(memory.planned, target.memory)} planned of {free}: {fits}"),
        ("", parts),
        ("", f"in host memory: {beside}" if beside else ""),
        ("", peak),
        ("", f"fix: {report.fix}" if report.fix else ""),
    ]


def _stacking(report: Explanation) -> list[Labelled]:
    text = report.stacking.get("text")
    return [("stacking", str(text))] if text else []


def _time(report: Explanation) -> list[Labelled]:
    limits = report.target.limits
    if limits is None or report.seconds is None:
        return []
    cost = sum((graph.cost.times(graph.calls) for graph in report.graphs), Cost())
    products = sum(
        (region.seconds or 0.0) * graph.calls
        for graph in report.graphs
        for region in graph.regions
        if region.cost.flops
    )
    dtype = DType.FLOAT32 if report.program.run.precision == "off" else DType(report.program.run.precision)
    rate = report.program.run.batch / max(report.seconds, 1e-12)
    work = f"{show_scaled(cost.flops, 'FLOP')} of products, {show_scaled(cost.bytes, 'B')} moved"
    share = f"{100 * products / max(report.seconds, 1e-12):.0f} % of it with products"
    limit = (
        f"counting on {show_scaled(limits.product_rate(dtype), 'FLOP/s')} of {dtype} products, "
        f"{show_scaled(limits.traffic, 'B/s')}, {show_scaled(limits.instructions, ' instructions/s')}"
    )
    text = f"{show_seconds(report.seconds)} a step predicted, {share}; {work}; {show_number(rate)} examples/s"
    return [("time", text), ("", limit)]


def _compiling(report: Explanation) -> list[Labelled]:
    compiling = report.compiling
    told = []
    if compiling is not None:
        kernels = count_of(compiling.compiled, "kernel")
        text = f"{kernels} compiled, {compiling.reused} from the cache, {compiling.seconds:.1f} s"
        told.append(("compiling", text))
    return told + [("" if number else "fallbacks", fallback) for number, fallback in enumerate(report.fallbacks)]


def _code(report: Explanation) -> list[Labelled]:
    """What the kernels take of a card that they were compiled for."""
    code = report.code
    if code is None or not code.kernels:
        return []
    registers = max(kernel.resources.registers for kernel in code.kernels)
    shared = max(kernel.resources.shared for kernel in code.kernels)
    spilling = [kernel for kernel in code.kernels if kernel.resources.spilled]
    spills = "none spills registers"
    if spilling:
        most = max(spilling, key=lambda kernel: kernel.resources.spilled)
        place = show_place(most.place, report.program.path)
        spills = (
            f"{len(spilling)} spill registers, {most.name} at {place} {show_bytes(most.resources.spilled)} a thread"
        )
    text = (
        f"{count_of(len(code.kernels), 'kernel')} for {code.architecture} by {code.compiler}: at most {registers} "
        f"registers a thread and {show_bytes(shared)} of shared memory a block; {spills}"
    )
    return [("code", text)]


def _patterns(report: Explanation) -> list[str]:
    patterns = report.patterns
    if not patterns:
        return []
    lines = ["", f"{'patterns':<{PATTERN_WIDTH - 10}}{'bytes':>8}"]
    for each in patterns[:MOST_PATTERNS]:
        count = f"x {each.count}" if each.count > 1 else ""
        saved = show_bytes(each.saved_bytes) if each.saved_bytes else ""
        place = f" ({show_place(each.places[0], report.program.path)})" if each.places else ""
        reason = shorten(each.reason, WIDTH - PATTERN_WIDTH - len(place))
        lines.append(
            f"  {'yes' if each.fired else 'no':<4}{each.pattern.value:<27} {count:<6} {saved:>8}  {reason}{place}"
        )
    if len(patterns) > MOST_PATTERNS:
        lines.append(f"  and {len(patterns) - MOST_PATTERNS} more: --json lists all")
    return lines


def _graphs(graphs: Sequence[GraphReport]) -> list[str]:
    shown, rest = list(graphs), []
    if len(graphs) > MOST_GRAPHS:
        largest = sorted(graphs, key=lambda graph: -_weight(graph.cost, graph.seconds) * max(1, graph.calls))
        kept = {graph.name for graph in largest[: MOST_GRAPHS - 1]}
        shown = [graph for graph in graphs if graph.name in kept]
        rest = [graph for graph in graphs if graph.name not in kept]
    timed = any(graph.seconds is not None for graph in graphs)
    lines = [
        "",
        f"{'graphs, one call':<22} {'kernels':>7} {'products':>8} {'tiles':>5} {'copies':>6} {'read':>9} "
        f"{'written':>9} {'GFLOP':>7} {'arena':>9} {'time' if timed else '':>7}  each",
    ]
    for graph in shown:
        cost = graph.cost
        calls = f" x {graph.calls}" if graph.calls > 1 else ""
        lines.append(
            f"  {shorten(graph.name, 20):<20} {graph.count('kernel'):>7} {graph.count('product'):>8} {graph.tiles:>5} "
            f"{graph.count('copy'):>6} {show_bytes(cost.read):>9} {show_bytes(cost.written):>9} "
            f"{show_number(cost.flops / 1e9):>7} {show_bytes(graph.arena_bytes):>9} {_maybe(graph.seconds):>7}  "
            f"{graph.when}{calls}"
        )
    if rest:
        steps = sum(len(graph.regions) for graph in rest)
        lines.append(f"  and {count_of(len(rest), 'smaller graph')} of {count_of(steps, 'step')}")
    return lines


def _regions(report: Explanation, room: int) -> list[str]:
    """The regions of a training step, those that take most of its time first."""
    rows: list[tuple[float, RegionGroup]] = []
    for graph in report.graphs:
        if graph.calls:
            groups = group_regions(graph.regions)
            rows += [(graph.calls * _weight(group.cost, group.seconds), group) for group in groups]
    total = sum(weight for weight, _ in rows) or 1.0
    timed = report.target.limits is not None
    rows.sort(key=lambda row: -row[0])
    telling = sum(weight >= LEAST_SHARE * total for weight, _ in rows)
    kept = rows[: min(max(telling, FEWEST_REGIONS), room - 3)]
    lines = [
        "",
        f"{'regions, one call':<36} {'result':<24} {'read':>9} {'written':>9} {'GFLOP':>6} "
        f"{'time' if timed else '':>7} {'step' if timed else '':>5}  place",
    ]
    for weight, group in kept:
        region, cost = group.region, group.cost
        share = f"{100 * weight / total:.0f} %" if timed else ""
        name = f"x {group.count:<4}{region.kind} {region.name}" if region.name else f"x {group.count:<4}{region.kind}"
        lines.append(
            f"  {shorten(name, 34):<34} {shorten(region.result, 24):<24} {show_bytes(cost.read):>9} "
            f"{show_bytes(cost.written):>9} {show_number(cost.flops / 1e9):>6} {_maybe(group.seconds):>7} {share:>5}  "
            f"{show_place(region.place, report.program.path)}"
        )
    if len(kept) < len(rows):
        left = 100 * sum(weight for weight, _ in rows[len(kept) :]) / total
        share = f", {left:.1f} % of the step" if timed else ""
        lines.append(f"  and {count_of(len(rows) - len(kept), 'more kind')}{share}: --json lists all")
    return lines


def _weight(cost: Cost, seconds: float | None) -> float:
    return cost_seconds(cost, NOMINAL) if seconds is None else seconds


def _lines(told: Sequence[Labelled], width: int) -> list[str]:
    """The texts that are not empty in lines that fit, the label of each in front of its first."""
    indent, lines = " " * LABEL, []
    for label, text in told:
        if wrapped := wrap(text, width, initial_indent=indent, subsequent_indent=indent):
            lines += [f"{label:<{LABEL}}{wrapped[0][LABEL:]}", *wrapped[1:]]
    return lines


def _cut(line: str) -> str:
    return shorten(line.rstrip(), WIDTH)


def show_place(place: str, program: str) -> str:
    """A place of the program's own file as `31:34`, one of another file with the file's name: `layers.paren:8:3`."""
    path, line, column = place.rsplit(":", 2) if place.count(":") >= 2 else (place, "", "")
    name = "" if path == program else f"{PurePath(path).name}:"
    return f"{name}{line}:{column}" if line else place


def show_number(value: float) -> str:
    """Three digits: `0`, `0.0421`, `3.14`, `28,600`."""
    if value >= 1000:
        digits = len(str(int(value))) - 3
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}" if value else "0"


def show_scaled(value: float, unit: str) -> str:
    """Three digits and a prefix of the unit: `734 GFLOP`, `46.9 TFLOP/s`, `59.2 kB`."""
    prefixes = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
    prefix, size = next((each for each in prefixes if value >= 0.9995 * each[1]), ("", 1.0))
    before = f" {prefix}" if prefix or not unit.startswith(" ") else ""
    return f"{show_number(value / size)}{before}{unit}"


def _maybe(seconds: float | None) -> str:
    return "" if seconds is None else show_seconds(seconds)


def show_seconds(seconds: float) -> str:
    """Three digits: `1.2 s`, `34.5 ms`, `678 us`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= 0.9995 * size:
            return f"{show_number(seconds / size)} {unit}"
    return f"{show_number(seconds * 1e9)} ns"
