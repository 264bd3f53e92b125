"""What a graph means: each operation's numpy definition, in order. Everything else is tested against this."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paren.ir.graph import Graph, Node
from paren.ir.op import Array
from paren.ir.types import DType, TensorType
from paren.text.errors import InternalError


def evaluate(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of the graph for values of its inputs, by name; names that the graph does not use are ignored.

    A value is freed after its last use. Raises `InternalError` when an input is missing or has another type than its
    node, or when an operation's definition breaks its own type.
    """
    last: dict[Node, int] = {}
    for position, node in enumerate(graph.nodes):
        for arg in node.args:
            last[arg] = position
    kept = set(graph.outputs.values())
    values: dict[Node, Array] = {}
    for position, node in enumerate(graph.nodes):
        value = _value(node, values, inputs)
        _check(node, value)
        values[node] = value
        for arg in set(node.args):
            if last[arg] == position and arg not in kept:
                del values[arg]
        if node not in last and node not in kept:
            del values[node]
    return {name: np.array(values[node]) for name, node in graph.outputs.items()}


def _value(node: Node, values: Mapping[Node, Array], inputs: Mapping[str, Array]) -> Array:
    if node.op.name != "input":
        return node.op.evaluate([values[arg] for arg in node.args], node.attrs)
    name = str(node.attrs["name"])
    if name not in inputs:
        raise InternalError("evaluate", f"the input {name} has no value")
    return np.asarray(inputs[name])


def _check(node: Node, value: Array) -> None:
    if value.dtype != node.dtype.numpy or value.shape != node.shape:
        found = TensorType(DType(value.dtype.name), value.shape)
        raise InternalError("evaluate", f"the value of {node!r} at {node.span} is {found}")
