"""Options of top-level forms: which keys there are, and what kind of value each takes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from paren.ir.program import Value as Plain
from paren.ir.types import DType
from paren.lang.core import Compiler
from paren.lang.session import Session
from paren.lang.value import POISON, Value, kind
from paren.text.errors import Note, ParenError, did_you_mean
from paren.text.forms import Form, Keyword, List, String, Symbol
from paren.text.source import Span

MACHINE_KEYS = frozenset(
    ("device", "devices", "gpu", "gpus", "cuda", "cpu", "ranks", "workers", "nodes", "threads", "world-size")
)


@dataclass(eq=False)
class Options:
    """`positional... :key value...` of a form. Values are evaluated when they are asked for.

    The readers below record a mistake and give a stand-in, so that all options are checked in one run.
    """

    what: str
    span: Span
    compiler: Compiler
    positional: tuple[Form, ...]
    keywords: dict[str, tuple[Keyword, Form]]
    names: frozenset[str] = field(default_factory=frozenset)

    @property
    def session(self) -> Session:
        return self.compiler.session

    def __contains__(self, key: str) -> bool:
        return key in self.keywords

    def form(self, key: str) -> Form:
        return self.keywords[key][1]

    def place(self, key: str) -> Span:
        return self.keywords[key][1].span if key in self.keywords else self.span

    def spans(self) -> dict[str, Span]:
        """Where each value stands: keywords by name, positional ones by number."""
        spans = {str(index): item.span for index, item in enumerate(self.positional)}
        return spans | {key: form.span for key, (_, form) in self.keywords.items()}

    def wrong(self, key: str, wanted: str, value: Value) -> ParenError:
        return ParenError("E-FORM-006", f":{key} is {wanted}, not {kind(value)}", self.place(key))

    def value(self, key: str) -> Value:
        """The value of an option; poison if it has a mistake."""
        return self.evaluate(self.form(key))

    def evaluate(self, form: Form) -> Value:
        with self.session.collect():
            return self.compiler.compile(form, frozenset())({})
        return POISON

    def integer(self, key: str, default: int, minimum: int = 1) -> int:
        if key not in self:
            return default
        value = self.value(key)
        if isinstance(value, int) and not isinstance(value, bool) and value >= minimum:
            return value
        if value is not POISON:
            self.session.record(self.wrong(key, f"an integer of at least {minimum}", value))
        return default

    def optional_integer(self, key: str) -> int | None:
        """An integer of at least 1, if the option is there."""
        return self.integer(key, 1, 1) if key in self else None

    def positive(self, key: str) -> float | None:
        """A finite number above 0, if the option is there."""
        if key not in self:
            return None
        value = self.value(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 and math.isfinite(value):
            return float(value)
        if value is not POISON:
            self.session.record(self.wrong(key, "a positive number", value))
        return 1.0

    def string(self, key: str) -> str | None:
        if key not in self:
            return None
        value = self.value(key)
        if isinstance(value, str) and value:
            return value
        if value is not POISON:
            self.session.record(self.wrong(key, "a string", value))
        return ""

    def paths(self, key: str) -> tuple[str, ...]:
        """The paths of `("a.csv" "b.csv")`, or of a list."""
        if key not in self:
            return ()
        form = self.form(key)
        written = isinstance(form, List) and form.bracket == "(" and form.items and isinstance(form.items[0], String)
        value = tuple(map(self.evaluate, form.items)) if written and isinstance(form, List) else self.value(key)
        if isinstance(value, tuple) and all(isinstance(item, str) and item for item in value):
            return tuple(str(item) for item in value)
        if value is not POISON and not (isinstance(value, tuple) and POISON in value):
            self.session.record(self.wrong(key, 'a list of paths such as ("a.csv")', value))
        return ()

    def choice(self, key: str, choices: Sequence[str], default: str) -> str:
        """One of some words, as a symbol or as a string (so that a def may hold it)."""
        if key not in self:
            return default
        form = self.form(key)
        value = form.name if isinstance(form, Symbol) and form.name in choices else None
        if value is None and isinstance(form, Symbol) and self.compiler.namespace.find(form.name) is None:
            wanted = f"one of {', '.join(choices)}"
            hint = did_you_mean(form.name, choices)
            self.session.record(ParenError("E-FORM-006", f":{key} is {wanted}, not {form.name}{hint}", form.span))
            return default
        if value is not None:
            return value
        found = self.value(key)
        if isinstance(found, DType):
            found = found.value
        if isinstance(found, str) and found in choices:
            return found
        if found is not POISON:
            self.session.record(self.wrong(key, f"one of {', '.join(choices)}", found))
        return default


def parse_options(
    compiler: Compiler,
    what: str,
    span: Span,
    items: Sequence[Form],
    known: Iterable[str],
    *,
    open_ended: bool = False,
    required: Iterable[str] = (),
) -> Options:
    """Sorts the items of a form. Records E-FORM-003, E-FORM-004, E-FORM-005, E-FORM-008 and E-CALL-005."""
    session = compiler.session
    allowed = list(known)
    positional: list[Form] = []
    keywords: dict[str, tuple[Keyword, Form]] = {}
    index = 0
    while index < len(items):
        item = items[index]
        index += 1
        if not isinstance(item, Keyword):
            positional.append(item)
            continue
        if item.name in MACHINE_KEYS:
            session.record(
                ParenError(
                    "E-FORM-008",
                    f":{item.name} cannot stand in the file, which names no machine",
                    item.span,
                    fix="choose the device on the command line: paren run FILE --device cpu",
                )
            )
        elif item.name not in allowed and not open_ended:
            hint = did_you_mean(item.name, allowed)
            options = f"its options are {', '.join(f':{name}' for name in allowed)}" if allowed else "it has no options"
            session.record(ParenError("E-FORM-004", f"{what} has no option :{item.name}{hint}", item.span, fix=options))
        if index == len(items) or isinstance(items[index], Keyword):
            session.record(ParenError("E-FORM-003", f":{item.name} has no value", item.span))
            keywords.setdefault(item.name, (item, Symbol("none", item.span)))
            continue
        if item.name in keywords:
            first = Note("the first one", keywords[item.name][0].span)
            session.record(ParenError("E-CALL-005", f":{item.name} is given twice", item.span, notes=[first]))
        else:
            keywords[item.name] = (item, items[index])
        index += 1
    for key in required:
        if key not in keywords:
            session.record(ParenError("E-FORM-005", f"{what} needs the option :{key}", span))
    return Options(what, span, compiler, tuple(positional), keywords)


def plain(value: Value, span: Span) -> Plain:
    """A value that can be stored: numbers, booleans, strings and lists of them. Raises E-FORM-006."""
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, tuple):
        return tuple(plain(item, span) for item in value)
    if isinstance(value, DType):
        return value.value
    raise ParenError("E-FORM-006", f"a number, boolean, string or list is expected here, not {kind(value)}", span)


def pairs(form: Form, what: str) -> list[tuple[Form, Form]]:
    """The entries of `((a b) ...)`. Raises E-FORM-006 that shows the form."""
    if isinstance(form, List) and form.bracket == "(":
        found = [item for item in form.items if isinstance(item, List) and item.bracket == "(" and len(item.items) == 2]
        if len(found) == len(form.items):
            return [(item.items[0], item.items[1]) for item in found]
    raise ParenError("E-FORM-006", what, form.span)


def head_of(form: Form) -> str | None:
    """The symbol that a parenthesised form begins with."""
    if isinstance(form, List) and form.bracket == "(" and form.items and isinstance(form.items[0], Symbol):
        return form.items[0].name
    return None
