"""Emits a graph again into another builder: the way graphs are simplified, joined, and fed from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paren.ir.graph import Builder, Graph, Node
from paren.text.errors import InternalError

Rewrite = Callable[[Node, Mapping[Node, Node]], Node | None]


def rebuild(
    graph: Graph, builder: Builder, substitute: Mapping[str, Node] | None = None, rewrite: Rewrite | None = None
) -> dict[Node, Node]:
    """For each node of the graph, the node of `builder` that stands for it.

    An input named in `substitute` becomes the node given there, which must be of the input's type. All other inputs of
    the graph, used or not, are declared in `builder`; those of equal name become one. `rewrite` is asked for each node
    that is no input, with what stands for the nodes before it: it emits what stands for the node, or gives None for
    the operation as it is. Spans are kept; the builder's own rules apply.
    """
    given = substitute or {}
    result: dict[Node, Node] = {}
    for node in graph.inputs:
        name = str(node.attrs["name"])
        if name not in given:
            result[node] = builder.input(name, node.type, str(node.attrs["role"]), node.span)
        elif given[name].type != node.type:
            raise InternalError("rebuild", f"input {name} is {node.type}, its substitute is {given[name]!r}")
        else:
            result[node] = given[name]
    for node in graph.nodes:
        if node in result:
            continue
        written = rewrite(node, result) if rewrite is not None else None
        if written is None:
            written = builder.emit(node.op.name, [result[arg] for arg in node.args], node.attrs, node.span)
        result[node] = written
    return result
