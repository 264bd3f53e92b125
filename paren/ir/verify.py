"""Checks that a graph keeps its own rules; run after every stage that makes graphs."""

from __future__ import annotations

from paren.ir.graph import Graph, Node
from paren.ir.op import OPS
from paren.ir.show import show_node
from paren.ir.types import TypeMismatch
from paren.text.errors import InternalError

AROUND = 5


def verify(graph: Graph, stage: str) -> None:
    """Raises `InternalError(stage, ...)`, with the nodes around, unless all of this holds:

    - a node stands once, after its operands, with a number greater than theirs, and is needed by an output;
    - its operation is the registered one, and its type is what the operation infers;
    - input nodes in the graph are among `graph.inputs`, whose names differ; outputs are nodes of the graph.
    """
    _verify_inputs(graph, stage)
    defined: set[Node] = set()
    for position, node in enumerate(graph.nodes):
        fault = _fault(node, defined, graph)
        if fault is not None:
            raise InternalError(stage, f"{fault}{_surroundings(graph, position)}")
        defined.add(node)
    for name, node in graph.outputs.items():
        if node not in defined:
            raise InternalError(stage, f"output {name} of graph {graph.name} is {node!r}, which is not in the graph")
    _verify_needed(graph, stage)


def _fault(node: Node, defined: set[Node], graph: Graph) -> str | None:
    """What is wrong with one node, given those before it."""
    if node in defined:
        return f"{node!r} stands twice"
    for arg in node.args:
        if arg not in defined:
            return f"{node!r} uses {arg!r}, which does not stand before it"
        if arg.number >= node.number:
            return f"{node!r} uses {arg!r}, which was made after it"
    if OPS.get(node.op.name) is not node.op:
        return f"{node!r} has an operation that is not registered"
    if node.op.name == "input" and node not in graph.inputs:
        return f"{node!r} is not among the inputs"
    try:
        inferred = node.op.infer([arg.type for arg in node.args], node.attrs)
    except TypeMismatch as mismatch:
        return f"{node!r} does not fit its operands: {mismatch}"
    if inferred != node.type:
        return f"{node!r} should be {inferred}"
    return None


def _verify_inputs(graph: Graph, stage: str) -> None:
    names: set[str] = set()
    for node in graph.inputs:
        name = str(node.attrs.get("name"))
        if node.op.name != "input":
            raise InternalError(stage, f"{node!r} is among the inputs of graph {graph.name}")
        if name in names:
            raise InternalError(stage, f"graph {graph.name} has two inputs named {name}")
        names.add(name)


def _verify_needed(graph: Graph, stage: str) -> None:
    needed = set(graph.outputs.values())
    for position in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[position]
        if node not in needed:
            raise InternalError(stage, f"{node!r} is needed by no output{_surroundings(graph, position)}")
        needed.update(node.args)


def _surroundings(graph: Graph, position: int) -> str:
    """The node at a position, marked, and those around it."""
    lines = []
    for i in range(max(0, position - AROUND), min(len(graph.nodes), position + AROUND + 1)):
        node = graph.nodes[i]
        lines.append(f"{'>' if i == position else ' '} {show_node(node)}  ; {node.span}")
    return f" in graph {graph.name}\n" + "\n".join(lines)
