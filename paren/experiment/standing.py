"""How far a job is, by what stands in the store: nothing is computed, nothing is written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paren.experiment.analysis.analyze import missing, plan_analysis
from paren.experiment.job_files import DONE, FAILED, read_job_file, read_job_status
from paren.experiment.jobs import Job
from paren.experiment.store.artifact import Artifact, read_whole
from paren.experiment.store.recipe import Recipe
from paren.experiment.store.store import Store
from paren.experiment.training import MODEL, Trainer


@dataclass(frozen=True)
class Standing:
    """`model`: the trained model, if it is there, and `recipe` what it is made from. `finished`: nothing is left to
    do."""

    job: Job
    data_key: str
    recipe: Recipe
    model: Artifact | None
    finished: bool


def look(job: Job, trainer: Trainer, root: Path, *, trains: bool, analyzes: bool) -> Standing:
    """How far a job is. Where training is not asked for, a model counts that another device has trained. Raises what is
    wrong with its data form, or with the files of its analyses."""
    key = trainer.data_key(job)
    recipe = trainer.recipe(job, key)
    model = trainer.store.find_whole(recipe)
    if model is None and not trains:
        model = recorded_model(job, trainer.store, root, key)
    finished = model is not None and _is_recorded(root / job.folder, model, analyzes)
    if finished and analyzes and model is not None:
        planned = plan_analysis(job.program, trainer.functions, model.key, key)
        finished = not missing(planned, root / job.folder, trainer.store)
    return Standing(job, key, recipe, model, finished)


def _is_recorded(folder: Path, model: Artifact, analyzes: bool) -> bool:
    """Whether the files of a job say that it is done with this model. One whose analysis failed is trained."""
    status, named = read_job_status(folder), read_job_file(folder)
    if status is None or named is None or Path(str(named.get(MODEL))).name != model.key:
        return False
    return status.state == DONE or (status.state == FAILED and not analyzes)


def open_whole(store: Store, kind: str, reference: object) -> Artifact | None:
    """The artifact that a job's file names by a relative path, if it is whole."""
    return read_whole(store.folder / kind / Path(reference).name) if isinstance(reference, str) else None


def recorded_model(job: Job, store: Store, root: Path, data_key: str | None) -> Artifact | None:
    """The model that the folder of a job names, if it is one of this program and these data, whatever trained it; of
    any data without a `data_key`."""
    model = open_whole(store, MODEL, (read_job_file(root / job.folder) or {}).get(MODEL))
    if model is None:
        return None
    parts = model.recipe.parts
    return model if parts.get("program") == job.identity and data_key in (None, parts.get("data")) else None
