"""All that is known of each job, and why those that failed did."""

from __future__ import annotations

import os
from collections.abc import Sequence

from paren.experiment.report.html import Html, element, join
from paren.experiment.report.tables import pairs, series_table, state_badge
from paren.experiment.report.times import seconds_of, show_seconds, show_time
from paren.experiment.results.recorded import Recorded, RecordedJob
from paren.experiment.results.values import object_of, show_value, text_of
from paren.text.json import Json


def details(recorded: Recorded) -> Html:
    """All that is known of each job, folded away where there are several."""
    single = len(recorded.jobs) == 1
    return join(*(_detail(recorded, job, number, opened=single) for number, job in enumerate(recorded.jobs)))


def _detail(recorded: Recorded, job: RecordedJob, number: int, *, opened: bool) -> Html:
    seconds = seconds_of(job)
    run = job.run.relative_to(recorded.out).as_posix() if job.run and job.run.is_relative_to(recorded.out) else ""
    stages = {
        name: show_seconds(value)
        for name, value in object_of(job.status.get("seconds")).items()
        if isinstance(value, int | float)
    }
    known: dict[str, Json | Html] = {
        "state": state_badge(job.state),
        "stage": job.status.get("stage") or job.status.get("phase"),
        "error": _error(job),
        "folder": element("code", job.folder.relative_to(recorded.out).as_posix()) if recorded.is_study else None,
        "model": element("code", run) if run and recorded.is_study else None,
        **_artifacts(recorded, job),
        "run": job.recorded.get("run"),
        "experiment": element("code", text_of(job.recorded.get("experiment")))
        if "experiment" in job.recorded
        else None,
        "started": show_time(job.status.get("started") or job.training.get("started")),
        "updated": show_time(job.status.get("updated") or job.training.get("updated")),
        "time": show_seconds(seconds) if seconds is not None else None,
        "stages": ", ".join(f"{name} {value}" for name, value in stages.items()),
        "worker": job.status.get("worker"),
        "device": _layout(job),
    }
    traceback = text_of(job.status.get("traceback")).strip("\n")
    return element(
        "details",
        element("summary", element("b", job.label), " ", state_badge(job.state) if not opened else None),
        pairs(known),
        element("pre", traceback, class_="traceback", tabindex=0) if traceback else None,
        series_table(job),
        id=f"job-{number}",
        class_="job",
        open=opened,
        data_j=number,
    )


def _artifacts(recorded: Recorded, job: RecordedJob) -> dict[str, Json | Html]:
    """Where the data and the products lie, below the output root."""
    places = {"data": job.references.get("data"), **object_of(job.references.get("products"))}
    return {
        name: element("code", os.path.relpath(job.folder / place, recorded.out).replace(os.sep, "/"))
        for name, place in places.items()
        if isinstance(place, str)
    }


def _error(job: RecordedJob) -> Html | None:
    code, message = text_of(job.status.get("code")), text_of(job.status.get("message"))
    if not code and not message:
        return None
    return element("span", element("code", code) if code else None, " ", message, class_="bad")


def _layout(job: RecordedJob) -> str:
    """The device, and what of its layout decides about bits."""
    identity = object_of(job.recorded.get("identity"))
    parts = [show_value(identity.get("device")) or text_of(job.status.get("device"))]
    for name in ("ranks", "stacking"):
        if name in identity:
            parts.append(f"{name} {show_value(identity[name])}")
    return ", ".join(filter(None, parts))


def failures(recorded: Recorded) -> Html | None:
    """Who failed, and why, those that failed in the same way together; None if nobody did."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for number, job in enumerate(recorded.jobs):
        if job.failed:
            stage = text_of(job.status.get("stage") or job.status.get("phase"))
            found.setdefault((stage, text_of(job.status.get("code")), text_of(job.status.get("message"))), []).append(
                number
            )
    items = [_failure(recorded, stage, numbers) for (stage, _, _), numbers in found.items()]
    return element("ul", *items, class_="failures") if items else None


def _failure(recorded: Recorded, stage: str, numbers: Sequence[int]) -> Html:
    """What failed in one way, with the traceback of the first job."""
    first = recorded.jobs[numbers[0]]
    links = [
        element(
            "a", recorded.jobs[number].label, href=f"#job-{number}", title=recorded.jobs[number].name, data_j=number
        )
        for number in numbers
    ]
    where = element("span", f"in {stage}", class_="muted") if stage else None
    traceback = text_of(first.status.get("traceback")).strip("\n")
    more = None
    if traceback:
        whose = "traceback" if len(numbers) == 1 else f"traceback of {first.label}"
        more = element("details", element("summary", whose), element("pre", traceback, tabindex=0))
    count = element("b", f"{len(numbers)} jobs: ") if len(numbers) > 1 else None
    head = element("div", count, element("span", *links, class_="links"), " ", where)
    return element("li", _error(first) or "without a message", head, more)
