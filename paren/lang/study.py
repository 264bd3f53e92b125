"""`defsweep`, `defcohort`, `defgrid`, `deflimits`: checked and kept as data."""

from __future__ import annotations

import math
from collections.abc import Mapping

from paren.ir.program import Factor, Limit, Study, same_value
from paren.lang.analysis import build_analyses
from paren.lang.grammar import head_of
from paren.lang.settings import Settings
from paren.lang.toplevel import FORMS, TopLevel
from paren.lang.value import POISON, kind
from paren.text.errors import Note, ParenError
from paren.text.forms import Form, List, Symbol
from paren.text.source import Span


def build_study(top: TopLevel, replaced: Mapping[str, List]) -> Study:
    """The study of the file; `replaced` are the sweeps that the variant puts in place of the file's."""
    factors: dict[str, tuple[Factor, ...]] = {}
    seen: dict[str, Span] = {}
    for head in ("defsweep", "defcohort", "defgrid"):
        form = replaced.get(head) or top.named(head).get("")
        factors[head] = _factors(top.settings, form, seen) if form is not None else ()
    alternatives = [_alternatives(top.settings, factor) for factor in factors["defsweep"]]
    sweep = tuple(factor for factor in alternatives if factor.values)
    return Study(sweep, factors["defcohort"], factors["defgrid"], build_analyses(top), _limits(top))


def _factors(settings: Settings, form: List, seen: dict[str, Span]) -> tuple[Factor, ...]:
    """`(setting value ...)` entries. A setting may vary in one place only. Values given twice vanish."""
    head = head_of(form) or ""
    found: list[Factor] = []
    entries: list[tuple[Symbol, List]] = []
    with settings.session.collect():
        entries = [_entry(item, head) for item in form.items[1:]]
    for label, item in entries:
        with settings.session.collect():
            _refuse_twice(label, seen, "varies twice")
            values = [settings.checked(label.name, label.span, value, head) for value in item.items[1:]]
            found.append(Factor(label.name, tuple({repr(value): value for value in values}.values()), item.span))
    return tuple(found)


def _refuse_twice(label: Symbol, seen: dict[str, Span], what: str) -> None:
    if label.name in seen:
        first = Note("the first one", seen[label.name])
        raise ParenError("E-STUDY-001", f"{label.name} {what}", label.span, notes=[first])
    seen[label.name] = label.span


def _entry(item: Form, head: str) -> tuple[Symbol, List]:
    if isinstance(item, List) and len(item.items) >= 2 and item.bracket == "(" and isinstance(item.items[0], Symbol):
        return item.items[0], item
    raise ParenError("E-FORM-001", f"the form is {FORMS[head]}", item.span)


def _alternatives(settings: Settings, factor: Factor) -> Factor:
    """A sweep lists alternatives: the value in force is dropped from them."""
    now = settings.values[factor.name].value
    return Factor(factor.name, tuple(value for value in factor.values if not same_value(value, now)), factor.span)


def _limits(top: TopLevel) -> tuple[Limit, ...]:
    form = top.named("deflimits").get("")
    if form is None:
        return ()
    found: list[Limit] = []
    seen: dict[str, Span] = {}
    for item in form.items[1:]:
        with top.session.collect():
            label, entry = _entry(item, "deflimits")
            if len(entry.items) != 2:
                raise ParenError("E-FORM-001", f"the form is {FORMS['deflimits']}", item.span)
            _refuse_twice(label, seen, "is limited twice")
            value = top.compiler.compile(entry.items[1], frozenset())({})
            if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 and math.isfinite(value):
                found.append(Limit(label.name, float(value), item.span))
            elif value is not POISON:
                what = f"the limit of {label.name} is a positive number, not {kind(value)}"
                raise ParenError("E-FORM-006", what, entry.items[1].span)
    return tuple(found)
