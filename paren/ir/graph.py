"""The tensor graph: a list of nodes in evaluation order, and the builder that alone makes them.

The operations a builder knows are those registered; the package `paren.ir` registers all of them when it is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from paren.ir.op import OPS, Attrs, Op
from paren.ir.types import DType, TensorType, TypeMismatch
from paren.text.source import Span


@dataclass(frozen=True, eq=False)
class Node:
    """One operation applied to nodes. Equality is identity; only `Builder.emit` makes nodes.

    `span` is the place in the program that asked for it. `number` is its position in the builder that made it.
    """

    op: Op
    args: tuple[Node, ...]
    attrs: Attrs
    type: TensorType
    span: Span
    number: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    def __repr__(self) -> str:
        return f"%{self.number}:{self.op.name}:{self.type}"


@dataclass(frozen=True)
class Graph:
    """Named inputs, nodes in evaluation order without dead ones (inputs included), and named outputs.

    An input node has the op `input` and attrs `name` and `role`: `state` (a slot; an output of the same name replaces
    its content), `batch` (a field of the data), or `scalar` (`step`, `seed`, ...). `inputs` lists them all, used or
    not.
    """

    name: str
    inputs: tuple[Node, ...]
    nodes: tuple[Node, ...]
    outputs: Mapping[str, Node]


Rule = Callable[["Builder", str, tuple[Node, ...], Attrs, Span], "Node | None"]
Key = tuple[str, tuple[int, ...], tuple[tuple[str, Hashable], ...]]


@dataclass
class Builder:
    """Makes nodes: infers each type, gives back the same node for the same operation, applies rewrite rules.

    `rule` may return a node that stands for the one asked for (an algebraic simplification), or None. Interning and
    rules make common subexpressions and trivial arithmetic vanish by construction. The first span of an interned node
    wins.
    """

    name: str
    rule: Rule | None = None
    nodes: list[Node] = field(default_factory=list)
    inputs: list[Node] = field(default_factory=list)
    _known: dict[Key, Node] = field(default_factory=dict, repr=False)

    def emit(self, name: str, args: Sequence[Node], attrs: Attrs, span: Span) -> Node:
        """The node of an operation. Raises `TypeMismatch` when the operands do not fit."""
        arguments = tuple(args)
        # A float enters the key by its text: 0.0 and -0.0 are equal but not the same constant.
        exact = ((k, repr(v) if isinstance(v, float) else v) for k, v in attrs.items())
        key: Key = (name, tuple(arg.number for arg in arguments), tuple(sorted(exact)))
        known = self._known.get(key)
        if known is not None:
            return known
        if self.rule is not None:
            replacement = self.rule(self, name, arguments, attrs, span)
            if replacement is not None:
                self._known[key] = replacement
                return replacement
        op = OPS[name]
        type_ = op.infer([arg.type for arg in arguments], attrs)
        node = Node(op, arguments, dict(attrs), type_, span, len(self.nodes))
        self.nodes.append(node)
        self._known[key] = node
        return node

    def input(self, name: str, type_: TensorType, role: str, span: Span) -> Node:
        """A named input; asking again for the same name gives the same node."""
        node = self.emit("input", (), {"name": name, "role": role, "type": type_}, span)
        if node not in self.inputs:
            self.inputs.append(node)
        return node

    def constant(self, value: float | int | bool, dtype: DType, span: Span) -> Node:
        """A scalar constant; the value is converted to what `dtype` holds, so that equal constants are one node.

        Raises `TypeMismatch` when an integer does not fit or a fraction is asked of an integer type.
        """
        if dtype.is_float:
            with np.errstate(over="ignore"):
                value = float(dtype.numpy.type(value))
        elif dtype is DType.BOOL:
            value = bool(value)
        elif value == int(value):
            value = int(value)
        return self.emit("constant", (), {"value": value, "dtype": dtype}, span)

    def cast(self, node: Node, dtype: DType, span: Span | None = None) -> Node:
        """`node` with elements of another type; itself where they are of it already."""
        if node.dtype is dtype:
            return node
        return self.emit("cast", (node,), {"dtype": dtype}, span if span is not None else node.span)

    def broadcast(
        self, node: Node, shape: tuple[int, ...], axes: tuple[int, ...] | None = None, span: Span | None = None
    ) -> Node:
        """`node` repeated to `shape`; dimension i of the node becomes dimension `axes[i]` (default: aligned at the
        end).

        A dimension of size 1 is repeated to the size there. Raises `TypeMismatch` when another size differs.
        """
        if node.shape == shape:
            return node
        place = span if span is not None else node.span
        if axes is None:
            if len(node.shape) > len(shape):
                raise TypeMismatch(f"{node.type} does not fit the shape {TensorType(node.dtype, shape)}")
            axes = tuple(range(len(shape) - len(node.shape), len(shape)))
        # The operation itself repeats along new axes only.
        if len(axes) == len(node.shape):
            pairs = zip(node.shape, axes, strict=True)
            kept = tuple(i for i, (size, axis) in enumerate(pairs) if size != 1 or shape[axis] == 1)
            if len(kept) < len(axes):
                node = self.emit("reshape", (node,), {"shape": tuple(node.shape[i] for i in kept)}, place)
                axes = tuple(axes[i] for i in kept)
                if node.shape == shape:
                    return node
        return self.emit("broadcast", (node,), {"shape": shape, "axes": axes}, place)

    def apply(self, name: str, *operands: Node | float, span: Span | None = None) -> Node:
        """An elementwise operation whose operands may be Python numbers or smaller tensors.

        At least one operand is a node. Numbers take the dtype of the first node that is not boolean. Shapes are aligned
        at the end and broadcast to the common shape; a dimension of size 1 is repeated. Raises `TypeMismatch` when
        there is no common shape.
        """
        nodes = [operand for operand in operands if isinstance(operand, Node)]
        place = span if span is not None else nodes[0].span
        dtype = next((node.dtype for node in nodes if node.dtype is not DType.BOOL), nodes[0].dtype)
        shape = nodes[0].shape
        for node in nodes[1:]:
            shape = _common_shape(shape, node.shape, nodes[0], node)
        ready = [o if isinstance(o, Node) else self.constant(o, dtype, place) for o in operands]
        return self.emit(name, [self.broadcast(node, shape, span=place) for node in ready], {}, place)

    def graph(self, outputs: Mapping[str, Node]) -> Graph:
        """The graph of what the outputs need. Order of nodes is the order in which they were emitted."""
        alive: set[int] = set()
        pending = list(outputs.values())
        while pending:
            node = pending.pop()
            if node.number not in alive:
                alive.add(node.number)
                pending.extend(node.args)
        nodes = tuple(node for node in self.nodes if node.number in alive)
        return Graph(self.name, tuple(self.inputs), nodes, dict(outputs))


def _common_shape(first: tuple[int, ...], second: tuple[int, ...], a: Node, b: Node) -> tuple[int, ...]:
    """The shape that both broadcast to, aligned at the end; `a` and `b` are named when there is none."""
    if first == second:
        return first
    rank = max(len(first), len(second))
    aligned = zip((1,) * (rank - len(first)) + first, (1,) * (rank - len(second)) + second, strict=True)
    shape = []
    for i, j in aligned:
        if i != j and i != 1 and j != 1:
            raise TypeMismatch(f"the shapes {a.type} and {b.type} differ")
        shape.append(max(i, j))
    return tuple(shape)
