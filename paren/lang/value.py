"""What an expression can be: numbers, texts, lists, types, functions, and tensors that stand for one example."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paren.ir.graph import Node
from paren.ir.types import DType
from paren.text.source import Span

if TYPE_CHECKING:
    from paren.ir.program import Field
    from paren.lang.signature import Signature, Site
    from paren.text.forms import Form


@dataclass(frozen=True, eq=False)
class Tensor:
    """A node as the program sees it: one example.

    If `batched`, axis 0 of the node is the batch and `shape` leaves it out. `origin` is the form that made the value.
    `weight` is a mask that a loss with `:ignore` carries to the mean over the batch: a node of the same shape.
    """

    node: Node
    batched: bool
    origin: Span
    weight: Node | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.node.shape[1:] if self.batched else self.node.shape

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{' '.join(map(str, self.shape))}]"


class Poison:
    """Stands for the value of a form with a mistake that has been reported; whatever touches it becomes it."""

    def __repr__(self) -> str:
        return "<a value with a reported mistake>"


POISON = Poison()

Environment = dict[str, "Value"]
Code = Callable[[Environment], "Value"]
Keywords = Mapping[str, "Value"]


@dataclass(frozen=True, eq=False)
class Closure:
    """A function written in paren. `run` binds arguments that fit the signature and evaluates the body.

    `internal` says that the prelude defines it: mistakes inside it are shown at the user's call.
    """

    name: str
    signature: Signature
    run: Callable[[Sequence[Value], Keywords], Value]
    internal: bool
    span: Span


@dataclass(frozen=True, eq=False)
class Builtin:
    """A function written in Python. `apply` gets the call's site and one value for each parameter of the signature;
    the rest parameter comes as a tuple."""

    name: str
    signature: Signature
    apply: Callable[..., Value]
    documentation: str


@dataclass(frozen=True, eq=False)
class ModelValue:
    """A `defmodel` as a function. `run` evaluates its body on the inputs, in the model's own scope."""

    name: str
    inputs: tuple[Field, ...]
    run: Callable[[Sequence[Value], Site], Value]
    span: Span


@dataclass(frozen=True, eq=False)
class Rule:
    """An optimizer: the update rule as a function of the parameter, its gradient, the update's number and the moments.

    `rate` is a number, a function of the update's number, or None if the rule has no rate to report.
    """

    name: str
    moments: tuple[str, ...]
    step: Callable[[Tensor, Tensor, Tensor, Sequence[Tensor]], Value]
    rate: Value
    span: Span


@dataclass(frozen=True, eq=False)
class RuleByRank:
    """One rule for parameters of rank 2, another for the rest."""

    matrices: Rule
    others: Rule


Value = (
    None
    | bool
    | int
    | float
    | str
    | DType
    | Tensor
    | Poison
    | Closure
    | Builtin
    | ModelValue
    | Rule
    | RuleByRank
    | tuple["Value", ...]
)


@dataclass(eq=False)
class Global:
    """A top-level name. Its value is made when it is first asked for, so the order of definitions is free."""

    name: str
    span: Span
    evaluate: Callable[[], Value] | None
    value: Value = None
    running: bool = False
    form: Form | None = None


@dataclass(eq=False)
class Namespace:
    """The top-level names of the program or of the prelude; what is not found is looked up in `parent`."""

    names: dict[str, Global] = field(default_factory=dict)
    parent: Namespace | None = None

    def find(self, name: str) -> Global | None:
        space: Namespace | None = self
        while space is not None:
            known = space.names.get(name)
            if known is not None:
                return known
            space = space.parent
        return None

    def all_names(self) -> set[str]:
        return set(self.names) | (self.parent.all_names() if self.parent else set())


def kind(value: Value) -> str:
    """What a value is, for messages: `the number 3`, `the tensor float32[4]`."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"the boolean {show(value)}"
    if isinstance(value, int):
        return f"the integer {value}"
    if isinstance(value, float):
        return f"the number {show(value)}"
    if isinstance(value, str):
        return f"the string {show(value)}"
    if isinstance(value, tuple):
        return f"the list {show(value)}"
    if isinstance(value, DType):
        return f"the type {value}"
    if isinstance(value, Tensor):
        return f"the tensor {value}"
    if isinstance(value, (Closure, Builtin)):
        return f"the function {value.name}"
    if isinstance(value, ModelValue):
        return f"the model {value.name}"
    return "an optimizer"


def show(value: Value) -> str:
    """A value as it would be written."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, tuple):
        return f"[{' '.join(show(item) for item in value)}]"
    if isinstance(value, (Closure, Builtin, ModelValue, Rule)):
        return value.name
    return str(value)
