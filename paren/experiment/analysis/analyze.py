"""The analysis of a trained model: products, metrics and plots, each computed once for what it depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType

import numpy as np

from paren.experiment.analysis.plots import closing_figures, drawn_key, mark_outdated, save_plot
from paren.experiment.analysis.products import Product, store_product
from paren.experiment.analysis.values import NoJson, to_json
from paren.experiment.layout import ANALYSIS, METRICS, PLOTS
from paren.experiment.python.functions import Functions
from paren.experiment.store.artifact import Artifact, Writer, writing
from paren.experiment.store.declared_files import check_files, digest_of_content
from paren.experiment.store.recipe import Recipe, as_json, versions
from paren.experiment.store.store import Store
from paren.ir.op import Array
from paren.ir.program import Analysis, Program, Value
from paren.lang.analysis import python_name
from paren.restored import RestoredModel
from paren.text.errors import ParenError
from paren.text.json import Json, parse_json
from paren.train.files import Files, json_bytes, write_atomically

Data = Mapping[str, Mapping[str, Array]]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Subject:
    """A trained job as its analysis sees it. `folder` is the job's; `model_key` and `data_key` are the keys of its
    artifacts. `model`, `data` (split -> field -> array) and `history` (the training's metrics as columns) are asked for
    only if something has to be computed from them."""

    program: Program
    folder: Path
    changed: Mapping[str, Value]
    member: Mapping[str, Value]
    model_key: str
    data_key: str
    model: Callable[[], RestoredModel]
    data: Callable[[], Data]
    history: Callable[[], Mapping[str, Array]]


@dataclass(frozen=True)
class Planned:
    """An analysis of a job, and what its result is made from."""

    analysis: Analysis
    recipe: Recipe


def plan_analysis(program: Program, functions: Functions, model_key: str, data_key: str) -> tuple[Planned, ...]:
    """The analyses of one job, needs first, without those over several jobs. Nothing is run.

    Raises E-STORE-004 and E-STORE-005 for files and functions that are not there.
    """
    keys: dict[str, Json] = {"model": model_key, "data": data_key}
    found = []
    for analysis in program.study.analyses:
        if analysis.over is None:
            recipe = recipe_of(analysis, program, functions, {need: keys[need] for need in analysis.needs})
            keys[analysis.name] = recipe.key
            found.append(Planned(analysis, recipe))
    return tuple(found)


def recipe_of(analysis: Analysis, program: Program, functions: Functions, needs: Mapping[str, Json]) -> Recipe:
    """What the result of an analysis is made from; `needs` are the keys of what it needs."""
    reach = functions.reach(analysis)
    settings: dict[str, Json] = {setting.name: as_json(setting.value) for setting in program.settings}
    parts: dict[str, Json] = {
        "function": reach.entry,
        "sources": dict(reach.pieces),
        "keywords": {key: as_json(value) for key, value in analysis.keywords},
        "needs": dict(needs),
        "versions": versions(reach.packages),
    }
    if "model" in analysis.needs:  # equal trainings may still be called differently
        called = program.models[0]
        parts["called"] = {"model": called.name, "inputs": [[each.name, str(each.type)] for each in called.inputs]}
    if reach.takes("seed") or reach.takes("rng"):
        parts["seed"] = as_json(_seed(analysis, program))
    if reach.takes("settings"):
        parts["settings"] = settings
    if analysis.files:
        parts["files"] = {name: digest_of_content(path) for name, path in _files(analysis, functions).items()}
    return Recipe(analysis.kind, analysis.name, parts, {"settings": settings})


def _seed(analysis: Analysis, program: Program) -> Value:
    return dict(analysis.keywords).get("seed", program.run.seed)


def missing(planned: Iterable[Planned], folder: Path, store: Store) -> list[str]:
    """The names of those analyses of the job in `folder` whose results are not there."""
    metrics = recorded_metrics(folder)
    found = []
    for each in planned:
        name, key = each.analysis.name, each.recipe.key
        if each.analysis.kind == "product":
            there = store.find_whole(each.recipe) is not None
        elif each.analysis.kind == "metric":
            there = metrics.get(name, ("", None))[0] == key
        else:
            there = drawn_key(folder / PLOTS / name) == key
        if not there:
            found.append(name)
    return found


def analyze_job(subject: Subject, functions: Functions, store: Store, tell: Tell) -> dict[str, Artifact]:
    """Computes what is not there yet of a job's analyses, and gives its products by name. `tell` hears the name of each
    analysis before it is computed.

    Writes `metrics.json` and plots into the job's folder, products into the store. Raises E-STUDY-006 to E-STUDY-008
    for what is wrong with the user's functions, E-STORE-001 to E-STORE-005; what was computed before stays.
    """
    planned = plan_analysis(subject.program, functions, subject.model_key, subject.data_key)
    needs = Needs(subject, {})
    recorded = recorded_metrics(subject.folder)
    keys = {each.analysis.name: each.recipe.key for each in planned if each.analysis.kind == "metric"}
    metrics = {name: found for name, found in recorded.items() if keys.get(name) == found[0]}
    if metrics != recorded:
        _write_metrics(subject.folder, metrics)
    for each in planned:
        if each.analysis.kind == "plot":
            mark_outdated(subject.folder / PLOTS / each.analysis.name, each.recipe.key)
    for each in planned:
        analysis, key = each.analysis, each.recipe.key
        if analysis.kind == "product":
            needs.products[analysis.name] = _product(each, needs, functions, store, tell)
        elif analysis.kind == "plot":
            folder = subject.folder / PLOTS / analysis.name
            if drawn_key(folder) != key:
                tell(analysis.name)
                draw(analysis, functions, needs.given(analysis), folder, partial(dict, key=key))
        elif analysis.name not in metrics:
            tell(analysis.name)
            metrics[analysis.name] = key, _metric(each, functions, needs)
            _write_metrics(subject.folder, {name: metrics[name] for name in keys if name in metrics})
    return needs.products


@dataclass
class Needs:
    """What functions need of one job; the model and the data are brought when they are first asked for."""

    subject: Subject
    products: dict[str, Artifact]

    def given(self, analysis: Analysis) -> dict[str, object]:
        """All that the function of an analysis may be called with, by the names of its parameters."""
        needs = {python_name(need): self.need(need) for need in analysis.needs}
        return {**needs, **given_besides(analysis, self.subject.program)}

    def need(self, name: str) -> object:
        """The model, the data, or a product."""
        if name == "model":
            return self._model
        return self._data if name == "data" else Product(self.products[name])

    @cached_property
    def _model(self) -> RestoredModel:
        return self.subject.model()

    @cached_property
    def _data(self) -> Data:
        return self.subject.data()


def given_besides(analysis: Analysis, program: Program) -> dict[str, object]:
    """What a function may be called with besides its needs. The random numbers follow from seed and name."""
    seed = _seed(analysis, program)
    settings = {setting.name: setting.value for setting in program.settings}
    given: dict[str, object] = {python_name(key): value for key, value in analysis.keywords}
    given |= {"seed": seed, "settings": MappingProxyType(settings)}
    if isinstance(seed, int):
        given["rng"] = np.random.default_rng([seed, *analysis.name.encode()])
    return given


def _product(planned: Planned, needs: Needs, functions: Functions, store: Store, tell: Tell) -> Artifact:
    analysis = planned.analysis

    def make(writer: Writer) -> Json:
        tell(analysis.name)
        with closing_figures():
            result = functions.call(analysis, {**needs.given(analysis), "writer": writer})
        check_files(planned.recipe, _files(analysis, functions), analysis.span)
        may_be_empty = functions.takes(analysis, "writer")
        store_product(writer, result, origin_of(analysis), analysis.spans["function"], may_be_empty)
        return None

    return store.build(planned.recipe, make)


def _files(analysis: Analysis, functions: Functions) -> dict[str, Path]:
    return {each: functions.base / each for each in analysis.files}


def _metric(planned: Planned, functions: Functions, needs: Needs) -> Json:
    analysis = planned.analysis
    with closing_figures():
        result = functions.call(analysis, needs.given(analysis))
    check_files(planned.recipe, _files(analysis, functions), analysis.span)
    try:
        return to_json(result)
    except NoJson as error:
        raise ParenError(
            "E-STUDY-008",
            f"{analysis.name}{error.place} from {origin_of(analysis)} is {error.what}",
            analysis.spans["function"],
            fix="return finite numbers, texts, lists and dicts; None stands for an undefined number",
        ) from None


def draw(
    analysis: Analysis,
    functions: Functions,
    given: Mapping[str, object],
    folder: Path,
    made_from: Callable[[], Mapping[str, Json]],
) -> None:
    """Calls the function of a plot, and saves what it returns. `made_from` gives what its record says, after that."""
    with closing_figures():
        result = functions.call(analysis, given)
        span = analysis.spans["function"]
        save_plot(result, analysis.name, folder, made_from(), functions.file(analysis), origin_of(analysis), span)


def origin_of(analysis: Analysis) -> str:
    """The function of an analysis, in words."""
    return f"{python_name(analysis.function)} in {analysis.file}"


def recorded_metrics(folder: Path) -> dict[str, tuple[str, Json]]:
    """Key and value of the metrics of the job in `folder`, by name."""
    try:
        keys = parse_json((folder / ANALYSIS).read_bytes())["metrics"]
        values = parse_json((folder / METRICS).read_bytes())
        return {name: (key, values[name]) for name, key in keys.items() if name in values}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _write_metrics(folder: Path, metrics: Mapping[str, tuple[str, Json]]) -> None:
    """The keys are written last: values without keys are computed again."""
    values = {name: value for name, (_, value) in metrics.items()}
    keys = {"metrics": {name: key for name, (key, _) in metrics.items()}}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ANALYSIS).unlink(missing_ok=True)
        for name, content in ((METRICS, values), (ANALYSIS, keys)):
            write_atomically(Files(), folder / name, json_bytes(content, indent=1), durable=False)
