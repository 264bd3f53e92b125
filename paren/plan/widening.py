"""Products of float16 on a device that has none: their operands, rounded, are widened to float32.

Sums within a product are float32's anyway, so nothing changes but where the values lie.
"""

from __future__ import annotations

from collections.abc import Mapping

from paren.ir.graph import Builder, Graph, Node
from paren.ir.rebuild import rebuild
from paren.ir.types import DType


def widen_products(graph: Graph) -> Graph:
    """The graph without products of float16. Other nodes stay as they are."""
    if not any(_is_short(node) for node in graph.nodes):
        return graph
    builder = Builder(graph.name)

    def rewrite(node: Node, made: Mapping[Node, Node]) -> Node | None:
        if not _is_short(node):
            return None
        wide = [builder.cast(made[arg], DType.FLOAT32, node.span) for arg in node.args]
        return builder.emit("contract", wide, node.attrs, node.span)

    made = rebuild(graph, builder, rewrite=rewrite)
    return builder.graph({name: made[node] for name, node in graph.outputs.items()})


def _is_short(node: Node) -> bool:
    return node.op.name == "contract" and node.args[0].dtype is DType.FLOAT16
