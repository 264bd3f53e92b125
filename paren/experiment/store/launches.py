"""The launches of an output root: which jobs each study had when, so that what no launch needs any more can be deleted.

    launches/000001.json    study (name of its file), variant, created, jobs (folders below the root), plots

A launch with the jobs of the one before it, of the same study, is that launch again, with the plots that it has now.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from paren.experiment.layout import LAUNCHES
from paren.experiment.store.artifact import writing
from paren.train.files import Files, json_bytes, temporary_sibling, write_atomically
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
    own = [(path, each) for path, each in _read(root) if (each.study, each.variant) == (launch.study, launch.variant)]
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
    """All launches, the oldest first. One that cannot be read is left out."""
    return [launch for _, launch in _read(root)]


def _read(root: Path) -> list[tuple[Path, PastLaunch]]:
    """All launches that can be read, with their files."""
    found = []
    for path in _records(root / LAUNCHES):
        with suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads(path.read_bytes())
            jobs, plots = tuple(content["jobs"]), content.get("plots")
            found.append((path, PastLaunch(content["study"], content["variant"], content["created"], jobs, plots)))
    return found


def _records(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("*.json") if path.stem.isdigit()), key=lambda path: int(path.stem))
