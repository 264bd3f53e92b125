"""Which of two ways of computing a value a target gets, and what stands against the operation."""

from __future__ import annotations

import pytest
from networks import SPAN

from paren.ir.graph import Builder, Graph, Node
from paren.ir.types import DType, TensorType
from paren.passes.alternatives import against, choose
from paren.passes.precision import set_precision

Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
WELL: Shapes = (2, 5, 2, 3, 16), (2, 5, 2, 16), (2, 5, 2, 16)


def attention(shapes: Shapes = WELL, dtype: DType = DType.FLOAT32, causal: bool = True, scale: float = 0.25) -> Node:
    builder = Builder("attention")
    operands = [
        builder.input(name, TensorType(dtype, shape), "state", SPAN) for name, shape in zip("qkv", shapes, strict=True)
    ]
    return builder.emit("attention", operands, {"causal": causal, "scale": scale}, SPAN)


CASES: list[tuple[Node, str, str | None]] = [
    (attention(), "bfloat16", None),
    (attention(((5, 2, 3, 256), (5, 2, 256), (5, 2, 256))), "bfloat16", None),
    (attention(((2, 5, 2, 3, 8), (2, 9, 2, 8), (2, 9, 2, 8)), causal=False), "bfloat16", None),
    (attention(dtype=DType.BFLOAT16), "off", None),
    (attention(), "off", "it is in float32, and the step of the library in bfloat16 or float16"),
    (attention(dtype=DType.FLOAT64), "bfloat16", "the step of the library is in bfloat16 or float16, not float64"),
    (
        attention(((5, 2, 3, 16), (5, 2, 16), (5, 2, 8))),
        "bfloat16",
        "keys of width 16 and values of width 8 differ",
    ),
    (
        attention(((5, 2, 3, 12), (5, 2, 12), (5, 2, 12))),
        "bfloat16",
        "heads are of width 12, a multiple of 8 up to 256 is needed",
    ),
    (
        attention(((5, 2, 3, 264), (5, 2, 264), (5, 2, 264))),
        "bfloat16",
        "heads are of width 264, a multiple of 8 up to 256 is needed",
    ),
    (
        attention(((5, 2, 3, 8), (7, 2, 8), (7, 2, 8))),
        "bfloat16",
        "it is causal with 5 queries and 7 keys, equally many are needed",
    ),
    (attention(scale=-0.5), "bfloat16", "the scale is not above 0"),
    (
        attention(((4, 2, 5, 2, 3, 8), (4, 2, 5, 2, 8), (4, 2, 5, 2, 8))),
        "bfloat16",
        "there is more than one axis of examples",
    ),
]


@pytest.mark.parametrize(("node", "precision", "reason"), CASES)
def test_what_stands_against_the_operation(node: Node, precision: str, reason: str | None) -> None:
    assert against(node, precision) == reason


def graph() -> Graph:
    """An attention in another order of axes, or what is written for it."""
    builder = Builder("either")
    operands = [
        builder.input(name, TensorType(DType.FLOAT32, shape), "state", SPAN)
        for name, shape in zip("qkv", WELL, strict=True)
    ]
    node = builder.emit("attention", operands, {"causal": True, "scale": 0.25}, SPAN)
    turned = builder.emit("transpose", (node,), {"axes": (0, 2, 3, 1, 4)}, SPAN)
    written = builder.emit("exp", (builder.emit("transpose", operands[:1], {"axes": (0, 2, 3, 1, 4)}, SPAN),), {}, SPAN)
    return builder.graph({"y": builder.emit("either", (turned, written), {}, SPAN)})


@pytest.mark.parametrize(
    ("attends", "precision", "names"),
    [
        (True, "bfloat16", ["attention", "transpose"]),
        (True, "off", ["transpose", "exp"]),
        (False, "bfloat16", ["transpose", "exp"]),
    ],
)
def test_a_target_gets_what_it_can_compute(attends: bool, precision: str, names: list[str]) -> None:
    chosen = choose(graph(), attends, precision)
    assert [node.op.name for node in chosen.nodes if node.op.name != "input"] == names


def test_attention_rounds_as_products_do() -> None:
    """Operands and results are in bfloat16, statistics in float32; parameters are rounded for it alone."""
    builder = Builder("rounded")
    q, k, v = (
        builder.input(name, TensorType(DType.FLOAT32, shape), "state", SPAN)
        for name, shape in zip("qkv", WELL, strict=True)
    )
    attrs = {"causal": True, "scale": 0.25}
    node = builder.emit("attention", (q, k, v), attrs, SPAN)
    statistics = builder.emit("attention_statistics", (q, k), attrs, SPAN)
    g = builder.apply("exp", node)
    gradients = [
        builder.emit("attention_gradient", (q, k, v, node, statistics, g), {**attrs, "of": of}, SPAN) for of in range(3)
    ]
    outputs = {"y": builder.apply("neg", node), "g": builder.apply("neg", g)}
    outputs |= dict(zip(("dq", "dk", "dv"), gradients, strict=True))
    made = set_precision(builder.graph(outputs), "bfloat16")
    for found in made.nodes:
        if found.op.name in ("attention", "attention_gradient"):
            assert found.dtype is DType.BFLOAT16
            assert [arg.dtype for arg in found.args if arg.op.name != "attention_statistics"] == [DType.BFLOAT16] * (
                3 if found.op.name == "attention" else 5
            )
        elif found.op.name == "attention_statistics":
            assert found.dtype is DType.FLOAT32
            assert {arg.dtype for arg in found.args} == {DType.BFLOAT16}
    assert {node.dtype for node in made.outputs.values()} == {DType.FLOAT32}
    # What the gradient takes as an operand, everything sees rounded.
    (widened,) = made.outputs["g"].args
    assert widened.op.name == "cast"
    assert widened.args[0].dtype is DType.BFLOAT16
