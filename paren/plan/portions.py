"""Sums over the examples of a small graph in portions, each of which one thread can make from the rows it made itself.

Gradients of parameters are sums over all examples. Where a whole step takes some microseconds, threads that take part
in it must rarely wait for each other and rarely read what another one wrote. So a sum over the first axis is made of
sums over equal portions of it, added in order. How many there are is decided by the shape alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from math import prod

from paren.ir.graph import Builder, Graph, Node
from paren.ir.ops import operands as need
from paren.ir.ops.contract import roles_of
from paren.ir.rebuild import rebuild
from paren.plan.storage import is_product

LARGEST = 1 << 24  # multiply-adds of all contractions of a graph that counts as small
LARGEST_VALUE = 1 << 20  # bytes of any of its tensors
PORTION = 64  # indices of the first axis at least
MOST = 8  # portions


def sum_in_portions(graph: Graph) -> Graph:
    """The graph with every sum and contraction over the first axes in portions, if it is small."""
    if not is_small(graph) or not any(_portions(node) > 1 for node in graph.nodes):
        return graph
    builder = Builder(graph.name)

    def rewrite(node: Node, made: Mapping[Node, Node]) -> Node | None:
        count = _portions(node)
        if count == 1:
            return None
        return _added(builder, _in_parts(builder, node, [_cut(builder, made[arg], count) for arg in node.args]))

    made = rebuild(graph, builder, rewrite=rewrite)
    return builder.graph({name: made[node] for name, node in graph.outputs.items()})


def is_small(graph: Graph) -> bool:
    """Whether all of a graph takes so little time that what threads wait for each other counts."""
    if any(node.type.bytes > LARGEST_VALUE for node in graph.nodes):
        return False
    return sum(_multiply_adds(node) for node in graph.nodes if is_product(node)) <= LARGEST


def _portions(node: Node) -> int:
    """In how many portions a node's sum is made."""
    if node.op.name == "contract":
        roles = roles_of(node.attrs, *(arg.type.rank for arg in node.args))
        over_first = not roles.batch_a and roles.contracting_a[:1] == roles.contracting_b[:1] == (0,)
    else:
        over_first = node.op.name == "sum" and need.integers(node.attrs, "axes")[:1] == (0,)
    if not over_first or not node.dtype.is_float:
        return 1
    extent, count = node.args[0].shape[0], 1
    while 2 * count <= MOST and extent % (2 * count) == 0 and extent // (2 * count) >= PORTION:
        count *= 2
    return count


def _cut(builder: Builder, node: Node, count: int) -> Node:
    """A tensor with its first axis cut in `count` portions, which count along a new axis in front."""
    shape = (count, node.shape[0] // count, *node.shape[1:])
    return builder.emit("reshape", (node,), {"shape": shape}, node.span)


def _in_parts(builder: Builder, node: Node, args: list[Node]) -> Node:
    """The sums over the portions, which are the first axis of the result."""
    if node.op.name == "sum":
        axes = tuple(axis + 1 for axis in need.integers(node.attrs, "axes"))
        return builder.emit("sum", args, {"axes": axes}, node.span)
    roles = roles_of(node.attrs, *(arg.type.rank for arg in node.args))
    contracting = tuple(tuple(axis + 1 for axis in axes) for axes in (roles.contracting_a, roles.contracting_b))
    return builder.emit("contract", args, {"batch": ((0,), (0,)), "contracting": contracting}, node.span)


def _added(builder: Builder, parts: Node) -> Node:
    """The sum over the first axis, in order."""
    shape = parts.shape[1:]
    terms = []
    for number in range(parts.shape[0]):
        attrs = {"start": (number, *[0] * len(shape)), "stop": (number + 1, *shape), "step": (1,) * (len(shape) + 1)}
        part = builder.emit("slice", (parts,), attrs, parts.span)
        terms.append(builder.emit("reshape", (part,), {"shape": shape}, parts.span))
    return reduce(lambda total, term: builder.apply("add", total, term), terms)


def _multiply_adds(node: Node) -> int:
    roles = roles_of(node.attrs, *(arg.type.rank for arg in node.args))
    a = node.args[0]
    return prod(node.shape) * prod(a.shape[axis] for axis in roles.contracting_a)
