"""The state of one elaboration: mistakes found so far, the graph in the making, the calls that are open."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from paren.ir.graph import Node
from paren.ir.op import Attrs
from paren.ir.types import DType, TypeMismatch
from paren.lang.signature import Signature, Site, check_call
from paren.lang.trace import Declarations, Trace
from paren.lang.value import POISON, Builtin, Closure, Keywords, ModelValue, Poison, Tensor, Value, kind
from paren.text.errors import Note, ParenError
from paren.text.source import Span

MAXIMUM_CALLS = 300
MAXIMUM_ELEMENTS = 10_000_000  # of a range, or rounds of a fold
_PYTHON_FRAMES = 20000
PRELUDE = "<prelude>/"  # how the names of its sources begin


@dataclass(eq=False)
class Session:
    """Evaluation happens in one session. `place` is the user's call while prelude code runs in it."""

    declarations: Declarations = field(default_factory=Declarations)
    errors: list[ParenError] = field(default_factory=list)
    trace: Trace | None = None
    place: Span | None = None
    frames: list[tuple[Site, Signature]] = field(default_factory=list)
    called: set[str] = field(default_factory=set)  # names of the models that were called

    def record(self, error: ParenError) -> Poison:
        """Keeps a mistake, once, and gives the value that stands for the form it is in."""
        for single in error.errors:
            if all((e.code, e.span, e.message) != (single.code, single.span, single.message) for e in self.errors):
                self.errors.append(single)
        return POISON

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Runs the block; a `ParenError` in it is recorded and the program goes on after the block."""
        try:
            yield
        except ParenError as error:
            self.record(error)

    @contextmanager
    def tracing(self, trace: Trace) -> Iterator[Trace]:
        """The block builds this graph."""
        before, self.trace = self.trace, trace
        try:
            yield trace
        finally:
            self.trace = before

    @contextmanager
    def shown_at(self, place: Span) -> Iterator[None]:
        """The block runs prelude code whose mistakes and nodes belong to a form of the user."""
        before, self.place = self.place, place
        try:
            yield
        finally:
            self.place = before

    def span(self, site: Site) -> Span:
        """Where the user sees the call: at the site, or for a site in the prelude at the user's call."""
        return self.place if site.internal and self.place is not None else site.span

    def error(
        self,
        code: str,
        message: str,
        site: Site,
        *,
        at: Span | None = None,
        notes: Iterable[Note] = (),
        fix: str | None = None,
    ) -> ParenError:
        """An error at the call, or at an argument of it; inside the prelude, at the user's call."""
        span = self.span(site) if site.internal or at is None else at
        return ParenError(code, message, span, notes=notes, fix=fix)

    def need_trace(self, site: Site) -> Trace:
        """The graph in the making. Raises E-MODEL-002 at the top level, where there is none."""
        if self.trace is None:
            raise self.error(
                "E-MODEL-002",
                "a tensor cannot be made at the top level",
                site,
                fix="make it inside a model, a loss or a function that they call",
            )
        return self.trace

    def tensor(self, node: Node, batched: bool, site: Site) -> Tensor:
        return Tensor(node, batched, self.span(site))

    def emit(self, name: str, nodes: Sequence[Node], attrs: Attrs, site: Site) -> Node:
        """A node at the call. An operation's refusal becomes E-TYPE-009."""
        trace = self.need_trace(site)
        try:
            return trace.builder.emit(name, nodes, attrs, self.span(site))
        except TypeMismatch as mismatch:
            raise self.error("E-TYPE-009", f"{name}: {mismatch}", site) from None

    def constant(self, value: float | int | bool, dtype: DType, site: Site) -> Node:
        return self.need_trace(site).builder.constant(value, dtype, self.span(site))

    def apply(self, function: Value, positional: Sequence[Value], keywords: Keywords, site: Site) -> Value:
        """Calls a function. A call with a poisoned argument gives poison without running."""
        if POISON in positional or POISON in keywords.values() or function is POISON:
            return POISON
        if isinstance(function, Closure):
            return self._enter(function, positional, keywords, site)
        if isinstance(function, Builtin):
            signature = function.signature
            if keywords or len(positional) != len(signature.positional) or signature.keywords or signature.rest:
                check_call(function.name, signature, positional, keywords, site, self.span(site))
                wanted = len(signature.positional)
                arguments: list[object] = list(positional[:wanted])
                for name in signature.keywords:
                    arguments.append(keywords[name] if name in keywords else signature.values[name])
                if signature.rest is not None:
                    arguments.append(tuple(positional[wanted:]))
                return function.apply(self, site, *arguments)
            return function.apply(self, site, *positional)
        if isinstance(function, ModelValue):
            return self._call_model(function, positional, keywords, site)
        raise self.error("E-CALL-004", f"{kind(function)} is not a function", site)

    def _enter(self, closure: Closure, positional: Sequence[Value], keywords: Keywords, site: Site) -> Value:
        check_call(closure.name, closure.signature, positional, keywords, site, self.span(site))
        if len(self.frames) >= MAXIMUM_CALLS:
            raise self.error(
                "E-CALL-006",
                f"the call of {closure.name} is nested {MAXIMUM_CALLS} deep",
                site,
                fix="recursion needs a case in which it ends; fold and map repeat without nesting",
            )
        place = self.place
        if closure.internal and not site.internal:
            self.place = site.span
        self.frames.append((site, closure.signature))
        try:
            return closure.run(positional, keywords)
        except ParenError as error:
            if closure.internal and not site.internal:
                raise _shown_at(error, site.span) from None
            raise
        finally:
            self.frames.pop()
            self.place = place

    def _call_model(self, model: ModelValue, positional: Sequence[Value], keywords: Keywords, site: Site) -> Value:
        signature = Signature(tuple(field.name for field in model.inputs), {}, None)
        check_call(model.name, signature, positional, keywords, site, self.span(site))
        self.called.add(model.name)
        return model.run(positional, site)


def _shown_at(error: ParenError, span: Span) -> ParenError:
    """The mistake at the user's call, if its place is inside the prelude."""
    if error.span is None or not error.span.source.name.startswith(PRELUDE):
        return error
    return ParenError(error.code, error.message, span, notes=error.notes, fix=error.fix)


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Room for nested calls of the program: their depth is limited by the session, long before Python's limit."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _PYTHON_FRAMES))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
