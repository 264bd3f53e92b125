"""The analysis of jobs: what each gives to its functions, what is missing of it, and plots over several jobs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from paren.experiment.analysis.analyze import Planned, Subject, missing, plan_analysis
from paren.experiment.analysis.costs import check_limited, check_limits
from paren.experiment.analysis.over_jobs import draw_over
from paren.experiment.analysis.plots import mark_outdated
from paren.experiment.events import NOTICE, Event, Tell
from paren.experiment.job_data import Splits
from paren.experiment.jobs import Job, check_jobs
from paren.experiment.layout import PLOTS
from paren.experiment.python.functions import Functions, check_functions
from paren.experiment.standing import Standing
from paren.experiment.store.artifact import Artifact
from paren.experiment.store.claims import waiting_for
from paren.experiment.training import Trainer
from paren.ir.program import Program
from paren.restored import read_model
from paren.text.errors import Note, ParenError
from paren.text.size import count_of
from paren.train.progress import Silent
from paren.train.read_run import read_metrics

COHORT, SWEEP = "cohort", "sweep"
MOST_NAMED = 3  # configurations that a message names


def functions_of(program: Program) -> Functions:
    """The Python functions beside the file of a program."""
    return Functions.of(Path(program.path).parent)


def check_analyses(jobs: Sequence[Job], functions: Functions) -> None:
    """Imports the functions of all analyses, and raises what is wrong with them; then every limit that a job exceeds.
    Nothing is computed but what the functions of `:cost` foretell."""
    check_functions(jobs[0].program, functions, load=True)
    check_costs(jobs, functions)


def check_costs(jobs: Sequence[Job], functions: Functions) -> None:
    """Raises every limit that a job exceeds (E-STUDY-009), or that is of a cost that no job has (E-STUDY-010). The
    files of functions under `:cost` are imported."""
    foretold: set[str] = set()
    check_jobs(jobs, lambda job: foretold.update(check_limits(job.program, functions)))
    check_limited(jobs[0].program, foretold)


def subject_of(job: Job, trainer: Trainer, root: Path, model: Artifact, data_key: str) -> Subject:
    """A trained job as its analysis sees it."""
    return Subject(
        program=job.program,
        folder=root / job.folder,
        changed=job.changed,
        member=job.member,
        model_key=model.key,
        data_key=data_key,
        model=lambda: read_model(model.folder, trainer.device, program=job.program),
        data=lambda: Splits(trainer.data(job, Silent())),
        history=lambda: read_metrics(model.folder),
    )


def missing_analyses(job: Job, trainer: Trainer, root: Path, model_key: str, data_key: str) -> list[Planned]:
    """The analyses of a job whose results are not there."""
    planned = plan_analysis(job.program, trainer.functions, model_key, data_key)
    names = set(missing(planned, root / job.folder, trainer.store))
    return [each for each in planned if each.analysis.name in names]


def groups_of(jobs: Sequence[Job]) -> list[tuple[str, str, list[int]]]:
    """The jobs that plots are drawn over: `cohort` or `sweep`, the folder that has the plots, below the output root,
    and the places of the jobs. Only those that the study has plots over."""
    asked = {analysis.over for analysis in jobs[0].base.study.analyses}
    groups: list[tuple[str, str, list[int]]] = []
    if COHORT in asked:
        numbers = range(len(jobs))
        by_configuration = groupby(numbers, lambda number: jobs[number].configuration)
        groups += [(COHORT, folder, list(members)) for folder, members in by_configuration]
    if SWEEP in asked:
        groups.append((SWEEP, "", list(range(len(jobs)))))
    return groups


def draw_over_jobs(standings: Sequence[Standing], trainer: Trainer, root: Path, tell: Tell) -> list[ParenError]:
    """Draws what is not drawn yet of the plots over each cohort and over the sweep; `standings` are those of all jobs,
    in order. What waits for unfinished jobs is told. Gives the errors of user code, which stop no other plot."""
    program = standings[0].job.base
    found: list[tuple[ParenError, str]] = []
    for over, folder, numbers in groups_of([standing.job for standing in standings]):
        members = [standings[number] for number in numbers]
        waiting = sum(not standing.finished for standing in members)
        if waiting:
            for analysis in program.study.analyses:
                if analysis.over == over:
                    mark_outdated(root / folder / PLOTS / analysis.name)
            place = f" of {folder}" if folder else ""
            tell(
                Event(
                    -1,
                    NOTICE,
                    text=f"plots over the {over}{place} wait for {waiting} of {count_of(len(members), 'job')}",
                )
            )
            continue
        subjects = [
            subject_of(each.job, trainer, root, each.model, each.data_key) for each in members if each.model is not None
        ]
        with waiting_for(root, f"plots over {over} {folder}"):
            try:
                draw_over(subjects, over, root / folder, trainer.functions, trainer.store, lambda _: None)
            except ParenError as error:
                found += [(each, folder) for each in error.errors]
    return _said_once(found)


def _said_once(found: Sequence[tuple[ParenError, str]]) -> list[ParenError]:
    """The errors of plots, with the folders of the configurations that they are of: what is the same in several is said
    once."""
    folders: dict[tuple[str, str, str], list[str]] = {}
    firsts: dict[tuple[str, str, str], ParenError] = {}
    for error, folder in found:
        key = error.code, error.message, str(error.span)
        firsts.setdefault(key, error)
        folders.setdefault(key, []).extend([folder] if folder else [])
    return [
        ParenError(each.code, each.message, each.span, notes=[*each.notes, *_named(folders[key])], fix=each.fix)
        for key, each in firsts.items()
    ]


def _named(folders: Sequence[str]) -> list[Note]:
    """A note on the cohorts of which a plot could not be drawn; none for one over the sweep."""
    if not folders:
        return []
    more = f" and {len(folders) - MOST_NAMED} more" if len(folders) > MOST_NAMED else ""
    return [Note(f"over the cohort of {', '.join(folders[:MOST_NAMED])}{more}")]
