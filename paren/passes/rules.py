"""The algebra of `algebra.paren`, compiled into a rule for builders: patterns over operations, indexed by operation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from paren.ir.graph import Builder, Node
from paren.ir.op import OPS, Attrs
from paren.ir.types import DType
from paren.text.errors import InternalError
from paren.text.forms import Boolean, Form, Keyword, List, Number, Symbol
from paren.text.reader import load_source, read
from paren.text.source import Span

COMMUTATIVE = frozenset(("add", "mul", "maximum", "minimum", "and", "or", "xor", "eq", "ne"))
FILE = Path(__file__).with_name("algebra.paren")


@dataclass(frozen=True)
class Variable:
    """Stands for any node, the same one each time."""

    name: str


@dataclass(frozen=True)
class Literal:
    """Stands for a constant of this value, broadcast or not. A boolean stands for boolean constants only."""

    value: float | int | bool


@dataclass(frozen=True)
class Term:
    """An operation without attributes, applied to patterns."""

    op: str
    args: tuple[Pattern, ...]


Pattern = Variable | Literal | Term
Bindings = Mapping[str, Node]


@dataclass(frozen=True)
class AlgebraRule:
    """`pattern` may be replaced by `replacement` where the result has one of `dtypes`."""

    name: str
    pattern: Term
    replacement: Pattern
    dtypes: frozenset[DType]
    span: Span


_DTYPES = {
    "anything": frozenset(DType),
    "integers": frozenset(dtype for dtype in DType if dtype.is_integer),
    "floats": frozenset((DType.FLOAT64, DType.FLOAT32)),
    "booleans": frozenset((DType.BOOL,)),
}


@cache
def algebra_rules() -> tuple[AlgebraRule, ...]:
    """All rules of `algebra.paren`, in its order."""
    return tuple(_rule(form) for form in read(load_source(FILE, FILE.name)))


@cache
def _by_operation() -> Mapping[str, tuple[AlgebraRule, ...]]:
    index: dict[str, tuple[AlgebraRule, ...]] = {}
    for rule in algebra_rules():
        index[rule.pattern.op] = (*index.get(rule.pattern.op, ()), rule)
    return index


def apply_algebra(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    """The replacement by the first rule that fits, or None: a `Rule` for builders."""
    if attrs:
        return None
    for rule in _by_operation().get(name, ()):
        for bindings in _match_args(rule.pattern, args, {}):
            type_ = OPS[name].infer([arg.type for arg in args], attrs)
            if type_.dtype not in rule.dtypes:
                break
            made = _build(builder, rule.replacement, bindings, span)
            if isinstance(made, Node):
                return made
            constant = builder.constant(made, type_.dtype, span)
            return builder.broadcast(constant, type_.shape, span=span)
    return None


def uniform_value(node: Node) -> float | int | bool | None:
    """The value of a constant, broadcast or not; None for all other nodes."""
    if node.op.name == "broadcast":
        node = node.args[0]
    if node.op.name != "constant":
        return None
    value = node.attrs["value"]
    return value if isinstance(value, bool | int | float) else None


def _match_args(term: Term, args: tuple[Node, ...], bindings: Bindings) -> Iterator[Bindings]:
    """All ways in which the operands fit."""
    if len(args) != len(term.args):
        return
    yield from _match_each(tuple(zip(term.args, args, strict=True)), bindings)
    if term.op in COMMUTATIVE:
        yield from _match_each(tuple(zip(term.args, reversed(args), strict=True)), bindings)


def _match_each(pairs: tuple[tuple[Pattern, Node], ...], bindings: Bindings) -> Iterator[Bindings]:
    if not pairs:
        yield bindings
        return
    (pattern, node), rest = pairs[0], pairs[1:]
    for found in _match(pattern, node, bindings):
        yield from _match_each(rest, found)


def _match(pattern: Pattern, node: Node, bindings: Bindings) -> Iterator[Bindings]:
    match pattern:
        case Variable(name):
            known = bindings.get(name)
            if known is None:
                yield {**bindings, name: node}
            elif known is node:
                yield bindings
        case Literal(value):
            found = uniform_value(node)
            if found is not None and isinstance(found, bool) == isinstance(value, bool) and found == value:
                yield bindings
        case Term(op):
            if node.op.name == op and not node.attrs:
                yield from _match_args(pattern, node.args, bindings)


def _build(builder: Builder, pattern: Pattern, bindings: Bindings, span: Span) -> Node | float | int | bool:
    match pattern:
        case Variable(name):
            return bindings[name]
        case Literal(value):
            return value
        case Term(op, args):
            return builder.apply(op, *(_build(builder, arg, bindings, span) for arg in args), span=span)


def _rule(form: Form) -> AlgebraRule:
    match form:
        case List((Symbol("rule"), Symbol(name), pattern, replacement, *rest)):
            left, right = _pattern(pattern), _pattern(replacement)
        case _:
            raise InternalError("algebra", f"{form.span}: not a rule")
    match rest:
        case []:
            dtypes = _DTYPES["anything"]
        case [Keyword("for"), Symbol(kind)] if kind in _DTYPES:
            dtypes = _DTYPES[kind]
        case _:
            raise InternalError("algebra", f"{form.span}: rule {name} has options that are not known")
    if not isinstance(left, Term) or not set(variables(right)) <= set(variables(left)):
        raise InternalError("algebra", f"{form.span}: rule {name} replaces no operation, or has a free variable")
    return AlgebraRule(name, left, right, dtypes, form.span)


def _pattern(form: Form) -> Pattern:
    match form:
        case Symbol(name):
            return Variable(name)
        case Number(value) | Boolean(value):
            return Literal(value)
        case List((Symbol(op), *args)) if op in OPS:
            return Term(op, tuple(_pattern(arg) for arg in args))
        case _:
            raise InternalError("algebra", f"{form.span}: not a pattern")


def variables(pattern: Pattern) -> Iterable[str]:
    """The names of the variables in a pattern, as often as they occur."""
    match pattern:
        case Variable(name):
            return [name]
        case Literal():
            return []
        case Term(_, args):
            return [name for arg in args for name in variables(arg)]
