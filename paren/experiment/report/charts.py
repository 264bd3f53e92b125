"""Charts as SVG: lines over steps, and points with error bars over the values of a setting.

Colours are variables of the style sheet, which a mark names in its `--k`: `--c0` to `--c7` to tell things apart, `--s0`
to `--s7` for what has an order. What a mark stands for is in its attributes, in full, for the script that shows it on
hovering.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from paren.experiment.report.html import Html, element, join
from paren.experiment.report.replicas import deviation_of, mean_of
from paren.experiment.report.scales import Axis, axis_for, show_ticks
from paren.experiment.results.values import show_number

WIDTH, HEIGHT = 400, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 28
COLOURS = 8
_APART = 7.0  # pixels between the points of two groups at one place
_FEW = 12  # points of a line that are shown as dots


@dataclass(frozen=True)
class Line:
    """The finite points of one job's series."""

    job: int
    steps: Sequence[float]
    values: Sequence[float]


@dataclass(frozen=True)
class Bar:
    """Results of jobs that differ in nothing but their replica: at `place`, in the line of group `group`."""

    group: int
    place: float
    values: Sequence[float]
    label: str

    @property
    def mean(self) -> float:
        return mean_of(self.values)

    @property
    def deviation(self) -> float:
        return deviation_of(self.values)


def line_chart(title: str, lines: Sequence[Line], colours: Sequence[str], about: str, note: str) -> Html:
    """A chart of lines; `colours` gives each job's. `about` is what a reader who cannot see it is told, `note` is
    written above it."""
    across = axis_for(
        [step for line in lines for step in (line.steps[0], line.steps[-1])],
        LEFT,
        WIDTH - RIGHT,
        margin=0.0,
        wide=float("inf"),
    )
    upward = axis_for([value for line in lines for value in line.values], HEIGHT - BOTTOM, TOP)
    marks = [_draw_line(line, across, upward, colours[line.job]) for line in lines]
    return _frame(
        title,
        across,
        upward,
        across.ticks(),
        show_ticks(across.ticks()),
        f"step{note}",
        marks,
        about,
        "lines",
    )


def _draw_line(line: Line, across: Axis, upward: Axis, colour: str) -> Html:
    """A line; of few points, each is a dot as well."""
    points = [(across.position(s), upward.position(v)) for s, v in zip(line.steps, line.values, strict=True)]
    shape = f"M{'L'.join(f'{x:.1f} {y:.1f}' for x, y in points)}"
    steps = " ".join(f"{step:.0f}" for step in line.steps)
    values = " ".join(f"{value:.5g}" for value in line.values)
    style = f"--k:var({colour})"
    drawn = element("path", d=shape, class_="line", style=style, data_j=line.job, data_s=steps, data_v=values)
    dots = [element("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=2.2) for x, y in points if len(points) <= _FEW]
    return join(drawn, element("g", *dots, class_="point", style=style, data_j=line.job) if dots else None)


def bar_chart(title: str, bars: Sequence[Bar], names: Sequence[str] | None, factor: str, about: str) -> Html:
    """Means with error bars over a setting: at places 0, 1, ... of `names`, or at the setting's own numbers."""
    heights = [each for bar in bars for each in (*bar.values, bar.mean - bar.deviation, bar.mean + bar.deviation)]
    upward = axis_for([value for bar in bars for value in bar.values], HEIGHT - BOTTOM, TOP, margin=0.08)
    if not upward.logarithmic:
        upward = axis_for(heights, HEIGHT - BOTTOM, TOP, margin=0.08, wide=float("inf"))
    if names is not None:
        across = Axis(-0.5, len(names) - 0.5, LEFT, WIDTH - RIGHT)
        ticks, labels = [float(number) for number in range(len(names))], list(names)
    else:
        across = axis_for([bar.place for bar in bars], LEFT, WIDTH - RIGHT, margin=0.06, wide=5.0)
        ticks = sorted({bar.place for bar in bars})
        if len(ticks) > 6 or _crowded(ticks, across):
            ticks = across.ticks()
        labels = show_ticks(ticks)
    groups = sorted({bar.group for bar in bars})
    places = sorted({across.position(bar.place) for bar in bars})
    apart = min([_APART, *(0.5 * (after - before) / len(groups) for before, after in pairwise(places))])
    marks = []
    for number, group in enumerate(groups):
        offset = (number - (len(groups) - 1) / 2) * apart
        marks.append(_draw_group([bar for bar in bars if bar.group == group], across, upward, offset))
    return _frame(title, across, upward, ticks, labels, factor, marks, about, "bars")


def _crowded(ticks: Sequence[float], axis: Axis) -> bool:
    places = [axis.position(tick) for tick in ticks]
    return any(after - before < 34 for before, after in pairwise(places))


def _draw_group(bars: Sequence[Bar], across: Axis, upward: Axis, offset: float) -> Html:
    """The bars of one group, joined by a line; `offset` pixels beside their place, so that groups do not hide each
    other."""
    group = bars[0].group
    size = 4 if len(bars) <= _FEW else 3
    ordered = sorted(bars, key=lambda bar: bar.place)
    points = [(across.position(bar.place) + offset, upward.position(bar.mean)) for bar in ordered]
    joined = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    parts = [element("path", d=f"M{joined}", class_="joined")]
    for bar, (x, y) in zip(ordered, points, strict=True):
        if len(bar.values) > 1:
            floor = upward.low if upward.logarithmic else bar.mean - bar.deviation
            low = upward.position(max(bar.mean - bar.deviation, floor))
            high = upward.position(bar.mean + bar.deviation)
            parts.append(element("path", d=f"M{x - 3:.1f} {high:.1f}h6m-3 0V{low:.1f}m-3 0h6", class_="error"))
            parts += [
                element("circle", cx=f"{x:.1f}", cy=f"{upward.position(value):.1f}", r=1.6, class_="single")
                for value in bar.values
            ]
        told = f"{bar.label}: {show_number(bar.mean)}"
        if len(bar.values) > 1:
            told += f" ± {show_number(bar.deviation, 3)} (standard deviation of {len(bar.values)})"
        parts.append(element("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=size, class_="mean", data_tip=told))
    return element("g", *parts, style=f"--k:var({colour_of(group)})", data_g=group)


def _frame(
    title: str,
    across: Axis,
    upward: Axis,
    ticks: Sequence[float],
    labels: Sequence[str],
    below: str,
    marks: Sequence[Html],
    about: str,
    kind: str,
) -> Html:
    """The figure: title, grid, labels of the axes, and the marks."""
    grid: list[Html] = []
    heights = upward.ticks()
    for tick, label in zip(heights, show_ticks(heights), strict=True):
        y = f"{upward.position(tick):.1f}"
        grid.append(element("path", d=f"M{LEFT} {y}H{WIDTH - RIGHT}", class_="grid"))
        grid.append(element("text", label, x=LEFT - 6, y=y, dy="0.32em", text_anchor="end"))
    room = (WIDTH - LEFT - RIGHT) / max(len(labels), 1)
    for tick, label in zip(ticks, labels, strict=True):
        x = across.position(tick)
        anchor = "end" if x > WIDTH - RIGHT - 12 and len(label) > 3 else "middle"
        grid.append(
            element(
                "text",
                _shorten(label, room),
                element("title", label) if len(label) * 6.2 > room else None,
                x=f"{x:.1f}",
                y=HEIGHT - BOTTOM + 16,
                text_anchor=anchor,
            )
        )
    grid.append(element("path", d=f"M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}", class_="axis"))
    drawing = element(
        "svg",
        *grid,
        *marks,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        class_=f"chart {kind}",
        role="img",
        aria_label=about,
        data_low=across.low,
        data_high=across.high,
    )
    scale = " · log" if upward.logarithmic else ""
    caption = element("figcaption", element("b", title), element("span", f"by {below}{scale}"))
    return element("figure", caption, drawing, class_="plot")


def _shorten(label: str, room: float) -> str:
    """As much of a label as fits under its tick."""
    most = max(3, int(room / 6.2))
    return label if len(label) <= most else f"{label[: most - 1]}…"


def colour_of(number: int) -> str:
    """The variable of a colour that says nothing but which."""
    return f"--c{number % COLOURS}"


def swatch(colour: str) -> Html:
    """The sign of a colour in a legend."""
    return element("i", class_="swatch", style=f"--k:var({colour})")


def stack(parts: Sequence[tuple[str, float]]) -> Html:
    """Shares of a whole as one bar; a part's name and value are shown on hovering."""
    total = sum(size for _, size in parts) or 1.0
    pieces = [
        element("i", style=f"--k:var({colour_of(number)});flex:{size / total:.4f}", data_tip=told)
        for number, (told, size) in enumerate(parts)
    ]
    return element("div", join(*pieces), class_="stack")
