"""Parameters of functions, and how the arguments of a call meet them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from paren.lang.value import Value
from paren.text.errors import ParenError, did_you_mean
from paren.text.forms import Form, Keyword, List, Symbol
from paren.text.size import count_of
from paren.text.source import Source, Span


@dataclass(frozen=True, eq=False)
class Site:
    """Where a call stands: its form, and the forms of its arguments. `internal` if that is in the prelude."""

    span: Span
    positional: tuple[Span, ...] = ()
    keywords: Mapping[str, Span] = field(default_factory=dict)
    internal: bool = False

    def argument(self, signature: Signature, name: str) -> Span:
        """The span of the argument for a parameter; of the call, if the argument was not given."""
        if name in self.keywords:
            return self.keywords[name]
        names = signature.positional
        if name in names:
            index = names.index(name)
        elif name == signature.rest:
            index = len(names)
        else:
            return self.span
        return self.positional[index] if index < len(self.positional) else self.span


@dataclass(frozen=True, eq=False)
class Pattern:
    """A list of names that a list of values is taken apart into: `[a b]`."""

    parts: tuple[Symbol | Pattern, ...]
    span: Span


@dataclass(frozen=True, eq=False)
class Signature:
    """`positional` names, then `keywords` with their default forms (None: the keyword must be given), then `rest`.

    A builtin's defaults are in `values`. Patterns belong to positional parameters that are taken apart.
    """

    positional: tuple[str, ...]
    keywords: Mapping[str, Form | None]
    rest: str | None
    patterns: Mapping[str, Pattern] = field(default_factory=dict)
    values: Mapping[str, Value] = field(default_factory=dict)

    @cached_property
    def all_names(self) -> tuple[str, ...]:
        return (*self.positional, *self.keywords, *((self.rest,) if self.rest else ()))

    def __str__(self) -> str:
        parts = [*self.positional, *(f":{name}" for name in self.keywords), *([f"& {self.rest}"] if self.rest else [])]
        return f"({' '.join(parts)})"


def parse_signature(items: Sequence[Form]) -> Signature:
    """The parameters of `(def (name PARAMETERS) ...)` or `(fn (PARAMETERS) ...)`.

    Names, `[a b]` patterns, `:key default` pairs, `:key` alone for a keyword that must be given, `& rest` last.
    """
    positional: list[str] = []
    keywords: dict[str, Form | None] = {}
    patterns: dict[str, Pattern] = {}
    rest: str | None = None
    seen: dict[str, Span] = {}

    def declare(name: str, span: Span) -> None:
        if name in seen:
            raise ParenError("E-FORM-001", f"the parameter {name} is declared twice", span)
        seen[name] = span

    index = 0
    while index < len(items):
        item = items[index]
        index += 1
        if isinstance(item, Symbol) and item.name == "&":
            if index != len(items) - 1 or not isinstance(items[index], Symbol):
                raise ParenError("E-FORM-001", "`&` is followed by one name, the last of the parameters", item.span)
            last = items[index]
            assert isinstance(last, Symbol)
            declare(last.name, last.span)
            rest = last.name
            break
        if isinstance(item, Keyword):
            declare(item.name, item.span)
            default = items[index] if index < len(items) else None
            if default is None or isinstance(default, Keyword) or (isinstance(default, Symbol) and default.name == "&"):
                keywords[item.name] = None
            else:
                keywords[item.name] = default
                index += 1
        elif keywords:
            raise ParenError("E-FORM-001", "positional parameters come before keywords", item.span)
        elif isinstance(item, Symbol):
            declare(item.name, item.span)
            positional.append(item.name)
        elif isinstance(item, List) and item.bracket == "[":
            pattern = parse_pattern(item)
            name = f"[{len(positional)}]"
            positional.append(name)
            assert isinstance(pattern, Pattern)
            patterns[name] = pattern
        else:
            raise ParenError("E-FORM-001", "a parameter is a name, `:key default` or `[a b]`", item.span)
    return Signature(tuple(positional), keywords, rest, patterns)


def parse_pattern(form: Form) -> Symbol | Pattern:
    """A name, or `[a b]` with names or patterns in it."""
    if isinstance(form, Symbol):
        return form
    if isinstance(form, List) and form.bracket == "[" and form.items:
        return Pattern(tuple(parse_pattern(item) for item in form.items), form.span)
    raise ParenError("E-FORM-001", "a name or a list of names `[a b]` is expected here", form.span)


def builtin_signature(text: str, defaults: Mapping[str, Value]) -> Signature:
    """The signature of a builtin: `"x y :axis & rest"`; keywords without an entry in `defaults` must be given."""
    source = Source("<builtin>", text)
    span = Span(source, 0, len(text))
    items: list[Form] = [
        Keyword(word[1:], span) if word.startswith(":") else Symbol(word, span) for word in text.split()
    ]
    signature = parse_signature(items)
    return Signature(signature.positional, signature.keywords, signature.rest, values=defaults)


def check_call(
    name: str, signature: Signature, positional: Sequence[Value], keywords: Mapping[str, Value], site: Site, place: Span
) -> None:
    """Raises E-CALL-001, E-CALL-002 or E-CALL-003 if the arguments do not fit the parameters."""
    wanted = len(signature.positional)
    for key in keywords:
        if key in signature.keywords:
            continue
        hint = did_you_mean(key, signature.keywords)
        options = f"its keywords are {', '.join(f':{k}' for k in signature.keywords)}" if signature.keywords else None
        raise ParenError(
            "E-CALL-002",
            f"{name} has no keyword :{key}{hint}",
            _key(site, key, place),
            fix=options or f"{name} takes no keywords",
        )
    if len(positional) > wanted and signature.rest is None:
        extra = site.positional[wanted] if not site.internal and wanted < len(site.positional) else place
        raise ParenError(
            "E-CALL-001", f"{name} takes {count(wanted, 'argument')} {signature}, not {len(positional)}", extra
        )
    if len(positional) < wanted:
        missing = signature.positional[len(positional)]
        what = "an argument" if missing.startswith("[") else missing
        raise ParenError(
            "E-CALL-001",
            f"{name} takes {count(wanted, 'argument')} {signature}, not {len(positional)}: {what} is missing",
            place,
        )
    for key, default in signature.keywords.items():
        if default is None and key not in keywords and key not in signature.values:
            raise ParenError("E-CALL-003", f"{name} needs the keyword :{key}", place)


def count(number: int, noun: str) -> str:
    """`1 argument`, `2 arguments`, `no arguments`."""
    return count_of(number, noun) if number else f"no {noun}s"


def _key(site: Site, key: str, place: Span) -> Span:
    return place if site.internal else site.keywords.get(key, place)
