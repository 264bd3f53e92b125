"""Where results come from: settings and what differs in them, files, versions, devices, times."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from paren.experiment.report.html import Html, element, join
from paren.experiment.report.tables import pairs, sortable
from paren.experiment.report.times import show_time
from paren.experiment.results.recorded import Recorded
from paren.experiment.results.values import object_of, show_value, text_of
from paren.text.json import Json
from paren.text.size import show_bytes

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
