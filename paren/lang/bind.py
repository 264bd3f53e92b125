"""Functions written in paren: how arguments become local names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paren.lang.signature import Pattern, Signature
from paren.lang.value import POISON, Closure, Code, Environment, Keywords, Value, kind
from paren.text.errors import ParenError
from paren.text.forms import Form, Symbol
from paren.text.size import count_of
from paren.text.source import Span

if TYPE_CHECKING:
    from paren.lang.core import Compiler


class Lambda:
    """The text of a function: its parameters and its body, compiled once for all closures of it."""

    def __init__(
        self, compiler: Compiler, name: str, signature: Signature, body: Form, span: Span, names: frozenset[str]
    ) -> None:
        self.compiler = compiler
        self.name = name
        self.signature = signature
        self.body = body
        self.span = span
        self.names = names
        self.code: Code | None = None
        self.defaults: dict[str, Code] = {}

    def prepare(self) -> Code:
        """Compiles the defaults, each of which sees the parameters before it, and the body."""
        signature = self.signature
        names = self.names | set(signature.positional)
        for pattern in signature.patterns.values():
            names |= pattern_names(pattern)
        for name, form in signature.keywords.items():
            if form is not None:
                self.defaults[name] = self.compiler.compile(form, names)
            names |= {name}
        if signature.rest:
            names |= {signature.rest}
        self.code = self.compiler.compile(self.body, names)
        return self.code

    def close(self, environment: Environment) -> Closure:
        """The function over these local names."""

        def run(positional: Sequence[Value], keywords: Keywords) -> Value:
            code = self.code or self.prepare()
            signature = self.signature
            inner = dict(environment)
            inner.update(zip(signature.positional, positional, strict=False))
            for name, pattern in signature.patterns.items():
                bind_pattern(pattern, inner[name], inner)
            for name in signature.keywords:
                inner[name] = keywords[name] if name in keywords else self.defaults[name](inner)
            if signature.rest:
                inner[signature.rest] = tuple(positional[len(signature.positional) :])
            return code(inner)

        return Closure(self.name, self.signature, run, self.compiler.internal, self.span)


def bind_pattern(pattern: Symbol | Pattern, value: Value, environment: Environment) -> None:
    """Binds the names of a pattern, in place. Raises E-CALL-008 if the value is not a list of the pattern's length."""
    if isinstance(pattern, Symbol):
        environment[pattern.name] = value
        return
    if value is POISON:
        for name in pattern_names(pattern):
            environment[name] = POISON
        return
    if not isinstance(value, tuple) or len(value) != len(pattern.parts):
        raise ParenError(
            "E-CALL-008",
            f"a list of {count_of(len(pattern.parts), 'value')} is taken apart here, not {kind(value)}",
            pattern.span,
        )
    for part, item in zip(pattern.parts, value, strict=True):
        bind_pattern(part, item, environment)


def pattern_names(pattern: Symbol | Pattern) -> frozenset[str]:
    """All names that a pattern binds."""
    if isinstance(pattern, Symbol):
        return frozenset((pattern.name,))
    return frozenset().union(*(pattern_names(part) for part in pattern.parts))
