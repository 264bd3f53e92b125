"""Where the evaluation stands while a graph is built: its builder, the scope that names parameters and random sites."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

from paren.ir.graph import Builder
from paren.ir.program import Bound
from paren.ir.types import TensorType
from paren.lang.value import Value
from paren.text.errors import Note, ParenError
from paren.text.source import Span


@dataclass(frozen=True, eq=False)
class Parameter:
    """A declared parameter: its full name, type, and what gives its first value (a number or a function of the
    shape)."""

    name: str
    type: TensorType
    initial: Value
    trainable: bool
    span: Span


@dataclass(eq=False)
class Scope:
    """One entered scope. Children of equal name are numbered: `linear`, `linear-1`. Lives as long as its evaluation.

    `path` names parameters; `site` names random sites and also holds the scopes around the call of a model. `declared`
    is one table for all scopes of an evaluation, so no two of them can name a parameter alike.
    """

    path: tuple[str, ...]
    site: tuple[str, ...]
    in_model: bool
    declared: dict[str, Span] = field(default_factory=dict)
    children: dict[str, int] = field(default_factory=dict)
    draws: int = 0

    def child(self, name: str) -> Scope:
        """Enters a scope; the second one of a name becomes `name-1`."""
        number = self.children.get(name, 0)
        part = f"{name}-{number}" if number else name
        while number and part in self.children:  # a scope that the program itself calls `linear-1`
            number += 1
            part = f"{name}-{number}"
        self.children[name] = number + 1
        if number:
            self.children[part] = 1
        return Scope((*self.path, part), (*self.site, part), self.in_model, self.declared)

    def next_site(self) -> int:
        """The number (uint32) of the next random site of this scope: a hash of the scope's path and an ordinal."""
        ordinal = self.draws
        self.draws += 1
        return zlib.crc32(f"{'.'.join(self.site)}#{ordinal}".encode())


@dataclass(eq=False)
class Trace:
    """One graph in the making. Without `rows` there is no batch axis.

    `stateless` forbids random numbers and parameters (update rules).
    """

    builder: Builder
    rows: int | None
    training: bool
    scope: Scope
    stateless: bool = False
    open_models: list[str] = field(default_factory=list)  # the calls of models that are open, to find one in itself
    shape_asked: bool = False  # a rule asked for the shape of a tensor, so it may differ from parameter to parameter


@dataclass(eq=False)
class Declarations:
    """What all graphs of a program share: the parameters, the bounds of integer fields, warnings."""

    parameters: dict[str, Parameter] = field(default_factory=dict)
    bounds: list[Bound] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def declare(self, parameter: Parameter, scope: Scope) -> None:
        """Raises E-PARAM-001 if the evaluation has the name already, E-PARAM-003 if an earlier call gave it another
        shape."""
        before = scope.declared.get(parameter.name)
        if before is not None:
            raise ParenError(
                "E-PARAM-001",
                f"the parameter {parameter.name} is declared twice in one scope",
                parameter.span,
                notes=[Note("the first declaration", before)],
                fix="give it another name, or put each into its own (scope NAME ...)",
            )
        scope.declared[parameter.name] = parameter.span
        known = self.parameters.setdefault(parameter.name, parameter)
        if known.type != parameter.type:
            raise ParenError(
                "E-PARAM-003",
                f"the parameter {parameter.name} is {parameter.type} here, but was {known.type} before",
                parameter.span,
                notes=[Note("the earlier declaration", known.span)],
            )

    def bound(self, bound: Bound) -> None:
        """Keeps a bound once, however often graphs ask for it."""
        if all(
            (b.field, b.low, b.high, b.ignore) != (bound.field, bound.low, bound.high, bound.ignore)
            for b in self.bounds
        ):
            self.bounds.append(bound)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
