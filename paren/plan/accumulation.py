"""What the report says of gradients that are added where they lie, and of those that are not."""

from __future__ import annotations

from collections.abc import Iterator

from paren.ir.graph import Node
from paren.plan.decision import Decision, Pattern
from paren.plan.storage import Storage, is_product


def accumulation_decisions(storage: Storage) -> Iterator[Decision]:
    """One for each state to which a graph adds products or scatters. Where the pattern fired, the sum of them has no
    buffer of its own; sums to which kernels alone contribute are added while they are written, and get none."""
    slots = {str(node.attrs["name"]): node for node in storage.graph.inputs if node.attrs["role"] == "state"}
    for name, node in storage.graph.outputs.items():
        slot = slots.get(name)
        if slot is None:
            continue
        terms = list(_terms(node))
        added = [term for term in terms if term is not slot and _adds(term)]
        if slot not in terms or not added:
            continue
        fired = name in storage.aliases
        yield Decision(Pattern.ACCUMULATION, fired, _reason(storage, node, slot, fired), node.span, node.type.bytes)


def _terms(node: Node) -> Iterator[Node]:
    """The terms of a sum; a scatter-add is the sum of its base and itself."""
    if node.op.name == "add":
        for arg in node.args:
            yield from _terms(arg)
    elif node.op.name == "scatter_add":
        yield from _terms(node.args[0])
        yield node
    else:
        yield node


def _adds(node: Node) -> bool:
    """Whether a term is a product or a scatter, seen through transposes and reshapes."""
    while node.op.name in ("reshape", "transpose"):
        node = node.args[0]
    return is_product(node) or node.op.name == "scatter_add"


def _reason(storage: Storage, node: Node, slot: Node, fired: bool) -> str:
    if fired:
        return "products and scatters add to the gradient where it lies"
    if storage.users[node.number] or len(storage.users[slot.number]) != 1:
        return "the gradient is used by something else too"
    return "a term of the sum has another use, or is neither a product nor a scatter"
