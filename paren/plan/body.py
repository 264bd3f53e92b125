"""The statements of one kernel: the value of a node at an index, written out over scalars.

Values that depend on row axes only go into stages without axes, which run once a row; all others go into the loop that
is being written. A value is written once for each stage and index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from paren.ir.graph import Node
from paren.ir.types import DType
from paren.plan.index import ZERO, CannotIndex, add, affine, interval, reshape
from paren.plan.kernel import (
    Access,
    AxisIndex,
    Compute,
    Constant,
    Index,
    Load,
    Parameter,
    Statement,
    Store,
)
from paren.plan.product import contiguous
from paren.text.errors import InternalError

Indices = tuple[Index, ...]


class Uncomputable(Exception):
    """The value of `node` is asked for at places that are no affine map of the loops: it must be stored."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.node = node


class Body:
    """Statements under construction.

    `load_from` gives the buffer of a node that lies in memory, or None; `known` the values of reductions of this
    kernel; `filled` the buffers that earlier stages stored, whose elements of the row are loaded, not computed again.
    `prologue` and `loop` are the lists that new statements go to; with `loop` None everything is a row's.
    """

    def __init__(self, sizes: Sequence[int], rows: int, load_from: Callable[[Node], int | None]) -> None:
        self.sizes = tuple(sizes)
        self.rows = rows
        self.load_from = load_from
        self.known: dict[int, int] = {}
        self.filled: dict[int, int] = {}
        self.prologue: list[Statement] = []
        self.loop: list[Statement] | None = None
        self.buffers: list[int] = []
        self.parameters: list[Parameter] = []
        self._row_values: dict[tuple[object, ...], int] = {}
        self._loop_values: dict[tuple[object, ...], int] = {}
        self._row_level: set[int] = set()
        self._count = 0

    def open_loop(self, statements: list[Statement] | None, values: dict[tuple[object, ...], int]) -> None:
        """Writes further statements into this loop; `values` are those the loop has already."""
        self.loop = statements
        self._loop_values = values

    def fresh(self, row_level: bool) -> int:
        """A new value number."""
        self._count += 1
        if row_level:
            self._row_level.add(self._count - 1)
        return self._count - 1

    # Statements -----------------------------------------------------------------------------------------------------

    def _write(self, key: tuple[object, ...], row_level: bool, make: Callable[[int], Statement]) -> int:
        row_level = row_level or self.loop is None
        found = self._row_values.get(key)
        if found is None and not row_level:
            found = self._loop_values.get(key)
        if found is not None:
            return found
        number = self.fresh(row_level)
        if row_level or self.loop is None:
            self._row_values[key] = number
            self.prologue.append(make(number))
        else:
            self._loop_values[key] = number
            self.loop.append(make(number))
        return number

    def _is_row_index(self, index: Index) -> bool:
        if index.value is not None:
            return index.value in self._row_level
        return all(axis < self.rows for axis, _ in index.terms)

    def constant(self, value: float | int | bool, dtype: DType) -> int:
        key = ("constant", repr(value), dtype)
        # Constants belong to the stage that uses them, so that they make no stage of their own.
        return self._write(key, self.loop is None, lambda n: Constant(n, value, dtype))

    def axis_index(self, index: Index, dtype: DType) -> int:
        if not index.terms and index.value is None:
            return self.constant(index.constant, dtype)
        if index.value is not None:
            return self.compute("cast", (index.value,), dtype)
        return self._write(("axis", index, dtype), self._is_row_index(index), lambda n: AxisIndex(n, index, dtype))

    def compute(self, op: str, args: tuple[int, ...], dtype: DType, attrs: tuple[tuple[str, int], ...] = ()) -> int:
        row_level = all(arg in self._row_level for arg in args)
        return self._write((op, args, dtype, attrs), row_level, lambda n: Compute(n, op, args, dtype, attrs))

    def parameter(self, buffer: int, dtype: DType, size: int, *, reads: bool = False, writes: bool = False) -> int:
        """The kernel's parameter for a buffer."""
        if buffer not in self.buffers:
            self.buffers.append(buffer)
            self.parameters.append(Parameter(dtype, size, reads, writes))
        number = self.buffers.index(buffer)
        old = self.parameters[number]
        self.parameters[number] = Parameter(dtype, size, old.reads or reads, old.writes or writes)
        return number

    def access(self, parameter: int, shape: Sequence[int], indices: Indices) -> Access:
        """The access of a contiguous tensor; guarded if an index can leave it."""
        guarded = False
        for index, size in zip(indices, shape, strict=True):
            if index.value is None:
                reach = interval(index, self.sizes)
                guarded |= reach.low < 0 or reach.high >= size * index.divisor or index.divisor != 1
        return Access(parameter, indices, contiguous(shape), tuple(shape), guarded)

    def load(self, buffer: int, node: Node, indices: Indices, fill: float | int | bool = 0) -> int:
        own = buffer in self.filled.values()
        parameter = self.parameter(buffer, node.dtype, node.type.size, reads=not own)
        access = self.access(parameter, node.shape, indices)
        row_level = all(self._is_row_index(index) for index in indices)
        return self._write(("load", access, fill), row_level, lambda n: Load(n, access, node.dtype, fill))

    def store(self, buffer: int, node: Node, indices: Indices, value: int) -> None:
        parameter = self.parameter(buffer, node.dtype, node.type.size, writes=True)
        statement = Store(self.access(parameter, node.shape, indices), value)
        (self.prologue if self.loop is None else self.loop).append(statement)

    def _buffer_of(self, node: Node) -> int | None:
        """The buffer with the node's elements in order: its own, or as it is contiguous, that of what it reshapes."""
        while True:
            buffer = self.filled.get(node.number)
            if buffer is None:
                buffer = self.load_from(node)
            if buffer is not None or node.op.name != "reshape":
                return buffer
            node = node.args[0]

    # Values of nodes ------------------------------------------------------------------------------------------------

    def value(self, node: Node, indices: Indices) -> int:
        """The number of the value of `node` at `indices`. Raises `Uncomputable` or `NeedsSplit`."""
        if node.number in self.known:
            return self.known[node.number]
        buffer = self._buffer_of(node)
        if buffer is not None:
            return self.load(buffer, node, indices)
        key = (node.number, indices)
        found = self._row_values.get(key)
        if found is None and self.loop is not None:
            found = self._loop_values.get(key)
        if found is not None:
            return found
        try:
            number = self._written_out(node, indices)
        except CannotIndex:
            # A reshape of stored elements is a view of them; others cannot take gathered or divided indices at all.
            raise Uncomputable(node.args[0] if node.op.name == "reshape" else node) from None
        if number in self._row_level:
            self._row_values[key] = number
        else:
            self._loop_values[key] = number
        return number

    def _written_out(self, node: Node, indices: Indices) -> int:
        args, attrs = node.args, node.attrs
        match node.op.name:
            case "constant":
                return self.constant(cast(float, attrs["value"]), node.dtype)
            case "iota":
                return self.axis_index(indices[cast(int, attrs["axis"])], node.dtype)
            case "reshape":
                return self.value(args[0], tuple(reshape(indices, node.shape, args[0].shape, self.sizes)))
            case "transpose":
                axes = cast(tuple[int, ...], attrs["axes"])
                inner = [ZERO] * len(axes)
                for position, axis in enumerate(axes):
                    inner[axis] = indices[position]
                return self.value(args[0], tuple(inner))
            case "broadcast":
                return self.value(args[0], tuple(indices[axis] for axis in cast(tuple[int, ...], attrs["axes"])))
            case "slice":
                starts, steps = cast(tuple[int, ...], attrs["start"]), cast(tuple[int, ...], attrs["step"])
                parts = zip(indices, steps, starts, strict=True)
                return self.value(args[0], tuple(affine(index, step, start) for index, step, start in parts))
            case "pad":
                return self._pad(node, indices)
            case "concat":
                return self._concat(node, indices)
            case "patches":
                return self._patches(node, indices)
            case "take":
                ids = self.value(args[1], indices[: args[1].type.rank])
                return self.value(args[0], (Index(value=ids), *indices[args[1].type.rank :]))
        if node.op.kind != "elementwise":
            raise Uncomputable(node)
        if node.op.name in ("add", "mul") and _is_constant(args[0]):
            # Which operand comes first depends on when the constant was first used; equal layers need equal kernels.
            args = args[::-1]
        values = tuple(self.value(arg, indices) for arg in args)
        word = tuple((name, cast(int, attrs[name])) for name in ("word",) if name in attrs)
        return self.compute(node.op.name, values, node.dtype, word)

    def _pad(self, node: Node, indices: Indices) -> int:
        low = cast(tuple[int, ...], node.attrs["low"])
        arg = node.args[0]
        inner = tuple(affine(index, 1, -amount) for index, amount in zip(indices, low, strict=True))
        return self._inside(arg, inner, cast(float, node.attrs["value"]))

    def _inside(self, arg: Node, inner: Indices, outside: float | int | bool) -> int:
        """The value of `arg` at `inner` where that lies in it, else `outside`."""
        buffer = self._buffer_of(arg)
        if buffer is not None and arg.number not in self.known:
            return self.load(buffer, arg, inner, outside)
        number = self.value(arg, inner)
        for index, size in zip(inner, arg.shape, strict=True):
            reach = interval(index, self.sizes)
            place = None
            if reach.low < 0:
                place = self.axis_index(index, DType.INT64)
                number = self._choose("ge", place, self.constant(0, DType.INT64), number, arg, outside)
            if reach.high >= size:
                place = self.axis_index(index, DType.INT64) if place is None else place
                number = self._choose("lt", place, self.constant(size, DType.INT64), number, arg, outside)
        return number

    def _choose(self, comparison: str, left: int, right: int, number: int, arg: Node, other: float | int | bool) -> int:
        condition = self.compute(comparison, (left, right), DType.BOOL)
        return self.compute("where", (condition, number, self.constant(other, arg.dtype)), arg.dtype)

    def _concat(self, node: Node, indices: Indices) -> int:
        axis = cast(int, node.attrs["axis"])
        position = self.axis_index(indices[axis], DType.INT64)
        begin = node.shape[axis]
        result: int | None = None
        for arg in reversed(node.args):
            begin -= arg.shape[axis]
            inner = (*indices[:axis], affine(indices[axis], 1, -begin), *indices[axis + 1 :])
            number = self.value(arg, inner)
            if result is None:
                result = number
            else:
                end = self.constant(begin + arg.shape[axis], DType.INT64)
                condition = self.compute("lt", (position, end), DType.BOOL)
                result = self.compute("where", (condition, number, result), node.dtype)
        if result is None:
            raise InternalError("lower", f"{node!r} has no operands")
        return result

    def _patches(self, node: Node, indices: Indices) -> int:
        stride, dilation = cast(tuple[int, int], node.attrs["stride"]), cast(tuple[int, int], node.attrs["dilation"])
        padding = cast(tuple[tuple[int, int], tuple[int, int]], node.attrs["padding"])
        places = []
        for axis in (0, 1):
            window = affine(indices[2 + axis], dilation[axis], -padding[axis][0])
            places.append(add(affine(indices[4 + axis], stride[axis], 0), window))
        return self._inside(node.args[0], (indices[0], indices[1], places[0], places[1]), 0)


def _is_constant(node: Node) -> bool:
    return node.op.name == "constant" or (node.op.name == "broadcast" and node.args[0].op.name == "constant")
