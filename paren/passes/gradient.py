"""Reverse mode: the gradient of a scalar, as ordinary nodes."""

from __future__ import annotations

from collections.abc import Sequence

from paren.ir.graph import Builder, Node
from paren.text.errors import InternalError


def differentiate(builder: Builder, output: Node, wrt: Sequence[Node]) -> list[Node]:
    """The gradient of `output` (a scalar float made by `builder`) for each node of `wrt`, of that node's type
    (in float32 for a node in bfloat16).

    It is zeros where nothing flows: no path, or only paths through operations without gradient. The nodes it adds have
    the spans of the nodes whose gradient they carry. Raises `InternalError` for an output or a node of `wrt` that
    cannot have a gradient.
    """
    if output.shape != () or not output.dtype.is_float:
        raise InternalError("gradient", f"{output!r} at {output.span} is not a scalar float")
    for node in wrt:
        if not node.dtype.is_float:
            raise InternalError("gradient", f"{node!r} at {node.span} is not a float and has no gradient")
    before = _before(output)
    wanted = _depending(before, wrt)
    gradients: dict[Node, Node] = {output: builder.constant(1.0, output.dtype, output.span)}
    for node in reversed(before):
        gradient = gradients.get(node)
        if gradient is None or node not in wanted or node.op.vjp is None:
            continue
        for arg, part in zip(node.args, node.op.vjp(builder, node, gradient), strict=True):
            if part is None or arg not in wanted:
                continue
            if part.type != arg.type.gradient:
                raise InternalError("gradient", f"{node!r} at {node.span} gives {part!r} as the gradient of {arg!r}")
            known = gradients.get(arg)
            gradients[arg] = part if known is None else builder.emit("add", (known, part), {}, arg.span)
    return [gradients[node] if node in gradients else _zeros(builder, node) for node in wrt]


def _before(output: Node) -> list[Node]:
    """All nodes that `output` needs, and itself, operands first."""
    found = {output}
    pending = [output]
    while pending:
        for arg in pending.pop().args:
            if arg not in found:
                found.add(arg)
                pending.append(arg)
    return sorted(found, key=lambda node: node.number)


def _depending(nodes: Sequence[Node], wrt: Sequence[Node]) -> set[Node]:
    """The nodes through which a gradient reaches one of `wrt`; gradients are made for these only."""
    depending = set(wrt)
    for node in nodes:
        if node.op.vjp is not None and node.dtype.is_float and any(arg in depending for arg in node.args):
            depending.add(node)
    return depending


def _zeros(builder: Builder, node: Node) -> Node:
    zero = builder.constant(0.0, node.type.gradient.dtype, node.span)
    return builder.broadcast(zero, node.shape, span=node.span)
