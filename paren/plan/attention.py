"""Which nodes of a graph one step of attention computes, and how its operands lie in what is stored.

The step of the forward writes the result, and the statistics where the gradient needs them; that of the backward the
gradients of q, k and v, all at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from paren.ir.graph import Graph, Node
from paren.plan.product import View

ATTENTION, STATISTICS, GRADIENT = "attention", "attention_statistics", "attention_gradient"
ELEMENTS = 8  # bfloat16 in the 16 bytes on which libraries want every head to begin


@dataclass(frozen=True)
class AttentionCall:
    """`members`: the nodes that the step computes, the result or the gradients first. `operands`: q, k and v, and for
    gradients the result and its gradient. `statistics`: the node that it writes, or for gradients reads."""

    members: tuple[Node, ...]
    operands: tuple[Node, ...]
    statistics: Node | None

    @property
    def backward(self) -> bool:
        return self.members[0].op.name == GRADIENT

    @property
    def results(self) -> tuple[Node | None, ...]:
        """The result, or the gradients of q, k and v, as far as they are wanted."""
        if not self.backward:
            return (self.members[0],)
        return tuple(next((node for node in self.members if node.attrs["of"] == of), None) for of in range(3))


@dataclass(frozen=True)
class Layout:
    """Examples x positions x heads x width elements of a buffer: the elements of a head lie side by side, from element
    `offset` on; `strides` count elements from example to example, position to position, head to head."""

    offset: int
    strides: tuple[int, int, int]


def is_attention(node: Node) -> bool:
    """Whether a step of attention computes the node."""
    return node.op.name in (ATTENTION, STATISTICS, GRADIENT)


def find_calls(graph: Graph) -> list[AttentionCall]:
    """The steps that compute the graph's nodes of attention."""
    statistics: dict[Hashable, Node] = {_key(n): n for n in graph.nodes if n.op.name == STATISTICS}
    gradients: dict[Hashable, list[Node]] = {}
    calls: list[AttentionCall] = []
    for node in graph.nodes:
        if node.op.name == ATTENTION:
            written = statistics.pop(_key(node), None)
            members = (node,) if written is None else (node, written)
            calls.append(AttentionCall(members, node.args, written))
        elif node.op.name == GRADIENT:
            gradients.setdefault((_key(node), tuple(arg.number for arg in node.args)), []).append(node)
    for nodes in gradients.values():
        *operands, kept, g = nodes[0].args
        calls.append(AttentionCall(tuple(nodes), (*operands, g), kept))
    return calls


def _key(node: Node) -> Hashable:
    """Equal for nodes with the same scores."""
    return node.args[0].number, node.args[1].number, node.attrs["causal"], node.attrs["scale"]


def layout_of(view: View, shape: Sequence[int], operand: int) -> Layout | None:
    """The layout of an operand, or the result of that number, of this shape, [B.. T G R D] or, for k and v (1 and 2),
    [B.. S G D], which lies as a view says; None where it has none that libraries take."""
    heads = 1 if operand in (1, 2) else 2
    *front, width = range(len(shape))
    parts = front[: -1 - heads], front[-1 - heads : -heads], front[-heads:]
    if width and view.strides[width] != 1:
        return None
    strides = []
    for number, axes in enumerate(parts):
        real = [axis for axis in axes if shape[axis] > 1]
        for outer, inner in pairwise(real):
            if view.strides[outer] != shape[inner] * view.strides[inner]:
                return None
        # The stride of a dimension of size 1 does not matter, but libraries want one that fits.
        behind = prod(shape[axis] for later in parts[number + 1 :] for axis in later) * shape[width]
        strides.append(view.strides[real[-1]] if real else behind)
    if view.offset % ELEMENTS or any(stride % ELEMENTS for stride in strides):
        return None
    return Layout(view.offset, (strides[0], strides[1], strides[2]))
