"""What makes two programs the same experiment: their graphs and the settings of the run, not text, names or place."""

from __future__ import annotations

import hashlib
from dataclasses import asdict

from paren.ir.graph import Graph
from paren.ir.program import Program
from paren.ir.show import show_graph
from paren.text.source import Source


def program_identity(program: Program) -> str:
    """The SHA-256 of a program, in hexadecimal: everything that decides what is trained, except for the data."""
    content = hashlib.sha256()
    graphs = [program.initialize, program.loss, program.evaluate]
    graphs += [graph for group in program.updates for graph in group.graphs.values()]
    graphs += [graph for _, graph in program.diagnostics.values()]
    for graph in graphs:
        content.update(show_graph(graph, spans=False).encode())
    run = asdict(program.run)
    del run["spans"]
    for name in ("keep_best", "stop_early"):
        if run[name] is not None:
            del run[name]["span"]
    groups = [(group.number, group.parameters, group.moments) for group in program.updates]
    sampled = [(each.name, each.every, each.reduce) for each, _ in program.diagnostics.values()]
    evaluated = program.data.options.get("evaluation-count")
    content.update(repr((sorted(run.items()), groups, program.metrics, sampled, evaluated)).encode())
    return content.hexdigest()


def graph_key(graph: Graph) -> str:
    """A text that is equal just for graphs that are equal in everything, the places of their nodes in the text of a
    program included, but not that text."""
    content = hashlib.sha256()
    sources = sources_of(graph)
    numbers = {id(source): number for number, source in enumerate(sources)}
    for node in (*graph.nodes, *graph.inputs):  # unused inputs are not among the nodes
        attrs = sorted((name, repr(value)) for name, value in node.attrs.items())
        span = node.span
        place = (numbers[id(span.source)], span.start, span.end)
        arguments = [arg.number for arg in node.args]
        content.update(repr((node.number, node.op.name, arguments, attrs, str(node.type), place)).encode())
    outputs = [(name, node.number) for name, node in graph.outputs.items()]
    names = [source.name for source in sources]
    content.update(repr((graph.name, [node.number for node in graph.inputs], outputs, names)).encode())
    return content.hexdigest()


def sources_of(graph: Graph) -> list[Source]:
    """The sources that the places of a graph's nodes are in, in the order in which they come up."""
    return list({id(node.span.source): node.span.source for node in (*graph.nodes, *graph.inputs)}.values())
