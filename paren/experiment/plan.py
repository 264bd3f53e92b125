"""What a launch of a study would do: its jobs, what is there already, why other things are made, what they need.

Nothing is computed and no file is written. Data functions are not run, and data files are not read: where data are
known by their content, a model that a job has recorded counts as long as they have not changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from paren.environment import read_environment
from paren.experiment.analysis.analyze import Planned, Subject
from paren.experiment.analysis.costs import costs
from paren.experiment.analysis.over_jobs import undrawn
from paren.experiment.idle import idle_factors, made_of
from paren.experiment.job_analysis import (
    COHORT,
    SWEEP,
    check_costs,
    functions_of,
    groups_of,
    missing_analyses,
    subject_of,
)
from paren.experiment.job_data import DATA, data_recipe, known_identity
from paren.experiment.job_files import read_job_file
from paren.experiment.jobs import Job, check_jobs, make_jobs
from paren.experiment.launch import Launch
from paren.experiment.layout import JOB, PARTIAL, RUNS
from paren.experiment.python.functions import check_functions
from paren.experiment.standing import open_whole, recorded_model
from paren.experiment.store.recipe import Recipe, differences
from paren.experiment.store.store import Store
from paren.experiment.training import MODEL, Trainer, make_trainer, said_of
from paren.forecast.stacking import first_candidate
from paren.ir.program import Program
from paren.pipeline import Planning, keeping_plans
from paren.plan.traits import traits_of
from paren.runtime.cache import PlanCache
from paren.text.size import count_of, show_bytes
from paren.train.checkpoint import checkpoints_in
from paren.train.files import read_object
from paren.train.places.disk import DiskFolder
from paren.train.run_directory import CHECKPOINTS, RUN
from paren.train.status import read_status

CACHED, TO_MAKE, ASSUMED = "cached", "to make", "cached, if its data have not changed"
MOST_CHANGES = 12  # lines of reasons
MOST_NAMED = 3  # analyses of a line


@dataclass(frozen=True)
class PlannedJob:
    """A job before a launch. `data` is None for data that are read where they lie. `step` of `steps`: where an
    interrupted training goes on. `memory`: bytes of a training that is to be done. `analyses`: the names of those to
    be computed, and `costs`, by name, what they foretell. `changes`: what differs from the newest artifacts of the same
    job, in words."""

    name: str
    folder: str
    data: str | None
    model: str
    step: int | None
    steps: int | None
    memory: int | None
    analyses: tuple[str, ...]
    costs: Mapping[str, float]
    changes: tuple[str, ...]


@dataclass(frozen=True)
class StudyPlan:
    """The jobs of a study as a launch would find them; prints as a table. `plots`: a sentence for the plots over the
    sweep that are to be drawn, and for those over the cohort; `free`: bytes that trainings may take; `idle`: a sentence
    for each factor that changes nothing."""

    program: str
    variant: str | None
    out: str
    jobs: tuple[PlannedJob, ...]
    plots: tuple[str, ...]
    free: int
    idle: tuple[str, ...]

    @property
    def data(self) -> dict[str, object]:
        """The plan as plain values."""
        return asdict(self)

    def __str__(self) -> str:
        analyzed = any(job.analyses for job in self.jobs)
        head = ("job", "data", "model", *(("analyses to compute",) if analyzed else ()))
        rows = [head, *(_row(job)[: len(head)] for job in self.jobs)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        changed = [f"  {job.name}: {'; '.join(job.changes)}" for job in self.jobs if job.changes]
        if len(changed) > 1 and len({job.changes for job in self.jobs}) == 1:
            changed = [f"  all jobs: {'; '.join(self.jobs[0].changes)}"]
        if len(changed) > MOST_CHANGES:
            changed[MOST_CHANGES:] = [f"  and {count_of(len(changed) - MOST_CHANGES, 'more job')}"]
        if changed:
            lines += ["", "changed since the newest artifacts of the same job:", *changed]
        to_train = [job for job in self.jobs if job.model == TO_MAKE]
        lines += ["", f"{count_of(len(self.jobs), 'job')} in {self.out}, {count_of(len(to_train), 'model')} to train"]
        lines += self.plots
        largest = max((job.memory for job in to_train if job.memory is not None), default=None)
        if largest is not None:
            verdict = "fits" if largest <= self.free else "does not fit"
            lines.append(f"memory: {show_bytes(largest)} of {show_bytes(self.free)} free for the largest: {verdict}")
        costs = self.costs
        if costs:
            told = (f"{name} {costs[name]:.3g}, at most {self._most(name):.3g} a job" for name in costs)
            lines.append("costs of the analyses: " + "; ".join(told))
        lines += self.idle
        return "\n".join(lines)

    def _most(self, cost: str) -> float:
        return max(job.costs.get(cost, 0.0) for job in self.jobs)

    @property
    def costs(self) -> dict[str, float]:
        """What the analyses that are to be computed foretell, over all jobs."""
        names = dict.fromkeys(name for job in self.jobs for name in job.costs)
        return {name: sum(job.costs.get(name, 0.0) for job in self.jobs) for name in names}


def plan_study(program: Program, overrides: Sequence[str], launch: Launch) -> StudyPlan:
    """What a launch would find and do. Raises the mistakes of all configurations, and what is wrong with the device or
    a data form."""
    jobs = make_jobs(program, overrides)
    check_jobs(jobs)
    functions = functions_of(program)
    check_functions(program, functions, load=False)
    check_costs(jobs, functions)
    trainer = make_trainer(launch, launch.topology, Store(launch.out), functions, keeps_code=False)
    free = trainer.free.bytes
    former = _former_jobs(launch.out, trainer.store)
    with keeping_plans():
        planned = tuple(_plan_job(job, trainer, launch.out, former, free) for job in jobs)
    plots = tuple(_plots(jobs, planned, trainer, launch.out))
    idle = tuple(idle_factors(jobs, {job.folder: _made_of(job, trainer) for job in jobs}))
    return StudyPlan(program.path, program.variant, str(launch.out), planned, plots, free, idle)


def _plots(jobs: Sequence[Job], planned: Sequence[PlannedJob], trainer: Trainer, root: Path) -> Iterator[str]:
    """What is to be drawn over several jobs: all that waits for jobs, and of the others what is not drawn yet."""
    analyses = jobs[0].base.study.analyses
    groups = groups_of(jobs)
    for over in (COHORT, SWEEP):
        names: dict[str, int] = {}
        for kind, folder, numbers in groups:
            if kind == over:
                standings = [_analysed(jobs[number], planned[number], trainer, root) for number in numbers]
                subjects = [each for each in standings if each is not None]
                if len(subjects) < len(numbers):
                    found = [each.name for each in analyses if each.over == over]
                else:
                    found = undrawn(subjects, over, root / folder, trainer.functions, trainer.store)
                names |= {name: names.get(name, 0) + 1 for name in found}
        if names:
            count = max(names.values())
            times = f", for {count_of(count, 'configuration')}" if over == COHORT and count > 1 else ""
            yield f"plots over the {over} to draw: {', '.join(names)}{times}"


def _analysed(job: Job, planned: PlannedJob, trainer: Trainer, root: Path) -> Subject | None:
    """A job that nothing is left to do of but plots over several."""
    model = recorded_model(job, trainer.store, root, None)
    if model is None or planned.model == TO_MAKE or planned.analyses:
        return None
    return subject_of(job, trainer, root, model, str(model.recipe.parts["data"]))


def _made_of(job: Job, trainer: Trainer) -> tuple[str, ...]:
    """What a job makes. Data that are known by their content only stand for themselves by what their form says."""
    recipe = data_recipe(job.program, trainer.root, trainer.functions.sources)
    return made_of(job, trainer, recipe.key if recipe is not None else said_of(job.program.data))


def _plan_job(job: Job, trainer: Trainer, root: Path, former: Mapping[str, _Former], free: int) -> PlannedJob:
    store, recipe = trainer.store, data_recipe(job.program, trainer.root, trainer.functions.sources)
    key = recipe.key if recipe is not None else known_identity(job.program)
    data = None if recipe is None else CACHED if store.find_whole(recipe) is not None else TO_MAKE
    before = former.get(_alike(job.folder))
    changes: tuple[str, ...] = ()
    kept: tuple[int, int] | None = None
    if key is None:
        model = recorded_model(job, store, root, None)
        state = TO_MAKE if model is None else ASSUMED
        keys = (model.key, str(model.recipe.parts["data"])) if model is not None else ("", "")
        key = _likely_data(job, trainer, former)
        wanted = trainer.recipe(job, key) if key is not None else None
        kept = _interrupted(job, trainer, root) if model is None else None
    else:
        wanted = trainer.recipe(job, key)
        state, keys = TO_MAKE if store.find_whole(wanted) is None else CACHED, (wanted.key, key)
    if state == TO_MAKE and wanted is not None:
        kept = _kept(store.partial(wanted)) or kept
        changes = _changes(store, before, recipe, wanted)
    needed = _memory(job, trainer, free) if state == TO_MAKE else None
    planned = missing_analyses(job, trainer, root, *keys)
    changes += _changes_of_products(store, before, planned, changes)
    analyses = tuple(each.analysis.name for each in planned)
    foretold = costs(job.program, trainer.functions)
    total: dict[str, float] = {}
    for each in analyses:
        for name, cost in foretold.get(each, {}).items():
            total[name] = total.get(name, 0.0) + cost
    step, steps = kept or (None, None)
    return PlannedJob(job.name, job.folder, data, state, step, steps, needed, analyses, total, changes)


def _memory(job: Job, trainer: Trainer, free: int) -> int:
    """Bytes that the training plans for; values are computed again where they would not fit."""
    cache, device = PlanCache(read_environment().cache), trainer.device
    planning = Planning(trainer.how.patterns, traits=traits_of(device.name), threads=device.threads, cache=cache)
    return first_candidate(job.program, planning, free).memory.planned


@dataclass(frozen=True)
class _Former:
    """A job that was launched here: its folder, and the key of the data of its model, if it has one."""

    folder: Path
    data: str | None


def _former_jobs(root: Path, store: Store) -> dict[str, _Former]:
    """The newest folder of each job that was ever launched here, by what `_alike` makes of it: of those with a model,
    if there are any."""
    found: dict[str, tuple[bool, float, _Former]] = {}
    for path in (root / RUNS).glob(f"*/*/{JOB}"):
        with suppress(OSError):  # it is being deleted
            model = open_whole(store, MODEL, (read_job_file(path.parent) or {}).get(MODEL))
            former = _Former(path.parent, None if model is None else str(model.recipe.parts["data"]))
            entry = (model is not None, path.stat().st_mtime, former)
            name = _alike(path.parent.relative_to(root).as_posix())
            found[name] = max(entry, found.get(name, entry), key=lambda each: each[:2])
    return {name: former for name, (_, _, former) in found.items()}


def _alike(folder: str) -> str:
    """A job's folder without the digest of its settings: equal for jobs that differ in a common setting only."""
    configuration, _, member = folder.rpartition("/")
    return f"{configuration.rpartition('-')[0]}/{member}"


def _interrupted(job: Job, trainer: Trainer, root: Path) -> tuple[int, int] | None:
    """`_kept` of the training that the job's folder names, if it is one of this program on this device; whether its
    data are still the same is not looked at."""
    named = read_job_file(root / job.folder) or {}
    if named.get("identity") != job.identity or not isinstance(named.get(MODEL), str):
        return None
    partial = trainer.store.folder / MODEL / f"{Path(str(named[MODEL])).name}{PARTIAL}"
    layout = (read_object(partial / RUN) or {}).get("identity")
    if not isinstance(layout, dict) or layout.get("device") != trainer.device.name:
        return None
    return _kept(partial)


def _kept(partial: Path) -> tuple[int, int] | None:
    """The step of the newest checkpoint of an interrupted training, and its steps; None without one. A process that was
    killed had come further, and that is lost."""
    status, names = read_status(partial), checkpoints_in(DiskFolder(partial / CHECKPOINTS))
    return (max(map(int, names)), status.steps) if status is not None and names else None


def _likely_data(job: Job, trainer: Trainer, former: Mapping[str, _Former]) -> str | None:
    """The key of data that are read where they lie, by what was trained on them: where a training of this job was
    interrupted, those that the newest one had; else those of the same job before. None if nothing was."""
    interrupted = []
    for key in dict.fromkeys(each.data for each in former.values() if each.data is not None):
        status = read_status(trainer.store.partial(trainer.recipe(job, key)))
        if status is not None:
            interrupted.append((status.updated, key))
    if interrupted:
        return max(interrupted)[1]
    before = former.get(_alike(job.folder))
    return before.data if before is not None else None


def _changes(store: Store, former: _Former | None, data: Recipe | None, model: Recipe) -> tuple[str, ...]:
    """What differs from the artifacts that the former job names: in its data where they are made, else in the model."""
    named = read_job_file(former.folder) if former is not None else None
    if named is None:
        return ()
    before = {kind: open_whole(store, kind, named.get(kind)) for kind in (DATA, MODEL)}
    told: list[str] = []
    if data is not None and (old := before[DATA]) is not None:
        told += [f"data: {text}" for text in differences(old.recipe, data)]
    if (old := before[MODEL]) is not None:
        told += [text for text in differences(old.recipe, model) if not (told and text.startswith("data:"))]
    return tuple(told)


def _changes_of_products(
    store: Store, former: _Former | None, planned: Sequence[Planned], told: Sequence[str]
) -> tuple[str, ...]:
    """What differs from the products that the former job names, beside what is `told` already and what they need."""
    products = (read_job_file(former.folder) or {}).get("products") if former is not None else None
    named = products if isinstance(products, dict) else {}
    needs = {MODEL, DATA, *(each.analysis.name for each in planned)}
    found: list[str] = []
    for each in planned:
        old = open_whole(store, each.analysis.name, named.get(each.analysis.name))
        for text in differences(old.recipe, each.recipe) if old is not None else ():
            if text not in told and text.partition(":")[0] not in needs:
                found.append(f"{each.analysis.name}: {text}")
    return tuple(found)


def _row(job: PlannedJob) -> tuple[str, str, str, str]:
    """Job, data, model and the analyses to compute."""
    model = f"{job.model}, {show_bytes(job.memory)}" if job.memory is not None else job.model
    if job.step is not None:
        model = f"goes on at step {job.step} of {job.steps}"
    named = ", ".join(job.analyses[:MOST_NAMED]) or "-"
    more = len(job.analyses) - MOST_NAMED
    return job.name, job.data or "-", model, f"{named} and {more} more" if more > 0 else named
