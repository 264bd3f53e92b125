"""Factors that change nothing: a cohort whose setting no form uses makes replicas that are one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paren.experiment.analysis.analyze import plan_analysis
from paren.experiment.jobs import Job
from paren.experiment.training import Trainer
from paren.lang.value import show


def made_of(job: Job, trainer: Trainer, data_key: str) -> tuple[str, ...]:
    """The keys of the model and the results of a job. Nothing is run."""
    model = trainer.recipe(job, data_key).key
    planned = plan_analysis(job.program, trainer.functions, model, data_key)
    return model, *(each.recipe.key for each in planned)


def idle_factors(jobs: Sequence[Job], made: Mapping[str, tuple[str, ...]]) -> list[str]:
    """A sentence for each factor of which no value makes a difference; `made`: the keys of each job, by its folder."""
    study = jobs[0].base.study
    factors = [factor.name for factor in (*study.sweep, *study.cohort, *study.grid)]
    told = []
    for name in factors:
        alike: dict[str, list[Job]] = {}
        for job in jobs:
            others = repr([job.settings[other] for other in factors if other != name])
            alike.setdefault(others, []).append(job)
        groups = [group for group in alike.values() if len(group) > 1]
        if groups and all(len({made[job.folder] for job in group}) == 1 for group in groups):
            values = ", ".join(show(job.settings[name]) for job in groups[0][:4])
            told.append(f"no model and no result depends on {name}: its values {values} make the same")
    return told
