"""The launches of an output root: which jobs each study had when, so that what no launch needs any more can be deleted.

    launches/000001.json    study (name of its file), variant, created, jobs (folders below the root), plots

A launch with the jobs of the one before it, of the same study, is that launch again, with the plots that it has now.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path

from paren.experiment.layout import LAUNCHES, RUNS
from paren.experiment.store.artifact import writing
from paren.text.errors import ParenError
from paren.text.json import Json
from paren.train.files import Files, json_bytes, read_object, temporary_sibling, write_atomically
from paren.train.status import now


@dataclass(frozen=True)
class PastLaunch:
    """A launch on record: the name of the study's file, its variant, when it was first launched so (ISO 8601), the
    folders of its jobs below the root, and its plots: name -> `cohort`, `sweep`, or None for one of each job. An
    older version of paren did not note the plots."""

    study: str
    variant: str | None
    created: str
    jobs: tuple[str, ...]
    plots: Mapping[str, str | None] | None


def record_launch(
    root: Path, study: str, variant: str | None, jobs: Sequence[str], plots: Mapping[str, str | None]
) -> None:
    """Notes that a study was launched with these jobs (folders relative to the root) and plots. `study` is the path of
    its file, of which the name counts. Raises E-STORE-003."""
    launch, folder = PastLaunch(Path(study).name, variant, now(), tuple(jobs), plots), root / LAUNCHES
    same = launch.study, launch.variant
    own = [(path, each) for path, each in _read(root) if each is not None and (each.study, each.variant) == same]
    if own and own[-1][1].jobs == launch.jobs:
        path, before = own[-1]
        if before.plots != launch.plots:
            with writing(folder):
                write_atomically(Files(), path, json_bytes(asdict(replace(before, plots=plots))), durable=False)
        return
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        written = temporary_sibling(folder / "launch")
        written.write_bytes(json_bytes(asdict(launch)))
        number = max((int(path.stem) for path in _records(folder)), default=0) + 1
        while True:
            try:
                os.link(written, folder / f"{number:06}.json")
                break
            except FileExistsError:  # another launch at the same time
                number += 1
        written.unlink()


def read_launches(root: Path) -> list[PastLaunch]:
    """All launches, the oldest first. Raises E-STORE-002 for one that cannot be read: nobody knows what it needs."""
    found = []
    for path, launch in _read(root):
        if launch is None:
            raise ParenError(
                "E-STORE-002",
                f"{path} is damaged: which jobs that launch had is not known",
                fix="delete the file if nothing of that launch is needed; else launch its study again before",
            )
        found.append(launch)
    return found


def _read(root: Path) -> list[tuple[Path, PastLaunch | None]]:
    """All launches with their files; None for one that cannot be read."""
    return [(path, _launch(read_object(path) or {})) for path in _records(root / LAUNCHES)]


def _launch(content: Mapping[str, Json]) -> PastLaunch | None:
    study, variant, created = (content.get(name) for name in ("study", "variant", "created"))
    jobs, plots = content.get("jobs"), content.get("plots")
    if not isinstance(study, str) or not isinstance(variant, str | None):
        return None
    if not isinstance(created, str) or not _is_time(created):
        return None
    if not isinstance(jobs, list) or not all(isinstance(job, str) and _is_job(job) for job in jobs):
        return None
    if not isinstance(plots, dict | None):
        return None
    over = None if plots is None else {name: None if kind is None else str(kind) for name, kind in plots.items()}
    return PastLaunch(study, variant, created, tuple(map(str, jobs)), over)


def _is_job(folder: str) -> bool:
    """Whether this may be the folder of a job: nothing outside of the root is."""
    return Path(folder).parts[:1] == (RUNS,) and ".." not in Path(folder).parts


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _records(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("*.json") if path.stem.isdigit()), key=lambda path: int(path.stem))
