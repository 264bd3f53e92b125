"""Chooses between two ways of computing one value that a program offers: an operation, or what is written with others.

Runs on graphs as the program declares them, before gradients are taken: then the gradient is that of what was chosen.
"""

from __future__ import annotations

from paren.ir.graph import Builder, Graph, Node
from paren.ir.op import Attrs
from paren.ir.rebuild import rebuild
from paren.text.source import Span


def choose(graph: Graph) -> Graph:
    """The graph with the written value for each `either`."""
    builder = Builder(graph.name, _written)
    made = rebuild(graph, builder)
    return builder.graph({name: made[node] for name, node in graph.outputs.items()})


def _written(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    return args[1] if name == "either" else None
