"""What a folder holds: a study with its jobs, or a single run. Read as it stands; nothing is computed or imported.

A study may be running, half there, or damaged in places. What a job lacks is empty, what cannot be read is said in
`problems`, and only a folder that holds neither a study nor a run is an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paren.experiment.layout import JOB, METRICS, PARTIAL, PLOTS, RUNS, STATUS, STUDY
from paren.experiment.results.values import object_of, show_value, text_of
from paren.text.errors import ParenError
from paren.text.json import Json, parse_json
from paren.train.metrics import FILE as METRIC_LINES
from paren.train.read_run import Floats, read_stream
from paren.train.run_directory import RUN

BASELINE = "baseline"

# As jobs and runs say it; a run says `complete` where a job says `done`.
DONE_STATES = ("done", "complete")


@dataclass(frozen=True)
class RecordedJob:
    """One trained model, finished or not. `name` is its folder below `runs/` with the digest; a run is named by its
    program. `changed` and `member` are what sets it apart; `run` is the folder of its training, if that is there."""

    name: str
    label: str
    folder: Path
    run: Path | None
    settings: Mapping[str, Json]
    changed: Mapping[str, Json]
    member: Mapping[str, Json]
    status: Mapping[str, Json]  # status.json of the job
    training: Mapping[str, Json]  # status.json of the run
    results: Mapping[str, Json]  # metric -> value
    recorded: Mapping[str, Json]  # run.json
    series: Mapping[str, Floats]  # as `read_metrics`
    annotations: tuple[Mapping[str, Json], ...]
    references: Mapping[str, Json]  # model, data, products: as job.json has them
    problems: tuple[str, ...]

    @property
    def state(self) -> str:
        return text_of(self.status.get("state"))

    @property
    def is_done(self) -> bool:
        return self.state in DONE_STATES

    @property
    def failed(self) -> bool:
        return self.state == "failed"


@dataclass(frozen=True)
class Recorded:
    """A folder as read. `study` is study.json; empty for a single run, and where the file is not there."""

    out: Path
    is_study: bool
    study: Mapping[str, Json]
    jobs: tuple[RecordedJob, ...]
    problems: tuple[str, ...]

    @property
    def program(self) -> str:
        """The paren file, as it was named."""
        return text_of(self.study.get("program")) or next(
            (text_of(job.recorded["program"]) for job in self.jobs if "program" in job.recorded), self.out.name
        )

    @property
    def variant(self) -> str:
        return text_of(self.study.get("variant")) or next(
            (text_of(job.recorded["variant"]) for job in self.jobs if job.recorded.get("variant")), ""
        )

    def declared(self, kind: str) -> dict[str, str | None] | None:
        """The names of the study's metrics or plots (`kind`), with what they are over; None where it does not say. What
        lies in the folders besides was of earlier launches."""
        return _declared(self.study, kind)

    def varying(self) -> list[str]:
        """The settings that are not the same in all jobs whose settings are known, in their order."""
        known = [job.settings for job in self.jobs if job.settings]
        names = dict.fromkeys(name for settings in known for name in settings)
        return [name for name in names if len({_key(settings, name) for settings in known}) > 1]


@dataclass
class _Reader:
    """Reads JSON objects; what cannot be read is a problem and reads as empty."""

    base: Path
    problems: list[str] = field(default_factory=list)

    def object(self, path: Path, *, expected: bool = False) -> dict[str, Json]:
        """The object of a file, {} if there is none; a file that is `expected` and not there is a problem too."""
        try:
            content: Any = parse_json(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            if expected:
                self.problems.append(f"{self._name(path)} is not there")
            return {}
        except (OSError, ValueError):
            self.problems.append(f"{self._name(path)} cannot be read")
            return {}
        if isinstance(content, dict):
            return content
        self.problems.append(f"{self._name(path)} is not an object")
        return {}

    def stream(self, run: Path) -> tuple[dict[str, Floats], list[dict[str, Any]]]:
        if not (run / METRIC_LINES).exists():
            return {}, []
        try:
            return read_stream(run)
        except ParenError as error:
            self.problems.append(error.message.replace(f"{self.base}{os.sep}", ""))
            return {}, []

    def _name(self, path: Path) -> str:
        return Path(os.path.relpath(path, self.base)).as_posix()


def read_recorded(out: str | Path) -> Recorded:
    """Reads the folder of a study or of a run. Raises E-RUN-014 if it is neither."""
    out = Path(out)
    reader = _Reader(out)
    if (out / STUDY).exists() or (out / RUNS).is_dir():
        study = reader.object(out / STUDY, expected=True)
        listed = study.get("jobs")
        there = _job_folders(out)
        if isinstance(listed, list):
            launched = [out / folder for folder in map(text_of, listed) if _is_within(folder)]
            older = len(set(there) - set(launched))
            if older:
                reader.problems.append(f"jobs of earlier launches that are not shown: {older}")
            return Recorded(
                out, True, study, tuple(_read_job(out, folder, study)[1] for folder in launched), tuple(reader.problems)
            )
        found = [_read_job(out, folder, study) for folder in there]
        jobs = tuple(job for _, job in sorted(found, key=lambda each: (each[0], each[1].folder.as_posix())))
        return Recorded(out, True, study, jobs, tuple(reader.problems))
    if (out / RUN).exists():
        return Recorded(out, False, {}, (_read_run(out),), ())
    fix = "give the folder that paren run wrote"
    if out.is_file():
        message = f"{out} is a file, not the folder of a study or a run"
    elif (out / JOB).exists():
        message, fix = (
            f"{out} is a job of a study",
            f"give the folder of the study: {os.path.normpath(out / '../../..')}",
        )
    else:
        message = f"{out} holds no study and no run"
    raise ParenError("E-RUN-014", message, fix=fix)


def _is_within(folder: str) -> bool:
    return bool(folder) and not os.path.isabs(folder) and not os.path.normpath(folder).startswith("..")


def _job_folders(out: Path) -> list[Path]:
    folders = [member for each in _folders(out / RUNS) for member in _folders(each) if member.name != PLOTS]
    return [folder for folder in folders if (folder / JOB).exists() or (folder / STATUS).exists()]


def _folders(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    return sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))


def _declared(study: Mapping[str, Json], kind: str) -> dict[str, str | None] | None:
    analyses = study.get("analyses")
    if not isinstance(analyses, list):
        return None
    listed = [each for each in map(object_of, analyses) if each.get("kind") == kind]
    return {text_of(each.get("name")): text_of(each.get("over")) or None for each in listed}


def _read_job(out: Path, folder: Path, study: Mapping[str, Json]) -> tuple[float, RecordedJob]:
    """A job with its place in the order of jobs."""
    reader = _Reader(out)
    metrics = _declared(study, "metric")
    results = reader.object(folder / METRICS)
    job = reader.object(folder / JOB)
    run = _run_of(folder, text_of(job.get("model")))
    series, annotations = reader.stream(run) if run else ({}, [])
    order = job.get("order")
    changed, member = object_of(job.get("changed")), object_of(job.get("member"))
    recorded = RecordedJob(
        name=f"{folder.parent.name}/{folder.name}",
        label=label_of(changed, member) if job else f"{folder.parent.name}/{folder.name}",
        folder=folder,
        run=run,
        settings=object_of(job.get("settings")),
        changed=changed,
        member=member,
        status=reader.object(folder / STATUS) if (folder / STATUS).exists() else {"state": "waiting"},
        training=reader.object(run / STATUS) if run else {},
        results={name: value for name, value in results.items() if metrics is None or name in metrics},
        recorded=reader.object(run / RUN) if run else {},
        series=series,
        annotations=tuple(annotations),
        references={name: job[name] for name in ("model", "data", "products") if name in job},
        problems=tuple(reader.problems),
    )
    return (order if isinstance(order, int) else float("inf")), recorded


def _run_of(folder: Path, reference: str) -> Path | None:
    """The folder that a job's model is, or is being trained in."""
    if not reference:
        return None
    model = Path(os.path.normpath(folder / reference))
    return next((each for each in (model, model.with_name(f"{model.name}{PARTIAL}")) if each.is_dir()), None)


def _read_run(out: Path) -> RecordedJob:
    reader = _Reader(out)
    recorded = reader.object(out / RUN)
    series, annotations = reader.stream(out)
    status = reader.object(out / STATUS)
    name = Path(text_of(recorded.get("program"))).name or "run"
    variant = text_of(recorded.get("variant"))
    return RecordedJob(
        name=name,
        label=f"{name}, {variant}" if variant else name,
        folder=out,
        run=out,
        settings=object_of(recorded.get("settings")),
        changed={},
        member={},
        status=status,
        training=status,
        results={},
        recorded=recorded,
        series=series,
        annotations=tuple(annotations),
        references={},
        problems=tuple(reader.problems),
    )


def label_of(changed: Mapping[str, Json], member: Mapping[str, Json]) -> str:
    """What a job is called: `rate 0.01 · prior uniform, replica 0`, or `baseline`."""
    parts = [", ".join(f"{name} {_shorten(value)}" for name, value in each.items()) for each in (changed, member)]
    return " · ".join([parts[0] or BASELINE, *filter(None, parts[1:])])


def _shorten(value: Json) -> str:
    """As `show_value`; a number in at most six digits."""
    return f"{value:.6g}" if isinstance(value, float) else show_value(value)


def _key(settings: Mapping[str, Json], name: str) -> str:
    return json.dumps(settings[name], sort_keys=True) if name in settings else ""
