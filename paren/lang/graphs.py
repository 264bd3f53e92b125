"""The graphs of a program: loss, evaluation, diagnostics, models, first values of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paren.ir.graph import Builder, Graph, Node
from paren.ir.program import Bound, Diagnostic, Field, Model
from paren.ir.types import DType, TensorType
from paren.lang.core import Compiler
from paren.lang.data import parse_fields
from paren.lang.elementwise import cast
from paren.lang.grammar import parse_options
from paren.lang.operand import common_shape, expand
from paren.lang.run import Expressions
from paren.lang.session import Session, deep_recursion
from paren.lang.signature import Site
from paren.lang.toplevel import FORMS, TopLevel
from paren.lang.trace import Declarations, Parameter, Scope, Trace
from paren.lang.value import POISON, Environment, Global, ModelValue, Poison, Tensor, Value, kind
from paren.text.errors import Note, ParenError
from paren.text.forms import Form, List
from paren.text.source import Span


def new_trace(name: str, rows: int | None, training: bool) -> Trace:
    return Trace(Builder(name), rows, training, Scope((), (name_of_site(name),), False))


def name_of_site(name: str) -> str:
    """Random sites are the same in every graph of a loss."""
    return "loss" if name in ("loss", "evaluate") else name


def define_models(top: TopLevel) -> dict[str, ModelValue]:
    """The models as functions that the program may call; the name of one alone is not part of parameters' names."""
    forms = top.named("defmodel")
    models: dict[str, ModelValue] = {}
    for name, form in forms.items():
        with top.session.collect():
            known = Global(name, form.items[1].span, None, POISON, form=form)
            top.add_model(known)
            if len(form.items) != 4:
                raise ParenError("E-FORM-001", f"the form is {FORMS['defmodel']}", form.span)
            models[name] = _model(top.compiler, name, form, None if len(forms) == 1 else name)
            known.value = models[name]
    return models


def _model(compiler: Compiler, name: str, form: List, prefix: str | None) -> ModelValue:
    session = compiler.session
    inputs = parse_fields(compiler, form.items[2], f"the list of inputs of {name}")
    names = frozenset(field.name for field in inputs)
    body = form.items[3]
    compiled = None

    def run(arguments: Sequence[Value], site: Site) -> Value:
        nonlocal compiled
        trace = session.need_trace(site)
        if trace.stateless:
            raise session.error("E-OPT-003", f"an update rule cannot call the model {name}", site)
        environment: Environment = {}
        for index, (field, value) in enumerate(zip(inputs, arguments, strict=True)):
            environment[field.name] = _input(session, site, name, field, value, index)
        if compiled is None:
            compiled = compiler.compile(body, names)
        if name in trace.open_models:
            raise session.error("E-MODEL-003", f"the model {name} calls itself", site)
        trace.open_models.append(name)
        outer = trace.scope
        trace.scope = Scope((prefix,) if prefix else (), (*outer.site, name), True)
        try:
            value = compiled(environment)
        finally:
            trace.scope = outer
            trace.open_models.pop()
        if not isinstance(value, (Tensor, Poison)):
            raise ParenError(
                "E-MODEL-004",
                f"the model {name} gives a tensor, not {kind(value)}",
                body.span,
                fix="put several results side by side with concat" if isinstance(value, tuple) else None,
            )
        return value

    return ModelValue(name, inputs, run, form.span)


def _input(session: Session, site: Site, model: str, field: Field, value: Value, index: int) -> Tensor:
    at = site.positional[index] if index < len(site.positional) else None
    if not isinstance(value, Tensor):
        raise session.error(
            "E-MODEL-001", f"the input {field.name} of {model} is {field.type}, not {kind(value)}", site, at=at
        )
    if value.shape != field.type.shape or value.dtype != field.type.dtype:
        raise session.error(
            "E-MODEL-001",
            f"the input {field.name} of {model} is {field.type}, not {value}",
            site,
            at=at,
            notes=[Note(f"{field.name} is declared here", field.span), Note(f"the argument is {value}", value.origin)],
        )
    return value


@dataclass(eq=False)
class Graphs:
    """Makes the graphs of one program for `rows` examples."""

    session: Session
    compiler: Compiler
    fields: tuple[Field, ...]
    rows: int

    @property
    def names(self) -> frozenset[str]:
        return frozenset(field.name for field in self.fields)

    def _environment(self, builder: Builder, fields: Sequence[Field], rows: int) -> Environment:
        environment: Environment = {}
        for field in fields:
            type_ = TensorType(field.type.dtype, (rows, *field.type.shape))
            environment[field.name] = Tensor(builder.input(field.name, type_, "batch", field.span), True, field.span)
        return environment

    def _value(self, form: Form, environment: Environment) -> Value:
        return self.compiler.compile(form, self.names)(environment)

    def loss(self, parts: Expressions, training: bool) -> Graph | None:
        """The graph `loss` (dropout on) or `evaluate` (dropout off, with metrics); None if there are mistakes."""
        name = "loss" if training else "evaluate"
        if parts.loss is None:
            return None
        with self.session.collect(), self.session.tracing(new_trace(name, self.rows, training)) as trace:
            environment = self._environment(trace.builder, self.fields, self.rows)
            site = Site(parts.loss.span)
            loss = self._batched(parts.loss, self._value(parts.loss, environment), "the loss")
            weight: Value = self._value(parts.weight, environment) if parts.weight is not None else None
            outputs: dict[str, Node] | None = None
            if loss is not None and weight is not POISON:
                if not loss.dtype.is_float:
                    raise ParenError("E-LOSS-002", f"the loss is a float, not {loss}", site.span)
                own = self._weight(site, loss, weight, parts.weight)
                outputs = {"loss": loss.node, "weight": own}
            if training:
                return trace.builder.graph(outputs) if outputs else None
            for metric, form in parts.metrics.items():
                with self.session.collect():
                    trace.scope = Scope((), ("metric", metric), False)
                    value = self._batched(form, self._value(form, environment), f"the metric {metric}")
                    if value is None or outputs is None or loss is None:
                        continue
                    value = cast(self.session, Site(form.span), value, DType.FLOAT32)
                    outputs[f"metric:{metric}"] = value.node
                    same = value.shape == loss.shape and value.weight is None
                    outputs[f"weight:{metric}"] = (
                        outputs["weight"] if same else self._weight(Site(form.span), value, None, None)
                    )
            return trace.builder.graph(outputs) if outputs else None
        return None

    def _batched(self, form: Form, value: Value, what: str) -> Tensor | None:
        """The value as one tensor an example. Raises E-LOSS-001 for what is not of the batch."""
        if value is POISON:
            return None
        if not isinstance(value, Tensor):
            raise ParenError("E-LOSS-001", f"{what} is a tensor, not {kind(value)}", form.span)
        if not value.batched:
            raise ParenError(
                "E-LOSS-001",
                f"{what} is {value}, which does not depend on the batch: one value for each example or token is needed",
                form.span,
                notes=[Note("it is made here", value.origin)],
                fix="paren takes the mean over the global batch itself, so that no split of it can change the result",
            )
        return value

    def _weight(self, site: Site, value: Tensor, weight: Value, form: Form | None) -> Node:
        """1 for real examples, times the mask of the value, times `:weight`; in the shape of the value."""
        session, builder = self.session, self.session.need_trace(site).builder
        valid = builder.input("$valid", TensorType(DType.FLOAT32, (self.rows,)), "batch", site.span)
        whole = value.node.shape
        result = builder.broadcast(valid, whole, (0,))
        parts = [value.weight] if value.weight is not None else []
        if form is not None:
            place = Site(form.span)
            if isinstance(weight, (bool, int, float)) or not isinstance(weight, Tensor):
                raise ParenError("E-LOSS-003", f":weight is a tensor, not {kind(weight)}", form.span)
            if common_shape(session, place, ":weight", [value, weight]) != value.shape:
                raise ParenError(
                    "E-LOSS-003",
                    f":weight is {weight}, which does not fit the loss {value}",
                    form.span,
                    notes=[Note("the loss is made here", value.origin)],
                )
            parts.append(expand(session, place, cast(session, place, weight, DType.FLOAT32), value.shape, True))
        for part in parts:
            result = session.emit("mul", (result, part), {}, site)
        return result

    def diagnostic(self, name: str, form: List) -> tuple[Diagnostic, Graph] | None:
        """`(defdiagnostic name expression :every n :reduce max)`, on the training batch with dropout off."""
        options = parse_options(
            self.compiler, f"defdiagnostic {name}", form.span, form.items[2:], ("every", "reduce"), required=("every",)
        )
        if len(options.positional) != 1:
            raise ParenError("E-FORM-001", f"the form is {FORMS['defdiagnostic']}", form.span)
        declared = Diagnostic(
            name,
            options.integer("every", 1),
            options.choice("reduce", ("max", "min", "sum", "mean"), "mean"),
            form.span,
        )
        body = options.positional[0]
        with self.session.tracing(new_trace(f"diagnostic:{name}", self.rows, False)) as trace:
            environment = self._environment(trace.builder, self.fields, self.rows)
            value = self._batched(body, self._value(body, environment), f"the diagnostic {name}")
            if value is None:
                return None
            value = cast(self.session, Site(body.span), value, DType.FLOAT32)
            weight = self._weight(Site(body.span), value, None, None)
            return declared, trace.builder.graph({"value": value.node, "weight": weight})

    def initialize(self, span: Span) -> Graph | None:
        """The first value of every parameter, from the seed."""
        trace = new_trace("initialize", None, False)
        outputs: dict[str, Node] = {}
        with self.session.tracing(trace):
            trace.builder.input("$seed", TensorType(DType.UINT32, ()), "scalar", span)
            for parameter in self.session.declarations.parameters.values():
                with self.session.collect():
                    trace.scope = Scope((), ("initialize", parameter.name), False)
                    outputs[parameter.name] = self._first_value(parameter)
        return None if self.session.errors else trace.builder.graph(outputs)

    def _first_value(self, parameter: Parameter) -> Node:
        site = Site(parameter.span)
        shape = parameter.type.shape
        value = parameter.initial
        if isinstance(value, (int, float)):
            constant = self.session.constant(float(value), DType.FLOAT32, site)
            value = self.session.tensor(constant, False, site)
            return expand(self.session, site, value, shape, False)
        value = self.session.apply(value, [shape], {}, site)
        if isinstance(value, Tensor) and value.shape == shape and value.dtype == DType.FLOAT32:
            return value.node
        raise ParenError(
            "E-PARAM-004",
            f"the first value of {parameter.name} is {parameter.type}, not {kind(value)}",
            parameter.span,
            fix=":init is a number or a function of the shape",
        )


def forward_graph(session: Session, model: ModelValue, rows: int) -> Graph:
    """The graph of one call on `rows` examples; inputs by name, output `result`."""
    trace = new_trace(f"model:{model.name}", rows, False)
    with deep_recursion(), session.tracing(trace):
        arguments: list[Value] = []
        for field in model.inputs:
            type_ = TensorType(field.type.dtype, (rows, *field.type.shape))
            node = trace.builder.input(field.name, type_, "batch", field.span)
            arguments.append(Tensor(node, True, field.span))
        value = model.run(arguments, Site(model.span))
        if not isinstance(value, Tensor):
            raise session.errors[-1]
        return trace.builder.graph({"result": expand(session, Site(model.span), value, value.shape, True)})


def callable_model(session: Session, model: ModelValue) -> Model:
    def forward(rows: int) -> Graph:
        return forward_graph(session, model, rows)

    def bounds() -> tuple[Bound, ...]:
        kept = session.declarations
        session.declarations = Declarations(kept.parameters)
        try:
            forward_graph(session, model, 1)
            return tuple(session.declarations.bounds)
        finally:
            session.declarations = kept

    return Model(model.name, model.inputs, model.span, forward, bounds)


def check_unused(session: Session, model: ModelValue) -> None:
    """Evaluates a model that the run does not call, so that its mistakes are found; keeps no parameters of it."""
    kept, session.declarations = session.declarations, Declarations()
    try:
        with session.collect():
            forward_graph(session, model, 1)
    finally:
        session.declarations = kept
