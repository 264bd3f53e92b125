"""What makes two programs the same experiment: their graphs and the settings of the run, not text, names or place."""

from __future__ import annotations

import hashlib
from dataclasses import asdict

from paren.ir.program import Program
from paren.ir.show import show_graph


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
