"""`defsweep`, `defcohort`, `defgrid`, `defproduct`, `defmetric`, `defplot`: checked and kept as data."""

from __future__ import annotations

from collections.abc import Mapping

from paren.ir.program import Analysis, Factor, Study
from paren.lang.core import Compiler
from paren.lang.grammar import head_of, parse_options, plain
from paren.lang.settings import Settings
from paren.lang.toplevel import FORMS, TopLevel
from paren.lang.value import POISON
from paren.text.errors import Note, ParenError, did_you_mean
from paren.text.forms import Form, List, String, Symbol
from paren.text.source import Span

_ANALYSES = ("defproduct", "defmetric", "defplot")


def build_study(top: TopLevel, replaced: Mapping[str, List]) -> Study:
    """The study of the file; `replaced` are the sweeps that the variant puts in place of the file's."""
    factors: dict[str, tuple[Factor, ...]] = {}
    seen: dict[str, Span] = {}
    for head in ("defsweep", "defcohort", "defgrid"):
        form = replaced.get(head) or top.named(head).get("")
        factors[head] = _factors(top.settings, form, seen) if form is not None else ()
    alternatives = [_alternatives(top.settings, factor) for factor in factors["defsweep"]]
    sweep = tuple(factor for factor in alternatives if factor.values)
    return Study(sweep, factors["defcohort"], factors["defgrid"], _analyses(top))


def _factors(settings: Settings, form: List, seen: dict[str, Span]) -> tuple[Factor, ...]:
    """`(setting value ...)` entries. A setting may vary in one place only. Values given twice vanish."""
    head = head_of(form) or ""
    found: list[Factor] = []
    entries: list[tuple[Symbol, List]] = []
    with settings.session.collect():
        entries = [_entry(item, head) for item in form.items[1:]]
    for label, item in entries:
        with settings.session.collect():
            if label.name in seen:
                raise ParenError(
                    "E-STUDY-001",
                    f"{label.name} varies twice",
                    label.span,
                    notes=[Note("the first one", seen[label.name])],
                )
            seen[label.name] = label.span
            values = [settings.checked(label.name, label.span, value, head) for value in item.items[1:]]
            found.append(Factor(label.name, tuple(dict.fromkeys(values)), item.span))
    return tuple(found)


def _entry(item: Form, head: str) -> tuple[Symbol, List]:
    if isinstance(item, List) and len(item.items) >= 2 and item.bracket == "(" and isinstance(item.items[0], Symbol):
        return item.items[0], item
    raise ParenError("E-FORM-001", f"the form is {FORMS[head]}", item.span)


def _alternatives(settings: Settings, factor: Factor) -> Factor:
    """A sweep lists alternatives: the value in force is dropped from them."""
    now = settings.values[factor.name].value
    return Factor(factor.name, tuple(value for value in factor.values if value != now), factor.span)


def _analyses(top: TopLevel) -> tuple[Analysis, ...]:
    found: dict[str, Analysis] = {}
    session = top.session
    for head in _ANALYSES:
        for name, form in top.named(head).items():
            with session.collect():
                if name == "model" or name in found:
                    what = "is the trained model" if name == "model" else "is taken"
                    raise ParenError("E-STUDY-002", f"the name {name} {what}", form.items[1].span)
                if any(not (character.isalnum() or character in "-_") for character in name):
                    raise ParenError(
                        "E-STUDY-002",
                        f"{name} cannot be the name of a folder: letters, digits, - and _ only",
                        form.items[1].span,
                    )
                found[name] = _analysis(top.compiler, head, name, form)
    with session.collect():
        _check_needs(top, found)
        return _ordered(found)
    return ()


def _analysis(compiler: Compiler, head: str, name: str, form: List) -> Analysis:
    keys = ("needs", "over") if head == "defplot" else ("needs",)
    options = parse_options(compiler, f"{head} {name}", form.span, form.items[2:], keys)
    body = options.positional[0] if len(options.positional) == 1 else None
    if body is None or not isinstance(body, List) or head_of(body) != "python" or len(body.items) < 3:
        raise ParenError("E-FORM-001", f"the form is {FORMS[head]}", form.span)
    file, function = body.items[1], body.items[2]
    if not isinstance(file, String) or not isinstance(function, Symbol):
        raise ParenError("E-FORM-001", 'the form is (python "file.py" function :key value ...)', body.span)
    inner = parse_options(compiler, "python", body.span, body.items[3:], (), open_ended=True)
    if inner.positional:
        raise ParenError("E-FORM-001", "arguments of a Python function are keywords", inner.positional[0].span)
    keywords = []
    for key in inner.keywords:
        value = inner.value(key)
        if value is not POISON:
            keywords.append((key, plain(value, inner.place(key))))
    needs: tuple[str, ...] = ()
    if "needs" in options:
        needs = tuple(symbol.name for symbol in _needs(options.form("needs")))
    over = options.choice("over", ("cohort", "sweep"), "cohort") if "over" in options else None
    return Analysis(head[3:], name, file.value, function.name, tuple(keywords), needs, over, form.span)


def _needs(form: Form) -> list[Symbol]:
    if isinstance(form, List) and form.bracket == "(":
        found = [item for item in form.items if isinstance(item, Symbol)]
        if len(found) == len(form.items):
            return found
    raise ParenError("E-FORM-006", ":needs is a list of names: (model observations)", form.span)


def _check_needs(top: TopLevel, found: Mapping[str, Analysis]) -> None:
    products = {name for name, analysis in found.items() if analysis.kind == "product"}
    for head in _ANALYSES:
        for name, form in top.named(head).items():
            if name not in found or not found[name].needs:
                continue
            position = next(i for i, item in enumerate(form.items) if getattr(item, "name", "") == "needs")
            for symbol in _needs(form.items[position + 1]):
                if symbol.name == "model" or symbol.name in products:
                    continue
                hint = did_you_mean(symbol.name, products | {"model"})
                what = "is not a product" if symbol.name in found else "is unknown"
                top.session.record(
                    ParenError(
                        "E-STUDY-003",
                        f"{name} needs {symbol.name}, which {what}{hint}",
                        symbol.span,
                        fix=f"what can be needed: {', '.join(sorted(products | {'model'}))}",
                    )
                )


def _ordered(found: Mapping[str, Analysis]) -> tuple[Analysis, ...]:
    """The analyses with needs first. Raises E-STUDY-004 that shows a cycle."""
    order: list[Analysis] = []
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            cycle = " -> ".join((*path[path.index(name) :], name))
            raise ParenError("E-STUDY-004", f"the needs go in a circle: {cycle}", found[name].span)
        if name in done or name not in found:
            return
        for need in found[name].needs:
            visit(need, (*path, name))
        done.add(name)
        order.append(found[name])

    for name in found:
        visit(name, ())
    return tuple(order)
