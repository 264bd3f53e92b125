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

from collections.abc import Callable
from dataclasses import dataclass, field

from paren.codegen import scalar
from paren.codegen.loops import Loops, accesses, arrange, may_miss, stride
from paren.codegen.operations import Operation
from paren.codegen.writer import MEMORY, VALUE, Writer, literal
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

VERSION = 1  # part of the key of the kernel cache: raise it when the text for a kernel changes
ENTRY = -1  # level of what depends on no axis
STRIP = 4096  # iterations after which a long sum goes into an outer one, so that its rounding error stays small
LANE_STRIP = 256  # the same for sums with a lane, which add one by one
PARTIAL = 64  # iterations from which an inner sum of its own pays


def parallel_units(kernel: Kernel) -> int:
    """The number of units of work of a kernel: its function runs units `begin` up to `end`."""
    return arrange(kernel).units


def emit_kernel(kernel: Kernel, name: str, vector_bits: int | None = None) -> str:
    """An LLVM module with `void @name(i64 begin, i64 end, ptr parameters)`.

    `parameters` is an array of pointers, one for each parameter of the kernel. `vector_bits` is the preferred width of
    vectors, None for the target's own.
    """
    return _Function(arrange(kernel), name, vector_bits).module()


@dataclass
class _Loop:
    """A loop of a group: its number of iterations (literal or name), and lines before and after its inner loops."""

    label: str
    count: str
    head: Writer
    tail: Writer


@dataclass
class _Group:
    """Stages that run in one loop nest; level 0 is the unit, level i is inside `loops[i - 1]`."""

    label: str
    before: Writer
    after: Writer
    loops: list[_Loop]
    parallel: bool
    axes: dict[int, list[tuple[int, str]]] = field(default_factory=dict)  # axis -> its parts: level and name
    loaded: dict[int, str] = field(default_factory=dict)  # lane values of earlier groups, read in this one

    @property
    def depth(self) -> int:
        return len(self.loops)

    def head(self, level: int) -> Writer:
        return self.before if level == 0 else self.loops[level - 1].head

    def tail(self, level: int) -> Writer:
        return self.after if level == 0 else self.loops[level - 1].tail


class _Function:
    def __init__(self, loops: Loops, name: str, vector_bits: int | None) -> None:
        self.loops = loops
        self.kernel = loops.kernel
        self.name = name
        self.vector_bits = vector_bits
        self.entry = Writer("e")
        self.body: list[str] = []
        self.used: set[str] = set()
        self.metadata: list[str] = []
        self.names: dict[int, str] = {}  # value -> name, for values that are visible as such
        self.levels: dict[int, int] = {}
        self.types: dict[int, DType] = {}
        self.arrays: dict[int, str] = {}  # value -> stack array with one element per lane
        self.outer: dict[int, list[tuple[int, str]]] = {}
        self.written = {i for i, parameter in enumerate(self.kernel.parameters) if parameter.writes}

    # The function as a whole.

    def module(self) -> str:
        groups = self._groups()
        for i in range(len(self.kernel.parameters)):
            place = self.entry.value(f"getelementptr inbounds ptr, ptr %parameters, i64 {i}")
            self.entry.put(f"%p{i} = load ptr, ptr {place}, align 8")
        unit = Writer("u")
        self._decode(unit)
        for number, stages in enumerate(groups):
            later = {value for group in groups[number + 1 :] for stage in group for value in _used_values(stage)}
            self._group(number, stages, later)
        attributes = f' "prefer-vector-width"="{self.vector_bits}"' if self.vector_bits else ""
        text = [
            f"define void @{self.name}(i64 %begin, i64 %end, ptr %parameters) nounwind{attributes} {{",
            "entry:",
            *self.entry.lines,
            "  %some = icmp slt i64 %begin, %end",
            "  br i1 %some, label %unit, label %done",
            "unit:",
            "  %unit.index = phi i64 [ %begin, %entry ], [ %unit.next, %unit.latch ]",
            *unit.lines,
            "  br label %g0",
            *self.body,
            f"g{len(groups)}:",
            "  br label %unit.latch",
            "unit.latch:",
            "  %unit.next = add nuw nsw i64 %unit.index, 1",
            "  %unit.more = icmp slt i64 %unit.next, %end",
            "  br i1 %unit.more, label %unit, label %done",
            "done:",
            "  ret void",
            "}",
        ]
        library = [f"declare double @{name}(double{', double' if name == 'fmod' else ''})" for name in scalar.LIBRARY64]
        return scalar.definitions(self.used) + "\n".join([*library, *text, *self.metadata]) + "\n"

    def _groups(self) -> list[list[Stage]]:
        """Stages by loop nest: with a lane, neighbours without axes share one loop over the tile."""
        groups: list[list[Stage]] = []
        for stage in self.kernel.stages:
            if self.loops.lane is not None and groups and not stage.axes and not groups[-1][-1].axes:
                groups[-1].append(stage)
            else:
                groups.append([stage])
        return groups

    def _decode(self, w: Writer) -> None:
        """The indices of the outer row axes and the first lane of the tile, from the number of the unit."""
        rest = "%unit.index"
        if self.loops.lane is not None:
            extent, tile = self.kernel.axes[self.loops.lane], self.loops.tile
            if self.loops.tiles > 1:
                number = w.value(f"urem i64 {rest}, {self.loops.tiles}")
                rest = w.value(f"udiv i64 {rest}, {self.loops.tiles}")
                w.put(f"%start = mul nuw nsw i64 {number}, {tile}")
                if extent % tile:
                    left = w.value(f"sub nsw i64 {extent}, %start")
                    w.put(f"%lanes = call i64 @llvm.smin.i64(i64 {left}, i64 {tile})")
        for axis in reversed(self.loops.outer):
            size = self.kernel.axes[axis]
            name = w.value(f"urem i64 {rest}, {size}") if axis != self.loops.outer[0] else rest
            rest = w.value(f"udiv i64 {rest}, {size}") if axis != self.loops.outer[0] else rest
            self.outer[axis] = [(0, name)]

    # Loops of a group.

    def _open(self, number: int, stages: list[Stage]) -> _Group:
        label = f"g{number}"
        before = Writer(f"{label}b", block=label)
        group = _Group(label, before, Writer(f"{label}a"), [], False, dict(self.outer))
        axes = stages[0].axes
        for position, axis in enumerate(axes):
            size = self.kernel.axes[axis]
            innermost = position == len(axes) - 1
            strip = STRIP if self.loops.lane is None else LANE_STRIP
            if innermost and size > strip and _has_float_sum(stages[0]):
                self._strips(group, axis, size, strip)
            else:
                loop = self._loop(group, str(size))
                group.axes[axis] = [(group.depth, f"%{loop.label}.i")]
        lane = self.loops.lane
        if lane is not None:
            extent, tile = self.kernel.axes[lane], self.loops.tile
            count = str(tile) if extent % tile == 0 else "%lanes"
            loop = self._loop(group, count)
            group.axes[lane] = [(group.depth, f"%{loop.label}.i")]
            if self.loops.tiles > 1:
                group.axes[lane].insert(0, (0, "%start"))
        group.parallel = group.depth > 0 and self._independent(stages)
        return group

    def _loop(self, group: _Group, count: str) -> _Loop:
        label = f"{group.label}l{group.depth + 1}"
        loop = _Loop(label, count, Writer(f"{label}h"), Writer(f"{label}t"))
        loop.head.block = label
        group.loops.append(loop)
        return loop

    def _strips(self, group: _Group, axis: int, size: int, strip: int) -> None:
        """Two loops for one axis: over strips, and within a strip."""
        outer = self._loop(group, str(-(-size // strip)))
        start = outer.head.value(f"mul nuw nsw i64 %{outer.label}.i, {strip}")
        count = str(strip)
        if size % strip:
            left = outer.head.value(f"sub nsw i64 {size}, {start}")
            count = outer.head.value(f"call i64 @llvm.smin.i64(i64 {left}, i64 {strip})")
        inner = self._loop(group, count)
        group.axes[axis] = [(group.depth - 1, start), (group.depth, f"%{inner.label}.i")]

    def _independent(self, stages: list[Stage]) -> bool:
        """Whether iterations of the innermost loop touch different elements, apart from identical accesses."""
        if self.loops.lane is not None:
            return True
        inner = stages[0].axes[-1]
        for stage in stages:
            for statement in stage.body:
                if isinstance(statement, Accumulate):
                    return False
                if isinstance(statement, Store) and not stride(statement.access, inner):
                    return False
        return True

    def _group(self, number: int, stages: list[Stage], later: set[int]) -> None:
        group = self._open(number, stages)
        stored = {
            statement.access.parameter
            for stage in stages
            for statement in stage.body
            if isinstance(statement, Store | Accumulate)
        }
        results: list[tuple[Reduce, list[str]]] = []
        for stage in stages:
            for statement in stage.body:
                if isinstance(statement, Reduce) and stage.axes:
                    results.append((statement, self._reduce(group, stage, statement)))
                else:
                    self._statement(group, statement, stored)
                    self._keep(group, stage, statement, later)
        for reduce, accumulators in results:
            self._result(group, reduce, accumulators)
        self._assemble(group, number)

    def _keep(self, group: _Group, stage: Stage, statement: Statement, later: set[int]) -> None:
        """Puts a lane's value on the stack if a later group uses it."""
        if self.loops.lane is None or stage.axes or isinstance(statement, Store | Accumulate):
            return
        value = statement.result
        if value in later and self.levels[value] > 0:
            type_ = MEMORY[self.types[value]]
            self.arrays[value] = self._array(type_)
            place = self._lane_place(group, self.arrays[value], type_)
            self._put_memory(group, group.depth, self.names[value], self.types[value], place)
            group.loaded[value] = self.names[value]

    def _assemble(self, group: _Group, number: int) -> None:
        """Writes the group's blocks: each loop runs at least once, so it tests at its end."""
        lines = [f"{group.label}:", *group.before.lines]
        for loop in group.loops:
            lines += [
                f"  br label %{loop.label}.pre",
                f"{loop.label}.pre:",
                f"  br label %{loop.label}",
                f"{loop.label}:",
                f"  %{loop.label}.i = phi i64 [ 0, %{loop.label}.pre ], [ %{loop.label}.n, %{loop.label}.latch ]",
                *loop.head.lines,
            ]
        for loop in reversed(group.loops):
            innermost = loop is group.loops[-1]
            note = f", !llvm.loop !{self._loop_note(group)}" if innermost and group.parallel else ""
            lines += [
                *loop.tail.lines,
                f"  br label %{loop.label}.latch",
                f"{loop.label}.latch:",
                f"  %{loop.label}.n = add nuw nsw i64 %{loop.label}.i, 1",
                f"  %{loop.label}.c = icmp slt i64 %{loop.label}.n, {loop.count}",
                f"  br i1 %{loop.label}.c, label %{loop.label}, label %{loop.label}.exit{note}",
                f"{loop.label}.exit:",
            ]
        self.body += [*lines, *group.after.lines, f"  br label %g{number + 1}"]

    def _loop_note(self, group: _Group) -> int:
        access = self._access_group(group)
        first = access + 1
        # A short loop over lanes must meet the vectoriser before the unroller.
        unroll = f", !{first + 2}" if self.loops.lane is not None and group.depth > 1 else ""
        self.metadata += [
            f"!{access} = distinct !{{}}",
            f"!{first} = distinct !{{!{first}, !{first + 1}{unroll}}}",
            f'!{first + 1} = !{{!"llvm.loop.parallel_accesses", !{access}}}',
            f'!{first + 2} = !{{!"llvm.loop.unroll.disable"}}',
        ]
        return first

    def _access_group(self, group: _Group) -> int:
        return 4 * int(group.label[1:])

    # Statements.

    def _statement(self, group: _Group, statement: Statement, stored: set[int]) -> None:
        match statement:
            case Constant(result, value, dtype):
                self._define(result, literal(value, dtype), dtype, ENTRY)
            case AxisIndex(result, index, dtype):
                level, whole = self._affine(group, index)
                if index.divisor != 1:
                    whole = self._writer(group, level).value(f"sdiv i64 {whole}, {index.divisor}")
                self._define(result, self._from_index(group, level, whole, dtype), dtype, level)
            case Load(result, access, dtype, fill):
                level = self._access_level(group, access)
                if access.parameter in stored:
                    level = group.depth
                elif access.parameter in self.written:
                    level = max(level, 0)
                self._define(result, self._load(group, level, access, dtype, fill), dtype, level)
            case Compute(result, op, args, dtype, attrs):
                level = max((self._level(group, arg) for arg in args), default=ENTRY)
                operation = Operation(self._writer(group, level), self.used)
                operands = [self._name(group, arg) for arg in args]
                types = [self.types[arg] for arg in args]
                self._define(result, operation.write(op, operands, types, dtype, dict(attrs)), dtype, level)
            case Store(access, value):
                place = self._place(group, group.depth, access, None)
                self._put_memory(group, group.depth, self._name(group, value), self.types[value], place)
            case Accumulate(access, value):
                dtype = self.types[value]
                place = self._place(group, group.depth, access, None)
                before = self._get_memory(group, group.depth, dtype, place)
                add = f"{'fadd' if dtype.is_float else 'add'} {VALUE[dtype]} {before}, {self._name(group, value)}"
                self._put_memory(group, group.depth, group.head(group.depth).value(add), dtype, place)
            case Reduce(result, kind, value, dtype):  # over a single iteration
                alone = "0" if kind in ("argmax", "argmin") else self._name(group, value)
                self._define(result, alone, dtype, self._level(group, value))

    def _define(self, value: int, name: str, dtype: DType, level: int) -> None:
        self.names[value], self.types[value], self.levels[value] = name, dtype, level

    def _writer(self, group: _Group, level: int) -> Writer:
        return self.entry if level == ENTRY else group.head(level)

    def _level(self, group: _Group, value: int) -> int:
        return group.depth if value in self.arrays and value not in group.loaded else self.levels[value]

    def _name(self, group: _Group, value: int) -> str:
        """The name of a value in this group; a lane's value from an earlier group is read from the stack once."""
        if value in self.arrays:
            if value not in group.loaded:
                type_ = MEMORY[self.types[value]]
                place = self._lane_place(group, self.arrays[value], type_)
                group.loaded[value] = self._get_memory(group, group.depth, self.types[value], place)
                self.levels[value] = group.depth
            return group.loaded[value]
        return self.names[value]

    def _from_index(self, group: _Group, level: int, whole: str, dtype: DType) -> str:
        w = self._writer(group, level)
        if dtype == DType.INT64:
            return whole
        if dtype == DType.FLOAT64:
            return w.value(f"sitofp i64 {whole} to double")
        narrow = w.value(f"trunc i64 {whole} to {'i8' if dtype == DType.UINT8 else 'i32'}")
        if dtype == DType.FLOAT32:
            return w.value(f"sitofp i32 {narrow} to float")
        if dtype == DType.BOOL:
            return w.value(f"icmp ne i32 {narrow}, 0")
        return narrow

    # Addresses.

    def _parts(self, group: _Group, index: Index) -> list[tuple[int, str]]:
        """The parts of an index's sum: level and name or literal."""
        parts = [(ENTRY, str(index.constant))] if index.constant else []
        for axis, coefficient in index.terms:
            for level, name in group.axes[axis]:
                if coefficient == 1:
                    parts.append((level, name))
                else:
                    parts.append((level, self._writer(group, level).value(f"mul nsw i64 {name}, {coefficient}")))
        return parts

    def _affine(self, group: _Group, index: Index) -> tuple[int, str]:
        """The sum of an index, and the level at which it is known."""
        parts = sorted(self._parts(group, index), key=lambda part: part[0])
        if not parts:
            return ENTRY, "0"
        level, total = parts[0]
        for level, name in parts[1:]:
            total = self._writer(group, level).value(f"add nsw i64 {total}, {name}")
        return level, total

    def _access_level(self, group: _Group, access: Access) -> int:
        levels = [ENTRY]
        for index in access.indices:
            if index.value is not None:
                levels.append(self._level(group, index.value))
            levels += [level for axis, _ in index.terms for level, _ in group.axes[axis]]
        return max(levels)

    def _place(self, group: _Group, level: int, access: Access, checks: list[tuple[int, str]] | None) -> str:
        """The address of an element, as a chain from the outermost level to `level`.

        `checks` lists the dimensions whose index is moved to 0 where it misses (level and name of the condition that
        it does not); None if the address is only formed where all of them hold.
        """
        parts: list[tuple[int, str]] = []
        steps = zip(access.indices, access.strides, access.sizes, strict=True)
        moved = iter(checks or ())
        for index, step, size in steps:
            if index.value is not None:
                at, whole = self._gathered(group, index.value, size)
            elif access.guarded and may_miss(index, size, self.kernel.axes):
                at, whole = self._affine(group, index)
                w = self._writer(group, at)
                if index.divisor != 1:
                    whole = w.value(f"sdiv i64 {whole}, {index.divisor}")
                if checks is not None:
                    _, holds = next(moved)
                    whole = w.select(holds, "i64", whole, "0")
            elif index.divisor != 1:
                at, whole = self._affine(group, index)
                whole = self._writer(group, at).value(f"sdiv i64 {whole}, {index.divisor}")
            else:
                parts += self._parts(group, _scaled(index, step))
                continue
            parts.append((at, self._writer(group, at).value(f"mul nsw i64 {whole}, {step}")))
        type_ = MEMORY[self.kernel.parameters[access.parameter].dtype]
        pointer = f"%p{access.parameter}"
        if access.offset:
            parts.append((ENTRY, str(access.offset)))
        for at in sorted({part_level for part_level, _ in parts}):
            w = self._writer(group, at)
            names = [name for part_level, name in parts if part_level == at]
            total = names[0]
            for name in names[1:]:
                total = w.value(f"add nsw i64 {total}, {name}")
            pointer = w.value(f"getelementptr {type_}, ptr {pointer}, i64 {total}")
        return pointer

    def _gathered(self, group: _Group, value: int, size: int) -> tuple[int, str]:
        """An integer value as an index, clamped into its dimension."""
        level, name, dtype = self._level(group, value), self._name(group, value), self.types[value]
        w = self._writer(group, level)
        unsigned = dtype in (DType.UINT32, DType.UINT8, DType.BOOL)
        if dtype != DType.INT64:
            name = w.value(f"{'zext' if unsigned else 'sext'} {VALUE[dtype]} {name} to i64")
        if not unsigned:
            name = w.value(f"call i64 @llvm.smax.i64(i64 {name}, i64 0)")
        return level, w.value(f"call i64 @llvm.smin.i64(i64 {name}, i64 {size - 1})")

    def _checks(self, group: _Group, access: Access) -> list[tuple[int, str]]:
        """For each dimension that may miss: the level and name of the condition that it does not."""
        checks = []
        for index, size in zip(access.indices, access.sizes, strict=True):
            if not may_miss(index, size, self.kernel.axes):
                continue
            level, whole = self._affine(group, index)
            w = self._writer(group, level)
            holds = w.value(f"icmp ult i64 {whole}, {size * index.divisor}")
            if index.divisor != 1:
                even = w.value(f"icmp eq i64 {w.value(f'srem i64 {whole}, {index.divisor}')}, 0")
                holds = w.value(f"and i1 {holds}, {even}")
            checks.append((level, holds))
        return checks

    def _load(self, group: _Group, level: int, access: Access, dtype: DType, fill: float | int | bool) -> str:
        if not access.guarded:
            return self._get_memory(group, level, dtype, self._place(group, level, access, None))
        checks = self._checks(group, access)
        holds = "true"
        for at, name in sorted(checks):
            holds = name if holds == "true" else self._writer(group, at).value(f"and i1 {holds}, {name}")
        default = literal(fill, dtype)
        w = self._writer(group, level)
        if level < group.depth or all(at < level for at, _ in checks):
            value = self._get_memory(group, level, dtype, self._place(group, level, access, checks))
            return w.select(holds, VALUE[dtype], value, default)
        place = self._place(group, level, access, None)
        label, before = w.fresh(), w.block
        w.put(f"br i1 {holds}, label %{label}.in, label %{label}.out")
        w.begin(f"{label}.in")
        value = self._get_memory(group, level, dtype, place)
        w.put(f"br label %{label}.out")
        w.begin(f"{label}.out")
        return w.value(f"phi {VALUE[dtype]} [ {value}, %{label}.in ], [ {default}, %{before} ]")

    # Memory.

    def _note(self, group: _Group, level: int) -> str:
        inside = group.parallel and level == group.depth
        return f", !llvm.access.group !{self._access_group(group)}" if inside else ""

    def _get_memory(self, group: _Group, level: int, dtype: DType, place: str) -> str:
        w = self._writer(group, level)
        name = w.value(f"load {MEMORY[dtype]}, ptr {place}, align {dtype.bytes}{self._note(group, level)}")
        return w.value(f"icmp ne i8 {name}, 0") if dtype == DType.BOOL else name

    def _put_memory(self, group: _Group, level: int, name: str, dtype: DType, place: str) -> None:
        w = self._writer(group, level)
        if dtype == DType.BOOL:
            name = w.value(f"zext i1 {name} to i8")
        w.put(f"store {MEMORY[dtype]} {name}, ptr {place}, align {dtype.bytes}{self._note(group, level)}")

    def _array(self, type_: str) -> str:
        return self.entry.value(f"alloca [{self.loops.tile} x {type_}], align 64")

    def _lane_place(self, group: _Group, array: str, type_: str) -> str:
        return _element(group.head(group.depth), type_, array, f"%{group.loops[-1].label}.i")

    # Reductions.

    def _reduce(self, group: _Group, stage: Stage, reduce: Reduce) -> list[str]:
        """Combines a value into accumulators on the stack: scalars, or arrays with one element per lane."""
        dtype = self.types[reduce.value]
        first = _identity(reduce.kind, dtype)
        positional = reduce.kind in ("argmax", "argmin")
        kinds = [(dtype, first), (DType.INT32, "0")] if positional else [(dtype, first)]
        lane = self.loops.lane is not None
        accumulators = [
            self._array(MEMORY[kind]) if lane else self.entry.value(f"alloca {MEMORY[kind]}") for kind, _ in kinds
        ]
        for place, (kind, start) in zip(accumulators, kinds, strict=True):
            self._clear(group, 0, place, kind, start)
        targets = list(accumulators)
        if reduce.kind == "sum" and dtype.is_float and self._inner_sum_pays(group):
            targets = [self._inner_sum(group, accumulators[0], dtype)]
        places = targets
        if lane:
            places = [self._lane_place(group, a, MEMORY[k]) for a, (k, _) in zip(targets, kinds, strict=True)]
        value = self._name(group, reduce.value)
        w = group.head(group.depth)
        before = self._get_memory(group, group.depth, dtype, places[0])
        if not positional:
            self._put_memory(group, group.depth, self._combine(w, reduce.kind, before, value, dtype), dtype, places[0])
            return accumulators
        better = _better(w, reduce.kind, value, before, dtype)
        position = self._position(group, stage)
        at = self._get_memory(group, group.depth, DType.INT32, places[1])
        self._put_memory(group, group.depth, w.select(better, VALUE[dtype], value, before), dtype, places[0])
        self._put_memory(group, group.depth, w.select(better, "i32", position, at), DType.INT32, places[1])
        return accumulators

    def _summing_level(self, group: _Group) -> int:
        """The level of the innermost loop over a stage axis."""
        return group.depth - (self.loops.lane is not None)

    def _inner_sum_pays(self, group: _Group) -> bool:
        level = self._summing_level(group)
        if level < 2:
            return False
        count = group.loops[level - 1].count
        return count.startswith("%") or int(count) >= PARTIAL

    def _inner_sum(self, group: _Group, total: str, dtype: DType) -> str:
        """A sum over the innermost stage loop alone, added to the total after it."""
        lane = self.loops.lane is not None
        inner = self._array(VALUE[dtype]) if lane else self.entry.value(f"alloca {VALUE[dtype]}")
        above = self._summing_level(group) - 1
        self._clear(group, above, inner, dtype, literal(0.0, dtype))
        w, type_ = group.tail(above), VALUE[dtype]

        def add(part_place: str, total_place: str) -> None:
            part = w.value(f"load {type_}, ptr {part_place}")
            sum_ = w.value(f"fadd {type_} {w.value(f'load {type_}, ptr {total_place}')}, {part}")
            w.put(f"store {type_} {sum_}, ptr {total_place}")

        if lane:
            self._over_lanes(group, w, lambda index: add(*(_element(w, type_, a, index) for a in (inner, total))))
        else:
            add(inner, total)
        return inner

    def _clear(self, group: _Group, level: int, place: str, kind: DType, start: str) -> None:
        """Sets an accumulator to its first value before the loops inside `level`."""
        w, type_ = group.head(level), MEMORY[kind]
        stored = {"true": "1", "false": "0"}.get(start, start) if kind == DType.BOOL else start
        if self.loops.lane is None:
            w.put(f"store {type_} {stored}, ptr {place}, align {kind.bytes}")
        else:
            self._over_lanes(group, w, lambda i: w.put(f"store {type_} {stored}, ptr {_element(w, type_, place, i)}"))

    def _over_lanes(self, group: _Group, w: Writer, write: Callable[[str], None]) -> None:
        """A loop over the tile, written on the spot; `write` gets the name of its index."""
        label = w.fresh()
        w.put(f"br label %{label}.pre")
        w.begin(f"{label}.pre")
        w.put(f"br label %{label}")
        w.begin(label)
        w.put(f"%{label}.i = phi i64 [ 0, %{label}.pre ], [ %{label}.n, %{label} ]")
        write(f"%{label}.i")
        w.put(f"%{label}.n = add nuw nsw i64 %{label}.i, 1")
        w.put(f"%{label}.c = icmp slt i64 %{label}.n, {group.loops[-1].count}")
        w.put(f"br i1 %{label}.c, label %{label}, label %{label}.exit")
        w.begin(f"{label}.exit")

    def _combine(self, w: Writer, kind: str, a: str, b: str, dtype: DType) -> str:
        type_ = VALUE[dtype]
        if kind == "sum":
            return w.value(f"{'fadd reassoc' if dtype.is_float else 'add'} {type_} {a}, {b}")
        if dtype.is_float:
            suffix = "f64" if dtype == DType.FLOAT64 else "f32"
            return w.call(type_, f"llvm.{kind}imum.{suffix}", a, b)
        return Operation(w, self.used).maximum(a, b, dtype, least=kind == "min")

    def _position(self, group: _Group, stage: Stage) -> str:
        """The number of the iteration over the stage's axes."""
        terms, step = [], 1
        for axis in reversed(stage.axes):
            terms.append((axis, step))
            step *= self.kernel.axes[axis]
        level, whole = self._affine(group, Index(tuple(sorted(terms))))
        return "0" if whole == "0" else self._writer(group, level).value(f"trunc i64 {whole} to i32")

    def _result(self, group: _Group, reduce: Reduce, accumulators: list[str]) -> None:
        self.types[reduce.result] = reduce.dtype
        chosen = accumulators[-1]
        if self.loops.lane is not None:
            self.arrays[reduce.result] = chosen
            self.levels[reduce.result] = 1
            return
        type_ = MEMORY[reduce.dtype]
        name = group.after.value(f"load {type_}, ptr {chosen}")
        if reduce.dtype == DType.BOOL:
            name = group.after.value(f"icmp ne i8 {name}, 0")
        self._define(reduce.result, name, reduce.dtype, 0)


def _scaled(index: Index, step: int) -> Index:
    return Index(tuple((axis, coefficient * step) for axis, coefficient in index.terms if step), index.constant * step)


def _element(w: Writer, type_: str, array: str, index: str) -> str:
    return w.value(f"getelementptr {type_}, ptr {array}, i64 {index}")


def _used_values(stage: Stage) -> set[int]:
    used: set[int] = set()
    for statement in stage.body:
        match statement:
            case Compute(_, _, args):
                used.update(args)
            case Reduce() | Store() | Accumulate():
                used.add(statement.value)
    used.update(index.value for access in accesses(stage) for index in access.indices if index.value is not None)
    return used


def _has_float_sum(stage: Stage) -> bool:
    return any(
        isinstance(statement, Reduce) and statement.kind == "sum" and statement.dtype.is_float
        for statement in stage.body
    )


def _identity(kind: str, dtype: DType) -> str:
    """What a reduction starts from."""
    if kind == "sum":
        return literal(0, dtype) if not dtype.is_float else literal(0.0, dtype)
    greatest = kind in ("max", "argmax")
    if dtype.is_float:
        return literal(float("-inf") if greatest else float("inf"), dtype)
    if dtype == DType.BOOL:
        return "false" if greatest else "true"
    limits = {DType.INT64: (-(2**63), 2**63 - 1), DType.INT32: (-(2**31), 2**31 - 1)}
    low, high = limits.get(dtype, (0, 2 ** (8 * dtype.bytes) - 1))
    return literal(low if greatest else high, dtype)


def _better(w: Writer, kind: str, value: str, best: str, dtype: DType) -> str:
    """Whether a value replaces the best so far: beyond it, or the first that is not a number."""
    type_ = VALUE[dtype]
    beyond = "gt" if kind == "argmax" else "lt"
    if not dtype.is_float:
        sign = "u" if dtype in (DType.UINT32, DType.UINT8, DType.BOOL) else "s"
        return w.value(f"icmp {sign}{beyond} {type_} {value}, {best}")
    number = w.value(f"fcmp ord {type_} {best}, {best}")
    unordered = w.value(f"fcmp u{beyond} {type_} {value}, {best}")
    return w.value(f"and i1 {unordered}, {number}")
