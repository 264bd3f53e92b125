"""Simplifies a graph: algebra, structure, constants, common subexpressions, dead nodes, in one walk."""

from __future__ import annotations

from paren.ir.graph import Builder, Graph, Node
from paren.ir.op import Attrs
from paren.ir.rebuild import rebuild
from paren.passes.rules import apply_algebra
from paren.passes.structure import apply_structure
from paren.text.source import Span


def simplify(graph: Graph) -> Graph:
    """The graph with the same inputs, outputs and values, to rounding, made of fewer and cheaper operations.

    For graphs whose gradients have been taken: `stop_gradient` vanishes.
    """
    builder = Builder(graph.name, simpler)
    nodes = rebuild(graph, builder)
    return builder.graph({name: nodes[node] for name, node in graph.outputs.items()})


def simpler(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
    """The rule that `simplify` gives its builder."""
    replacement = apply_algebra(builder, name, args, attrs, span)
    return replacement if replacement is not None else apply_structure(builder, name, args, attrs, span)
