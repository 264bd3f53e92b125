"""Kernels written by hand for tests: a small writer of statements, and one kernel of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from paren.ir.op import Array
from paren.ir.types import DType
from paren.plan.kernel import (
    Access,
    Accumulate,
    AxisIndex,
    Compute,
    Constant,
    Index,
    Kernel,
    Load,
    Parameter,
    Reduce,
    Stage,
    Statement,
    Store,
)
from paren.runtime.cpu import CpuDevice
from paren.runtime.task import Cell

F32 = DType.FLOAT32


def axis(*terms: tuple[int, int], constant: int = 0, divisor: int = 1) -> Index:
    return Index(tuple(sorted(terms)), constant, divisor)


def gather(value: int) -> Index:
    return Index(value=value)


def row_major(sizes: Sequence[int]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(sizes[1:]):
        strides.insert(0, strides[0] * size)
    return tuple(strides[: len(sizes)])


def access(
    parameter: int, sizes: Sequence[int], *indices: Index | int, guarded: bool = False, offset: int = 0
) -> Access:
    """Row-major access; an integer stands for the index that is this axis."""
    full = tuple(axis((index, 1)) if isinstance(index, int) else index for index in indices)
    return Access(parameter, full, row_major(sizes), tuple(sizes), guarded, offset)


@dataclass
class Body:
    """Numbers values over a kernel and collects the statements of its stages."""

    types: dict[int, DType] = field(default_factory=dict)
    stages: list[tuple[tuple[int, ...], list[Statement]]] = field(default_factory=list)

    def stage(self, *axes: int) -> None:
        self.stages.append((axes, []))

    def _put(self, statement: Statement) -> None:
        self.stages[-1][1].append(statement)

    def _new(self, dtype: DType) -> int:
        self.types[len(self.types)] = dtype
        return len(self.types) - 1

    def constant(self, value: float | int | bool, dtype: DType = F32) -> int:
        result = self._new(dtype)
        self._put(Constant(result, value, dtype))
        return result

    def index(self, index: Index, dtype: DType = DType.INT32) -> int:
        result = self._new(dtype)
        self._put(AxisIndex(result, index, dtype))
        return result

    def load(self, where: Access, dtype: DType = F32, fill: float | int | bool = 0) -> int:
        result = self._new(dtype)
        self._put(Load(result, where, dtype, fill))
        return result

    def compute(self, op: str, *args: int, dtype: DType | None = None, **attrs: int) -> int:
        result = self._new(dtype if dtype is not None else self.types[args[0]])
        self._put(Compute(result, op, args, self.types[result], tuple(attrs.items())))
        return result

    def reduce(self, kind: str, value: int) -> int:
        result = self._new(DType.INT32 if kind.startswith("arg") else self.types[value])
        self._put(Reduce(result, kind, value, self.types[result]))
        return result

    def store(self, where: Access, value: int) -> None:
        self._put(Store(where, value))

    def accumulate(self, where: Access, value: int) -> None:
        self._put(Accumulate(where, value))

    def kernel(self, axes: Sequence[int], rows: int, parameters: Sequence[Parameter], name: str = "sample") -> Kernel:
        stages = tuple(Stage(axes, tuple(body)) for axes, body in self.stages)
        return Kernel(name, tuple(axes), rows, tuple(parameters), stages)


def reads(size: int, dtype: DType = F32) -> Parameter:
    return Parameter(dtype, size, True, False)


def writes(size: int, dtype: DType = F32) -> Parameter:
    return Parameter(dtype, size, False, True)


def elementwise(
    op: str, operands: Sequence[DType], result: DType, size: int, attrs: dict[str, int] | None = None
) -> Kernel:
    """`op` on `size` elements of each operand."""
    body = Body()
    body.stage()
    values = [body.load(access(i, [size], 0), dtype) for i, dtype in enumerate(operands)]
    body.store(access(len(operands), [size], 0), body.compute(op, *values, dtype=result, **(attrs or {})))
    parameters = [*(reads(size, dtype) for dtype in operands), writes(size, result)]
    return body.kernel([size], 1, parameters, op)


def softmax(rows: int, columns: int) -> Kernel:
    shape = (rows, columns)
    body = Body()
    body.stage(1)
    greatest = body.reduce("max", body.load(access(0, shape, 0, 1)))
    body.stage(1)
    power = body.compute("exp", body.compute("sub", body.load(access(0, shape, 0, 1)), greatest))
    body.store(access(1, shape, 0, 1), power)
    total = body.reduce("sum", power)
    body.stage()
    share = body.compute("div", body.constant(1.0), total)
    body.stage(1)
    body.store(access(1, shape, 0, 1), body.compute("mul", body.load(access(1, shape, 0, 1)), share))
    return body.kernel(shape, 1, [reads(rows * columns), Parameter(F32, rows * columns, True, True)], "softmax")


def gelu(rows: int, columns: int) -> Kernel:
    shape = (rows, columns)
    body = Body()
    body.stage()
    x = body.load(access(0, shape, 0, 1))
    error = body.compute("erf", body.compute("mul", x, body.constant(0.5**0.5)))
    half = body.compute("mul", x, body.constant(0.5))
    body.store(access(1, shape, 0, 1), body.compute("mul", half, body.compute("add", error, body.constant(1.0))))
    return body.kernel(shape, 2, [reads(rows * columns), writes(rows * columns)], "gelu")


def reduction(kind: str, rows: int, inner: int, along: str, dtype: DType = F32) -> Kernel:
    """Reduces a matrix [rows inner] `along` its rows ("row", result [rows]) or down its columns ("column")."""
    body = Body()
    body.stage(1)
    if along == "row":
        value = body.load(access(0, (rows, inner), 0, 1), dtype)
        axes, result = (rows, inner), rows
    else:
        value = body.load(access(0, (rows, inner), 1, 0), dtype)
        axes, result = (inner, rows), inner
    reduced = body.reduce(kind, value)
    body.stage()
    body.store(access(1, (result,), 0), reduced)
    return body.kernel(axes, 1, [reads(rows * inner, dtype), writes(result, body.types[reduced])], kind)


def run_on(device: CpuDevice, kernel: Kernel, buffers: Sequence[Array]) -> None:
    """Runs a kernel once on the CPU; the buffers are changed in place."""
    device.load([kernel])
    device.launch(kernel, [Cell(buffer) for buffer in buffers]).run()


def filled(generator: np.random.Generator, dtype: DType, size: int) -> Array:
    """Random values of an element type, small integers and floats around zero."""
    if dtype.is_float:
        return generator.normal(size=size).astype(dtype.numpy)
    if dtype == DType.BOOL:
        return generator.integers(0, 2, size).astype(np.bool_)
    low = 0 if dtype in (DType.UINT8, DType.UINT32) else -20
    return generator.integers(low, 20, size).astype(dtype.numpy)


def comparable(values: Array) -> Array:
    """The values in a type whose NaNs NumPy's tests take for equal: float32 for bfloat16."""
    return values.astype(np.float32) if values.dtype == DType.BFLOAT16.numpy else values
