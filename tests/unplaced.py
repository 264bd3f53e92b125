"""Running a plan by the definitions, kernels by `run_kernel` and products by numpy: every buffer an array, or bytes of
one arena."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paren.codegen.python import run_kernel
from paren.ir.graph import Graph
from paren.ir.op import Array
from paren.ir.types import DType
from paren.plan.contractions import normalise_contractions
from paren.plan.lower import lower
from paren.plan.plan import Copy, Launch, Matrix, Place, Plan, Product
from paren.plan.verify_kernel import verify_kernel


def unplaced(graph: Graph) -> Plan:
    """The plan of a graph before memory is planned, with every kernel verified."""
    plan = lower(normalise_contractions(graph))
    for step in plan.steps:
        if isinstance(step, Launch):
            verify_kernel(step.kernel)
    return plan


def run_unplaced(plan: Plan, values: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs. Arena buffers start with a value that spoils whatever reads them too early; state is copied."""
    arrays: dict[int, Array] = {}
    for buffer in plan.buffers:
        if buffer.place is Place.ARENA:
            arrays[buffer.id] = np.full(buffer.type.size, 99, buffer.type.dtype.numpy)
        else:
            arrays[buffer.id] = np.array(values[buffer.name], buffer.type.dtype.numpy).reshape(-1)
    return _run(plan, arrays)


def run_placed(plan: Plan, values: Mapping[str, Array], garbage: int = 0xFF) -> dict[str, Array]:
    """The outputs of a placed plan in one arena full of `garbage` bytes (0xFF: NaN); state is copied. Slots of one name
    are one array; those without a value start with garbage too."""
    arena = np.full(max(plan.arena_bytes, 1), garbage, np.uint8)
    outside: dict[tuple[Place, str], Array] = {}
    arrays: dict[int, Array] = {}
    for buffer in plan.buffers:
        dtype, size = buffer.type.dtype.numpy, buffer.type.size
        if buffer.place is Place.ARENA:
            arrays[buffer.id] = arena[buffer.offset : buffer.offset + buffer.type.bytes].view(dtype)
            continue
        key = (buffer.place, buffer.name)
        if key not in outside:
            given = values.get(buffer.name)
            empty = np.full(buffer.type.bytes, garbage, np.uint8).view(dtype)
            outside[key] = empty if given is None else np.array(given, dtype).reshape(-1)
        assert outside[key].size == size
        arrays[buffer.id] = outside[key]
    return _run(plan, arrays)


def _run(plan: Plan, arrays: Mapping[int, Array]) -> dict[str, Array]:
    for step in plan.steps:
        match step:
            case Launch(kernel, buffers):
                run_kernel(kernel, [arrays[number] for number in buffers])
            case Product():
                _multiply(step, arrays)
            case Copy(source, target):
                arrays[target][...] = arrays[source]
    shapes = {buffer.id: buffer.type.shape for buffer in plan.buffers}
    return {name: arrays[number].reshape(shapes[number]) for name, number in plan.outputs.items()}


def _multiply(product: Product, arrays: Mapping[int, Array]) -> None:
    a = _matrix(product.a, arrays, product.batch, product.m, product.k)
    b = _matrix(product.b, arrays, product.batch, product.k, product.n)
    c = _matrix(product.c, arrays, product.batch, product.m, product.n)
    if product.rounded:
        a, b = (x.astype(DType.BFLOAT16.numpy).astype(np.float32) for x in (a, b))
    result = np.matmul(a, b)
    c[...] = c + result if product.accumulate else result


def _matrix(matrix: Matrix, arrays: Mapping[int, Array], batch: tuple[int, ...], rows: int, columns: int) -> Array:
    """A writable view of rows x columns for each index of the batch loops."""
    flat = arrays[matrix.buffer]
    within = (1, matrix.leading) if matrix.transposed else (matrix.leading, 1)
    last = matrix.offset + (rows - 1) * within[0] + (columns - 1) * within[1]
    last += sum((size - 1) * stride for size, stride in zip(batch, matrix.batch_strides, strict=True))
    assert matrix.offset >= 0
    assert last < flat.size, "the product leaves its buffer"
    strides = tuple(stride * flat.itemsize for stride in (*matrix.batch_strides, *within))
    return np.lib.stride_tricks.as_strided(flat[matrix.offset :], (*batch, rows, columns), strides)
