"""Plots over the jobs of a cohort or of a whole sweep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
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
from paren.experiment.analysis.plots import drawn_record
from paren.experiment.layout import PLOTS
from paren.experiment.python.functions import Functions
from paren.experiment.store.recipe import as_json, digest
from paren.experiment.store.store import Store
from paren.ir.op import Array
from paren.ir.program import Analysis, Value
from paren.lang.analysis import python_name
from paren.text.errors import InternalError, Report
from paren.text.json import Json

ASKED = "metrics"  # the part of a plot's record that names those it asked its jobs for


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
    not drawn yet from these jobs, which are analysed and in order. Raises what `analyze_job` does, of all plots at
    once: none is kept back by another that cannot be drawn."""
    program = subjects[0].program
    report = Report()
    for plot in _undrawn(subjects, over, folder, functions, store):
        analysis, asked = plot.analysis, _Asked()
        tell(analysis.name)
        with report.collect():
            needs = {python_name(need): [source.need(need) for source in plot.sources] for need in analysis.needs}
            views = [source.view(asked) for source in plot.sources] if plot.sees_jobs else []
            given = {**needs, **given_besides(analysis, program), "jobs": views}
            draw(analysis, functions, given, folder / PLOTS / analysis.name, partial(plot.made_from, asked))
    report.finish()


def undrawn(subjects: Sequence[Subject], over: str, folder: Path, functions: Functions, store: Store) -> list[str]:
    """The names of the plots that `draw_over` would draw. Nothing is run."""
    return [plot.analysis.name for plot in _undrawn(subjects, over, folder, functions, store)]


def _undrawn(
    subjects: Sequence[Subject], over: str, folder: Path, functions: Functions, store: Store
) -> Iterator[_Plot]:
    """The plots that are not drawn yet."""
    program = subjects[0].program
    analyses = [analysis for analysis in program.study.analyses if analysis.over == over]
    sources = [_Source(subject, functions, store) for subject in subjects] if analyses else []
    for analysis in analyses:
        keys: dict[str, Json] = {need: [source.key(need) for source in sources] for need in analysis.needs}
        recipe = recipe_of(analysis, program, functions, keys)
        plot = _Plot(analysis, recipe.key, functions.takes(analysis, "jobs"), sources)
        record = drawn_record(folder / PLOTS / analysis.name)
        asked = record.get(ASKED)
        if record.get("key") != plot.key(list(map(str, asked)) if isinstance(asked, list) else None):
            yield plot


@dataclass
class _Asked:
    """The metrics that a plot asked its jobs for, by name; `all` where it went through them."""

    names: set[str] = field(default_factory=set)
    all: bool = False


class _Metrics(Mapping[str, Json]):
    """The results of a job's metrics by name. It notes whose were asked for: a plot is drawn again where one of these
    changes, or another comes that it looked for."""

    def __init__(self, values: Mapping[str, Json], asked: _Asked) -> None:
        self._values = values
        self._asked = asked

    def __getitem__(self, name: str) -> Json:
        self._asked.names.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        self._asked.all = True
        return iter(self._values)

    def __len__(self) -> int:
        self._asked.all = True
        return len(self._values)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[type[dict[str, Json]], tuple[dict[str, Json]]]:
        """A copy, in another process for instance, is an ordinary dictionary."""
        return dict, (dict(self),)


@dataclass(frozen=True)
class _Plot:
    """A plot over several jobs, and what they give to it. `recipe`: the key of all that it is made from but
    what it sees of the jobs themselves."""

    analysis: Analysis
    recipe: str
    sees_jobs: bool
    sources: Sequence[_Source]

    def key(self, asked: Sequence[str] | None) -> str:
        """The key of the plot if it asks for these metrics, or for all with None."""
        counts: list[Json] = [source.counts(asked) for source in self.sources] if self.sees_jobs else []
        return digest([self.recipe, counts])

    def made_from(self, asked: _Asked) -> dict[str, Json]:
        """What the record of the plot says."""
        names = None if asked.all else sorted(asked.names)
        return {"key": self.key(names), ASKED: None if names is None else [*names]}


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

    @cached_property
    def _metrics(self) -> dict[str, Json]:
        return {name: value for name, (_, value) in recorded_metrics(self._subject.folder).items()}

    def view(self, asked: _Asked) -> JobView:
        """The job as a plot sees it, which notes in `asked` what it asks for."""
        subject = self._subject
        settings = {setting.name: setting.value for setting in subject.program.settings}
        metrics = _Metrics(self._metrics, asked)
        return JobView(settings, dict(subject.member), dict(subject.changed), metrics, subject.history())

    def counts(self, asked: Sequence[str] | None) -> Json:
        """What a plot depends on that sees the job and asks for these metrics, or for all with None."""
        subject = self._subject
        settings = {setting.name: as_json(setting.value) for setting in subject.program.settings}
        names = self._metrics if asked is None else [name for name in asked if name in self._metrics]
        metrics: list[Json] = [[name, self._metrics[name]] for name in names]
        varied: list[Json] = [*sorted(subject.member), None, *sorted(subject.changed)]
        return [settings, varied, metrics, subject.model_key]
