"""Graphs of a training step in bfloat16, and values for which their sums are exact in any order."""

from __future__ import annotations

import numpy as np
from networks import state

from paren.ir.graph import Builder, Graph, Node
from paren.ir.op import Array
from paren.passes.gradient import differentiate
from paren.passes.precision import set_precision


def training(builder: Builder, loss: Node, *, adding: bool = True) -> Graph:
    parameters = [node for node in builder.inputs if node.attrs["role"] == "state"]
    outputs = {"loss": loss}
    for node, gradient in zip(parameters, differentiate(builder, loss, parameters), strict=True):
        name = f"gradient:{node.attrs['name']}"
        slot = state(builder, name, *node.shape)
        outputs[name] = builder.apply("add", slot, gradient) if adding else gradient
    return set_precision(builder.graph(outputs), "bfloat16", [name for name in outputs if name != "loss"])


def integers(graph: Graph, seed: int = 0) -> dict[str, Array]:
    generator = np.random.default_rng(seed)
    return {
        str(node.attrs["name"]): generator.integers(0 if node.dtype.is_integer else -3, 4, node.shape).astype(
            node.dtype.numpy
        )
        for node in graph.inputs
    }
