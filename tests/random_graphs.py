"""Random graphs for hypothesis: programs over all kinds of operations, with small shapes that include size 1.

`graphs()` draws a graph; `values_for(graph, seed)` makes values of its inputs. Values stay of moderate size (functions
that grow fast see bounded operands), so float32 comparisons with a tolerance around 1e-4 hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from hypothesis.vendor.pretty import RepresentationPrinter

from paren.ir.graph import Builder, Graph, Node, Rule
from paren.ir.op import Array
from paren.ir.show import show_graph
from paren.ir.types import DType, TensorType
from paren.text.source import Source, Span

TEXT = Source("random.paren", "x" * 4096)
SIZES = (1, 2, 3, 4)
ROWS = 3
CALM = ("neg", "abs", "tanh", "erf", "sin", "cos")
POSITIVE = ("log", "sqrt", "rsqrt")
GROWING = ("exp", "expm1")
BINARY = ("add", "sub", "mul", "maximum", "minimum")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


@dataclass
class _Drawing:
    """A program under construction: a pool of nodes by kind of element."""

    draw: Callable[..., object]
    builder: Builder
    dtype: DType
    floats: list[Node] = field(default_factory=list)
    integers: list[Node] = field(default_factory=list)
    booleans: list[Node] = field(default_factory=list)
    count: int = 0

    def span(self) -> Span:
        self.count += 1
        return Span(TEXT, self.count, self.count + 1)

    def pick(self, choices):  # type: ignore[no-untyped-def]
        return self.draw(st.sampled_from(list(choices)))

    def shape(self, least: int = 0, most: int = 3) -> tuple[int, ...]:
        return tuple(self.draw(st.lists(st.sampled_from(SIZES), min_size=least, max_size=most)))  # type: ignore[call-overload]

    def number(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))  # type: ignore[call-overload]

    def emit(self, name: str, *args: Node, **attrs: object) -> Node:
        return self.builder.emit(name, args, attrs, self.span())  # type: ignore[arg-type]

    def apply(self, name: str, *operands: Node | float) -> Node:
        return self.builder.apply(name, *operands, span=self.span())

    def input(self, dtype: DType, shape: tuple[int, ...], role: str) -> Node:
        return self.builder.input(f"x{len(self.builder.inputs)}", TensorType(dtype, shape), role, self.span())

    def calm(self, node: Node) -> Node:
        """Bounded to [-1, 1]."""
        return self.apply("tanh", node)

    def like(self, node: Node) -> Node:
        """A float node of the same shape: one there is, another that broadcasts, or a constant."""
        fits = [other for other in self.floats if _fits(other.shape, node.shape)]
        other = self.pick(fits)
        return self.builder.broadcast(other, node.shape, span=self.span())


def _fits(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    return len(shape) <= len(target) and all(
        a in (1, b) for a, b in zip(reversed(shape), reversed(target), strict=False)
    )


# Each step takes the drawing and returns the nodes that it adds to the pool.


def _unary(d: _Drawing) -> Node:
    node = d.pick(d.floats)
    kind = d.pick(("calm", "positive", "growing", "log1p"))
    if kind == "calm":
        return d.apply(d.pick(CALM), node)
    if kind == "positive":
        return d.apply(d.pick(POSITIVE), d.apply("add", d.apply("abs", node), 0.5))
    if kind == "log1p":
        return d.apply("log1p", d.apply("abs", node))
    return d.apply(d.pick(GROWING), d.calm(node))


def _stopped(d: _Drawing) -> Node:
    return d.apply("stop_gradient", d.pick(d.floats))


def _binary(d: _Drawing) -> Node:
    node = d.pick(d.floats)
    other: Node | float = d.pick((d.like(node), 0.0, 1.0, -1.0, 2.0, 0.5))
    first, second = (node, other) if d.number(0, 1) else (other, node)
    return d.apply(d.pick(BINARY), d.calm(first) if isinstance(first, Node) else first, second)


def _quotient(d: _Drawing) -> Node:
    node = d.pick(d.floats)
    return d.apply("div", node, d.apply("add", d.apply("abs", d.like(node)), 0.5))


def _power(d: _Drawing) -> Node:
    node = d.pick(d.floats)
    base = d.apply("add", d.apply("abs", d.calm(node)), 0.5)
    return d.apply("pow", base, d.pick((d.calm(d.like(node)), 0.0, 1.0, 2.0, 0.5, -1.0)))


def _where(d: _Drawing) -> Node:
    node = d.pick(d.floats)
    condition = d.apply(d.pick(COMPARISONS), node, d.pick((d.like(node), 0.0)))
    if d.number(0, 1):
        condition = d.apply("not", condition)
    d.booleans.append(condition)
    return d.apply("where", condition, d.pick((node, 0.0)), d.like(node))


def _flags(d: _Drawing) -> Node:
    flags = d.pick(d.booleans) if d.booleans else d.apply("gt", d.pick(d.floats), 0.0)
    d.booleans.append(d.apply(d.pick(("and", "or", "xor")), flags, d.apply("not", flags)))
    return d.emit("cast", flags, dtype=d.dtype)


def _whole_numbers(d: _Drawing) -> Node:
    ids = d.pick(d.integers)
    step = d.number(1, 3)
    result = d.apply("remainder", d.apply("add", d.apply("mul", ids, d.number(-2, 3)), 1), step + 1)
    d.integers.append(d.apply("maximum", result, d.apply("floor_divide", ids, step)))
    return d.emit("cast", result, dtype=d.dtype)


def _stairs(d: _Drawing) -> Node:
    """Functions with jumps, at points away from them: 0.6 k + 0.3 is no integer, and 0.5 + |x| is above 0."""
    whole = d.emit("cast", d.pick(d.integers), dtype=d.dtype)
    kind = d.pick(("floor", "ceil", "sign", "is_finite"))
    if kind in ("floor", "ceil"):
        return d.apply(kind, d.apply("add", d.apply("mul", whole, 0.6), 0.3))
    if kind == "sign":
        return d.apply(kind, d.apply("neg", d.apply("add", d.apply("abs", d.pick(d.floats)), 0.5)))
    return d.emit("cast", d.apply(kind, d.pick(d.floats)), dtype=d.dtype)


def _random(d: _Drawing) -> Node:
    shape = d.shape()
    words = []
    for axis in range(len(shape)):
        words.append(d.emit("iota", shape=shape, axis=axis, dtype=DType.UINT32))
    words += [d.builder.broadcast(d.builder.constant(7 + i, DType.UINT32, d.span()), shape) for i in range(4)]
    bits = d.emit("threefry", *words[:4], word=d.number(0, 1))
    mixed = d.apply(d.pick(("or", "xor")), bits, d.apply("shift_left", bits, d.number(0, 33)))
    small = d.apply("shift_right", mixed, 9)
    return d.apply("mul", d.emit("cast", small, dtype=d.dtype), 2.0**-23)


def _reshape(d: _Drawing) -> Node:
    node = d.pick(d.floats)
    shape = list(node.shape)
    kind = d.pick(("insert", "drop", "flatten", "split"))
    if kind == "insert":
        shape.insert(d.number(0, len(shape)), 1)
    elif kind == "drop":
        shape = [size for size in shape if size != 1]
    elif kind == "flatten" or 4 not in shape:
        shape = [node.type.size]
    else:
        at = shape.index(4)
        shape[at : at + 1] = [2, 2]
    return d.emit("reshape", node, shape=tuple(shape)) if len(shape) <= 4 else node


def _transpose(d: _Drawing) -> Node:
    node = d.pick(d.floats)
    return d.emit("transpose", node, axes=tuple(d.draw(st.permutations(range(len(node.shape))))))  # type: ignore[call-overload]


def _broadcast(d: _Drawing) -> Node:
    node = d.pick([node for node in d.floats if len(node.shape) <= 2] or [d.builder.constant(0.5, d.dtype, d.span())])
    shape = list(node.shape)
    axes = list(range(len(shape)))
    at = d.number(0, len(shape))
    shape.insert(at, d.pick(SIZES))
    return d.emit("broadcast", node, shape=tuple(shape), axes=tuple(axis + (axis >= at) for axis in axes))


def _slice(d: _Drawing) -> Node:
    node = d.pick(d.floats)
    start = tuple(d.number(0, size - 1) for size in node.shape)
    stop = tuple(d.number(low + 1, size) for low, size in zip(start, node.shape, strict=True))
    step = tuple(d.number(1, 3) for _ in node.shape)
    return d.emit("slice", node, start=start, stop=stop, step=step)


def _pad(d: _Drawing) -> Node:
    node = d.pick([node for node in d.floats if max(node.shape, default=1) <= 4] or d.floats)
    low, high = (tuple(d.number(0, 2) for _ in node.shape) for _ in range(2))
    return d.emit("pad", node, low=low, high=high, value=d.pick((0.0, 1.0, -0.5)))


def _concat(d: _Drawing) -> Node:
    node = d.pick([node for node in d.floats if node.shape] or [d.like(d.input(d.dtype, (2,), "batch"))])
    return d.emit("concat", *(node if d.number(0, 1) else d.like(node) for _ in range(d.number(1, 3))), axis=0)


def _patches(d: _Drawing) -> Node:
    image = d.input(d.dtype, (d.pick((1, 2)), 2, d.pick((3, 4)), d.pick((3, 5))), "batch")
    geometry: dict[str, object] = {
        "kernel": (d.number(1, 2), d.number(1, 3)),
        "stride": (d.number(1, 2), d.number(1, 2)),
        "padding": ((d.number(0, 1), d.number(0, 1)), (d.number(0, 1), 0)),
        "dilation": (d.number(1, 2), 1),
    }
    laid = d.emit("patches", image, **geometry)
    if d.number(0, 1):
        laid = d.emit("fold", d.calm(laid), **geometry, height=image.shape[2], width=image.shape[3])
    return d.emit("max", laid, axes=(2, 3))


def _reduce(d: _Drawing) -> Node:
    node = d.pick(d.floats)
    axes = tuple(axis for axis in range(len(node.shape)) if d.number(0, 1))
    return d.emit(d.pick(("sum", "sum", "max", "min")), node, axes=axes)


def _normalize(d: _Drawing) -> Node:
    """A reduction that flows back into what it reduces: softmax over the last axis."""
    node = d.pick([node for node in d.floats if node.shape] or [d.input(d.dtype, (3, 4), "batch")])
    last = len(node.shape) - 1
    kept = tuple(range(last))
    top = d.emit("broadcast", d.emit("max", node, axes=(last,)), shape=node.shape, axes=kept)
    powers = d.apply("exp", d.apply("sub", node, top))
    total = d.emit("broadcast", d.emit("sum", powers, axes=(last,)), shape=node.shape, axes=kept)
    return d.apply("div", powers, total)


def _position(d: _Drawing) -> Node:
    """Of the extreme of an input: computed values that are equal but for rounding have another one each way."""
    inputs = [node for node in d.floats if node.shape and node.op.name == "input"]
    node = d.pick(inputs or [d.input(d.dtype, (4,), "batch")])
    position = d.emit(d.pick(("argmax", "argmin")), node, axis=d.number(0, len(node.shape) - 1))
    d.integers.append(position)
    return d.emit("cast", position, dtype=d.dtype)


def _take(d: _Drawing) -> Node:
    table = d.pick([node for node in d.floats if node.shape] or [d.input(d.dtype, (4, 2), "state")])
    ids = d.pick([ids for ids in d.integers if len(ids.shape) + len(table.shape) <= 4] or [d.integers[0]])
    ids = d.apply("minimum", d.apply("maximum", ids, 0), table.shape[0] - 1)
    return d.emit("take", table, ids)


def _scatter_add(d: _Drawing) -> Node:
    base = d.pick([node for node in d.floats if 1 <= len(node.shape) <= 3] or [d.input(d.dtype, (4, 2), "state")])
    ids = d.pick([ids for ids in d.integers if len(ids.shape) <= 2])
    ids = d.apply("minimum", d.apply("maximum", ids, 0), base.shape[0] - 1)
    wanted = ids.shape + base.shape[1:]
    fits = [node for node in d.floats if _fits(node.shape, wanted)]
    return d.emit("scatter_add", base, ids, d.builder.broadcast(d.calm(d.pick(fits)), wanted))


def _contract(d: _Drawing) -> Node:
    a = d.pick(d.floats)
    fresh = d.input(d.dtype, tuple(d.pick(SIZES) for _ in range(d.number(1, 2))) + a.shape[-1:], "state")
    b = d.pick([fresh, *[node for node in d.floats if len(node.shape) <= 3]])
    batch: list[tuple[int, int]] = []
    inner: list[tuple[int, int]] = []
    free = list(range(len(b.shape)))
    for axis, size in enumerate(a.shape):
        partners = [other for other in free if b.shape[other] == size]
        role = d.pick(("batch", "inner", "inner", "free"))
        if partners and role != "free":
            partner = d.pick(partners)
            free.remove(partner)
            (batch if role == "batch" else inner).append((axis, partner))
    if len(a.shape) + len(b.shape) - len(batch) - 2 * len(inner) > 4:
        return d.emit("sum", a, axes=())
    attrs = {
        name: (tuple(i for i, _ in pairs), tuple(j for _, j in pairs))
        for name, pairs in (("batch", batch), ("contracting", inner))
    }
    return d.emit("contract", d.calm(a), d.calm(b), **attrs)


STEPS: dict[str, Callable[[_Drawing], Node]] = {
    "unary": _unary,
    "stopped": _stopped,
    "binary": _binary,
    "quotient": _quotient,
    "power": _power,
    "where": _where,
    "flags": _flags,
    "whole_numbers": _whole_numbers,
    "stairs": _stairs,
    "random": _random,
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast": _broadcast,
    "slice": _slice,
    "pad": _pad,
    "concat": _concat,
    "patches": _patches,
    "reduce": _reduce,
    "normalize": _normalize,
    "position": _position,
    "take": _take,
    "scatter_add": _scatter_add,
    "contract": _contract,
}
LIMIT = 600  # elements of one node


class DrawnGraph(Graph):
    """A graph that hypothesis reports as its text."""

    def _repr_pretty_(self, printer: RepresentationPrinter, cycle: bool) -> None:
        printer.text(show_graph(self, spans=False))


@st.composite
def graphs(
    draw: Callable[..., object],
    *,
    steps: tuple[str, ...] = tuple(STEPS),
    most: int = 12,
    dtype: DType = DType.FLOAT32,
    rule: Rule | None = None,
) -> Graph:
    """A graph of up to `most` steps chosen from `steps` (names in `STEPS`), with 1 to 3 outputs.

    Inputs are `x0`, `x1`, ...: floats of `dtype`, and int32 ids in [0, 4).
    """
    d = _Drawing(draw, Builder("random", rule), dtype)
    for _ in range(d.number(1, 3)):
        d.floats.append(d.input(dtype, d.shape(), d.pick(("state", "batch"))))
    d.floats.append(d.input(dtype, (ROWS, 4), "batch"))
    d.floats.append(d.builder.constant(0.5, dtype, d.span()))
    d.integers.append(d.input(DType.INT32, d.shape(0, 2), "batch"))
    made: list[Node] = []
    for _ in range(d.number(min(4, most), most)):
        node = STEPS[d.pick(steps)](d)
        if node.type.size <= LIMIT and len(node.shape) <= 5:
            d.floats.insert(0, node)  # first, because hypothesis prefers what comes first: so programs grow deep
            made.append(node)
    made = made or d.floats[:1]
    outputs = {f"y{i}": d.pick(made) for i in range(d.number(1, 3))}
    outputs["last"] = made[-1]
    graph = d.builder.graph(outputs)
    return DrawnGraph(graph.name, graph.inputs, graph.nodes, graph.outputs)


def values_for(graph: Graph, seed: int) -> dict[str, Array]:
    """Values for all inputs of a graph that `graphs` drew."""
    generator = np.random.default_rng(seed)
    values: dict[str, Array] = {}
    for node in graph.inputs:
        if node.dtype.is_float:
            values[str(node.attrs["name"])] = generator.normal(size=node.shape).astype(node.dtype.numpy)
        else:
            values[str(node.attrs["name"])] = generator.integers(0, 4, node.shape).astype(node.dtype.numpy)
    return values
