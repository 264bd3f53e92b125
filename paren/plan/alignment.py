"""Products of short floats whose rows do not begin on 16 bytes: the odd dimension is padded with zeros.

Libraries for tensor cores fall to a fraction of their rate where a dimension that lies element by element in memory is
no multiple of 8 elements: a vocabulary of 50,257 costs six times the time of one of 50,304. So such a dimension grows,
wherever it is the last of an operand or of the result. The zeros add nothing to a sum, the columns beyond the end of a
result are never read, and the part that counts is a view of what is stored.
"""

from __future__ import annotations

from collections.abc import Mapping

from paren.ir.graph import Builder, Graph, Node
from paren.ir.rebuild import rebuild
from paren.plan.product import axis_pairs, free_axes

ELEMENTS = 8  # of two bytes in 16
LEAST = 32 * ELEMENTS  # sizes from which padding adds less than a thirtieth
WIDE = 4096  # sizes from which a multiple of a whole line of the cache costs nothing
LINE = 64


def align_products(graph: Graph) -> Graph:
    """The graph with products of short floats along aligned dimensions. Other nodes stay as they are."""
    return _Alignment(graph).run()


def aligned(size: int) -> int:
    """The size that a dimension gets: its own if that is aligned already or too small to be worth it."""
    if size < LEAST or size % ELEMENTS == 0:
        return size
    multiple = LINE if size >= WIDE else ELEMENTS
    return -(-size // multiple) * multiple


class _Alignment:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.builder = Builder(graph.name)
        self.grown: dict[int, Node] = {}  # results with padding, by the number of the node whose beginning they hold

    def run(self) -> Graph:
        made = rebuild(self.graph, self.builder, rewrite=self._rewrite)
        return self.builder.graph({name: made[node] for name, node in self.graph.outputs.items()})

    def _rewrite(self, node: Node, made: Mapping[Node, Node]) -> Node | None:
        if node.op.name == "contract" and node.args[0].dtype.is_short:
            a, b = (made[arg] for arg in node.args)
            return self._product(node, a, b)
        whole = self.grown.get(node.args[0].number) if node.op.name == "cast" else None
        if whole is not None:  # the product rounds its whole result as it stores it
            return self._beginning(node, self.builder.emit("cast", (whole,), node.attrs, node.span))
        return None

    def _product(self, node: Node, a: Node, b: Node) -> Node:
        _, _, inner_a, inner_b = axis_pairs(node)
        free_a, free_b = free_axes(node)
        last = [operand.type.rank - 1 for operand in (a, b)]
        for i, j in zip(inner_a, inner_b, strict=True):
            if i == last[0] or j == last[1]:
                a, b = self._grow(a, i), self._grow(b, j)
        if last[0] in free_a:
            a = self._cut(self._grow(a, last[0]), a)
        if free_b:  # the last of them is the last axis of the result
            b = self._grow(b, free_b[-1])
        result = self.builder.emit("contract", (a, b), node.attrs, node.span)
        return self._beginning(node, result)

    def _beginning(self, node: Node, result: Node) -> Node:
        """The part of a result that stands for the node, which may be all of it."""
        if result.shape != node.shape:
            self.grown[node.number] = result
        return self._cut(result, node)

    def _grow(self, value: Node, axis: int) -> Node:
        missing = aligned(value.shape[axis]) - value.shape[axis]
        if missing == 0:
            return value
        low = (0,) * value.type.rank
        high = tuple(missing if each == axis else 0 for each in range(value.type.rank))
        return self.builder.emit("pad", (value,), {"low": low, "high": high, "value": 0.0}, value.span)

    def _cut(self, value: Node, like: Node) -> Node:
        """The beginning of a value, in another node's shape."""
        if value.shape == like.shape:
            return value
        rank = value.type.rank
        attrs = {"start": (0,) * rank, "stop": like.shape, "step": (1,) * rank}
        return self.builder.emit("slice", (value,), attrs, value.span)
