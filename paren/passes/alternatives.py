"""Chooses between two ways of computing one value that a program offers: an operation, or what is written with others.

Runs on graphs as the program declares them, before gradients are taken: then the gradient is that of what was chosen.
The one operation that is offered is `attention`.
"""

from __future__ import annotations

from paren.ir.graph import Builder, Graph, Node
from paren.ir.op import Attrs
from paren.ir.rebuild import rebuild
from paren.ir.types import DType
from paren.text.source import Span

WIDEST = 256  # elements of a head
ELEMENTS = 8  # a head of bfloat16 begins on 16 bytes


def choose(graph: Graph, attends: bool = False, precision: str = "off") -> Graph:
    """The graph with one alternative for each `either`: the written one, but on targets that have a step for attention
    (`attends`) the operation, where that step takes it."""

    def rule(builder: Builder, name: str, args: tuple[Node, ...], attrs: Attrs, span: Span) -> Node | None:
        if name != "either":
            return None
        offered, written = args
        return offered if attends and against(attention_of(offered), precision) is None else written

    builder = Builder(graph.name, rule)
    made = rebuild(graph, builder)
    return builder.graph({name: made[node] for name, node in graph.outputs.items()})


def attention_of(offered: Node) -> Node:
    """The operation of an alternative, which is a view of its result."""
    while offered.op.name != "attention":
        (offered,) = offered.args
    return offered


def against(attention: Node, precision: str) -> str | None:
    """Why libraries for cards do not compute an attention in one step, in a run of this precision; None if they do.

    They multiply short floats. Widths and orders of positions are those of cuDNN and of FlashAttention.
    """
    q, k, v = (arg.type for arg in attention.args)
    width = q.shape[-1]
    if q.dtype is DType.FLOAT32 and precision == "off":
        return "it is in float32, and the step of the library in bfloat16 or float16"
    if q.dtype is not DType.FLOAT32 and not q.dtype.is_short:
        return f"the step of the library is in bfloat16 or float16, not {q.dtype}"
    if width != v.shape[-1]:
        return f"keys of width {width} and values of width {v.shape[-1]} differ"
    if width % ELEMENTS or width > WIDEST:
        return f"heads are of width {width}, a multiple of {ELEMENTS} up to {WIDEST} is needed"
    if attention.attrs["causal"] and q.shape[-4] != k.shape[-3]:
        return f"it is causal with {q.shape[-4]} queries and {k.shape[-3]} keys, equally many are needed"
    if not float(str(attention.attrs["scale"])) > 0:
        return "the scale is not above 0"
    if q.rank > 5:
        return "there is more than one axis of examples"
    return None
