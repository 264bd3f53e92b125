"""Long random graphs whose sizes have many divisors: reshapes, gathers, updates of state, steps of training.

Complements `random_graphs`, whose sizes are smaller than what a reshape has to split.
"""

from __future__ import annotations

import random
from math import prod

import numpy as np
from networks import F32, SPAN, batch, emit, matmul, over_rows, softmax, state, total

from paren.ir.graph import Builder, Graph, Node
from paren.ir.op import Array
from paren.ir.types import DType
from paren.passes.gradient import differentiate

SHAPES = [(24,), (4, 6), (6, 4), (2, 3, 4), (3, 8), (12, 2), (2, 12), (1, 24), (24, 1), (2, 2, 6), (4, 3, 2)]
LARGEST = 3000  # elements of a node
Choose = random.Random


def _elementwise(b: Builder, r: Choose, x: Node, pool: list[Node], ids: Node) -> Node:
    other = r.choice([node for node in pool if node.shape == x.shape])
    name = r.choice(["add", "mul", "sub", "maximum", "sin", "neg", "abs", "erf"])
    bounded = b.apply("tanh", x)
    return b.apply(name, bounded, other) if name in ("add", "mul", "sub", "maximum") else b.apply(name, bounded)


def _reshape(b: Builder, r: Choose, x: Node, pool: list[Node], ids: Node) -> Node:
    return emit(b, "reshape", x, shape=r.choice([s for s in SHAPES if prod(s) == x.type.size] or [(x.type.size,)]))


def _transpose(b: Builder, r: Choose, x: Node, pool: list[Node], ids: Node) -> Node:
    return emit(b, "transpose", x, axes=tuple(r.sample(range(len(x.shape)), len(x.shape))))


def _reduce(b: Builder, r: Choose, x: Node, pool: list[Node], ids: Node) -> Node:
    if r.random() < 0.3:
        position = emit(b, r.choice(["argmax", "argmin"]), x, axis=r.randrange(len(x.shape)))
        return emit(b, "cast", position, dtype=F32)
    axes = tuple(sorted(r.sample(range(len(x.shape)), r.randint(1, len(x.shape)))))
    return emit(b, r.choice(["sum", "max", "min"]), x, axes=axes)


def _centre(b: Builder, r: Choose, x: Node, pool: list[Node], ids: Node) -> Node:
    row = emit(b, r.choice(["max", "sum"]), x, axes=(len(x.shape) - 1,))
    return b.apply("sub", x, over_rows(b, row, x.shape))


def _softmax(b: Builder, r: Choose, x: Node, pool: list[Node], ids: Node) -> Node:
    return softmax(b, x)


def _linear(b: Builder, r: Choose, x: Node, pool: list[Node], ids: Node) -> Node:
    """A product with a parameter, new or one that is there."""
    there = [n for n in b.inputs if len(n.shape) == 2 and n.shape[0] == x.shape[-1] and n.attrs["role"] == "state"]
    if not there or r.random() < 0.7:
        there = [state(b, f"p{len(b.inputs)}", x.shape[-1], r.choice([4, 6, 24]))]
    return matmul(b, b.apply("tanh", x), r.choice(there))


def _embed(b: Builder, r: Choose, x: Node, pool: list[Node], ids: Node) -> Node:
    """Rows of a parameter."""
    tables = [n for n in b.inputs if len(n.shape) == 2 and n.shape[0] > 3 and n.attrs["role"] == "state"]
    return emit(b, "take", r.choice([*tables, state(b, f"p{len(b.inputs)}", 4, 6)]), ids)


def _slice(b: Builder, r: Choose, x: Node, pool: list[Node], ids: Node) -> Node:
    start = tuple(r.randrange(size) for size in x.shape)
    stop = tuple(r.randint(low + 1, size) for low, size in zip(start, x.shape, strict=True))
    return emit(b, "slice", x, start=start, stop=stop, step=tuple(r.choice([1, 1, 2]) for _ in x.shape))


def _pad(b: Builder, r: Choose, x: Node, pool: list[Node], ids: Node) -> Node:
    low, high = (tuple(r.randrange(2) for _ in x.shape) for _ in range(2))
    return emit(b, "pad", x, low=low, high=high, value=0.5)


def _concat(b: Builder, r: Choose, x: Node, pool: list[Node], ids: Node) -> Node:
    return emit(b, "concat", x, b.apply("neg", x), axis=r.randrange(len(x.shape)))


def _repeat(b: Builder, r: Choose, x: Node, pool: list[Node], ids: Node) -> Node:
    if r.random() < 0.5:
        return emit(b, "broadcast", x, shape=(3, *x.shape), axes=tuple(range(1, len(x.shape) + 1)))
    return emit(b, "broadcast", x, shape=(*x.shape, 3), axes=tuple(range(len(x.shape))))


def _take(b: Builder, r: Choose, x: Node, pool: list[Node], ids: Node) -> Node:
    return emit(b, "take", x, b.apply("minimum", ids, x.shape[0] - 1))


def _scatter(b: Builder, r: Choose, x: Node, pool: list[Node], ids: Node) -> Node:
    updates = _take(b, r, b.apply("tanh", x), pool, ids)
    base = x if r.random() < 0.5 else b.broadcast(b.constant(0.0, F32, SPAN), x.shape)
    return emit(b, "scatter_add", base, b.apply("minimum", ids, x.shape[0] - 1), updates)


def _contract(b: Builder, r: Choose, x: Node, pool: list[Node], ids: Node) -> Node:
    """Pairs axes of equal size at random."""
    other = r.choice([node for node in pool if node.shape and set(node.shape) & set(x.shape)])
    pairs = [(i, j) for i in range(len(x.shape)) for j in range(len(other.shape)) if x.shape[i] == other.shape[j]]
    r.shuffle(pairs)
    kept: dict[str, list[tuple[int, int]]] = {"batch": [], "contracting": []}
    for i, j in pairs:
        if all(i != a and j != c for group in kept.values() for a, c in group):
            kept["batch" if r.random() < 0.4 else "contracting"].append((i, j))
    attrs = {name: (tuple(i for i, _ in some), tuple(j for _, j in some)) for name, some in kept.items()}
    if x.type.size * other.type.size > 4000 * prod(x.shape[i] for i in (*attrs["batch"][0], *attrs["contracting"][0])):
        return x
    return b.apply("mul", emit(b, "contract", b.apply("tanh", x), other, **attrs), 0.25)


STEPS = [_elementwise, _reshape, _transpose, _reduce, _centre, _slice, _pad, _concat, _repeat, _take, _scatter]
STEPS += [_contract, _elementwise, _elementwise]
SMOOTH = [_elementwise, _reshape, _transpose, _centre, _slice, _pad, _concat, _repeat, _take, _scatter, _contract]
SMOOTH += [_softmax, _contract, _elementwise, _linear, _linear, _linear, _embed]


def mixed_graph(seed: int) -> Graph:
    """5 to 40 steps, with outputs of three kinds: new values, sums with a slot, and a slot that takes another value."""
    r, b = random.Random(seed), Builder("mixed")
    pool = [state(b, f"x{i}", *r.choice(SHAPES)) for i in range(2)]
    ids = batch(b, "ids", r.choice([3, 5]), dtype=DType.INT32)
    for _ in range(r.choice([5, 10, 20, 40])):
        x = r.choice(pool[-6:])
        made = r.choice(STEPS if x.shape else [_elementwise])(b, r, x, pool, ids)
        if len(made.shape) <= 5 and made.type.size <= LARGEST:
            pool.append(made)
    outputs = {f"y{i}": r.choice(pool) for i in range(r.randint(1, 4))}
    for i in range(2):
        x = r.choice(pool)
        total = b.apply("add", state(b, f"sum{i}", *x.shape), x)
        if r.random() < 0.5:
            total = b.apply("add", total, r.choice([node for node in pool if node.shape == x.shape]))
        if x.shape and r.random() < 0.4:
            updates = _take(b, r, b.apply("tanh", x), pool, ids)
            total = emit(b, "scatter_add", total, b.apply("minimum", ids, x.shape[0] - 1), updates)
        outputs[f"sum{i}"] = total
    outputs["x0"] = r.choice([node for node in pool if node.shape == pool[0].shape])
    return b.graph(outputs)


def training_graph(seed: int) -> Graph:
    """The gradients of a loss by its parameters, each added to a slot of its own, and the loss to another.

    Parameters are factors and tables, some both, some used twice; some gradients are outputs besides.
    """
    r, b = random.Random(seed), Builder("training")
    pool = [state(b, "p0", *r.choice(SHAPES)), batch(b, "x", *r.choice(SHAPES))]
    ids = batch(b, "ids", r.choice([3, 5]), dtype=DType.INT32)
    for _ in range(r.choice([3, 6, 12])):
        x = r.choice(pool[-5:])
        made = r.choice(SMOOTH if x.shape else [_elementwise])(b, r, x, pool, ids)
        if len(made.shape) <= 5 and made.type.size <= LARGEST:
            pool.append(made)
    loss = b.constant(0.0, F32, SPAN)
    for x in [*pool[-2:], *r.sample(pool, 2)]:
        loss = b.apply("add", loss, total(b, b.apply("mul", b.apply("tanh", x), r.choice([1.0, 0.5, -2.0]))))
    parameters = [node for node in b.inputs if node.attrs["role"] == "state"]
    outputs = {"loss": b.apply("add", state(b, "loss"), loss)}
    for parameter, gradient in zip(parameters, differentiate(b, loss, parameters), strict=True):
        name = f"gradient:{parameter.attrs['name']}"
        outputs[name] = b.apply("add", state(b, name, *parameter.shape), gradient)
        if r.random() < 0.2:
            outputs[f"seen {name}"] = r.choice([gradient, outputs[name]])
    return b.graph(outputs)


def values_for(graph: Graph, seed: int) -> dict[str, Array]:
    generator = np.random.default_rng(seed)
    values: dict[str, Array] = {}
    for node in graph.inputs:
        drawn = generator.normal(size=node.shape) if node.dtype.is_float else generator.integers(0, 4, node.shape)
        values[str(node.attrs["name"])] = np.asarray(drawn).astype(node.dtype.numpy)
    return values
