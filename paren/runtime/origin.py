"""Which node of a graph first made a value that is not finite: the nodes of one step, by their definition.

A node originates such a value if it gives one from finite arguments, or a NaN from arguments without. So an infinity
that the program wrote itself, as a mask does, is never named; a difference of two infinities is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from paren.ir.graph import Graph, Node
from paren.ir.op import Array
from paren.ir.types import holds_floats


def originates(results: Sequence[Array], arguments: Sequence[Array]) -> bool:
    """Whether the results hold an infinity or a NaN that the arguments do not account for."""
    if any(_has_nan(value) for value in results):
        return not any(_has_nan(value) for value in arguments)
    return not _finite(results) and _finite(arguments)


def originating_node(graph: Graph, numbers: Sequence[int], stored: Mapping[str, Array]) -> Node | None:
    """The first node that originates a value which then reaches one of the nodes `numbers`.

    `stored`: what these are computed from, by the name of the input, or `%number operation`. None if there is no such
    node, or if the nodes need more than `stored` holds.
    """
    members = [node for node in graph.nodes if node.number in set(numbers)]
    values: dict[Node, Array] = {}
    pending = list(members)
    needed: set[Node] = set()
    while pending:
        node = pending.pop()
        if node in needed or node in values:
            continue
        name = str(node.attrs["name"]) if node.op.name == "input" else f"%{node.number} {node.op.name}"
        if name in stored and node not in members:
            values[node] = stored[name]
        elif node.op.name == "input":
            return None
        else:
            needed.add(node)
            pending.extend(node.args)
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            if node in needed:
                values[node] = node.op.evaluate([values[arg] for arg in node.args], node.attrs)
    return _first(members, needed, values)


def _first(members: Sequence[Node], computed: set[Node], values: Mapping[Node, Array]) -> Node | None:
    """Of the nodes behind the members that are not finite, along values that are not, the first that originates one."""
    pending = [node for node in members if not _finite([values[node]])]
    seen: set[Node] = set()
    found: list[Node] = []
    while pending:
        node = pending.pop()
        if node in seen or node not in computed or not node.args:
            continue
        seen.add(node)
        if originates([values[node]], [values[arg] for arg in node.args]):
            found.append(node)
        pending.extend(arg for arg in node.args if not _finite([values[arg]]))
    return min(found, key=lambda node: node.number, default=None)


def _finite(values: Sequence[Array]) -> bool:
    return all(not holds_floats(value) or bool(np.isfinite(value).all()) for value in values)


def _has_nan(value: Array) -> bool:
    return holds_floats(value) and bool(np.isnan(value).any())
