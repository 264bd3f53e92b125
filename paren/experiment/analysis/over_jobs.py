"""Plots over the jobs of a cohort or of a whole sweep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paren.experiment.analysis.analyze import (
    Needs,
    Subject,
    Tell,
    draw,
    given_besides,
    plan_analysis,
    recipe_of,
    recorded_metrics,
)
from paren.experiment.analysis.plots import drawn_key
from paren.experiment.layout import PLOTS
from paren.experiment.python.functions import Functions
from paren.experiment.store.recipe import as_json, digest
from paren.experiment.store.store import Store
from paren.ir.op import Array
from paren.ir.program import Analysis, Value
from paren.lang.analysis import python_name
from paren.text.errors import InternalError
from paren.train.state import Json


@dataclass(frozen=True)
class JobView:
    """A job as a plot over several jobs sees it: all settings; of them the member of the cohort, and what its
    configuration changes; the results of the metrics by name; the training's metrics as columns."""

    settings: Mapping[str, Value]
    member: Mapping[str, Value]
    changed: Mapping[str, Value]
    metrics: Mapping[str, Json]
    history: Mapping[str, Array]


def draw_over(
    subjects: Sequence[Subject], over: str, folder: Path, functions: Functions, store: Store, tell: Tell
) -> None:
    """Draws the plots over a cohort (`folder` is that of the configuration) or over a sweep (the output root) that are
    not drawn yet from these jobs, which are analysed and in order. Raises as `analyze_job` does."""
    program = subjects[0].program
    for analysis, key, sources in _undrawn(subjects, over, folder, functions, store):
        tell(analysis.name)
        given = {python_name(need): [source.need(need) for source in sources] for need in analysis.needs}
        views = [source.view() for source in sources] if functions.takes(analysis, "jobs") else []
        place = folder / PLOTS / analysis.name
        draw(analysis, functions, {**given, **given_besides(analysis, program), "jobs": views}, place, key)


def undrawn(subjects: Sequence[Subject], over: str, folder: Path, functions: Functions, store: Store) -> list[str]:
    """The names of the plots that `draw_over` would draw. Nothing is run."""
    return [analysis.name for analysis, _, _ in _undrawn(subjects, over, folder, functions, store)]


def _undrawn(
    subjects: Sequence[Subject], over: str, folder: Path, functions: Functions, store: Store
) -> Iterator[tuple[Analysis, str, list[_Source]]]:
    """The plots that are not drawn yet, each with its key and what the jobs give to it."""
    program = subjects[0].program
    analyses = [analysis for analysis in program.study.analyses if analysis.over == over]
    sources = [_Source(subject, functions, store) for subject in subjects] if analyses else []
    for analysis in analyses:
        keys: dict[str, Json] = {need: [source.key(need) for source in sources] for need in analysis.needs}
        sees_jobs = functions.takes(analysis, "jobs")
        counts: list[Json] = [source.counts() for source in sources] if sees_jobs else []
        key = digest([recipe_of(analysis, program, functions, keys).key, counts])
        if drawn_key(folder / PLOTS / analysis.name) != key:
            yield analysis, key, sources


class _Source:
    """What one job gives to plots over several."""

    def __init__(self, subject: Subject, functions: Functions, store: Store) -> None:
        planned = plan_analysis(subject.program, functions, subject.model_key, subject.data_key)
        self._subject = subject
        self._store = store
        self._recipes = {each.analysis.name: each.recipe for each in planned}
        self._needs = Needs(subject, {})

    def key(self, need: str) -> str:
        subject = self._subject
        return {"model": subject.model_key, "data": subject.data_key}.get(need) or self._recipes[need].key

    def need(self, name: str) -> object:
        if name in self._recipes and name not in self._needs.products:
            found = self._store.find(self._recipes[name])
            if found is None:
                raise InternalError("analysis", f"the product {name} of {self._subject.folder} is not there")
            self._needs.products[name] = found
        return self._needs.need(name)

    def view(self) -> JobView:
        subject = self._subject
        settings = {setting.name: setting.value for setting in subject.program.settings}
        metrics = {name: value for name, (_, value) in recorded_metrics(subject.folder).items()}
        return JobView(settings, dict(subject.member), dict(subject.changed), metrics, subject.history())

    def counts(self) -> Json:
        """What a plot that sees the job depends on."""
        subject = self._subject
        settings = {setting.name: as_json(setting.value) for setting in subject.program.settings}
        metrics: list[Json] = [[name, value] for name, (_, value) in recorded_metrics(subject.folder).items()]
        varied: list[Json] = [*sorted(subject.member), None, *sorted(subject.changed)]
        return [settings, varied, metrics, subject.model_key]
