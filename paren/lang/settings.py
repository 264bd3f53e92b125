"""Settings: top-level defs of literal values, and what a variant or `--set` puts in their place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from paren.ir.program import Setting
from paren.ir.program import Value as Plain
from paren.lang.session import Session
from paren.lang.value import kind
from paren.text.errors import Note, ParenError, did_you_mean
from paren.text.forms import Boolean, Form, Keyword, List, Number, String, Symbol
from paren.text.reader import read
from paren.text.source import Source, Span

COMMAND_LINE = "<command line>"
SET_ONCE = "leave one of them out"
AS_WRITTEN = "write it as in --set rate=1e-3"
STUDIES = ("defsweep", "defcohort", "defgrid")


@dataclass(eq=False)
class Settings:
    """The literal defs by name, in the order of the text. `others` are the names that cannot be set."""

    session: Session
    values: dict[str, Setting] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)

    def override(self, name: str, span: Span, form: Form, what: str) -> None:
        """Puts a literal in the place of the def's. Raises E-SET-001 (no such def), E-SET-002 (another kind)."""
        value = self.checked(name, span, form, what)
        self.values[name] = Setting(name, value, form.span)

    def checked(self, name: str, span: Span, form: Form, what: str) -> Plain:
        """The literal, as a value that the def could have."""
        known = self.values.get(name)
        if known is None:
            raise self._unknown(name, span, what)
        value = literal_value(form)
        fitting = _fit(known.value, value)
        if fitting is None:
            raise ParenError(
                "E-SET-002",
                f"{name} is {kind(known.value)}, and {kind(value)} is of another kind",
                form.span,
                notes=[Note(f"{name} is defined here", known.span)],
                fix="write a value of the same kind; an integer may stand for a float",
            )
        return fitting

    def _unknown(self, name: str, span: Span, what: str) -> ParenError:
        if name in self.others:
            return ParenError(
                "E-SET-001",
                f"{what} cannot set {name}, whose definition is not a literal value",
                span,
                fix=self._listing(),
            )
        hint = did_you_mean(name, self.values)
        return ParenError(
            "E-SET-001", f"{what} sets {name}, which the file does not define{hint}", span, fix=self._listing()
        )

    def _listing(self) -> str:
        if not self.values:
            return "the file has no def of a literal value"
        return f"the names that can be set are {', '.join(sorted(self.values))}"

    def command_line(self, texts: Sequence[str]) -> None:
        """Applies `name=value` texts, left to right. Raises E-SET-003 for other texts, and for a name given twice."""
        seen: dict[str, Span] = {}
        for text in texts:
            with self.session.collect():
                name, span, form = parse_override(text)
                if name in seen:
                    first = Note("the first one", seen[name])
                    raise ParenError("E-SET-003", f"{name} is set twice", span, notes=[first], fix=SET_ONCE)
                seen[name] = span
                self.override(name, span, form, "--set")


def is_literal(form: Form) -> bool:
    """Whether the form is a number, boolean, string, or a bracket list of such."""
    if isinstance(form, List):
        return form.bracket == "[" and all(is_literal(item) for item in form.items)
    return isinstance(form, (Number, String, Boolean))


def literal_value(form: Form) -> Plain:
    """The value of a literal. Raises E-SET-004."""
    if isinstance(form, List) and form.bracket == "[":
        return tuple(literal_value(item) for item in form.items)
    if isinstance(form, (Number, String, Boolean)):
        return form.value
    if isinstance(form, Symbol):
        raise ParenError(
            "E-SET-004",
            f"{form.name} is a name, a literal value is needed",
            form.span,
            fix=_quoted(form),
        )
    what = f":{form.name}" if isinstance(form, Keyword) else "a form"
    raise ParenError(
        "E-SET-004", f"{what} is not a literal value", form.span, fix="write a number, true or false, a string or [a b]"
    )


def _quoted(form: Symbol) -> str:
    """How a string is written in the place of the name; a shell takes quotes away that are not in others."""
    span, text = form.span, f'"{form.name}"'
    if span.source.name == COMMAND_LINE:
        whole = span.source.text
        return f"a string is written in quotes, in a shell: --set '{whole[: span.start]}{text}{whole[span.end :]}'"
    return f"a string is written in quotes: {text}"


def _fit(old: Plain, new: Plain) -> Plain | None:
    """The new value if it is of the old one's kind: an integer may stand for a float, and any list for a list."""
    if isinstance(old, float) and isinstance(new, int) and not isinstance(new, bool):
        return float(new)
    return new if type(old) is type(new) else None


def parse_override(text: str) -> tuple[str, Span, Form]:
    """`name=value` with a value as in the language. The spans are in a source called `<command line>`."""
    source = Source(COMMAND_LINE, text)
    name, equals, value = text.partition("=")
    whole = Span(source, 0, len(text))
    if not equals or not name.strip():
        raise ParenError("E-SET-003", f"{text} is not of the form name=value", whole, fix=AS_WRITTEN)
    start = len(name) + 1
    try:
        forms = read(Source(COMMAND_LINE, " " * start + value))
    except ParenError as error:
        place = Span(source, error.span.start, error.span.end) if error.span else whole
        raise ParenError(error.code, error.message, place, fix=error.fix) from None
    if len(forms) != 1:
        raise ParenError(
            "E-SET-003",
            f"{name.strip()} is set to {f'{len(forms)} values, one' if forms else 'nothing, a value'} is needed",
            Span(source, start, len(text)) if value else whole,
            fix="a list is written in brackets and quotes: --set 'hidden=[32 32]'" if forms else AS_WRITTEN,
        )
    return name.strip(), Span(source, 0, len(name)), _moved(forms[0], source)


def _moved(form: Form, source: Source) -> Form:
    """The form with its spans in another source of the same layout."""
    span = Span(source, form.span.start, form.span.end)
    match form:
        case Symbol():
            return Symbol(form.name, span)
        case Keyword():
            return Keyword(form.name, span)
        case Number():
            return Number(form.value, form.text, span)
        case String():
            return String(form.value, span)
        case Boolean():
            return Boolean(form.value, span)
        case List():
            return List(tuple(_moved(item, source) for item in form.items), form.bracket, span)


def apply_variant(settings: Settings, variants: Mapping[str, List], variant: str | None) -> dict[str, List]:
    """Puts the variant's literals in place; gives the sweeps, cohorts and grids that it replaces. All variants are
    checked, the chosen one is applied. Raises E-SET-005 for an unknown name."""
    replaced: dict[str, List] = {}
    for name, form in variants.items():
        seen: dict[str, Span] = {}
        entries: list[tuple[Symbol, Form]] = []
        with settings.session.collect():
            entries = [_entry(item) for item in form.items[2:]]
        for head, value in entries:
            with settings.session.collect():
                if head.name in seen:
                    first = Note("the first one", seen[head.name])
                    raise ParenError("E-SET-003", f"{head.name} is set twice", head.span, notes=[first], fix=SET_ONCE)
                seen[head.name] = head.span
                if isinstance(value, List) and head.name in STUDIES:
                    if name == variant:
                        replaced[head.name] = value
                    continue
                checked = settings.checked(head.name, head.span, value, f"the variant {name}")
                if name == variant:
                    settings.values[head.name] = Setting(head.name, checked, value.span)
    if variant is not None and variant not in variants:
        raise unknown_variant(variant, variants)
    return replaced


def _entry(item: Form) -> tuple[Symbol, Form]:
    if isinstance(item, List) and item.bracket == "(" and item.items:
        head = item.items[0]
        if isinstance(head, Symbol) and head.name in STUDIES:
            return head, item
        if isinstance(head, Symbol) and len(item.items) == 2:
            return head, item.items[1]
    raise ParenError("E-FORM-001", "the form is (defvariant name (setting value) ...)", item.span)


def unknown_variant(variant: str, variants: Iterable[str]) -> ParenError:
    known = sorted(variants)
    listing = f"the variants are {', '.join(known)}" if known else "the file has no variants"
    return ParenError("E-SET-005", f"unknown variant {variant}{did_you_mean(variant, known)}", fix=listing)
