"""Optimizers: which rule updates which parameter, and each rule as a graph.

A rule whose nodes are all elementwise is traced once on all parameters of its group laid end to end; any other rule
is traced once for each shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from paren.ir.graph import Builder, Graph, Node
from paren.ir.program import Slot, UpdateGroup
from paren.ir.types import DType, TensorType
from paren.lang.core import SPECIALS, Compiler
from paren.lang.elementwise import lift
from paren.lang.operand import expand
from paren.lang.run import Expressions, strings
from paren.lang.session import Session
from paren.lang.signature import Site
from paren.lang.trace import Parameter, Scope, Trace
from paren.lang.value import POISON, Builtin, Closure, Rule, RuleByRank, Tensor, Value, kind
from paren.text.errors import ParenError, did_you_mean
from paren.text.forms import Form, Keyword, List, Symbol
from paren.text.source import Span


@dataclass(frozen=True, eq=False)
class _Constructor:
    """How to make the rule: a call that can be repeated with other keywords, or (function None) a fixed value."""

    function: Value
    positional: tuple[Value, ...]
    keywords: dict[str, Value]
    site: Site
    fixed: Value = None

    def takes(self, keyword: str) -> bool:
        return isinstance(self.function, (Closure, Builtin)) and keyword in self.function.signature.keywords

    def decays(self) -> bool:
        """Whether the rule has a weight decay other than 0."""
        if not self.takes("weight-decay"):
            return False
        if "weight-decay" in self.keywords:
            return self.keywords["weight-decay"] != 0
        assert isinstance(self.function, Closure)
        default = self.function.signature.keywords["weight-decay"]
        return getattr(default, "value", None) != 0

    def make(self, session: Session, keywords: dict[str, Value]) -> Value:
        if self.function is None:
            return self.fixed
        return session.apply(self.function, self.positional, self.keywords | keywords, self.site)


@dataclass(frozen=True, eq=False)
class _Override:
    patterns: tuple[tuple[str, Span], ...]
    constructor: _Constructor | None
    keywords: dict[str, Value]
    spans: dict[str, Span]


@dataclass(eq=False)
class Optimizers:
    """Assigns parameters to groups and makes the update graphs."""

    session: Session
    compiler: Compiler
    parameters: Sequence[Parameter]
    made: dict[tuple[int, str], Value] = field(default_factory=dict)

    def build(self, parts: Expressions) -> tuple[tuple[UpdateGroup, ...], tuple[Slot, ...], tuple[Slot, ...]]:
        """The update groups, the parameters as slots, and their moments."""
        if parts.optimizer is None:
            return (), (), ()
        base = self._constructor(parts.optimizer)
        if self.session.errors:
            # Parameters may be missing, so only the optimizer itself is checked.
            base.make(self.session, {})
            return (), (), ()
        overrides = self._overrides(parts.groups) if parts.groups is not None else []
        frozen = self._frozen(parts.frozen)
        numbers: dict[int, int] = {}
        rules: list[Rule] = []
        members: list[list[Parameter]] = []
        slots: list[Slot] = []
        for parameter in self.parameters:
            number = -1
            if parameter.name not in frozen and parameter.trainable:
                rule = self._rule(parameter, base, overrides)
                if rule is None:
                    return (), (), ()
                number = numbers.setdefault(id(rule), len(rules))
                if number == len(rules):
                    rules.append(rule)
                    members.append([])
                members[number].append(parameter)
            slots.append(Slot(parameter.name, parameter.type, "parameter", number, parameter.span))
        if not rules:
            what = "all parameters are frozen" if self.parameters else "the model has no parameters"
            raise ParenError("E-OPT-004", f"{what}, so there is nothing to train", parts.optimizer.span)
        groups = tuple(self._group(n, rule, members[n]) for n, rule in enumerate(rules))
        moments = tuple(
            Slot(f"{parameter.name}/{moment}", parameter.type, "moment", n, parameter.span)
            for n, rule in enumerate(rules)
            for parameter in members[n]
            for moment in rule.moments
        )
        return groups, tuple(slots), moments

    def _constructor(self, form: Form) -> _Constructor:
        """Takes the optimizer's call apart, also behind the name of a def."""
        if isinstance(form, Symbol):
            known = self.compiler.namespace.find(form.name)
            if known is not None and isinstance(known.form, List) and len(known.form.items) == 3:
                target, body = known.form.items[1:]
                if isinstance(target, Symbol) and isinstance(body, List):
                    return self._constructor(body)
        head = form.items[0] if isinstance(form, List) and form.items and form.bracket == "(" else None
        if not isinstance(form, List) or head is None or (isinstance(head, Symbol) and head.name in SPECIALS):
            value = self.compiler.compile(form, frozenset())({})
            return _Constructor(None, (), {}, Site(form.span), value)
        function = self.compiler.compile(head, frozenset())({})
        positional, keywords = self.compiler.arguments(form.items[1:], frozenset())
        site = self.compiler.site(form, [item for item, _ in positional], {k: f.span for k, (f, _) in keywords.items()})
        if function is POISON:
            return _Constructor(None, (), {}, site, POISON)
        return _Constructor(
            function,
            tuple(code({}) for _, code in positional),
            {k: code({}) for k, (_, code) in keywords.items()},
            site,
        )

    def _overrides(self, form: Form) -> list[_Override]:
        """`(("*.bias" :rate 1e-4) ("embedding" :optimizer (sgd ...)))`: the first entry that matches counts."""
        what = ':groups is (("pattern" :keyword value ...) ...)'
        found: list[_Override] = []
        if not isinstance(form, List) or form.bracket != "(":
            raise ParenError("E-FORM-006", what, form.span)
        for item in form.items:
            with self.session.collect():
                if not isinstance(item, List) or len(item.items) < 3 or isinstance(item.items[0], Keyword):
                    raise ParenError("E-FORM-006", what, item.span)
                patterns = tuple(strings(item.items[0], what))
                positional, keywords = self.compiler.arguments(item.items[1:], frozenset())
                if positional:
                    raise ParenError("E-FORM-006", what, positional[0][0].span)
                constructor = None
                if "optimizer" in keywords:
                    constructor = self._constructor(keywords.pop("optimizer")[0])
                values = {key: code({}) for key, (_, code) in keywords.items()}
                self._match(patterns)
                spans = {key: value.span for key, (value, _) in keywords.items()}
                found.append(_Override(patterns, constructor, values, spans))
        return found

    def _frozen(self, form: Form | None) -> set[str]:
        if form is None:
            return set()
        with self.session.collect():
            return self._match(strings(form, ':frozen is ("pattern" ...)'))
        return set()

    def _match(self, patterns: Sequence[tuple[str, Span]]) -> set[str]:
        """The parameters that patterns name. Raises E-OPT-001 for a pattern without any."""
        names = [parameter.name for parameter in self.parameters]
        found: set[str] = set()
        for pattern, span in patterns:
            matching = [name for name in names if fnmatchcase(name, pattern)]
            if not matching:
                raise ParenError(
                    "E-OPT-001",
                    f'no parameter is named "{pattern}"{did_you_mean(pattern, names)}',
                    span,
                    fix=f"the parameters are {_listing(names)}",
                )
            found.update(matching)
        return found

    def _rule(self, parameter: Parameter, base: _Constructor, overrides: Sequence[_Override]) -> Rule | None:
        override = next((o for o in overrides if any(fnmatchcase(parameter.name, p) for p, _ in o.patterns)), None)
        constructor = override.constructor if override and override.constructor else base
        keywords: dict[str, Value] = {}
        if len(parameter.type.shape) < 2 and constructor.decays():
            keywords["weight-decay"] = 0.0
        if override:
            keywords |= override.keywords
            for keyword in override.keywords:
                if not constructor.takes(keyword):
                    function = constructor.function
                    known = function.signature.keywords if isinstance(function, Closure) else {}
                    name = function.name if isinstance(function, Closure) else "this optimizer"
                    raise ParenError(
                        "E-OPT-005",
                        f"{name} has no keyword :{keyword}, which :groups gives{did_you_mean(keyword, known)}",
                        override.spans[keyword],
                        fix=f"its keywords are {', '.join(f':{key}' for key in known)}" if known else None,
                    )
        key = (id(constructor), repr(sorted((k, v if _is_plain(v) else id(v)) for k, v in keywords.items())))
        if key not in self.made:
            self.made[key] = constructor.make(self.session, keywords)
        value = self.made[key]
        if isinstance(value, RuleByRank):
            value = value.matrices if len(parameter.type.shape) == 2 else value.others
        if value is POISON:
            return None
        if not isinstance(value, Rule):
            raise ParenError(
                "E-OPT-002", f":optimizer is an optimizer such as (adamw), not {kind(value)}", constructor.site.span
            )
        return value

    def _group(self, number: int, rule: Rule, members: Sequence[Parameter]) -> UpdateGroup:
        names = tuple(parameter.name for parameter in members)
        total = sum(parameter.type.size for parameter in members)
        flat = self._flat(number, rule, total)
        if flat is not None:
            return UpdateGroup(number, names, rule.moments, True, {"": flat})
        by_shape: dict[tuple[int, ...], Graph] = {}
        graphs: dict[str, Graph] = {}
        for parameter in members:
            shape = parameter.type.shape
            if shape not in by_shape:
                by_shape[shape] = self._graph(f"update:{number}", rule, shape)[0]
            graphs[parameter.name] = by_shape[shape]
        return UpdateGroup(number, names, rule.moments, False, graphs)

    def _flat(self, number: int, rule: Rule, total: int) -> Graph | None:
        """The rule on one vector of all parameters, if every node of it treats each element alone."""
        before = len(self.session.errors)
        try:
            graph, asked = self._graph(f"update:{number}", rule, (total,))
        except ParenError:
            del self.session.errors[before:]
            return None
        if asked or any(not _alone(node) for node in graph.nodes):
            return None
        return graph

    def _graph(self, name: str, rule: Rule, shape: tuple[int, ...]) -> tuple[Graph, bool]:
        """The graph of one update, and whether the rule asked for a shape. Raises E-OPT-002 if its result is no
        update."""
        builder = Builder(name)
        trace = Trace(builder, None, True, Scope((), (name,), False), stateless=True)
        type_ = TensorType(DType.FLOAT32, shape)
        span, session, site = rule.span, self.session, Site(rule.span)
        with session.tracing(trace), session.shown_at(span):

            def tensor(label: str, role: str, of: TensorType) -> Tensor:
                return Tensor(builder.input(label, of, role, span), False, span)

            parameter = tensor("parameter", "state", type_)
            moments = [tensor(moment, "state", type_) for moment in rule.moments]
            gradient = tensor("gradient", "batch", type_)
            update = tensor("update", "scalar", TensorType(DType.FLOAT32, ()))
            rate = self._rate(rule, update, site)
            result = rule.step(parameter, gradient, update, moments)
            if result is POISON:
                raise session.errors[-1]  # which says what made it so
            labels = ("parameter", *rule.moments)
            if not isinstance(result, tuple) or len(result) != len(labels):
                raise ParenError(
                    "E-OPT-002",
                    f"the rule {rule.name} gives the list [{' '.join(labels)}] of new values, not {kind(result)}",
                    span,
                )
            outputs: dict[str, Node] = {}
            for label, value in zip(labels, result, strict=True):
                ready = lift(session, site, value, 0, DType.FLOAT32)
                if ready.shape not in ((), shape) or ready.dtype != DType.FLOAT32:
                    raise ParenError(
                        "E-OPT-002", f"the rule {rule.name} gives {ready} for {label}, which is {type_}", span
                    )
                outputs[label] = expand(session, site, ready, shape, False)
            if rate is not None:
                outputs["rate"] = rate
            return builder.graph(outputs), trace.shape_asked

    def _rate(self, rule: Rule, update: Tensor, site: Site) -> Node | None:
        """The scalar that the run reports. Raises E-OPT-002 for anything but one number."""
        rate: Value = rule.rate
        if isinstance(rate, (Closure, Builtin)):
            rate = self.session.apply(rate, [update], {}, site)
        if rate is None or rate is POISON:
            return None
        number = isinstance(rate, (int, float)) and not isinstance(rate, bool)
        if not number and not (isinstance(rate, Tensor) and rate.node.type == TensorType(DType.FLOAT32, ())):
            raise ParenError(
                "E-OPT-002",
                f"the rate of {rule.name} is a number, or a function of the update that gives one, not {kind(rate)}",
                rule.span,
            )
        if isinstance(rate, (int, float)) and rate < 0:
            raise ParenError("E-OPT-002", f"the rate of {rule.name} is at least 0, not {kind(rate)}", rule.span)
        return lift(self.session, site, rate, 0, DType.FLOAT32).node


def _alone(node: Node) -> bool:
    if node.op.kind == "elementwise" or node.op.name in ("input", "constant"):
        return True
    return node.op.name == "broadcast" and node.args[0].shape == ()


def _is_plain(value: Value) -> bool:
    return isinstance(value, (bool, int, float, str))


def _listing(names: Sequence[str]) -> str:
    shown = list(names[:12])
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ", ".join(shown) + more
