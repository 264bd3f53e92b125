"""What an output root says of a study and its jobs: `study.json`, and `job.json` and `status.json` of each job.

All of it follows from the file and the store, so nothing here has to outlive a crash of the machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from paren.experiment.jobs import Job
from paren.experiment.layout import JOB, STATUS, STUDY
from paren.ir.program import Factor, Program
from paren.text.json import Json, parse_json
from paren.train.files import Files, json_bytes, not_writable, read_object, write_atomically
from paren.train.run_directory import make_folder
from paren.train.status import now

FORMAT = 1

WAITING, RUNNING, DONE, FAILED = "waiting", "running", "done", "failed"


@dataclass(frozen=True)
class JobStatus:
    """`state`: waiting, running, done or failed. `stage`: what it does now, or did when it failed or was stopped: data,
    training, or the name of an analysis. `attempt` tells one try from the next. `seconds`: of each stage that ended.
    `line`: where a function of the user's failed, `FILE:LINE, in FUNCTION: TEXT`.

    A job whose worker was killed still says `running`; nobody holds its claim then.
    """

    state: str
    attempt: str = field(default_factory=lambda: secrets.token_hex(6))
    stage: str | None = None
    code: str | None = None
    message: str | None = None
    traceback: str | None = None
    line: str | None = None
    started: str = field(default_factory=now)
    updated: str = ""
    worker: str = field(default_factory=lambda: f"process {os.getpid()} on {socket.gethostname()}")
    device: str | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)


def read_job_status(folder: Path) -> JobStatus | None:
    """The status of a job; None if there is none that can be read."""
    try:
        return JobStatus(**parse_json((folder / STATUS).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def write_job_status(folder: Path, status: JobStatus) -> None:
    """Raises E-RUN-005."""
    _write(folder / STATUS, asdict(replace(status, updated=now())))


def read_job_file(folder: Path) -> dict[str, Json] | None:
    """The content of a job's `job.json`; None if there is none that can be read."""
    return read_object(folder / JOB)


def read_products(folder: Path) -> dict[str, Path]:
    """Where the products lie that a job's `job.json` names."""
    named = (read_job_file(folder) or {}).get("products")
    places = named.items() if isinstance(named, dict) else ()
    return {name: folder / place for name, place in places if isinstance(place, str)}


def write_job(folder: Path, job: Job, model: Path | None, data: Path | None, products: Mapping[str, Path]) -> None:
    """Writes what a job is, and where its artifacts are, relative to its folder: an output root can be moved. Raises
    E-RUN-005."""
    program = job.program
    content = {
        "format": FORMAT,
        "order": job.order,
        "identity": job.identity,
        "program": program.path,
        "variant": program.variant,
        "settings": job.settings,
        "changed": job.changed,
        "member": job.member,
        "model": _reference(model, folder),
        "data": _reference(data, folder),
        "products": {name: _reference(place, folder) for name, place in products.items()},
    }
    _write(folder / JOB, content)


def announce_job(folder: Path, job: Job, model: Path) -> None:
    """Says of a job that was never tried what it is and that it waits; `model` is where its model will lie. Raises
    E-RUN-005."""
    if not (folder / JOB).exists():
        write_job(folder, job, model, None, {})
    try:
        with (folder / STATUS).open("xb") as file:  # a worker's word must not be overwritten
            file.write(json_bytes(asdict(JobStatus(WAITING, updated=now())), indent=1))
    except FileExistsError:
        return
    except OSError as error:
        raise not_writable(folder / STATUS, error) from error


def write_study(
    root: Path,
    program: Program,
    overrides: Sequence[str],
    jobs: Sequence[Job],
    versions: Mapping[str, str],
    python: Mapping[str, str],
) -> None:
    """Writes what was launched, and when that was first; `python`: the texts of the Python files that it uses, by their
    paths from the folder of the paren file. Raises E-RUN-005."""
    study = program.study
    texts = dict(program.sources) | {str(Path(program.path).parent / path): text for path, text in python.items()}
    content = {
        "format": FORMAT,
        "program": program.path,
        "variant": program.variant,
        "overrides": {name.strip(): value for name, _, value in (text.partition("=") for text in overrides)},
        "sources": {
            path: {"sha256": hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(), "text": text}
            for path, text in texts.items()
        },
        "versions": dict(versions),
        "sweep": _factors(study.sweep),
        "cohort": _factors(study.cohort),
        "grid": _factors(study.grid),
        "analyses": [
            {"kind": each.kind, "name": each.name, "file": each.file, "function": each.function, "over": each.over}
            for each in study.analyses
        ],
        "jobs": [job.folder for job in jobs],
    }
    stored = read_object(root / STUDY) or {}
    created = stored.pop("created", None)
    is_known = created is not None and stored == _plain(content)
    _write(root / STUDY, content | {"created": created if is_known else now()})


def _factors(factors: Sequence[Factor]) -> dict[str, object]:
    return {factor.name: factor.values for factor in factors}


def _reference(place: Path | None, folder: Path) -> str | None:
    return None if place is None else Path(os.path.relpath(place, folder)).as_posix()


def _plain(content: object) -> Any:
    """What a file that it is written to gives back: tuples are lists there."""
    return json.loads(json.dumps(content))


def _write(path: Path, content: object) -> None:
    """Writes a file unless it says just that already."""
    text = json_bytes(content, indent=1)
    with suppress(OSError):  # a file that cannot be read is written
        if path.read_bytes() == text:
            return
    make_folder(path.parent)
    try:
        write_atomically(Files(), path, text, durable=False)
    except OSError as error:
        raise not_writable(path, error) from error
