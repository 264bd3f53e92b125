"""Forms become code: closures that take the local names and give a value. Names are resolved here, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paren.lang.bind import Lambda
from paren.lang.session import Session
from paren.lang.signature import Site, parse_signature
from paren.lang.value import (
    POISON,
    Code,
    Environment,
    Global,
    Keywords,
    Namespace,
    Poison,
    Tensor,
    Value,
    kind,
)
from paren.text.errors import Note, ParenError, did_you_mean
from paren.text.forms import Boolean, Form, Keyword, List, Number, String, Symbol
from paren.text.source import Span

Names = frozenset[str]
Special = Callable[["Compiler", List, Names], Code]
SPECIALS: dict[str, Special] = {}  # filled when paren.lang.special is imported


class Compiler:
    """Compiles the forms of one namespace: the prelude's (`internal`) or the program's.

    In the program a mistake in a call is recorded and the call gives poison, so that the rest is still checked. In
    the prelude mistakes fly to the user's call.
    """

    def __init__(self, session: Session, namespace: Namespace, internal: bool) -> None:
        self.session = session
        self.namespace = namespace
        self.internal = internal

    def site(self, form: List, positional: Sequence[Form] = (), keywords: dict[str, Span] | None = None) -> Site:
        return Site(form.span, tuple(item.span for item in positional), keywords or {}, self.internal)

    def compile(self, form: Form, names: Names) -> Code:
        """The code of a form in which the local `names` are known. Records mistakes of form."""
        if isinstance(form, Symbol):
            return self._symbol(form, names)
        if isinstance(form, (Number, String, Boolean)):
            literal: Value = form.value
            return lambda environment: literal
        try:
            if isinstance(form, Keyword):
                raise ParenError(
                    "E-FORM-002",
                    f":{form.name} stands where a value is expected",
                    form.span,
                    fix="a keyword goes in front of the value that it names, inside a call",
                )
            if form.bracket == "[":
                return self._list(form, names)
            if not form.items:
                raise ParenError("E-FORM-002", "`()` is not a value", form.span, fix="the empty list is written []")
            head = form.items[0]
            if isinstance(head, Symbol) and head.name in SPECIALS and head.name not in names:
                return self.guarded(SPECIALS[head.name](self, form, names))
            return self._call(form, head, names)
        except ParenError as error:
            if self.internal:
                raise
            return constant(self.session.record(error))

    def guarded(self, code: Code) -> Code:
        """In the program, code that records mistakes instead of raising them."""
        if self.internal:
            return code
        record = self.session.record

        def guard(environment: Environment) -> Value:
            try:
                return code(environment)
            except ParenError as error:
                return record(error)

        return guard

    def _symbol(self, form: Symbol, names: Names) -> Code:
        name = form.name
        if name in names:
            return lambda environment: environment[name]
        known = self.namespace.find(name)
        if known is None:
            if name in SPECIALS:
                message = f"{name} is a form of the language, not a value"
            else:
                message = f"unknown name {name}{did_you_mean(name, names | self.namespace.all_names() | set(SPECIALS))}"
            error = ParenError("E-NAME-001", message, form.span)
            if self.internal:
                raise error
            return constant(self.session.record(error))
        if known.evaluate is None:
            value = known.value
            return lambda environment: value
        span = form.span
        return lambda environment: known.value if known.evaluate is None else value_of(known, span)

    def _list(self, form: List, names: Names) -> Code:
        codes = [self.compile(item, names) for item in form.items]

        def make(environment: Environment) -> Value:
            values = tuple(code(environment) for code in codes)
            return POISON if POISON in values else values

        return make

    def _call(self, form: List, head: Form, names: Names) -> Code:
        session = self.session
        function = self.compile(head, names)
        positional, keywords = self.arguments(form.items[1:], names)
        codes = [code for _, code in positional]
        pairs = [(name, code) for name, (_, code) in keywords.items()]
        site = self.site(form, [item for item, _ in positional], {k: item.span for k, (item, _) in keywords.items()})
        nothing: Keywords = {}

        def call(environment: Environment) -> Value:
            return session.apply(
                function(environment),
                [code(environment) for code in codes],
                {name: code(environment) for name, code in pairs} if pairs else nothing,
                site,
            )

        return self.guarded(call)

    def arguments(
        self, items: Sequence[Form], names: Names
    ) -> tuple[list[tuple[Form, Code]], dict[str, tuple[Form, Code]]]:
        """Positional arguments, and keywords with their values; each with its form."""
        positional: list[tuple[Form, Code]] = []
        keywords: dict[str, tuple[Form, Code]] = {}
        index = 0
        while index < len(items):
            item = items[index]
            index += 1
            if not isinstance(item, Keyword):
                positional.append((item, self.compile(item, names)))
                continue
            if index == len(items) or isinstance(items[index], Keyword):
                raise ParenError("E-FORM-003", f":{item.name} has no value", item.span)
            if item.name in keywords:
                raise ParenError(
                    "E-CALL-005",
                    f":{item.name} is given twice",
                    item.span,
                    notes=[Note("the first one", keywords[item.name][0].span)],
                )
            keywords[item.name] = (items[index], self.compile(items[index], names))
            index += 1
        return positional, keywords

    def function(self, name: str, parameters: Sequence[Form], body: Sequence[Form], span: Span, names: Names) -> Lambda:
        """The function of a `def` or `fn`. In the program the body is compiled now, in the prelude when it is first
        called."""
        signature = parse_signature(parameters)
        if len(body) == 2 and isinstance(body[0], String):
            body = body[1:]
        if len(body) != 1:
            what = "no body" if not body else f"{len(body)} bodies"
            fix = "put steps into (let ((name value) ...) body)" if body else None
            raise ParenError("E-FORM-001", f"{name} has {what}, one is needed", span, fix=fix)
        for parameter in parameters:
            if isinstance(parameter, (Symbol, Keyword)):
                check_name(parameter.name, parameter.span)
        made = Lambda(self, name, signature, body[0], span, names)
        if not self.internal:
            made.prepare()
        return made


def constant(value: Value) -> Code:
    return lambda environment: value


def value_of(known: Global, span: Span) -> Value:
    """The value of a top-level name, made now if it was not yet. Raises E-NAME-004 for a definition in terms of
    itself."""
    if known.evaluate is not None:
        if known.running:
            raise ParenError(
                "E-NAME-004",
                f"the definition of {known.name} needs its own value",
                span,
                notes=[Note(f"{known.name} is defined here", known.span)],
            )
        known.running = True
        try:
            known.value = known.evaluate()
        finally:
            known.running = False
        known.evaluate = None
    return known.value


def check_name(name: str, span: Span) -> None:
    """Raises E-NAME-003 for the names of core forms."""
    if name in SPECIALS:
        raise ParenError("E-NAME-003", f"{name} is a form of the language and cannot be defined anew", span)


def truth(value: Value, span: Span, what: str) -> bool | Poison:
    """A condition's value. Raises E-CALL-007 for anything but a boolean."""
    if isinstance(value, (bool, Poison)):
        return value
    fix = "choose by element with (where condition a b)" if isinstance(value, Tensor) else None
    raise ParenError("E-CALL-007", f"{what} is a boolean, not {kind(value)}", span, fix=fix)
