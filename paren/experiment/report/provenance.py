"""Where results come from: settings and what differs in them, files, versions, devices, times."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

from paren.experiment.report.html import Html, element, join
from paren.experiment.report.tables import pairs, series_table, sortable, state_badge
from paren.experiment.report.times import seconds_of, show_seconds, show_time
from paren.experiment.results.recorded import Recorded, RecordedJob
from paren.experiment.results.values import object_of, show_value, text_of
from paren.text.size import show_bytes
from paren.train.state import Json

_RUN_KEYS = ("seed", "batch", "microbatches", "precision", "steps")
_CHIPS = 24  # values of a setting that are shown


def settings(recorded: Recorded) -> Html | None:
    """Every setting with its value; of one that varies all values, those that are not the baseline's marked."""
    names = dict.fromkeys(name for job in recorded.jobs for name in job.settings)
    overrides = object_of(recorded.study.get("overrides"))
    baseline = next((job.settings for job in recorded.jobs if not job.changed), {})
    rows = []
    for name in names:
        is_member = any(name in job.member for job in recorded.jobs)
        values = [job.settings[name] for job in recorded.jobs if name in job.settings]
        origins = {
            "sweep": any(name in job.changed for job in recorded.jobs),
            "cohort": is_member,
            "--set": name in overrides,
        }
        own = show_value(baseline[name]) if name in baseline and not is_member else None
        rows.append(_setting(name, values, own, ", ".join(origin for origin, holds in origins.items() if holds)))
    for key in _RUN_KEYS:
        values = [job.recorded[key] for job in recorded.jobs if key in job.recorded]
        if values:
            rows.append(_setting(f":{key}", values, None, "defrun"))
    return sortable(["setting", "value", "from"], rows, "Settings") if rows else None


def _setting(name: str, values: Sequence[Json], own: str | None, origin: str) -> Html:
    """A row; `own` is the value that the others differ from, if there is one."""
    texts = list(dict.fromkeys(map(show_value, values)))
    chips = [element("span", text, class_="chip" if own in (None, text) else "chip other") for text in texts[:_CHIPS]]
    if len(texts) > _CHIPS:
        chips.append(element("span", f"and {len(texts) - _CHIPS} more", class_="muted"))
    return element(
        "tr",
        element("th", element("code", name), scope="row", class_="first"),
        element("td", *chips, class_="chips"),
        element("td", origin, class_="muted"),
        class_="varies" if len(texts) > 1 else None,
    )


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


def provenance(recorded: Recorded) -> Html:
    """What was launched, with which versions, on what, and the texts of its files."""
    study = recorded.study
    versions = _distinct(
        [object_of(study.get("versions")), *(object_of(job.recorded.get("versions")) for job in recorded.jobs)]
    )
    identities = _distinct([object_of(job.recorded.get("identity")) for job in recorded.jobs])
    created = study.get("created") or min(
        (text_of(job.recorded.get("created")) for job in recorded.jobs if job.recorded), default=""
    )
    overrides = object_of(study.get("overrides"))
    known: dict[str, Json | Html] = {
        "file": element("code", recorded.program),
        "variant": recorded.variant,
        "set": ", ".join(f"{name}={show_value(value)}" for name, value in overrides.items()),
        "created": show_time(created),
    }
    parts = [pairs(known)]
    parts += [_named("Versions", each, number, len(versions)) for number, each in enumerate(versions)]
    parts += [_named("Device and layout", each, number, len(identities)) for number, each in enumerate(identities)]
    return join(element("div", *parts, class_="columns"), _sources(recorded))


def _named(title: str, content: Mapping[str, Json], number: int, count: int) -> Html:
    name = f"{title} ({number + 1} of {count})" if count > 1 else title
    return element("div", element("h3", name), pairs(content))


def _distinct(found: Sequence[dict[str, Json]]) -> list[dict[str, Json]]:
    return list({json.dumps(each, sort_keys=True): each for each in found if each}.values())


def _sources(recorded: Recorded) -> Html | None:
    """The text of every file, once for each digest."""
    texts: dict[tuple[str, str], str] = {}
    for sources in (recorded.study.get("sources"), *(job.recorded.get("sources") for job in recorded.jobs)):
        for path, source in object_of(sources).items():
            texts.setdefault((path, text_of(object_of(source).get("sha256"))), text_of(object_of(source).get("text")))
    items = []
    for (path, digest), text in sorted(texts.items()):
        size = element("span", show_bytes(len(text.encode("utf-8", "replace"))), class_="muted")
        head = element("summary", element("code", path), " ", size)
        body = element("pre", text, tabindex=0) if text else None
        items.append(
            element("details", head, element("p", "SHA-256 ", element("code", digest)), body, class_="fold source")
        )
    return join(element("h3", "Files"), *items) if items else None
