"""The directory of a run: its layout, `run.json`, and what may be started where something already stands."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paren.text.errors import ParenError
from paren.text.json import Json, parse_json
from paren.text.size import count_of, show_bytes
from paren.train import event_files, metrics, status
from paren.train.experiment import Experiment, RunOptions
from paren.train.files import TEMPORARY, Files, json_bytes, not_writable, write_atomically
from paren.train.lock import LOCK, RunLock
from paren.train.places.disk import DiskFolder
from paren.train.places.open import open_place
from paren.train.places.place import Place

RUN = "run.json"
STUDY = "study.json"  # of a study, which trains its jobs elsewhere in its folder
CHECKPOINTS = "checkpoints"
BEST = "best"
FORMAT = 1
SPARE = 1 << 24  # bytes that metrics, manifests and status may need

# What --overwrite deletes, in this order: run.json goes last, so that a kill leaves a directory that is still a run.
OWNED = (
    status.FILE,
    CHECKPOINTS,
    BEST,
    metrics.FILE,
    event_files.FOLDER,
    "tokenizer.json",
    "report",
    "report.html",
    "profile",
    RUN,
)


@dataclass(frozen=True)
class Found:
    """What a start finds.

    `kind` is `fresh`, `resume` or `done`; `run` is the id of the run that stands there, of the new one, or of the one
    that is `adopted`, whose checkpoints are elsewhere. `directory` is the directory's own id.
    """

    kind: str
    run: str
    directory: str
    adopted: bool = False


def refuse_others(out: Path) -> None:
    """Before anything is written there, and once its lock is held: E-RUN-017 for a folder that holds a study, E-RUN-003
    for files of no run.

    Where a lock lies, somebody else may be starting, and `decide` looks once it is held.
    """
    if os.path.exists(out / STUDY):
        raise ParenError(
            "E-RUN-017",
            f"{out} holds a study ({STUDY}), and a single run would mix with it",
            fix="take another --out",
        )
    if not os.path.exists(out / LOCK) and not os.path.exists(out / RUN):
        _refuse_strangers(out)


def refuse_single_run(out: Path) -> None:
    """Before a study writes anything there: E-RUN-017 for a folder that holds a single run."""
    if os.path.exists(out / RUN):
        raise ParenError(
            "E-RUN-017",
            f"{out} holds a single run ({RUN}), and a study would mix with it",
            fix="take another --out",
        )


@contextmanager
def becoming_study(out: Path) -> Iterator[None]:
    """Around what writes `study.json`: of a study and a single run that start at once, one gets a new folder. Raises
    E-RUN-017, and E-RUN-004 while a single run starts there that has not come to its `run.json`."""
    if os.path.exists(out / STUDY):
        yield
        return
    make_folder(out)
    with ExitStack() as held:
        try:
            held.enter_context(RunLock(out))
        except ParenError:
            if not os.path.exists(out / STUDY):  # else another study has become one
                raise
        refuse_single_run(out)
        yield
        (out / LOCK).unlink(missing_ok=True)  # whoever waits for this file finds the study


def decide(options: RunOptions, experiment: Experiment) -> Found:
    """Whether a start is new, goes on, or has nothing to do. The caller holds the lock.

    A run that ended before its first step is started again. Raises E-RUN-001 for an unfinished run, E-RUN-002 for
    another experiment, E-RUN-003 for files that belong to no run, E-RUN-010 for a damaged run.json, E-CKPT-001 if
    there is nothing to resume.
    """
    out = options.out
    stored = read_run_file(out)
    if stored is None:
        _refuse_strangers(out)
        if options.checkpoints is None and (options.resume == "latest" or (options.resume or "").isdigit()):
            raise ParenError(
                "E-CKPT-001",
                f"{out} holds no run to resume",
                fix="start it without --resume, or with --resume auto, which starts if there is nothing to resume",
            )
        return Found("fresh", secrets.token_hex(8), secrets.token_hex(8))
    if options.overwrite:
        _delete(out)
        return Found("fresh", secrets.token_hex(8), secrets.token_hex(8))
    if stored["experiment"] != experiment.digest:
        raise ParenError(
            "E-RUN-002",
            f"{out} holds another experiment ({_difference(stored, experiment)})",
            fix="take another --out, or --overwrite to delete what is there",
        )
    found = status.read_status(out)
    complete = found is not None and found.state == status.COMPLETE
    if complete and options.resume in (None, "auto", "latest"):
        return Found("done", stored["run"], stored["directory"])
    if options.resume is None and not _is_blank(out, found):
        has_none = options.checkpoints is None and not _holds_something(out / CHECKPOINTS)
        raise ParenError(
            "E-RUN-001",
            f"{out} holds an unfinished run of this experiment, at step {found.step if found else 0}"
            + (", without a checkpoint" if has_none else ""),
            fix="--overwrite starts anew" if has_none else "--resume latest goes on, --overwrite starts anew",
        )
    return Found("resume" if options.resume else "fresh", stored["run"], stored["directory"])


def read_run_file(out: Path) -> dict[str, Any] | None:
    """The content of `run.json`, or None if there is none. Raises E-RUN-010 if it cannot be read, E-RUN-014 if `out` is
    a file."""
    path = out / RUN
    try:
        content = parse_json(path.read_bytes())
        if not all(isinstance(content[name], str) for name in ("run", "directory", "experiment")):
            raise TypeError("run, directory and experiment are strings")
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise ParenError(
            "E-RUN-014", f"{out} is a file, not the directory of a run", fix="give the directory of a run"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(path) from error
    return dict(content)


def damaged(path: Path, how: str = "is damaged") -> ParenError:
    """E-RUN-010 for the file of a run that does not say what it should."""
    return ParenError("E-RUN-010", f"{path} {how}", fix="take another --out, or delete the directory")


def write_run_file(
    files: Files, options: RunOptions, experiment: Experiment, found: Found, total: int, identity: Mapping[str, Json]
) -> None:
    """Writes what a reader needs to know the run by, and to start it again. Raises E-RUN-005."""
    content: dict[str, Json] = {
        "format": FORMAT,
        "run": found.run,
        "directory": found.directory,
        "experiment": experiment.digest,
        "program": experiment.path,
        "variant": experiment.variant,
        "settings": {name: _plain(value) for name, value in experiment.settings.items()},
        "seed": experiment.run.seed,
        "batch": experiment.run.batch,
        "microbatches": experiment.run.microbatches,
        "precision": experiment.run.precision,
        "steps": total,
        "identity": dict(identity),
        "versions": dict(options.versions),
        "created": status.now(),
        "sources": {
            path: {"sha256": hashlib.sha256(text.encode()).hexdigest(), "text": text}
            for path, text in experiment.sources.items()
        },
    }
    try:
        write_atomically(files, options.out / RUN, json_bytes(content, indent=1))
    except OSError as error:
        raise not_writable(options.out / RUN, error) from error


def open_places(out: Path, checkpoints: str | None, operations: Files | None = None) -> tuple[Place, Place]:
    """Where the checkpoints of a run are, and its best parameters: both in its directory, or, with `checkpoints` in a
    bucket, in that bucket, as the directory may be lost. Raises E-S3-001 and E-S3-002."""
    operations = operations or Files()
    best = DiskFolder(out / BEST, operations)
    if checkpoints is None:
        return DiskFolder(out / CHECKPOINTS, operations), best
    root = open_place(checkpoints, operations)
    return root, best if isinstance(root, DiskFolder) else root.child(BEST)


def make_folder(folder: Path) -> None:
    """Makes a folder with its parents. Raises E-RUN-005 if that is not allowed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_writable(folder, error) from error


def check_space(folder: Place, state_bytes: int, checkpoints: int, best_bytes: int) -> None:
    """Raises E-RUN-006 unless `checkpoints` more checkpoints of `state_bytes` each, and `best_bytes` for the best
    parameters, fit where it is known how much does."""
    needed = state_bytes * checkpoints + best_bytes + SPARE
    free = folder.free()
    if free is not None and free < needed:
        raise ParenError(
            "E-RUN-006",
            f"{folder} has {show_bytes(free)} free, and the run needs {show_bytes(needed)} "
            f"for {count_of(checkpoints, 'checkpoint')} of {show_bytes(state_bytes)}"
            + (f", {show_bytes(best_bytes)} of best parameters" if best_bytes else "")
            + f" and {show_bytes(SPARE)} of metrics and manifests",
            fix="make room, take another --out or --checkpoints, or a smaller :keep-checkpoints",
        )


def clean(out: Path) -> None:
    """Deletes files that killed writes left in the directory itself. The caller holds the lock."""
    for left in out.glob(f"{TEMPORARY}*"):
        if left.is_file():
            left.unlink()


def _refuse_strangers(out: Path) -> None:
    strangers = [name for name in OWNED if _holds_something(out / name)]
    if strangers:
        raise ParenError(
            "E-RUN-003",
            f"{out} holds {strangers[0]} but no {RUN}, so it is not a run's directory",
            fix="take another --out",
        )


def _holds_something(path: Path) -> bool:
    """A folder that a killed start has just made is nothing yet."""
    if os.path.isdir(path):  # unlike Path's, no error for what may not be looked at
        return any(not each.name.startswith(TEMPORARY) for each in path.iterdir())
    return os.path.exists(path)


def _is_blank(out: Path, found: status.Status | None) -> bool:
    """Whether a start ended before its first step, so that starting again loses nothing."""
    return (found is None or found.step == 0) and not _holds_something(out / CHECKPOINTS)


def _delete(out: Path) -> None:
    for name in OWNED:
        path = out / name
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise not_writable(path, error) from error


def _difference(stored: Mapping[str, Any], experiment: Experiment) -> str:
    """What differs, as far as run.json tells: the variant, the settings, the precision, or the sources."""
    if stored.get("variant") != experiment.variant:
        return f"variant {stored.get('variant') or 'none'} instead of {experiment.variant or 'none'}"
    before = stored.get("settings", {})
    now = {name: _plain(value) for name, value in experiment.settings.items()}
    changed = [name for name in sorted(now) if name in before and before[name] != now[name]]
    if changed:
        name = changed[0]
        return f"{name} is {json.dumps(before[name])} there and {json.dumps(now[name])} here"
    if stored.get("precision") != experiment.run.precision:
        return f":precision is {stored.get('precision')} there and {experiment.run.precision} here"
    texts = {path: source["text"] for path, source in stored.get("sources", {}).items()}
    edited = [path for path, text in experiment.sources.items() if texts.get(path) != text]
    return f"{edited[0]} has changed" if edited else "its data or its version of paren differ"


def _plain(value: Any) -> Json:
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
