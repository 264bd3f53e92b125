"""Elementwise operations with types of their own: cast, where, threefry."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from paren.ir.graph import Builder, Node
from paren.ir.op import Array, Attrs, Op, Sample, register
from paren.ir.ops import operands as need
from paren.ir.types import DType, TensorType, TypeMismatch

Words = npt.NDArray[np.uint32]

# At the borders of float16: between two, half of the least and just above it, subnormal, the largest, just beyond it.
SHORTENED = np.array(
    [1 + 2**-11, 1 + 3 * 2**-11, 2**-25, 2.000001 * 2**-26, 3.3e-6, -0.0, 65519.9, 65520, -1e30, np.nan, np.inf],
    np.float32,
)


def _infer_cast(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need.count(types, 1)
    return TensorType(need.element_type(attrs), types[0].shape)


def _evaluate_cast(arrays: Sequence[Array], attrs: Attrs) -> Array:
    """Floats become integers toward zero; what does not fit becomes the nearest that does, NaN becomes 0.

    To and from a short float every other type goes through float32, which is rounded to the nearest one, to the even
    one of two; beyond the largest that is infinity, and NaN keeps its sign.
    """
    (x,) = arrays
    dtype = need.element_type(attrs)
    if dtype.is_short or x.dtype in (short.numpy for short in need.SHORT):
        x = x.astype(np.float32)
    if not (np.issubdtype(x.dtype, np.floating) and dtype.is_integer):
        with np.errstate(over="ignore"):
            return x.astype(dtype.numpy)
    wide = x.astype(np.float64)
    limits = np.iinfo(dtype.value)
    low, high = wide <= float(limits.min), wide >= float(limits.max)
    inside = np.where(low | high | np.isnan(wide), 0.0, wide).astype(dtype.numpy)
    least, most = dtype.numpy.type(limits.min), dtype.numpy.type(limits.max)
    return np.where(low, least, np.where(high, most, inside))


def _cast_vjp(builder: Builder, node: Node, g: Node) -> Sequence[Node | None]:
    """The gradient of a short float is in float32, so a rounding passes it on as it is."""
    source = node.args[0].type.gradient.dtype
    return [builder.emit("cast", (g,), {"dtype": source}, node.span) if source.is_float else None]


def _cast_samples(generator: np.random.Generator) -> list[Sample]:
    x = generator.uniform(-2, 2, (3, 4))
    odd = np.array([1.9, -1.9, 3e10, -3e10, np.nan, np.inf])
    integers = np.array([-1, 0, 3, 2**31 - 1], np.int32)
    return [
        Sample((x,), {"dtype": DType.FLOAT64}),
        Sample((np.array([1.9, -1.9, 1e-45, 3.4e38, np.nan, np.inf], np.float32),), {"dtype": DType.BFLOAT16}),
        Sample((x.astype(DType.BFLOAT16.numpy),), {"dtype": DType.FLOAT32}),
        Sample((odd.astype(DType.BFLOAT16.numpy),), {"dtype": DType.INT32}),
        Sample((SHORTENED,), {"dtype": DType.FLOAT16}),
        Sample((x.astype(np.float16),), {"dtype": DType.FLOAT32}),
        Sample((odd,), {"dtype": DType.INT32}),
        Sample((odd,), {"dtype": DType.UINT8}),
        Sample((integers,), {"dtype": DType.UINT32}),
        Sample((integers,), {"dtype": DType.FLOAT64}),
        Sample((integers,), {"dtype": DType.BOOL}),
        Sample((np.array([True, False]),), {"dtype": DType.FLOAT64}),
    ]


def _infer_where(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need.count(types, 3)
    condition, then, otherwise = types
    need.member(condition, (DType.BOOL,))
    need.same(then, otherwise)
    need.same_shape(condition, then)
    return then


def _where_vjp(builder: Builder, node: Node, g: Node) -> Sequence[Node | None]:
    condition = node.args[0]
    zero = builder.broadcast(builder.constant(0.0, g.dtype, node.span), g.shape, span=node.span)
    to_then = builder.emit("where", (condition, g, zero), {}, node.span)
    to_else = builder.emit("where", (condition, zero, g), {}, node.span)
    return [None, to_then, to_else]


def _where_samples(generator: np.random.Generator) -> list[Sample]:
    condition = generator.random((3, 4)) < 0.5
    return [
        Sample((condition, generator.normal(size=(3, 4)), generator.normal(size=(3, 4))), {}),
        Sample((np.array(True), np.array(3, np.int32), np.array(4, np.int32)), {}),
    ]


ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def threefry2x32(key0: Words, key1: Words, counter0: Words, counter1: Words) -> tuple[Words, Words]:
    """Both words of Threefry-2x32 with 20 rounds: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as
    1, 2, 3", SC 2011. All arrays are uint32 of one shape; additions are modulo 2^32."""
    keys = (key0, key1, key0 ^ key1 ^ np.uint32(PARITY))
    x0, x1 = counter0 + keys[0], counter1 + keys[1]
    for block in range(5):
        for distance in ROTATIONS[block % 2]:
            x0 = x0 + x1
            x1 = (x1 << np.uint32(distance)) | (x1 >> np.uint32(32 - distance))
            x1 = x1 ^ x0
        x0 = x0 + keys[(block + 1) % 3]
        x1 = x1 + keys[(block + 2) % 3] + np.uint32(block + 1)
    return x0, x1


def _infer_threefry(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need.count(types, 4)
    need.member(types[0], (DType.UINT32,))
    for other in types[1:]:
        need.same(types[0], other)
    if need.integer(attrs, "word") not in (0, 1):
        raise TypeMismatch(f"word is {attrs['word']}, 0 or 1 is needed")
    return types[0]


def _evaluate_threefry(arrays: Sequence[Array], attrs: Attrs) -> Array:
    key0, key1, counter0, counter1 = (array.astype(np.uint32) for array in arrays)
    return threefry2x32(key0, key1, counter0, counter1)[need.integer(attrs, "word")]


def _threefry_samples(generator: np.random.Generator) -> list[Sample]:
    args = tuple(generator.integers(0, 2**32, (2, 3), dtype=np.uint32) for _ in range(4))
    return [Sample(args, {"word": 0}), Sample(args, {"word": 1})]


CAST = register(Op("cast", "elementwise", _infer_cast, _evaluate_cast, _cast_vjp, _cast_samples))
WHERE = register(
    Op("where", "elementwise", _infer_where, lambda arrays, _attrs: np.where(*arrays), _where_vjp, _where_samples)
)
THREEFRY = register(Op("threefry", "elementwise", _infer_threefry, _evaluate_threefry, None, _threefry_samples))
