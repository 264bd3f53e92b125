"""Deleting what no kept launch needs: the only place where anything of an output root is deleted.

Kept are the jobs of the last launches of each study, and those that somebody works on now; with them all artifacts
that they refer to. While one of them is not done, artifacts that nobody refers to stay as well if they were made or
used since the oldest kept launch began: they may be what an unfinished job has got so far. Interrupted trainings stay
as long. An artifact that is being built stays in any case. Of the plots of kept jobs, those go that no kept launch has.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from paren.experiment.layout import JOB, PARTIAL, PLOTS, RUNS, STATUS
from paren.experiment.store.artifact import MANIFEST, writing
from paren.experiment.store.claims import claim, holders, sweep
from paren.experiment.store.launches import PastLaunch, read_launches
from paren.experiment.store.recipe import KEY_DIGITS
from paren.experiment.store.store import DAMAGED, Store, claim_name
from paren.text.errors import ParenError
from paren.train.files import TEMPORARY, read_object, temporary_sibling

_MARGIN = 600.0  # seconds by which clocks of hosts and of the file system may differ


@dataclass(frozen=True)
class Removal:
    """Something that is deleted: its path below the root, its bytes, and why nobody needs it."""

    path: str
    size: int
    why: str


@dataclass(frozen=True)
class _Kept:
    """`jobs`: folders below the root. `artifacts`: folders that they refer to. `since`: seconds since the epoch from
    which on artifacts are kept that nobody refers to; None if there is no need to. `live`: names of all claims.
    `plots`: the names of those that folders below the root hold; of other folders that is not known."""

    jobs: frozenset[str]
    artifacts: frozenset[Path]
    since: float | None
    live: frozenset[str]
    plots: Mapping[str, set[str]]


def prune(root: Path, keep: int, *, dry: bool = False) -> list[Removal]:
    """Deletes what the last `keep` different launches of each study do not need, and gives what was deleted, or would
    be if it is only a `dry` run. Something that another process takes up at the same moment stays.

    Raises E-STORE-006 if the root holds no study, E-STORE-003 if the disk refuses.
    """
    store = Store(root)
    kept = _what_is_kept(root, keep)
    removed = [
        each for job in job_folders(root) if job not in kept.jobs and (each := _drop_job(root, job, dry)) is not None
    ]
    for holder, names in sorted(kept.plots.items()):
        for folder in sorted((root / holder / PLOTS).glob("*")):
            if folder.is_dir() and folder.name not in names:
                removed.append(_drop_plot(root, folder, dry))
    for kind in store.kinds():
        for name in sorted(os.listdir(store.folder / kind)):
            folder = store.folder / kind / name
            why = _reason(folder, kept)
            if why and (each := _drop_artifact(store, kind, folder, why, kept, dry)) is not None:
                removed.append(each)
    if not dry:
        for folder in (*(root / RUNS).glob("*"), *store.folder.glob("*")):
            _drop_if_empty(folder)
        sweep(root)
    return removed


def _what_is_kept(root: Path, keep: int) -> _Kept:
    launches = read_launches(root)
    studies: dict[tuple[str, str | None], list[PastLaunch]] = {}
    for launch in launches:
        studies.setdefault((launch.study, launch.variant), []).append(launch)
    last = [launch for own in studies.values() for launch in own[-keep:]]
    if not launches:
        raise ParenError("E-STORE-006", f"{root} holds no study", fix="give the output folder of a study")
    jobs = {job for launch in last for job in launch.jobs}
    live = {holder.claim for holder in holders(root)}
    jobs |= {name for name in live if name.startswith(f"{RUNS}/")}
    artifacts = {place for job in jobs for place in references(root / job)}
    unfinished = any((read_object(root / job / STATUS) or {}).get("state") != "done" for job in jobs)
    began = min((datetime.fromisoformat(launch.created).timestamp() for launch in last), default=0.0)
    since = began - _MARGIN if unfinished else None
    return _Kept(frozenset(jobs), frozenset(artifacts), since, frozenset(live), _plots_of(last, jobs))


def _plots_of(launches: Sequence[PastLaunch], jobs: Collection[str]) -> dict[str, set[str]]:
    """The plots that launches have, by the folders that hold them. Of `jobs` that are of no such launch, nobody knows
    which they have."""
    if any(launch.plots is None for launch in launches):
        return {}
    found: dict[str, set[str]] = {}
    for launch in launches:
        configurations = {_configuration(job) for job in launch.jobs}
        for folders, over in ((launch.jobs, None), (configurations, "cohort"), ([""], "sweep")):
            names = {name for name, kind in (launch.plots or {}).items() if kind == over}
            for holder in folders:
                found.setdefault(holder, set()).update(names)
    others = {_configuration(job) for job in jobs if job not in found}
    return {holder: names for holder, names in found.items() if holder not in others}


def _configuration(job: str) -> str:
    """The folder of a job's configuration."""
    return job.rpartition("/")[0]


def references(job: Path) -> list[Path]:
    """The folders of the artifacts that the `job.json` of a folder refers to, whether they are there or not."""
    content = read_object(job / JOB) or {}
    products = content.get("products")
    written = [content.get("model"), content.get("data"), *(products.values() if isinstance(products, dict) else ())]
    return [Path(os.path.normpath(job / each)) for each in written if isinstance(each, str)]


def job_folders(root: Path) -> list[str]:
    """The folders of all jobs, relative to the root."""
    return sorted(path.parent.relative_to(root).as_posix() for path in (root / RUNS).glob(f"*/*/{JOB}"))


def _reason(folder: Path, kept: _Kept) -> str | None:
    """Why an entry of the store is not needed; None if it is."""
    name = folder.name
    if name.startswith(TEMPORARY):
        return "left by a build that was killed"
    if name.startswith(DAMAGED):
        return "damaged, and built again since"
    own = folder.with_name(name.removesuffix(PARTIAL))
    if own in kept.artifacts or (kept.since is not None and _last_use(folder) >= kept.since):
        return None
    return "an interrupted training of no kept job" if name.endswith(PARTIAL) else "no kept job refers to it"


def _last_use(folder: Path) -> float:
    """When an artifact was made or last asked for, or a training wrote its last file."""
    manifest = folder / MANIFEST
    if manifest.exists():
        return manifest.stat().st_mtime
    return max((path.stat().st_mtime for path in (folder, *folder.rglob("*"))), default=0.0)


def _drop_job(root: Path, job: str, dry: bool) -> Removal | None:
    removal = Removal(job, _size(root / job), "of an older launch")
    if dry:
        return removal
    held = claim(root, job)
    if held is None:
        return None
    with held, writing(root / job):
        _delete(root / job)
    return removal


def _drop_plot(root: Path, folder: Path, dry: bool) -> Removal:
    removal = Removal(folder.relative_to(root).as_posix(), _size(folder), "of a plot that its study no longer has")
    if not dry:
        with writing(folder):
            _delete(folder)
        with suppress(OSError):  # others are there
            folder.parent.rmdir()
    return removal


def _drop_artifact(store: Store, kind: str, folder: Path, why: str, kept: _Kept, dry: bool) -> Removal | None:
    key = folder.name.removeprefix(TEMPORARY).removeprefix(DAMAGED)[:KEY_DIGITS]
    removal = Removal(folder.relative_to(store.root).as_posix(), _size(folder), why)
    name = claim_name(kind, key)
    if dry:
        return None if name in kept.live else removal
    held = claim(store.root, name)
    if held is None:
        return None
    with held, writing(folder):
        used = _last_use(folder)
        aside = temporary_sibling(folder)
        os.rename(folder, aside)
        if _last_use(aside) != used:  # somebody has just found it, and marked it as used
            os.rename(aside, folder)
            return None
        shutil.rmtree(aside)
    return removal


def _delete(folder: Path) -> None:
    """Deletes a folder; its name never stands for half of it."""
    aside = temporary_sibling(folder)
    os.rename(folder, aside)
    shutil.rmtree(aside)


def _drop_if_empty(folder: Path) -> None:
    """Deletes a configuration without jobs, with the plots over its cohort, and a kind without artifacts."""
    if folder.is_dir() and not any(each.is_dir() and each.name != PLOTS for each in folder.iterdir()):
        shutil.rmtree(folder)


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
