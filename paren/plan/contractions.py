"""Contractions in a form that some product computes: where strides forbid it, operands are transposed first."""

from __future__ import annotations

from collections.abc import Mapping

from paren.ir.graph import Builder, Graph, Node
from paren.ir.rebuild import rebuild
from paren.plan.product import View, axis_pairs, contiguous, free_axes, product_of
from paren.plan.storage import is_product


def normalise_contractions(graph: Graph) -> Graph:
    """The graph with batch axes first, then free axes, then contracted axes in the operands of every contraction that
    has no product from contiguous operands. Other nodes stay as they are."""
    if all(_has_product(node) for node in graph.nodes if is_product(node)):
        return graph
    builder = Builder(graph.name)

    def rewrite(node: Node, made: Mapping[Node, Node]) -> Node | None:
        if not is_product(node) or _has_product(node):
            return None
        return _reordered(builder, node, [made[arg] for arg in node.args])

    made = rebuild(graph, builder, rewrite=rewrite)
    return builder.graph({name: made[node] for name, node in graph.outputs.items()})


def _has_product(node: Node) -> bool:
    left, right, result = (View(n, contiguous(n.shape), 0) for n in (*node.args, node))
    return product_of(node, left, right, result) is not None


def _reordered(builder: Builder, node: Node, args: list[Node]) -> Node:
    batch_a, batch_b, inner_a, inner_b = axis_pairs(node)
    free_a, free_b = free_axes(node)
    a = builder.emit("transpose", args[:1], {"axes": batch_a + free_a + inner_a}, node.span)
    b = builder.emit("transpose", args[1:], {"axes": batch_b + free_b + inner_b}, node.span)
    batch = tuple(range(len(batch_a)))
    inner = tuple(tuple(range(n.type.rank - len(inner_a), n.type.rank)) for n in (a, b))
    return builder.emit("contract", (a, b), {"batch": (batch, batch), "contracting": inner}, node.span)
