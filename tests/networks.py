"""Parts of networks as graphs, for tests of the planner: written with the builder, as the prelude would."""

from __future__ import annotations

from collections.abc import Hashable

from paren.ir.graph import Builder, Node
from paren.ir.random import Site, random_bits
from paren.ir.types import DType, TensorType
from paren.text.source import Source, Span

SPAN = Span(Source("networks.paren", "x"), 0, 1)
F32 = DType.FLOAT32


def state(builder: Builder, name: str, *shape: int, dtype: DType = F32) -> Node:
    return builder.input(name, TensorType(dtype, shape), "state", SPAN)


def batch(builder: Builder, name: str, *shape: int, dtype: DType = F32) -> Node:
    return builder.input(name, TensorType(dtype, shape), "batch", SPAN)


def scalar(builder: Builder, name: str, dtype: DType = F32) -> Node:
    return builder.input(name, TensorType(dtype, ()), "scalar", SPAN)


def emit(builder: Builder, name: str, *args: Node, **attrs: Hashable) -> Node:
    return builder.emit(name, args, attrs, SPAN)


def over_rows(builder: Builder, row: Node, shape: tuple[int, ...]) -> Node:
    """A value of each row, repeated along the last axis."""
    return emit(builder, "broadcast", row, shape=shape, axes=tuple(range(len(shape) - 1)))


def reduce_last(builder: Builder, name: str, x: Node) -> Node:
    return emit(builder, name, x, axes=(len(x.shape) - 1,))


def total(builder: Builder, x: Node) -> Node:
    return emit(builder, "sum", x, axes=tuple(range(len(x.shape))))


def matmul(builder: Builder, x: Node, w: Node) -> Node:
    return emit(builder, "contract", x, w, batch=((), ()), contracting=((len(x.shape) - 1,), (0,)))


def linear(builder: Builder, x: Node, name: str, width: int) -> Node:
    product = matmul(builder, x, state(builder, f"{name}.weight", x.shape[-1], width))
    return builder.apply("add", product, state(builder, f"{name}.bias", width))


def softmax(builder: Builder, x: Node) -> Node:
    highest = emit(builder, "stop_gradient", reduce_last(builder, "max", x))
    powers = builder.apply("exp", builder.apply("sub", x, over_rows(builder, highest, x.shape)))
    return builder.apply("div", powers, over_rows(builder, reduce_last(builder, "sum", powers), x.shape))


def layer_norm(builder: Builder, x: Node, name: str) -> Node:
    width = x.shape[-1]
    mean = builder.apply("mul", reduce_last(builder, "sum", x), 1.0 / width)
    centred = builder.apply("sub", x, over_rows(builder, mean, x.shape))
    squares = reduce_last(builder, "sum", builder.apply("mul", centred, centred))
    scale = builder.apply("rsqrt", builder.apply("add", builder.apply("mul", squares, 1.0 / width), 1e-5))
    normal = builder.apply("mul", centred, over_rows(builder, scale, x.shape))
    scaled = builder.apply("mul", normal, state(builder, f"{name}.gain", width))
    return builder.apply("add", scaled, state(builder, f"{name}.bias", width))


def gelu(builder: Builder, x: Node) -> Node:
    cube = builder.apply("mul", builder.apply("mul", x, x), x)
    inner = builder.apply("mul", builder.apply("add", x, builder.apply("mul", cube, 0.044715)), 0.7978845608)
    return builder.apply("mul", builder.apply("mul", x, 0.5), builder.apply("add", builder.apply("tanh", inner), 1.0))


def cross_entropy(builder: Builder, logits: Node, labels: Node) -> Node:
    """The loss of each row of [R V] logits for int32[R] labels."""
    shape = logits.shape
    highest = emit(builder, "stop_gradient", reduce_last(builder, "max", logits))
    moved = builder.apply("sub", logits, over_rows(builder, highest, shape))
    norm = builder.apply("log", reduce_last(builder, "sum", builder.apply("exp", moved)))
    logs = builder.apply("sub", moved, over_rows(builder, norm, shape))
    column = emit(builder, "iota", shape=shape, axis=1, dtype=DType.INT32)
    hit = builder.apply("eq", column, over_rows(builder, labels, shape))
    return builder.apply("neg", reduce_last(builder, "sum", builder.apply("where", hit, logs, 0.0)))


def dropout(builder: Builder, x: Node, site: int) -> Node:
    """Keeps each element with probability 0.9; inputs `$seed`, `$step` and `$rows` (uint32[first axis])."""
    seed, step = scalar(builder, "$seed", DType.UINT32), scalar(builder, "$step", DType.UINT32)
    rows = batch(builder, "$rows", x.shape[0], dtype=DType.UINT32)
    bits = random_bits(builder, Site(seed, site, step, rows, SPAN), x.shape[1:])
    return builder.apply("where", builder.apply("lt", bits, 3865470566), builder.apply("mul", x, 1 / 0.9), 0.0)


def attention(builder: Builder, x: Node, name: str, heads: int) -> Node:
    """Causal self-attention of [B T D]."""
    size, length, width = x.shape
    packed = linear(builder, x, f"{name}.qkv", 3 * width)

    def head(number: int) -> Node:
        start, stop = (0, 0, number * width), (size, length, (number + 1) * width)
        part = emit(builder, "slice", packed, start=start, stop=stop, step=(1, 1, 1))
        split = emit(builder, "reshape", part, shape=(size, length, heads, width // heads))
        return emit(builder, "transpose", split, axes=(0, 2, 1, 3))

    q, k, v = head(0), head(1), head(2)
    scores = emit(builder, "contract", q, k, batch=((0, 1), (0, 1)), contracting=((3,), (3,)))
    scores = builder.apply("mul", scores, (width // heads) ** -0.5)
    position = [emit(builder, "iota", shape=scores.shape, axis=axis, dtype=DType.INT32) for axis in (2, 3)]
    scores = builder.apply("where", builder.apply("ge", *position), scores, float("-inf"))
    mixed = emit(builder, "contract", softmax(builder, scores), v, batch=((0, 1), (0, 1)), contracting=((3,), (2,)))
    joined = emit(builder, "reshape", emit(builder, "transpose", mixed, axes=(0, 2, 1, 3)), shape=x.shape)
    return linear(builder, joined, f"{name}.out", width)


def convolution(builder: Builder, x: Node, name: str, channels: int, stride: int = 1) -> Node:
    """3 x 3, padded by 1, of [N C H W]."""
    spread = emit(
        builder,
        "patches",
        x,
        kernel=(3, 3),
        stride=(stride, stride),
        padding=((1, 1), (1, 1)),
        dilation=(1, 1),
    )
    weight = state(builder, f"{name}.weight", channels, x.shape[1], 3, 3)
    out = emit(builder, "contract", weight, spread, batch=((), ()), contracting=((1, 2, 3), (1, 2, 3)))
    out = emit(builder, "transpose", out, axes=(1, 0, 2, 3))
    bias = state(builder, f"{name}.bias", channels)
    return builder.apply("add", out, emit(builder, "broadcast", bias, shape=out.shape, axes=(1,)))
