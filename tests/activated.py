"""Networks whose products have kernels after them that work element by element, as plans for cards, for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from networks import batch, linear, matmul, state, total

from paren.ir.graph import Builder, Graph, Node
from paren.ir.op import Array
from paren.passes.gradient import differentiate
from paren.passes.precision import set_precision
from paren.pipeline import Planning, plan_graph
from paren.plan.plan import Plan
from paren.plan.traits import CUDA

ROWS, WIDTH, HIDDEN = 24, 16, 32


def gelu(builder: Builder, x: Node) -> Node:
    inner = builder.apply("erf", builder.apply("mul", x, 0.7071))
    half = builder.apply("mul", x, 0.5)
    return builder.apply("mul", half, builder.apply("add", inner, 1.0))


def relu(builder: Builder, x: Node) -> Node:
    return builder.apply("maximum", x, 0.0)


def silu(builder: Builder, x: Node) -> Node:
    powers = builder.apply("exp", builder.apply("neg", x))
    return builder.apply("div", x, builder.apply("add", powers, 1.0))


def tanh(builder: Builder, x: Node) -> Node:
    return builder.apply("tanh", x)


Activation = Callable[[Builder, Node], Node]


def network(activation: Activation, rows: int = ROWS, hidden: int = HIDDEN, precision: str = "bfloat16") -> Graph:
    """Two layers, their loss, and all gradients."""
    builder = Builder("network")
    x = batch(builder, "x", 2, rows, WIDTH)
    inner = activation(builder, linear(builder, x, "first", hidden))
    last = builder.apply("tanh", linear(builder, inner, "second", WIDTH))
    loss = total(builder, builder.apply("mul", last, last))
    states = [node for node in builder.inputs if node.attrs["role"] == "state"]
    outputs = {"loss": loss}
    for node, gradient in zip(states, differentiate(builder, loss, states), strict=True):
        outputs[f"gradient {node.attrs['name']}"] = gradient
    return set_precision(builder.graph(outputs), precision, list(outputs)[1:])


def plan_of(work: Callable[[Builder, Node], Mapping[str, Node]]) -> Plan:
    """The plan of a product and of what `work` makes of it: outputs by names."""
    builder = Builder("product")
    product = matmul(builder, batch(builder, "x", ROWS, WIDTH), state(builder, "w", WIDTH, HIDDEN))
    return on_cards(set_precision(builder.graph(dict(work(builder, product))), "bfloat16"))


def values_of(graph: Graph, seed: int = 0) -> dict[str, Array]:
    generator = np.random.default_rng(seed)
    return {
        str(node.attrs["name"]): generator.normal(scale=0.4, size=node.shape).astype(node.dtype.numpy)
        for node in graph.inputs
    }


def distance(one: Array, other: Array) -> float:
    """Relative to the second."""
    difference = np.linalg.norm(np.float64(one) - np.float64(other))
    return float(difference / max(np.linalg.norm(np.float64(other)), 1e-6))


def on_cards(graph: Graph, patterns: bool = True) -> Plan:
    return plan_graph(graph, planning=Planning(patterns, traits=CUDA))
