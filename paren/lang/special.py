"""The core forms, each with its grammar: let, if, cond, and, or, fn, fold, scope, param, optimizer, require."""

from __future__ import annotations

from collections.abc import Sequence

from paren.ir.types import DType, TensorType
from paren.lang.bind import bind_pattern, pattern_names
from paren.lang.core import SPECIALS, Compiler, Names, Special, truth
from paren.lang.session import MAXIMUM_ELEMENTS, Session
from paren.lang.signature import Pattern, parse_pattern
from paren.lang.trace import Parameter
from paren.lang.value import POISON, Builtin, Closure, Code, Environment, Rule, Tensor, Value, kind, show
from paren.text.errors import Note, ParenError
from paren.text.forms import Form, Keyword, List, String, Symbol
from paren.text.source import Span


def _grammar(form: Form, text: str) -> ParenError:
    return ParenError("E-FORM-001", f"the form is {text}", form.span)


def _pairs(form: List, text: str) -> list[tuple[Symbol | Pattern, Form]]:
    """The bindings `((name value) ...)` of a let."""
    bindings = form.items[1] if len(form.items) > 1 else None
    if not isinstance(bindings, List) or bindings.bracket != "(":
        raise _grammar(form, text)
    found = []
    for binding in bindings.items:
        if not isinstance(binding, List) or binding.bracket != "(" or len(binding.items) != 2:
            raise ParenError("E-FORM-001", "a binding is (name value) or ([a b] value)", binding.span)
        found.append((parse_pattern(binding.items[0]), binding.items[1]))
    return found


def _let(compiler: Compiler, form: List, names: Names) -> Code:
    text = "(let ((name value) ...) body)"
    pairs = _pairs(form, text)
    if len(form.items) != 3:
        raise _grammar(form, text)
    steps: list[tuple[Symbol | Pattern, Code]] = []
    for pattern, value in pairs:
        steps.append((pattern, compiler.compile(value, names)))
        names |= pattern_names(pattern)
        _check_names(pattern)
    body = compiler.compile(form.items[2], names)

    def let(environment: Environment) -> Value:
        for pattern, code in steps:
            value = code(environment)
            environment = dict(environment)
            if isinstance(pattern, Symbol):
                environment[pattern.name] = value
            else:
                bind_pattern(pattern, value, environment)
        return body(environment)

    return let


def _check_names(pattern: Symbol | Pattern) -> None:
    for name in pattern_names(pattern):
        if name in SPECIALS:
            raise ParenError("E-NAME-003", f"{name} is a form of the language and cannot be defined anew", pattern.span)


def _if(compiler: Compiler, form: List, names: Names) -> Code:
    if len(form.items) != 4:
        raise _grammar(form, "(if condition then else)")
    condition, then, otherwise = (compiler.compile(item, names) for item in form.items[1:])
    span = form.items[1].span

    def choose(environment: Environment) -> Value:
        value = condition(environment)
        if value is True:
            return then(environment)
        if value is False:
            return otherwise(environment)
        truth(value, span, "the condition of if")
        return POISON

    return choose


def _cond(compiler: Compiler, form: List, names: Names) -> Code:
    text = "(cond (condition value) ... (else value))"
    clauses: list[tuple[Span, Code | None, Code]] = []
    for position, clause in enumerate(form.items[1:], start=2):
        if not isinstance(clause, List) or clause.bracket != "(" or len(clause.items) != 2:
            raise _grammar(form, text)
        test, value = clause.items
        last = isinstance(test, Symbol) and test.name == "else"
        if last and position != len(form.items):
            raise ParenError("E-FORM-001", "else is the last clause of cond", clause.span)
        clauses.append((test.span, None if last else compiler.compile(test, names), compiler.compile(value, names)))
    if not clauses or clauses[-1][1] is not None:
        raise ParenError("E-FORM-001", f"cond needs an else clause: {text}", form.span)

    def choose(environment: Environment) -> Value:
        for span, test, value in clauses:
            if test is None:
                return value(environment)
            answer = truth(test(environment), span, "a condition of cond")
            if answer is POISON:
                return POISON
            if answer is True:
                return value(environment)
        return POISON

    return choose


def _connective(word: str) -> Special:
    """`and` and `or`: they stop at the first boolean that decides; tensors are combined by element."""
    decided_by = word == "or"

    def form_of(compiler: Compiler, form: List, names: Names) -> Code:
        codes = [compiler.compile(item, names) for item in form.items[1:]]
        if not codes:
            raise _grammar(form, f"({word} a b ...)")
        spans = [item.span for item in form.items[1:]]
        combine = compiler.namespace.find(f"elementwise-{word}")
        site = compiler.site(form, form.items[1:])
        session = compiler.session

        def decide(environment: Environment) -> Value:
            result: Value = not decided_by
            for span, code in zip(spans, codes, strict=True):
                value = code(environment)
                if isinstance(value, Tensor) or (isinstance(result, Tensor) and isinstance(value, bool)):
                    if isinstance(result, Tensor):
                        assert combine is not None
                        result = session.apply(combine.value, [result, value], {}, site)
                    else:
                        result = value
                    continue
                answer = truth(value, span, f"an operand of {word}")
                if answer is POISON:
                    return POISON
                if answer is decided_by and not isinstance(result, Tensor):
                    return answer
            return result

        return decide

    return form_of


def _fn(compiler: Compiler, form: List, names: Names) -> Code:
    if len(form.items) < 3 or not isinstance(form.items[1], List) or form.items[1].bracket != "(":
        raise _grammar(form, "(fn (parameters) body)")
    made = compiler.function("fn", form.items[1].items, form.items[2:], form.span, names)
    return made.close


def _fold(compiler: Compiler, form: List, names: Names) -> Code:
    text = "(fold (item count-or-list) (accumulator first) body)"
    if len(form.items) != 4:
        raise _grammar(form, text)
    parts = []
    for binding in form.items[1:3]:
        if not isinstance(binding, List) or binding.bracket != "(" or len(binding.items) != 2:
            raise _grammar(form, text)
        pattern = parse_pattern(binding.items[0])
        _check_names(pattern)
        parts.append((pattern, compiler.compile(binding.items[1], names), binding.items[1].span))
    (item, over, over_span), (accumulator, first, _) = parts
    body = compiler.compile(form.items[3], names | pattern_names(item) | pattern_names(accumulator))

    def fold(environment: Environment) -> Value:
        sequence = over(environment)
        value = first(environment)
        if sequence is POISON:
            return POISON
        rounds: Sequence[Value]
        if isinstance(sequence, int) and not isinstance(sequence, bool) and 0 <= sequence <= MAXIMUM_ELEMENTS:
            rounds = range(sequence)
        elif isinstance(sequence, tuple):
            rounds = sequence
        else:
            raise ParenError("E-CALL-007", f"fold goes over a count or a list, not {kind(sequence)}", over_span)
        for element in rounds:
            if value is POISON:
                return POISON
            inner = dict(environment)
            bind_pattern(item, element, inner)
            bind_pattern(accumulator, value, inner)
            value = body(inner)
        return value

    return fold


def _scope(compiler: Compiler, form: List, names: Names) -> Code:
    text = "(scope name body) or (scope (name index) body)"
    if len(form.items) != 3:
        raise _grammar(form, text)
    label = form.items[1]
    indices: list[tuple[Span, Code]] = []
    if isinstance(label, List) and label.bracket == "(" and label.items:
        indices = [(item.span, compiler.compile(item, names)) for item in label.items[1:]]
        label = label.items[0]
    if not isinstance(label, Symbol):
        raise _grammar(form, text)
    check_path(label)
    name, body = label.name, compiler.compile(form.items[2], names)
    session, site = compiler.session, compiler.site(form)

    def enter(environment: Environment) -> Value:
        parts = [name]
        for span, code in indices:
            index = code(environment)
            if index is POISON:
                return POISON
            if isinstance(index, bool) or not isinstance(index, (int, str)):
                raise ParenError(
                    "E-CALL-007", f"the index of a scope is an integer or a string, not {kind(index)}", span
                )
            check_path(Symbol(str(index), span))
            parts.append(str(index))
        trace = session.need_trace(site)
        outer = trace.scope
        trace.scope = outer.child(".".join(parts))
        try:
            return body(environment)
        finally:
            trace.scope = outer

    return enter


def check_path(name: Symbol) -> None:
    """Names of scopes and parameters become parts of paths: no dots, slashes or stars. Raises E-FORM-001."""
    if any(character in name.name for character in "./*?[]$:"):
        raise ParenError("E-FORM-001", f"{name.name} cannot be part of a parameter's name", name.span)


def _param(compiler: Compiler, form: List, names: Names) -> Code:
    text = "(param name shape :init value)"
    if len(form.items) < 3 or not isinstance(form.items[1], Symbol):
        raise _grammar(form, text)
    name = form.items[1]
    check_path(name)
    positional, keywords = compiler.arguments(form.items[2:], names)
    if len(positional) != 1:
        raise _grammar(form, text)
    for key, (item, _) in keywords.items():
        if key not in ("init", "trainable"):
            raise ParenError(
                "E-CALL-002", f"param has no keyword :{key}", item.span, fix="its keywords are :init, :trainable"
            )
    if "init" not in keywords:
        raise ParenError(
            "E-CALL-003", f"param {name.name} needs the keyword :init", form.span, fix="write :init zeros, say"
        )
    (shape_form, shape_code), (init_form, init_code) = positional[0], keywords["init"]
    trainable = keywords.get("trainable")
    session = compiler.session
    site = compiler.site(form)

    def make(environment: Environment) -> Value:
        shape, initial = shape_code(environment), init_code(environment)
        trained: Value = trainable[1](environment) if trainable else True
        if POISON in (shape, initial, trained):
            return POISON
        trace = session.need_trace(site)
        if trace.stateless or not trace.scope.in_model:
            raise session.error(
                "E-PARAM-002", f"the parameter {name.name} is not inside a model", site, fix="move it into the defmodel"
            )
        if isinstance(shape, int) and not isinstance(shape, bool):
            shape = (shape,)
        if not isinstance(shape, tuple) or not all(type(size) is int and size > 0 for size in shape):
            raise session.error(
                "E-TYPE-008",
                f"the shape of a parameter is a list of positive integers, not {kind(shape)}",
                site,
                at=shape_form.span,
            )
        if not isinstance(initial, (int, float, Closure, Builtin)) or isinstance(initial, bool):
            raise session.error(
                "E-CALL-007",
                f":init is a number or a function of the shape, not {kind(initial)}",
                site,
                at=init_form.span,
            )
        if not isinstance(trained, bool):
            raise session.error("E-CALL-007", f":trainable is a boolean, not {kind(trained)}", site)
        span = session.span(site)
        full = ".".join((*trace.scope.path, name.name))
        type_ = TensorType(DType.FLOAT32, tuple(size for size in shape if isinstance(size, int)))
        session.declarations.declare(Parameter(full, type_, initial, trained, span), trace.scope)
        return Tensor(trace.builder.input(full, type_, "state", span), False, span)

    return make


def _optimizer(compiler: Compiler, form: List, names: Names) -> Code:
    text = "(optimizer (parameter gradient update moment ...) :name name :rate rate [parameter' moment' ...])"
    head = form.items[1] if len(form.items) > 1 else None
    if not isinstance(head, List) or len(head.items) < 3 or not all(isinstance(i, Symbol) for i in head.items):
        raise _grammar(form, text)
    words = [item.name for item in head.items if isinstance(item, Symbol)]
    options: dict[str, Form] = {}
    body: list[Form] = []
    rest = list(form.items[2:])
    while rest:
        item = rest.pop(0)
        if isinstance(item, Keyword) and item.name in ("name", "rate") and rest:
            options[item.name] = rest.pop(0)
        else:
            body.append(item)
    if len(body) != 1 or not isinstance(options.get("name"), Symbol):
        raise _grammar(form, text)
    label = options["name"]
    assert isinstance(label, Symbol)
    rate = compiler.compile(options["rate"], names) if "rate" in options else None
    code = compiler.compile(body[0], names | set(words))
    session, site = compiler.session, compiler.site(form)

    def make(environment: Environment) -> Value:
        def step(parameter: Tensor, gradient: Tensor, update: Tensor, moments: Sequence[Tensor]) -> Value:
            values = (parameter, gradient, update, *moments)
            return code({**environment, **dict(zip(words, values, strict=True))})

        return Rule(label.name, tuple(words[3:]), step, rate(environment) if rate else None, session.span(site))

    return make


def _require(compiler: Compiler, form: List, names: Names) -> Code:
    text = '(require condition "message" value ... :at parameter :fix "text" body)'
    positional, keywords = compiler.arguments(_without_at(form.items[1:]), names)
    at = next((form.items[i + 1] for i, item in enumerate(form.items[:-1]) if _is_at(item)), None)
    if len(positional) < 3 or (at is not None and not isinstance(at, Symbol)) or set(keywords) - {"fix"}:
        raise _grammar(form, text)
    condition, parts, body = positional[0], positional[1:-1], positional[-1][1]
    fix_code = keywords["fix"][1] if "fix" in keywords else None
    session, parameter = compiler.session, at.name if isinstance(at, Symbol) else None
    own = compiler.site(form)

    def check(environment: Environment) -> Value:
        answer = truth(condition[1](environment), condition[0].span, "the condition of require")
        if answer is True:
            return body(environment)
        if answer is POISON:
            return POISON
        values = [code(environment) for _, code in parts]
        message = _message([(isinstance(part, String), value) for (part, _), value in zip(parts, values, strict=True)])
        fix = fix_code(environment) if fix_code else None
        notes = [Note(f"{value} is made here", value.origin) for value in values if isinstance(value, Tensor)]
        place = _refused_argument(session, parameter) or session.span(own)
        raise ParenError("E-CALL-009", message, place, notes=notes, fix=fix if isinstance(fix, str) else None)

    return check


def _message(parts: Sequence[tuple[bool, Value]]) -> str:
    """Texts and values in one sentence; with each, whether it is a text of the form. What would run together is set
    apart: `n is small: 4, 5` where values end the sentence, else by a space."""
    last_text = max((index for index, (is_text, _) in enumerate(parts) if is_text), default=-1)
    message, was_text = "", True
    for index, (is_text, value) in enumerate(parts):
        shown = value if isinstance(value, str) else str(value) if isinstance(value, Tensor) else show(value)
        gap = ""
        if not is_text and not was_text:
            gap = ", "
        elif not is_text and message[-1:].isalnum():
            gap = " " if index < last_text else ": "
        elif (is_text and not was_text and shown[:1].isalnum()) or (not is_text and message.endswith((",", ":", ";"))):
            gap = " "
        message, was_text = message + gap + shown, is_text
    return message


def _refused_argument(session: Session, parameter: str | None) -> Span | None:
    """The user's argument for a parameter: of the innermost call that stands in the program, not in the prelude."""
    for site, signature in reversed(session.frames):
        if not site.internal:
            return site.argument(signature, parameter) if parameter else site.span
    return None


def _is_at(item: Form) -> bool:
    return isinstance(item, Keyword) and item.name == "at"


def _without_at(items: Sequence[Form]) -> list[Form]:
    """The items without `:at name`, whose name is not evaluated."""
    kept = []
    skip = False
    for item in items:
        if skip:
            skip = False
        elif _is_at(item):
            skip = True
        else:
            kept.append(item)
    return kept


SPECIALS.update(
    {
        "let": _let,
        "if": _if,
        "cond": _cond,
        "and": _connective("and"),
        "or": _connective("or"),
        "fn": _fn,
        "fold": _fold,
        "scope": _scope,
        "param": _param,
        "optimizer": _optimizer,
        "require": _require,
    }
)
