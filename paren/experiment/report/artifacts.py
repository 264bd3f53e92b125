"""The artifacts of a study: which there are, how large, from which function, and which jobs share them."""

from __future__ import annotations

import os
from pathlib import Path

from paren.experiment.report.html import Html, element
from paren.experiment.report.tables import cell, sortable
from paren.experiment.report.times import show_time
from paren.experiment.results.recorded import Recorded
from paren.experiment.results.values import number_of, object_of, text_of
from paren.experiment.store.artifact import MANIFEST
from paren.text.size import show_bytes
from paren.train.files import read_object


def artifacts(recorded: Recorded) -> Html | None:
    """A row for each artifact that a job refers to; None if there is none."""
    users: dict[tuple[str, Path], list[str]] = {}
    for job in recorded.jobs:
        products = object_of(job.references.get("products"))
        for name, place in {
            "data": job.references.get("data"),
            "model": job.references.get("model"),
            **products,
        }.items():
            if isinstance(place, str):
                users.setdefault((name, Path(os.path.normpath(job.folder / place))), []).append(job.label)
    names = list(dict.fromkeys(name for name, _ in users))
    ordered = sorted(users.items(), key=lambda each: names.index(each[0][0]))
    rows = [_row(name, folder, labels) for (name, folder), labels in ordered]
    return sortable(["artifact", "key", "jobs", "size", "made", "by"], rows, "Artifacts") if rows else None


def _row(name: str, folder: Path, labels: list[str]) -> Html:
    record = read_object(folder / MANIFEST) or {}  # `paren verify` says what is wrong with one
    sizes = [number_of(object_of(file).get("bytes")) or 0 for file in object_of(record.get("files")).values()]
    size, whole = show_bytes(int(sum(sizes))), f"{sum(sizes):,.0f} bytes"
    function = object_of(object_of(record.get("recipe")).get("parts")).get("function")
    cells = [
        element("th", name, scope="row", class_="first"),
        element("td", element("code", folder.name)),
        element("td", str(len(labels)), class_="number", data_v=len(labels), data_tip="\n".join(labels[:12])),
        element("td", size, class_="number", data_v=sum(sizes), data_tip=whole) if sizes else cell(None),
        element("td", show_time(record.get("created")) or ("" if record else "not there")),
        element("td", element("code", text_of(function))),
    ]
    return element("tr", *cells)
