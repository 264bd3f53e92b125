"""From a path to a `Program`: reads, defines, evaluates, and reports all mistakes of a file at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import paren.ir.ops
import paren.lang.special  # noqa: F401  (both fill tables)
from paren.collection import uncollected
from paren.ir.graph import Graph
from paren.ir.program import DataForm, Diagnostic, Program, Setting, Value
from paren.lang.core import Compiler
from paren.lang.data import parse_data
from paren.lang.graphs import Graphs, callable_model, check_unused, define_models
from paren.lang.imports import Files
from paren.lang.optimizer import Optimizers
from paren.lang.prelude_files import prelude_namespace
from paren.lang.run import data_name, expressions, parse_run, run_options
from paren.lang.session import Session, deep_recursion
from paren.lang.settings import Settings, apply_variant
from paren.lang.study import build_study
from paren.lang.toplevel import TopLevel
from paren.lang.value import Namespace, show
from paren.text.errors import InternalError, ParenError, ParenErrors
from paren.text.forms import List
from paren.text.source import Source, Span


@uncollected()
def elaborate(
    path: str | Path,
    *,
    variant: str | None = None,
    overrides: Sequence[str] = (),
    stacking: int = 1,
    microbatches: int | None = None,
    read_file: Callable[[Path], bytes] | None = None,
    swept: Sequence[Setting] = (),
) -> Program:
    """The program of a file.

    `overrides` are `name=value` texts with values as in the language; they win over the variant. `stacking` is
    the number of microbatches that one call of a training graph takes, and divides theirs; `microbatches` replaces the
    file's own number. `read_file` gives the bytes of a path (for texts that are not on disk). `swept` are values of the
    file's own factors, which stand in the place of settings that `overrides` leave alone. Raises `ParenError`, or
    `ParenErrors` with all mistakes that were found.
    """
    files = Files(read_file)
    files.load(Path(path))
    files.report.finish()
    with deep_recursion():
        return _Elaboration(files, str(path), variant).run(overrides, stacking, microbatches, swept)


def elaborate_kept(
    path: str,
    variant: str | None,
    settings: Mapping[str, Value],
    texts: Mapping[str, str],
    *,
    stacking: int = 1,
    microbatches: int | None = None,
) -> Program:
    """A program evaluated again from texts and settings that were kept, whatever the files say now.

    `texts`: path -> text of the file and its imports; `settings`: every setting by name. The rest as for `elaborate`.
    """

    def read_file(file: Path) -> bytes:
        try:
            return texts[str(file)].encode()
        except KeyError:
            raise FileNotFoundError(file) from None

    overrides = [f"{name}={show(value)}" for name, value in settings.items()]
    return elaborate(
        path, variant=variant, overrides=overrides, stacking=stacking, microbatches=microbatches, read_file=read_file
    )


def elaborate_again(program: Program, *, microbatches: int, stacking: int = 1) -> Program:
    """A program for other sizes of calls, evaluated again from the texts it was read from, for as many ranks."""
    settings = {setting.name: setting.value for setting in program.settings}
    sizes = {"stacking": stacking, "microbatches": microbatches}
    again = elaborate_kept(program.path, program.variant, settings, program.sources, **sizes)
    return replace(again, ranks=program.ranks, nodes=program.nodes, rounds=program.rounds)


class _Elaboration:
    def __init__(self, files: Files, path: str, variant: str | None) -> None:
        self.files = files
        self.path = path
        self.variant = variant
        self.session = Session()
        self.compiler = Compiler(self.session, Namespace({}, prelude_namespace(self.session)), internal=False)
        self.top = TopLevel(self.session, self.compiler, Settings(self.session))

    def run(
        self, overrides: Sequence[str], stacking: int, microbatches: int | None, swept: Sequence[Setting]
    ) -> Program:
        session, top = self.session, self.top
        top.sort(self.files.forms)
        replaced: dict[str, List] = {}
        with session.collect():
            replaced = apply_variant(top.settings, top.named("defvariant"), self.variant)
        top.settings.command_line(overrides)
        top.settings.values.update({setting.name: setting for setting in swept})
        top.set_literals()
        models = define_models(top)
        top.force()
        datas: dict[str, DataForm] = {}
        for name, form in top.named("defdata").items():
            with session.collect():
                data = parse_data(self.compiler, form)
                if data is not None:
                    datas[name] = data
        study = build_study(top, replaced)
        run_form = top.named("defrun").get("")
        self._need("defdata", bool(top.named("defdata")))
        self._need("defmodel", bool(top.named("defmodel")))
        self._need("defrun", run_form is not None)
        if run_form is None:
            raise self._failure()
        options = run_options(self.compiler, run_form)
        chosen = data_name(options, list(top.named("defdata")))
        parts = expressions(options)
        settings = parse_run(options, list(parts.metrics))
        if microbatches is not None:
            settings = replace(settings, microbatches=microbatches)
        if chosen is None or chosen not in datas:
            # Without the fields no expression of the run means anything; the models and the optimizer still do.
            for model in models.values():
                check_unused(session, model)
            with session.collect():
                Optimizers(session, self.compiler, []).build(parts)
            raise self._failure()
        data = datas[chosen]
        graphs = Graphs(session, self.compiler, data.fields, settings.rows(stacking))
        evaluated = data.options.get("evaluation-batch", graphs.rows)
        evaluation_rows = evaluated if isinstance(evaluated, int) else graphs.rows
        loss = graphs.loss(parts, True)
        evaluate = replace(graphs, rows=evaluation_rows).loss(parts, False)
        diagnostics: dict[str, tuple[Diagnostic, Graph]] = {}
        for name, form in top.named("defdiagnostic").items():
            with session.collect():
                diagnostic = graphs.diagnostic(name, form)
                if diagnostic is not None:
                    diagnostics[name] = diagnostic
        declarations = session.declarations
        used = [model for model in models.values() if model.name in session.called]
        for model in models.values():
            if model.name not in session.called:
                check_unused(session, model)
                declarations.note(f"{model.span}: the model {model.name} is not used by the run, so it is not trained")
        initialize = graphs.initialize(run_form.span)
        parameters = list(declarations.parameters.values())
        groups = None
        if not session.errors or parts.optimizer is not None:
            with session.collect():
                groups = Optimizers(session, self.compiler, parameters).build(parts)
        if session.errors or loss is None or evaluate is None or initialize is None or groups is None:
            raise self._failure()
        updates, slots, moments = groups
        return Program(
            path=self.path,
            variant=self.variant,
            settings=tuple(top.settings.values.values()),
            sources=self.files.texts,
            run=settings,
            data=data,
            stacking=stacking,
            rows=graphs.rows,
            evaluation_rows=evaluation_rows,
            models=tuple(callable_model(session, model) for model in used),
            parameters=slots,
            moments=moments,
            loss=loss,
            evaluate=evaluate,
            diagnostics=diagnostics,
            initialize=initialize,
            updates=updates,
            metrics=tuple(parts.metrics),
            bounds=tuple(declarations.bounds),
            notes=tuple(declarations.notes),
            study=study,
        )

    def _need(self, head: str, present: bool) -> None:
        if not present:
            text = next(iter(self.files.texts.values()))
            place = Span(Source(self.path, text), 0, 0)
            what = {"defdata": "data", "defmodel": "model", "defrun": "run"}[head]
            self.session.record(
                ParenError("E-FORM-011", f"the file declares no {what}: ({head} ...) is missing", place)
            )

    def _failure(self) -> ParenError:
        errors = sorted(self.session.errors, key=self._order)
        if not errors:
            raise InternalError("lang", "elaboration stopped without a mistake")
        return errors[0] if len(errors) == 1 else ParenErrors(errors)

    def _order(self, error: ParenError) -> tuple[int, int]:
        """The order of the text: the main file, then its imports, then the command line."""
        if error.span is None:
            return -1, 0
        names = list(self.files.texts)
        name = error.span.source.name
        return names.index(name) if name in names else len(names), error.span.start
