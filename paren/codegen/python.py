"""What a kernel means: each statement in numpy, for many rows and all iterations of its stage at once.

Every emitter is tested against this. Values are arrays with one dimension per kernel axis, of size 1 along the axes
that they do not depend on, so a value of a row broadcasts over the stages that use it. That a statement runs for all
iterations before the next one starts gives what the loop gives, because of the rules that `paren.plan.verify_kernel`
checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

import numpy as np
import numpy.typing as npt

from paren.ir.op import OPS, Array
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
    Reduce,
    Stage,
    Statement,
    Store,
)
from paren.text.errors import InternalError

Integers = npt.NDArray[np.int64]
EXTREMES = {"max": np.max, "min": np.min}
POSITIONS = {"argmax": np.argmax, "argmin": np.argmin}
BLOCK_BYTES = 32 * 2**20  # what the values of the rows that run together should take
TEMPORARY_BYTES = 48  # what numpy holds besides for each iteration: addresses, masks, intermediate results


def run_kernel(
    kernel: Kernel, buffers: Sequence[Array], rows: range | None = None, offsets: Sequence[int] | None = None
) -> None:
    """Runs `kernel`; `buffers[i]` is the one-dimensional array of parameter i, written in place.

    With `rows`, only those run (the row axes counted as one). `offsets[i]` is added to all places in parameter i.

    Floats of a `sum` are added in float64 and rounded once. Rows run in blocks of about `BLOCK_BYTES`, or one by one
    where a row needs more. Raises `InternalError` where an access that is not guarded leaves its buffer.
    """
    with np.errstate(all="ignore"):
        for block in _blocks(kernel) if rows is None else _runs(kernel, rows):
            run = _Run(kernel, buffers, block, offsets or [0] * len(buffers))
            for stage in kernel.stages:
                run.stage(stage)


def _blocks(kernel: Kernel) -> Iterator[tuple[range, ...]]:
    """Ranges of the row axes that together cover every row once: the last axes whole, as many as fit, one axis in
    pieces, those before it index by index."""
    left = max(1, BLOCK_BYTES // max(1, _row_bytes(kernel)))
    pieces: list[list[range]] = []
    for size in reversed(kernel.axes[: kernel.rows]):
        length = min(size, left)
        pieces.insert(0, [range(first, min(first + length, size)) for first in range(0, size, length)])
        left //= size
        left = max(1, left)
    return product(*pieces)


def _runs(kernel: Kernel, rows: range) -> Iterator[tuple[range, ...]]:
    """Some rows as ranges of the last row axis."""
    outer, last = kernel.axes[: kernel.rows - 1], kernel.axes[kernel.rows - 1]
    row = rows.start
    while row < rows.stop:
        place = row % last
        end = min(last, place + rows.stop - row)
        indices = np.unravel_index(row // last, outer) if outer else ()
        yield (*(range(int(i), int(i) + 1) for i in indices), range(place, end))
        row += end - place


def _row_bytes(kernel: Kernel) -> int:
    """About what one row needs: the values of the stage that needs most, and what numpy holds to compute them."""
    most = 0
    for stage in kernel.stages:
        each = sum(s.dtype.bytes for s in stage.body if not isinstance(s, Store | Accumulate))
        most = max(most, prod(kernel.axes[axis] for axis in stage.axes) * (each + TEMPORARY_BYTES))
    return most


class _Run:
    """The execution of the rows of one block."""

    def __init__(
        self, kernel: Kernel, buffers: Sequence[Array], block: tuple[range, ...], offsets: Sequence[int]
    ) -> None:
        self.kernel = kernel
        self.buffers = buffers
        self.offsets = offsets
        self.values: dict[int, Array] = {}
        ranges = [*block, *(range(size) for size in kernel.axes[kernel.rows :])]
        self.sizes = [len(indices) for indices in ranges]
        self.axes: list[Integers] = [
            np.array(indices, np.int64).reshape([-1 if i == axis else 1 for i in range(len(ranges))])
            for axis, indices in enumerate(ranges)
        ]

    def stage(self, stage: Stage) -> None:
        """Executes the statements, and forgets what later stages do not see."""
        for statement in stage.body:
            self.execute(stage, statement)
        if stage.axes:
            for statement in stage.body:
                if not isinstance(statement, Reduce | Store | Accumulate):
                    del self.values[statement.result]

    def execute(self, stage: Stage, statement: Statement) -> None:
        match statement:
            case Constant(result, value, dtype):
                self.values[result] = np.full((1,) * len(self.axes), value, dtype.numpy)
            case AxisIndex(result, index, dtype):
                self.values[result] = self._sum(index).astype(dtype.numpy)
            case Load(result, access, dtype, fill):
                self.values[result] = self._load(access, dtype, fill)
            case Compute():
                self.values[statement.result] = self._compute(statement)
            case Reduce(result, kind, value, dtype):
                self.values[result] = self._reduce(stage, kind, self.values[value]).astype(dtype.numpy)
            case Store(access, value):
                addresses, stored = np.broadcast_arrays(self._addresses(access)[0], self.values[value])
                self.buffers[access.parameter][addresses] = stored
            case Accumulate(access, value):
                self._accumulate(stage, access, self.values[value])

    def _sum(self, index: Index) -> Integers:
        total = np.full((1,) * len(self.axes), index.constant, np.int64)
        for axis, coefficient in index.terms:
            total = total + coefficient * self.axes[axis]
        return total

    def _addresses(self, access: Access) -> tuple[Integers, npt.NDArray[np.bool_]]:
        """The elements that are touched, and where the access is in range (elsewhere the address is 0)."""
        first = access.offset + self.offsets[access.parameter]
        addresses = np.full((1,) * len(self.axes), first, np.int64)
        inside = np.ones((1,) * len(self.axes), np.bool_)
        for index, stride, size in zip(access.indices, access.strides, access.sizes, strict=True):
            if index.value is not None:
                position = np.clip(self.values[index.value].astype(np.int64), 0, size - 1)
            else:
                total = self._sum(index)
                position = total // index.divisor
                if access.guarded:
                    inside = inside & (position >= 0) & (position < size) & (total % index.divisor == 0)
            addresses = addresses + stride * position
        if access.guarded:
            addresses = np.where(inside, addresses, 0)
        end = self.buffers[access.parameter].size
        if addresses.min() < 0 or addresses.max() >= end:
            raise InternalError(
                "kernel",
                f"{self.kernel.name} touches elements {addresses.min()} to {addresses.max()} of parameter "
                f"{access.parameter}, which has {end}",
            )
        return addresses, inside

    def _load(self, access: Access, dtype: DType, fill: float | int | bool) -> Array:
        addresses, inside = self._addresses(access)
        loaded = self.buffers[access.parameter][addresses]
        return np.where(inside, loaded, dtype.numpy.type(fill)) if access.guarded else loaded

    def _compute(self, statement: Compute) -> Array:
        attrs = {"dtype": statement.dtype} if statement.op == "cast" else dict(statement.attrs)
        result = np.asarray(OPS[statement.op].evaluate([self.values[arg] for arg in statement.args], attrs))
        if result.dtype != statement.dtype.numpy:
            raise InternalError(
                "kernel", f"{statement.op} in {self.kernel.name} gives {result.dtype}, not {statement.dtype}"
            )
        return result

    def _over_stage(self, value: Array, axes: Sequence[int]) -> Array:
        """`value` spread over its own row axes and all of `axes`, which become the last dimension in loop order."""
        shape = [self.sizes[i] if i in axes else size for i, size in enumerate(value.shape)]
        spread = np.moveaxis(np.broadcast_to(value, shape), axes, range(len(shape) - len(axes), len(shape)))
        return spread.reshape(*spread.shape[: len(shape) - len(axes)], -1)

    def _reduce(self, stage: Stage, kind: str, value: Array) -> Array:
        spread = self._over_stage(value, stage.axes)
        if kind == "sum":
            wide = np.float64 if np.issubdtype(value.dtype, np.floating) else value.dtype
            combined = np.sum(spread, axis=-1, dtype=wide)
        else:
            combined = (EXTREMES[kind] if kind in EXTREMES else POSITIONS[kind])(spread, axis=-1)
        kept = [1 if i in stage.axes else size for i, size in enumerate(value.shape)]
        return np.asarray(combined).reshape(kept)

    def _accumulate(self, stage: Stage, access: Access, value: Array) -> None:
        order = (*range(self.kernel.rows), *stage.axes)
        addresses = self._over_stage(self._addresses(access)[0], order).astype(np.int64)
        added = self._over_stage(value, order)
        np.add.at(self.buffers[access.parameter], addresses.reshape(-1), added.reshape(-1))
