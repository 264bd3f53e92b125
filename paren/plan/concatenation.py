"""Gradients of attention that are parts of one value, as those of a projection to q, k and v: side by side, not added.

Where q, k and v are slices of one value, its gradient is a sum of three values, each padded with zeros to the size of
the whole, and rounded to bfloat16, in which the three are already: the same as the three side by side, but for the sign
of a zero. A step of attention can write that straight into one buffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

from paren.ir.graph import Builder, Graph, Node
from paren.ir.rebuild import rebuild
from paren.plan.attention import GRADIENT

VIEWS = ("reshape", "transpose")


@dataclass(frozen=True)
class _Part:
    """A value that lies in the whole from `begin` to `end` along one axis."""

    value: Node
    axis: int
    begin: int
    end: int


def concatenate_gradients(graph: Graph) -> Graph:
    """The graph with a `concat` for each such sum. Other nodes stay as they are."""
    if all(node.op.name != GRADIENT for node in graph.nodes):
        return graph
    builder = Builder(graph.name)

    def rewrite(node: Node, made: Mapping[Node, Node]) -> Node | None:
        parts = _parts(node)
        if parts is None:
            return None
        return builder.emit("concat", [made[part.value] for part in parts], {"axis": parts[0].axis}, node.span)

    made = rebuild(graph, builder, rewrite=rewrite)
    return builder.graph({name: made[node] for name, node in graph.outputs.items()})


def gradient_of(value: Node) -> Node | None:
    """The gradient of attention that a value is a view of."""
    while value.op.name in VIEWS:
        (value,) = value.args
    return value if value.op.name == GRADIENT else None


def _parts(node: Node) -> list[_Part] | None:
    """The parts that a rounded sum is made of, in their order, if they are gradients of attention and cover it."""
    if node.op.name != "cast" or not node.dtype.is_short or node.args[0].op.name != "add":
        return None
    found: list[_Part] = []
    pending = [node.args[0]]
    while pending:
        term = pending.pop()
        if term.op.name == "add":
            pending += term.args
            continue
        part = _part(term)
        if part is None:
            return None
        found.append(part)
    found.sort(key=lambda part: part.begin)
    beside = all(one.end == other.begin and one.axis == other.axis for one, other in pairwise(found))
    covered = found[0].begin == 0 and found[-1].end == node.shape[found[0].axis]
    return found if beside and covered and len({gradient_of(part.value) for part in found}) == len(found) else None


def _part(term: Node) -> _Part | None:
    if term.op.name != "pad" or term.attrs["value"] != 0 or term.args[0].op.name != "cast":
        return None
    low, high = (cast(tuple[int, ...], term.attrs[side]) for side in ("low", "high"))
    axes = [axis for axis in range(term.type.rank) if low[axis] or high[axis]]
    (value,) = term.args[0].args
    if len(axes) != 1 or not value.dtype.is_short or gradient_of(value) is None:
        return None
    return _Part(value, axes[0], low[axes[0]], term.shape[axes[0]] - high[axes[0]])
