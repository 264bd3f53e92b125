"""`paren report`: the page, put together."""

from __future__ import annotations

from collections import Counter
from importlib import resources
from pathlib import Path
from string import Template

from paren.experiment.report.artifacts import artifacts
from paren.experiment.report.curves import curves
from paren.experiment.report.details import details, failures
from paren.experiment.report.html import Html, element, escape, join
from paren.experiment.report.pictures import pictures
from paren.experiment.report.provenance import provenance, settings
from paren.experiment.report.resources import events, memory
from paren.experiment.report.sweeps import sweeps
from paren.experiment.report.tables import job_table, metric_tables
from paren.experiment.report.times import read_time, seconds_of, show_seconds, show_time
from paren.experiment.results.recorded import Recorded, RecordedJob, read_recorded
from paren.experiment.results.table import look_up, numbers, series_columns
from paren.experiment.results.values import number_of, show_number
from paren.text.size import count_of
from paren.train.files import Files, not_writable, write_atomically

FILE = "report.html"
_STATES = ("done", "complete", "running", "waiting", "stopped", "failed")


def report(out: str | Path) -> Path:
    """Writes `OUT/report.html`: everything that the folder of a study or a run holds, as one page without references to
    other files or to the network. The same folder gives the same bytes. Returns the page's path.

    Raises E-RUN-014 if `out` holds neither a study nor a run, E-RUN-005 if the page cannot be written.
    """
    out = Path(out)
    page = draw_page(read_recorded(out))
    path = out / FILE
    try:
        write_atomically(Files(), path, page.encode("utf-8"))
    except OSError as error:
        raise not_writable(path, error) from error
    return path


def draw_page(recorded: Recorded) -> str:
    """The page of a folder that has been read."""
    several = len(recorded.jobs) > 1
    found = [
        ("summary", "Summary", _summary(recorded)),
        ("failures", "Failed", failures(recorded)),
        ("jobs", "Jobs", job_table(recorded) if several else None),
        ("curves", "Learning curves", curves(recorded)),
        ("sweep", "Sweep", sweeps(recorded)),
        ("metrics", "Metrics", metric_tables(recorded)),
        ("plots", "Plots", pictures(recorded)),
        ("settings", "Settings", settings(recorded)),
        ("memory", "Memory and speed", memory(recorded)),
        ("events", "Events", events(recorded)),
        ("artifacts", "Artifacts", artifacts(recorded)),
        ("details", "Job by job" if several else "Run", details(recorded) if recorded.jobs else None),
        ("provenance", "Provenance", provenance(recorded)),
    ]
    sections = [(name, title, content) for name, title, content in found if content]
    links = [element("a", title, href=f"#{name}") for name, title, _ in sections]
    bodies = [
        element("section", element("h2", title), content, id=name, aria_label=title)
        for name, title, content in sections
    ]
    title = Path(recorded.program).name
    return Template(_asset("page.html")).substitute(
        title=escape(f"{title}, {recorded.variant}" if recorded.variant else title),
        heading=join(title, element("small", recorded.variant) if recorded.variant else None),
        subtitle=escape(_subtitle(recorded)),
        links=join(*links),
        filter=_filter() if several else "",
        body=join(*bodies),
        style=_asset("page.css"),
        script=_asset("page.js"),
    )


def _asset(name: str) -> str:
    return resources.files("paren.experiment.report").joinpath(name).read_text("utf-8")


def _subtitle(recorded: Recorded) -> str:
    """What it is, and when it began and ended."""
    kind = f"study of {count_of(len(recorded.jobs), 'job')}" if recorded.is_study else "run"
    times = [
        (time, text)
        for job in recorded.jobs
        for status in (job.status, job.training)
        for text in (status.get("started"), status.get("updated"))
        if (time := read_time(text))
    ]
    if not times:
        return kind
    first, last = show_time(min(times)[1]), show_time(max(times)[1])
    return f"{kind}, {first} to {last}" if first != last else f"{kind}, {first}"


def _filter() -> Html:
    field = element(
        "input", type="search", id="filter", placeholder="Filter jobs", aria_label="Filter jobs", autocomplete="off"
    )
    return join(field, element("span", id="shown", aria_live="polite"))


def _summary(recorded: Recorded) -> Html:
    """A few numbers that say how it went."""
    if not recorded.jobs:
        return element("p", "No job has been written yet.", class_="nothing")
    tiles = [_state_tile(recorded)]
    best = _best(recorded)
    if best:
        column, number, value = best
        job = recorded.jobs[number]
        name = column.removesuffix(".min")
        where = element("a", job.label, href=f"#job-{number}") if len(recorded.jobs) > 1 else "over the training"
        tiles.append(_tile(f"least {name}", show_number(value, 4), where))
    tiles += _evaluations(recorded) if len(recorded.jobs) == 1 else []
    seconds = [each for job in recorded.jobs if (each := seconds_of(job)) is not None]
    if seconds:
        note = f"{show_seconds(sum(seconds) / len(seconds))} a job" if len(seconds) > 1 else "from start to last sign"
        tiles.append(_tile("time" if len(seconds) == 1 else "time, all jobs", show_seconds(sum(seconds)), note))
    steps = [each for job in recorded.jobs if (each := numbers(job, "step")) is not None]
    if steps:
        samples = sum(number_of(job.training.get("samples")) or 0 for job in recorded.jobs)
        tiles.append(_tile("steps", show_number(sum(steps)), f"{show_number(samples)} examples" if samples else ""))
    problems = [element("li", problem) for problem in recorded.problems]
    trouble = element("ul", *problems, class_="problems") if problems else None
    return join(element("div", *tiles, class_="tiles"), trouble)


def _tile(label: str, value: str, note: str | Html) -> Html:
    return element(
        "div",
        element("span", label, class_="label"),
        element("span", value, class_="value"),
        element("span", note, class_="note"),
        class_="tile",
    )


def _state_tile(recorded: Recorded) -> Html:
    """How many jobs are in which state, as numbers and as a bar; of a single one how far it is."""
    counts = Counter(job.state or "unknown" for job in recorded.jobs)
    ordered = sorted(counts, key=lambda state: (_STATES.index(state) if state in _STATES else len(_STATES), state))
    if len(recorded.jobs) == 1:
        job = recorded.jobs[0]
        step, steps = numbers(job, "step"), number_of(job.training.get("steps"))
        note = f"step {show_number(step)} of {show_number(steps)}" if step is not None and steps is not None else ""
        return _tile("state", job.state or "unknown", note)
    bar = [
        element("i", class_=f"state {state if state.isalpha() else 'unknown'}", style=f"flex:{counts[state]}")
        for state in ordered
    ]
    done = sum(job.is_done for job in recorded.jobs)
    note = join(
        element("span", *bar, class_="states"),
        element("span", ", ".join(f"{counts[state]} {state}" for state in ordered)),
    )
    return _tile("jobs done", f"{done} of {len(recorded.jobs)}", note)


def _best(recorded: Recorded) -> tuple[str, int, float] | None:
    """The least evaluation loss (or training loss) of all jobs: its column, the job's number, the value."""
    column = next((each for each in series_columns(recorded) if each.endswith("loss.min")), None)
    if column is None:
        return None
    found = [(value, number) for number, job in enumerate(recorded.jobs) if (value := numbers(job, column)) is not None]
    if not found:
        return None
    value, number = min(found)
    return column, number, value


def _evaluations(recorded: Recorded) -> list[Html]:
    """The last values of a single run's evaluations."""
    job: RecordedJob = recorded.jobs[0]
    names = [name for name in series_columns(recorded) if not name.endswith(".min")]
    values = [(name, number_of(value)) for name in names for value in look_up(job, name)]
    return [_tile(name, show_number(value, 4), "last value") for name, value in values[:4] if value is not None]
