"""`defrun`: the settings of a run, each with its range; expressions are kept as forms for the graphs."""

from __future__ import annotations

from dataclasses import dataclass

from paren.ir.program import Best, RunForm
from paren.lang.core import Compiler
from paren.lang.grammar import Options, pairs, parse_options
from paren.lang.run_keys import KEYS, REQUIRED, default_count, default_word
from paren.lang.value import POISON
from paren.text.errors import Note, ParenError, did_you_mean
from paren.text.forms import Form, Keyword, List, String, Symbol
from paren.text.size import count_of
from paren.text.source import Span


@dataclass(frozen=True)
class Expressions:
    """What of a run is evaluated into graphs. Metrics by name, in the order of the text."""

    loss: Form | None
    weight: Form | None
    metrics: dict[str, Form]
    optimizer: Form | None
    groups: Form | None
    frozen: Form | None


def run_options(compiler: Compiler, form: List) -> Options:
    """The options of `(defrun ...)`; unknown, doubled and missing ones are recorded."""
    options = parse_options(compiler, "defrun", form.span, form.items[1:], KEYS, required=REQUIRED)
    if options.positional:
        compiler.session.record(
            ParenError("E-FORM-001", "the options of defrun are :key value pairs", options.positional[0].span)
        )
    return options


def data_name(options: Options, known: list[str]) -> str | None:
    """The name after `:data`. Records E-NAME-005 if the file has no such data."""
    if "data" not in options:
        return None
    form = options.form("data")
    if isinstance(form, Symbol) and form.name in known:
        return form.name
    name = form.name if isinstance(form, Symbol) else None
    message = f"unknown data {name}{did_you_mean(name, known)}" if name else ":data is the name of a defdata"
    fix = f"the data of the file: {', '.join(known)}" if known else "the file has no defdata"
    options.session.record(ParenError("E-NAME-005", message, form.span, fix=fix))
    return None


def expressions(options: Options) -> Expressions:
    """The forms that become graphs."""
    metrics: dict[str, Form] = {}
    if "metrics" in options:
        with options.session.collect():
            for label, form in pairs(options.form("metrics"), ":metrics is ((name expression) ...)"):
                if not isinstance(label, Symbol) or "/" in label.name or ":" in label.name:
                    raise ParenError("E-FORM-006", "a metric is named by a symbol without / and :", label.span)
                if label.name == "loss":
                    raise ParenError("E-NAME-002", "the metric loss is always there", label.span)
                if label.name in metrics:
                    raise ParenError("E-NAME-002", f"the metric {label.name} is given twice", label.span)
                metrics[label.name] = form

    def optional(key: str) -> Form | None:
        return options.form(key) if key in options else None

    return Expressions(
        optional("loss"), optional("weight"), metrics, optional("optimizer"), optional("groups"), optional("frozen")
    )


def parse_run(options: Options, metrics: list[str]) -> RunForm:
    """The checked settings. Mistakes are recorded, with stand-ins in their place."""
    session = options.session
    count = len(session.errors)
    batch = options.integer("batch", 1)
    microbatches = options.integer("microbatches", default_count("microbatches"))
    if microbatches > batch and "batch" in options and len(session.errors) == count:
        session.record(
            ParenError(
                "E-DEFRUN-002",
                f":microbatches {microbatches} is more than the {count_of(batch, 'example')} of a batch",
                options.place("microbatches"),
                notes=[Note("the batch", options.place("batch"))],
            )
        )
        microbatches = batch
    steps, epochs = options.optional_integer("steps"), options.optional_integer("epochs")
    if steps is not None and epochs is not None:
        first = Note("the other one", options.place("steps"))
        session.record(
            ParenError("E-DEFRUN-001", ":steps and :epochs exclude each other", options.place("epochs"), notes=[first])
        )
    elif steps is None and epochs is None and "steps" not in options and "epochs" not in options:
        session.record(
            ParenError("E-DEFRUN-001", "defrun needs :steps or :epochs", options.span, fix="write :steps 1000, say")
        )
    reproducible = options.optional_integer("reproducible-over")
    if reproducible is not None and microbatches % reproducible:
        session.record(
            ParenError(
                "E-DEFRUN-003",
                f":reproducible-over {reproducible} does not divide the {count_of(microbatches, 'microbatch')}",
                options.place("reproducible-over"),
            )
        )
    average = options.positive("average")
    if average is not None and average >= 1:
        session.record(
            ParenError("E-FORM-006", f":average is between 0 and 1, not {average}", options.place("average"))
        )
    keep = _best(options, "keep", metrics)
    stop = _best(options, "stop-early", metrics)
    names: tuple[tuple[str, str], ...] = ()
    if "names" in options:
        with session.collect():
            names = _names(options)
    return RunForm(
        batch=batch,
        microbatches=microbatches,
        steps=steps,
        epochs=epochs,
        seed=_seed(options),
        precision=_precision(options),
        clip=options.positive("clip"),
        evaluate_every=options.optional_integer("evaluate-every"),
        checkpoint_every=options.optional_integer("checkpoint-every"),
        log_every=options.integer("log-every", default_count("log-every")),
        keep_checkpoints=options.integer("keep-checkpoints", default_count("keep-checkpoints")),
        keep_best=keep,
        stop_early=stop,
        on_nonfinite=options.choice("on-nonfinite", ("stop", "skip"), default_word("on-nonfinite")),
        skip_limit=options.integer("skip-limit", default_count("skip-limit")),
        average=average,
        start_from=options.string("from"),
        start_names=names,
        reproducible_over=reproducible,
        spans={"run": options.span} | options.spans(),
    )


def _seed(options: Options) -> int:
    seed = options.integer("seed", default_count("seed"), 0)
    if seed >= 2**32:
        options.session.record(ParenError("E-FORM-006", f":seed is below 2^32, not {seed}", options.place("seed")))
    return seed


def _precision(options: Options) -> str:
    return options.choice("precision", ("off", "bfloat16", "float16"), default_word("precision"))


def _best(options: Options, key: str, metrics: list[str]) -> Best | None:
    """`:keep (best evaluation/loss :min)` and `:stop-early (evaluation/loss :min :patience 5)`."""
    if key not in options:
        return None
    with options.session.collect():
        form = options.form(key)
        text = "(best evaluation/loss :min)" if key == "keep" else "(evaluation/loss :min :patience 5)"
        items = list(form.items) if isinstance(form, List) and form.bracket == "(" else []
        if key == "keep":
            if not items or not isinstance(items[0], Symbol) or items[0].name != "best":
                raise ParenError("E-FORM-006", f":{key} is {text}", form.span)
            items = items[1:]
        if len(items) != (2 if key == "keep" else 4):
            raise ParenError("E-FORM-006", f":{key} is {text}", form.span)
        metric, mode = items[0], items[1]
        if not isinstance(metric, Symbol) or not isinstance(mode, Keyword) or mode.name not in ("min", "max"):
            raise ParenError("E-FORM-006", f":{key} is {text}", form.span)
        known = [f"evaluation/{name}" for name in ("loss", *metrics)]
        if metric.name not in known:
            hint = did_you_mean(metric.name, known)
            raise ParenError(
                "E-DEFRUN-005",
                f"unknown series {metric.name}{hint}",
                metric.span,
                fix=f"the series are {', '.join(known)}",
            )
        if "evaluate-every" not in options and "epochs" not in options:
            raise ParenError(
                "E-DEFRUN-005",
                f":{key} needs :evaluate-every or :epochs",
                form.span,
                fix="write :evaluate-every 100, say",
            )
        patience: int | None = None
        if key == "stop-early":
            label, value = items[2], options.evaluate(items[3])
            if not isinstance(label, Keyword) or label.name != "patience":
                raise ParenError("E-FORM-006", f":{key} is {text}", form.span)
            if value is POISON:
                return None
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ParenError("E-FORM-006", ":patience is an integer of at least 1", items[3].span)
            patience = value
        return Best(metric.name, mode.name, patience, form.span)
    return None


def _names(options: Options) -> tuple[tuple[str, str], ...]:
    what = ':names is (("name in the file" "parameter") ...)'
    if "from" not in options:
        raise ParenError("E-FORM-005", ":names needs the option :from", options.place("names"))
    found: list[tuple[str, str]] = []
    for old, new in pairs(options.form("names"), what):
        if not isinstance(old, String) or not isinstance(new, String):
            raise ParenError("E-FORM-006", what, old.span)
        found.append((old.value, new.value))
    return tuple(found)


def strings(form: Form, what: str) -> list[tuple[str, Span]]:
    """The strings of `("a" "b")` or `["a" "b"]`, or one string. Raises E-FORM-006."""
    items = form.items if isinstance(form, List) else (form,)
    found = [(item.value, item.span) for item in items if isinstance(item, String)]
    if len(found) != len(items):
        raise ParenError("E-FORM-006", what, form.span)
    return found
