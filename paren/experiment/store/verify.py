"""Reading every byte of a store: are the artifacts still what was published, and are all there that jobs name?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from paren.experiment.store.artifact import changed_files, damaged, read_artifact
from paren.experiment.store.prune import job_folders, references
from paren.experiment.store.store import Store
from paren.text.errors import ParenError, system_reason


@dataclass(frozen=True)
class Verified:
    """How many artifacts were read, their bytes, and an E-STORE-002 for each that is damaged or that a job misses."""

    artifacts: int
    size: int
    faults: tuple[ParenError, ...]


def verify(root: Path, announce: Callable[[int, int], None] = lambda done, total: None) -> Verified:
    """Hashes every file of every published artifact below an output root. `announce` gets the number of artifacts that
    are done, and of all. Raises E-STORE-006 if the root holds no artifacts."""
    store = Store(root)
    folders = [store.folder / kind / key for kind in store.kinds() for key in sorted(store.keys(kind))]
    if not folders:
        raise ParenError("E-STORE-006", f"{root} holds no artifacts", fix="give the output folder of a study")
    size, faults = 0, []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for number, (bytes_read, fault) in enumerate(pool.map(_verify, folders), start=1):
            size += bytes_read
            if fault is not None:
                faults.append(fault)
            announce(number, len(folders))
    return Verified(len(folders), size, (*faults, *_missing(root)))


def _verify(folder: Path) -> tuple[int, ParenError | None]:
    try:
        artifact = read_artifact(folder)
        if artifact is None:  # it went while others were read
            return 0, None
        size = sum(file.size for file in artifact.files.values())
        changed = changed_files(artifact)
    except ParenError as error:
        return 0, error
    except OSError as error:
        return 0, damaged(folder, f"it cannot be read ({system_reason(error)})")
    return size, damaged(folder, f"{changed[0]} has other bytes than were published") if changed else None


def _missing(root: Path) -> Iterator[ParenError]:
    for job in job_folders(root):
        for place in references(root / job):
            if place.parent.name != "data" and not place.is_dir():  # data are made again when a training needs them
                yield ParenError(
                    "E-STORE-002",
                    f"{root / job} refers to the artifact {place}, which is not there",
                    fix="paren run makes it again",
                )
