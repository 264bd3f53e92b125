"""The launches of an output root: which jobs each study had when, so that what no launch needs any more can be deleted.

    launches/000001.json    study (name of its file), variant, created, jobs (folders below the root)

A launch with the jobs of the one before it, of the same study, is that launch again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from paren.experiment.layout import LAUNCHES
from paren.experiment.store.artifact import writing
from paren.train.files import json_bytes, temporary_sibling
from paren.train.status import now


@dataclass(frozen=True)
class PastLaunch:
    """A launch on record: the name of the study's file, its variant, when it was first launched so (ISO 8601), and the
    folders of its jobs below the root."""

    study: str
    variant: str | None
    created: str
    jobs: tuple[str, ...]


def record_launch(root: Path, study: str, variant: str | None, jobs: Sequence[str]) -> None:
    """Notes that a study was launched with these jobs (folders relative to the root). `study` is the path of its file,
    of which the name counts. Raises E-STORE-003."""
    launch = PastLaunch(Path(study).name, variant, now(), tuple(jobs))
    own = [each for each in read_launches(root) if (each.study, each.variant) == (launch.study, launch.variant)]
    if own and own[-1].jobs == launch.jobs:
        return
    folder = root / LAUNCHES
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
    found = []
    for path in _records(root / LAUNCHES):
        try:
            content = json.loads(path.read_bytes())
            found.append(PastLaunch(content["study"], content["variant"], content["created"], tuple(content["jobs"])))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def _records(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("*.json") if path.stem.isdigit()), key=lambda path: int(path.stem))
