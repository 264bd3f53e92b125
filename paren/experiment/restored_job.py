"""The trained model of a job, with what the study says about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from paren.experiment.analysis.products import Product
from paren.experiment.layout import JOB, METRICS, RUNS, STUDY
from paren.experiment.store.artifact import read_artifact
from paren.ir.program import Value
from paren.restored import RestoredModel, as_value, read_job
from paren.restored import restore as restore_run
from paren.text.errors import ParenError
from paren.text.json import Json
from paren.train.files import read_object
from paren.train.run_directory import RUN


@dataclass
class RestoredJob(RestoredModel):
    """The model of a job. Models are shared by jobs that would train the same one, so `settings`, `member` and
    `changed` (the settings that the cohort and the sweep vary) are the job's own. `folder` is the job's."""

    folder: Path = field(default_factory=Path)
    _job: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def settings(self) -> dict[str, Value]:
        """All settings of the job."""
        return _values(self._job["settings"])

    @property
    def member(self) -> dict[str, Value]:
        """Which member of the cohort it is."""
        return _values(self._job["member"])

    @property
    def changed(self) -> dict[str, Value]:
        """What its configuration changes."""
        return _values(self._job["changed"])

    @property
    def results(self) -> dict[str, Json]:
        """The results of the study's metrics by name, as far as they are computed. Raises E-RUN-014 if their file is
        damaged."""
        path = self.folder / METRICS
        if not path.exists():
            return {}
        found = read_object(path)
        if found is None:
            raise ParenError("E-RUN-014", f"{path} cannot be read", fix="run the study again")
        return found

    @property
    def products(self) -> dict[str, Product]:
        """The products by name, as far as they are computed. Raises E-STORE-002 for a damaged one."""
        artifacts = {name: read_artifact(self.folder / place) for name, place in self._job["products"].items()}
        return {name: Product(artifact) for name, artifact in artifacts.items() if artifact is not None}


def restore(
    out: str | Path, device: str = "cpu", *, best: bool = False, checkpoints: str | Path | None = None
) -> RestoredModel:
    """The trained model of a run or of a job (a folder `OUT/runs/.../...` of a study), on any device, from its newest
    checkpoint or, with `best`, its best evaluation. All hashes are verified.

    Raises E-RUN-014 if the folder is none, or the job has no model yet; E-CKPT-001, E-CKPT-003 and E-CKPT-010.
    """
    _refuse_folder_of_jobs(Path(out))
    model = restore_run(out, device, best=best, checkpoints=checkpoints)
    job = read_job(Path(out))
    if job is None:
        return model
    own = {each.name: getattr(model, each.name) for each in fields(RestoredModel)}
    return RestoredJob(**own, folder=Path(out), _job=job)


def _refuse_folder_of_jobs(out: Path) -> None:
    """Raises E-RUN-014 for the output root of a study, and for the folders between it and its jobs."""
    study = next((each for each in (out, out.parent, out.parent.parent) if (each / STUDY).exists()), None)
    if study is None or (out / JOB).exists() or (out / RUN).exists():
        return
    jobs = sorted(each.parent for each in (study / RUNS).glob(f"*/*/{JOB}") if each.is_relative_to(out))
    place = str(jobs[0]) if jobs else f"{study / RUNS}/CONFIGURATION/MEMBER"
    more = f", or another of {len(jobs)}" if len(jobs) > 1 else ""
    what = "holds a study" if study == out else f"is a folder of the study in {study}"
    fix = f"give the folder of a job: {place}{more}"
    raise ParenError("E-RUN-014", f"{out} {what}, which has a model for each job", fix=fix)


def _values(stored: Mapping[str, object]) -> dict[str, Value]:
    return {name: as_value(value) for name, value in stored.items()}
