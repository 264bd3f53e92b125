"""Graphs whose kernels are checked on a card: one of each kind. And how values get there."""

from __future__ import annotations

from collections.abc import Callable

from paren.ir.graph import Builder, Node
from paren.ir.op import Array
from paren.ir.random import Site, random_bits
from paren.ir.types import DType, TensorType
from paren.runtime.array import DeviceArray
from paren.runtime.cuda.device import CudaDevice
from paren.text.source import Source, Span

SPAN = Span(Source("gpu_check", "x"), 0, 1)
F32, I32 = DType.FLOAT32, DType.INT32


def placed(device: CudaDevice, values: Array) -> DeviceArray:
    """Values in the memory of a card."""
    made = device.allocate(max(64, values.nbytes))[: values.nbytes].view(values.dtype).reshape(values.shape)
    made[...] = values
    return made


def tensor(builder: Builder, name: str, *shape: int, dtype: DType = F32) -> Node:
    return builder.input(name, TensorType(dtype, shape), "state", SPAN)


def _reduce(builder: Builder, name: str, x: Node, *axes: int) -> Node:
    return builder.emit(name, (x,), {"axes": axes}, SPAN)


def _elementwise(b: Builder) -> dict[str, Node]:
    x, y = tensor(b, "x", 1037, 251), tensor(b, "y", 1037, 251)
    found = b.apply("add", b.apply("mul", b.apply("tanh", x, span=SPAN), y, span=SPAN), 0.5, span=SPAN)
    found = b.apply("add", found, b.apply("exp", b.apply("neg", b.apply("abs", x, span=SPAN), span=SPAN), span=SPAN))
    return {"out": b.apply("div", found, b.apply("add", b.apply("erf", y, span=SPAN), 2.0, span=SPAN), span=SPAN)}


def _softmax(b: Builder, rows: int, columns: int) -> dict[str, Node]:
    x = tensor(b, "x", rows, columns)

    def over(value: Node) -> Node:
        return b.emit("broadcast", (value,), {"shape": (rows, columns), "axes": (0,)}, SPAN)

    powers = b.apply("exp", b.apply("sub", x, over(_reduce(b, "max", x, 1)), span=SPAN), span=SPAN)
    return {"out": b.apply("div", powers, over(_reduce(b, "sum", powers, 1)), span=SPAN)}


def _columns(b: Builder) -> dict[str, Node]:
    x = tensor(b, "x", 4099, 770)
    return {"sum": _reduce(b, "sum", x, 0), "max": _reduce(b, "max", x, 0)}


def _whole(b: Builder) -> dict[str, Node]:
    x = tensor(b, "x", 2048, 1000)
    return {
        "sum": _reduce(b, "sum", b.apply("mul", x, x, span=SPAN), 0, 1),
        "arg": b.emit("argmax", (x,), {"axis": 1}, SPAN),
    }


def _gather(b: Builder) -> dict[str, Node]:
    table, rows = tensor(b, "table", 5000, 96), tensor(b, "rows", 3000, dtype=I32)
    updates = tensor(b, "updates", 3000, 96)
    added = b.emit("scatter_add", (table, rows, updates), {}, SPAN)
    return {"taken": b.emit("take", (table, rows), {}, SPAN), "added": added}


def _random(b: Builder) -> dict[str, Node]:
    seed, step = (tensor(b, name, dtype=DType.UINT32) for name in ("seed", "step"))
    rows = tensor(b, "numbers", 64, dtype=DType.UINT32)
    return {"bits": random_bits(b, Site(seed, 3, step, rows, SPAN), (700,))}


def _casts(b: Builder, dtype: DType) -> dict[str, Node]:
    x = tensor(b, "x", 513, 130)
    half = b.cast(x, dtype)
    return {"half": half, "back": b.apply("mul", b.cast(half, F32), 3.0, span=SPAN)}


def _transposed(b: Builder) -> dict[str, Node]:
    x = tensor(b, "x", 700, 513)
    return {"out": b.apply("add", b.emit("transpose", (x,), {"axes": (1, 0)}, SPAN), 1.0, span=SPAN)}


KERNELS: dict[str, Callable[[Builder], dict[str, Node]]] = {
    "elementwise": _elementwise,
    "softmax of short rows": lambda b: _softmax(b, 3000, 17),
    "softmax of middling rows": lambda b: _softmax(b, 501, 1024),
    "softmax of long rows": lambda b: _softmax(b, 11, 50257),
    "sums of columns": _columns,
    "a whole sum, argmax": _whole,
    "gather and scatter": _gather,
    "random bits": _random,
    "casts to bfloat16": lambda b: _casts(b, DType.BFLOAT16),
    "casts to float16": lambda b: _casts(b, DType.FLOAT16),
    "transposition": _transposed,
}
