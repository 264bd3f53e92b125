"""The tables that a comparison prints."""

from __future__ import annotations

from collections.abc import Sequence

from bench.goals import Summary, Verdict
from bench.workloads.sizes import Workload

MIB = 1 << 20
HEAD = (
    f"  {'contestant':24}{'ms':>10}{'least':>10}{'spread':>8}{'processor':>11}{'of floor':>9}"
    f"{'MiB':>8}{'anonymous':>10}{'begins':>8}{'warm':>7}{'first done':>12}{'warm':>7}{'busy':>6}{'others':>7}"
)


def table(workload: Workload, lines: Sequence[Summary], floor: float) -> str:
    """One line for each contestant. `floor`: seconds of a unit if only products took time."""
    title = f"{workload.name}: {workload.title}; a {workload.unit} needs {workload.flops / 1e9:,.1f} GFLOP"
    return "\n".join([f"{title}, floor {floor * 1e3:,.2f} ms", HEAD, *(_line(line, floor) for line in lines)])


def _line(line: Summary, floor: float) -> str:
    def seconds(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    marks = f"  disturbed in {line.disturbed} of {line.rounds} rounds" if line.disturbed else ""
    marks += f"  OTHER WORK: {line.disagrees}" if line.disagrees else ""
    return (
        f"  {line.name:24}{line.seconds * 1e3:10,.2f}{line.least * 1e3:10,.2f}{line.spread:8.0%}"
        f"{line.processor * 1e3:11,.2f}{floor / line.seconds:9.0%}{line.peak / MIB:8,.0f}{line.anonymous / MIB:10,.0f}"
        f"{line.began_cold:8.2f}{seconds(line.began_warm):>7}{line.first_cold:12.2f}{seconds(line.first_warm):>7}"
        f"{line.busy:6.2f}{line.others:7.2f}{marks}"
    )


def verdicts(judged: Sequence[Verdict]) -> str:
    """One line for each ratio: value, goal, whether it is reached."""
    lines = []
    for verdict in judged:
        against = f" of {verdict.against}" if verdict.against else ""
        answer = "reached" if verdict.reached else "NOT REACHED"
        lines.append(f"  {verdict.what:14} {verdict.value:6.2f}{against}, goal {verdict.goal:.2f}: {answer}")
    return "\n".join(lines)
