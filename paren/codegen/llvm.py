"""A kernel as LLVM IR: one function that runs a range of the kernel's units of work.

The text of a function is written level by level: every statement goes to the outermost loop at which its operands are
known. Sums may be reassociated (their `fadd` alone carries the flag), so LLVM vectorises them; the order is then a
function of the kernel and the target. Nothing else is inexact, and multiply-adds are fused only where written so.

Memory: an output may lie exactly on an input if their accesses are identical, so no `noalias` is claimed; instead the
innermost loops say that their iterations are independent, which the meaning of a kernel gives. Out-of-range elements
are never touched: a guard that varies in the innermost loop becomes a branch (a masked load after vectorisation), any
other moves the address to element 0 and selects the fill value.
"""

from __future__ import annotations

from paren.codegen import scalar
from paren.codegen.loops import BLOCK, Loops, arrange, arrange_rows
from paren.codegen.nest import ENTRY, Nest, Parts, group_stages, open_nest
from paren.codegen.operations import Operation
from paren.codegen.places import Places
from paren.codegen.reductions import finish_reduction, write_reduction
from paren.codegen.writer import VALUE, Writer, literal
from paren.ir.types import DType
from paren.plan.kernel import (
    Accumulate,
    AxisIndex,
    Compute,
    Constant,
    Kernel,
    Load,
    Reduce,
    Stage,
    Statement,
    Store,
)
from paren.plan.kernel_values import operands

VERSION = 1  # part of the key of the kernel cache: raise it when compilation changes in a way the text does not show


def parallel_units(kernel: Kernel) -> int:
    """The number of units of work of a kernel: its function runs units `begin` up to `end`."""
    return arrange(kernel).units


def emit_kernel(kernel: Kernel, name: str, vector_bits: int | None = None, by_rows: bool = False) -> str:
    """An LLVM module with `void @name(i64 begin, i64 end, ptr parameters)`; with `by_rows`, units are rows.

    `parameters` is an array of pointers, one for each parameter of the kernel. `vector_bits` is the preferred width of
    vectors, None for the target's own.
    """
    return _Function(arrange_rows(kernel) if by_rows else arrange(kernel)).module(name, vector_bits)


class _Function:
    def __init__(self, arranged: Loops) -> None:
        self.arranged = arranged
        self.kernel = arranged.kernel
        self.entry = Writer("e")
        self.unit = Writer("u")
        self.places = Places(self.kernel, self.entry, arranged.tile)
        self.used: set[str] = set()
        self.written = {i for i, parameter in enumerate(self.kernel.parameters) if parameter.writes}

    def module(self, name: str, vector_bits: int | None) -> str:
        for i in range(len(self.kernel.parameters)):
            place = self.entry.value(f"getelementptr ptr, ptr %parameters, i64 {i}")
            self.entry.put(f"%p{i} = load ptr, ptr {place}, align 8")
        outer = self._decode()
        groups = group_stages(self.arranged)
        nests = []
        for number, stages in enumerate(groups):
            later = {value for group in groups[number + 1 :] for stage in group for value in _used_values(stage)}
            nests.append(open_nest(number, self.arranged, stages, self.entry, outer))
            self._fill(nests[-1], stages, later)
        attributes = f' "prefer-vector-width"="{vector_bits}"' if vector_bits else ""
        lines = [
            *(f"declare double @{function}({scalar.LIBRARY64[function]})" for function in scalar.LIBRARY64),
            f"define void @{name}(i64 %begin, i64 %end, ptr %parameters) nounwind{attributes} {{",
            "entry:",
            *self.entry.lines,
            "  %some = icmp slt i64 %begin, %end",
            "  br i1 %some, label %unit, label %done",
            "unit:",
            "  %unit.index = phi i64 [ %begin, %entry ], [ %unit.next, %unit.latch ]",
            *self.unit.lines,
            "  br label %g0",
            *(line for nest in nests for line in nest.lines()),
            f"g{len(nests)}:",
            "  br label %unit.latch",
            "unit.latch:",
            "  %unit.next = add nuw nsw i64 %unit.index, 1",
            "  %unit.more = icmp slt i64 %unit.next, %end",
            "  br i1 %unit.more, label %unit, label %done",
            "done:",
            "  ret void",
            "}",
            *(line for nest in nests for line in nest.metadata()),
        ]
        return scalar.definitions(self.used) + "\n".join(lines) + "\n"

    def _decode(self) -> Parts:
        """The indices of the outer row axes, the tile and the block, from the number of the unit."""
        arranged, w, rest = self.arranged, self.unit, "%unit.index"
        if arranged.lane is not None and arranged.tiles > 1:
            rest = self._cut(rest, arranged.lane, arranged.tile, "%start", "%lanes")
        if arranged.block is not None:
            rest = self._cut(rest, arranged.block, BLOCK, "%block", "%blocked")
        parts: Parts = {}
        for axis in reversed(self.arranged.outer):
            size = self.kernel.axes[axis]
            first = axis == self.arranged.outer[0]
            parts[axis] = [(0, rest if first else w.value(f"urem i64 {rest}, {size}"))]
            rest = rest if first else w.value(f"udiv i64 {rest}, {size}")
        return parts

    def _cut(self, number: str, axis: int, piece: int, start: str, count: str) -> str:
        """Where a unit's piece of an axis starts, and how long it is if not always whole; gives the rest of the
        number."""
        w, size = self.unit, self.kernel.axes[axis]
        pieces = -(-size // piece)
        w.put(f"{start} = mul nuw nsw i64 {w.value(f'urem i64 {number}, {pieces}')}, {piece}")
        if size % piece:
            left = w.value(f"sub nsw i64 {size}, {start}")
            w.put(f"{count} = call i64 @llvm.smin.i64(i64 {left}, i64 {piece})")
        return w.value(f"udiv i64 {number}, {pieces}")

    def _fill(self, nest: Nest, stages: list[Stage], later: set[int]) -> None:
        """Writes the statements of the nest's stages; `later` are the values that later nests use."""
        stored = {
            statement.access.parameter
            for stage in stages
            for statement in stage.body
            if isinstance(statement, Store | Accumulate)
        }
        reductions = []
        for stage in stages:
            for statement in stage.body:
                if isinstance(statement, Reduce) and stage.axes:
                    reductions.append(write_reduction(self.places, nest, stage, statement))
                    continue
                self._write(nest, statement, stored)
                if self.arranged.lane is None or stage.axes or isinstance(statement, Store | Accumulate):
                    continue
                if statement.result in later and self.places.levels[statement.result] > 0:
                    self.places.keep(nest, statement.result)
        for reduction in reductions:
            finish_reduction(self.places, nest, reduction)

    def _write(self, nest: Nest, statement: Statement, stored: set[int]) -> None:
        """`stored` are the parameters that the nest stores to: their loads stay in the order of the statements."""
        places, depth = self.places, nest.depth
        match statement:
            case Constant(result, value, dtype):
                places.define(result, literal(value, dtype), dtype, ENTRY)
            case AxisIndex(result, index, dtype):
                level, whole = places.affine(nest, index)
                places.define(result, _from_index(nest.head(level), whole, dtype), dtype, level)
            case Load(result, access, dtype, fill):
                level = places.access_level(nest, access)
                if access.parameter in stored:
                    level = depth
                elif access.parameter in self.written:
                    level = max(level, 0)
                places.define(result, places.load(nest, level, access, dtype, fill), dtype, level)
            case Compute(result, op, args, dtype, attrs):
                level = max((places.level(nest, arg) for arg in args), default=ENTRY)
                operands = [places.name(nest, arg) for arg in args]
                types = [places.types[arg] for arg in args]
                name = Operation(nest.head(level), self.used).write(op, operands, types, dtype, dict(attrs))
                places.define(result, name, dtype, level)
            case Store(access, value):
                place = places.place(nest, access)
                places.put(nest, depth, places.name(nest, value), places.types[value], place)
            case Accumulate(access, value):
                dtype = places.types[value]
                place = places.place(nest, access)
                before = places.get(nest, depth, dtype, place)
                add = f"{'fadd' if dtype.is_float else 'add'} {VALUE[dtype]} {before}, {places.name(nest, value)}"
                places.put(nest, depth, nest.head(depth).value(add), dtype, place)
            case Reduce(result, kind, value, dtype):  # over a single iteration
                alone = "0" if kind in ("argmax", "argmin") else places.name(nest, value)
                places.define(result, alone, dtype, places.level(nest, value))


def _from_index(w: Writer, whole: str, dtype: DType) -> str:
    """An i64 as a value of an element type."""
    if dtype == DType.INT64:
        return whole
    if dtype == DType.FLOAT64:
        return w.value(f"sitofp i64 {whole} to double")
    narrow = w.value(f"trunc i64 {whole} to {'i8' if dtype == DType.UINT8 else 'i32'}")
    if dtype == DType.FLOAT32:
        return w.value(f"sitofp i32 {narrow} to float")
    return w.value(f"icmp ne i32 {narrow}, 0") if dtype == DType.BOOL else narrow


def _used_values(stage: Stage) -> set[int]:
    return {value for statement in stage.body for value in operands(statement)}
