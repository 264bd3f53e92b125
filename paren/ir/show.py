"""Graphs as text: one line per node with its type, operands, attributes, and place in the program."""

from __future__ import annotations

from collections.abc import Hashable

from paren.ir.graph import Graph, Node
from paren.ir.types import DType, TensorType
from paren.text.size import count_of


def show_graph(graph: Graph, *, spans: bool = True) -> str:
    """The whole graph: a heading, the nodes in order, the outputs."""
    width = max((len(show_node(node)) for node in graph.nodes), default=0)
    lines = [f"graph {graph.name} ({count_of(len(graph.nodes), 'node')})"]
    for node in graph.nodes:
        text = show_node(node)
        lines.append(f"  {text.ljust(min(width, 88))}  ; {node.span}" if spans else f"  {text}")
    lines += [f"  output {name} = %{node.number}" for name, node in graph.outputs.items()]
    return "\n".join(lines)


def show_node(node: Node) -> str:
    """`%7 float32[4 3] sum %5 :axes [1]`."""
    words = [f"%{node.number}", str(node.type), node.op.name, *(f"%{arg.number}" for arg in node.args)]
    for name, value in node.attrs.items():
        # The type is told already.
        if name in ("type", "dtype", "shape"):
            continue
        words.append(f":{name} {_show(value)}")
    return " ".join(words)


def _show(value: Hashable) -> str:
    if isinstance(value, tuple):
        return f"[{' '.join(_show(item) for item in value)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, DType | TensorType | int):
        return str(value)
    return f'"{value}"'
