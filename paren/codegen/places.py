"""Values by name and level, and the memory that a kernel's statements touch."""

from __future__ import annotations

from dataclasses import dataclass, field

from paren.codegen.loops import may_miss
from paren.codegen.nest import ENTRY, Nest
from paren.codegen.short import write_packed, write_widened
from paren.codegen.writer import MEMORY, VALUE, Writer, literal
from paren.ir.types import DType
from paren.plan.kernel import Access, Index, Kernel


def element(w: Writer, type_: str, array: str, index: str) -> str:
    return w.value(f"getelementptr {type_}, ptr {array}, i64 {index}")


@dataclass
class Places:
    """What is known of a kernel's values so far, and how elements of its parameters are addressed.

    A value has a name and the level at which it is known, or, if it differs from lane to lane and crosses from one
    nest to another, an array on the stack.
    """

    kernel: Kernel
    entry: Writer
    tile: int
    names: dict[int, str] = field(default_factory=dict)
    levels: dict[int, int] = field(default_factory=dict)
    types: dict[int, DType] = field(default_factory=dict)
    arrays: dict[int, str] = field(default_factory=dict)

    def define(self, value: int, name: str, dtype: DType, level: int) -> None:
        self.names[value], self.types[value], self.levels[value] = name, dtype, level

    def level(self, nest: Nest, value: int) -> int:
        """The level of a nest at which a value is known."""
        return nest.depth if value in self.arrays else self.levels[value]

    def name(self, nest: Nest, value: int) -> str:
        """The name of a value in a nest; a lane's value from an earlier nest is read from the stack once."""
        if value not in self.arrays:
            return self.names[value]
        if value not in nest.loaded:
            place = self.lane(nest, self.arrays[value], self.types[value])
            nest.loaded[value] = self.get(nest, nest.depth, self.types[value], place)
        return nest.loaded[value]

    def keep(self, nest: Nest, value: int) -> None:
        """Puts a lane's value on the stack for later nests."""
        dtype, name = self.types[value], self.names[value]
        self.arrays[value] = self.stack_array(dtype)
        self.put(nest, nest.depth, name, dtype, self.lane(nest, self.arrays[value], dtype))
        nest.loaded[value] = name

    def stack_array(self, dtype: DType) -> str:
        """One element for each lane of a tile."""
        return self.entry.value(f"alloca [{self.tile} x {MEMORY[dtype]}], align 64")

    def lane(self, nest: Nest, array: str, dtype: DType) -> str:
        """The address of this lane's element of a stack array."""
        return element(nest.head(nest.depth), MEMORY[dtype], array, nest.index)

    # Loads and stores.

    def get(self, nest: Nest, level: int, dtype: DType, place: str) -> str:
        w = nest.head(level)
        name = w.value(f"load {MEMORY[dtype]}, ptr {place}, align {dtype.bytes}{nest.note(level)}")
        if dtype.is_short:
            return write_widened(w, name, dtype)
        return w.value(f"icmp ne i8 {name}, 0") if dtype == DType.BOOL else name

    def put(self, nest: Nest, level: int, name: str, dtype: DType, place: str) -> None:
        w = nest.head(level)
        if dtype == DType.BOOL:
            name = w.value(f"zext i1 {name} to i8")
        elif dtype.is_short:
            name = write_packed(w, name, dtype)
        w.put(f"store {MEMORY[dtype]} {name}, ptr {place}, align {dtype.bytes}{nest.note(level)}")

    def load(self, nest: Nest, level: int, access: Access, dtype: DType, fill: float | int | bool) -> str:
        """An element, or `fill` outside. What varies in the innermost loop is guarded by a branch, all else by moving
        the address inside."""
        if not access.guarded:
            return self.get(nest, level, dtype, self.place(nest, access))
        checks = self._checks(nest, access)
        holds = "true"
        for at, name in sorted(checks):
            holds = name if holds == "true" else nest.head(at).value(f"and i1 {holds}, {name}")
        default = literal(fill, dtype)
        w = nest.head(level)
        if level < nest.depth or all(at < level for at, _ in checks):
            place = self.place(nest, access, [name for _, name in checks])
            return w.select(holds, VALUE[dtype], self.get(nest, level, dtype, place), default)
        place = self.place(nest, access)
        label, before = w.fresh(), w.block
        w.put(f"br i1 {holds}, label %{label}.in, label %{label}.out")
        w.begin(f"{label}.in")
        value = self.get(nest, level, dtype, place)
        w.put(f"br label %{label}.out")
        w.begin(f"{label}.out")
        return w.value(f"phi {VALUE[dtype]} [ {value}, %{label}.in ], [ {default}, %{before} ]")

    # Addresses.

    def affine(self, nest: Nest, index: Index) -> tuple[int, str]:
        """The sum of an index, divided by its divisor, and the level at which it is known."""
        level, total = self._sum(nest, index)
        if index.divisor != 1:
            total = nest.head(level).value(f"sdiv i64 {total}, {index.divisor}")
        return level, total

    def access_level(self, nest: Nest, access: Access) -> int:
        """The level at which all indices of an access are known."""
        levels = [ENTRY]
        for index in access.indices:
            if index.value is not None:
                levels.append(self.level(nest, index.value))
            levels += [level for axis, _ in index.terms for level, _ in nest.axes[axis]]
        return max(levels)

    def place(self, nest: Nest, access: Access, inside: list[str] | None = None) -> str:
        """The address of an element, as a chain from the outermost level to the innermost that it varies in.

        `inside` lists, for the dimensions that may miss, the condition that they do not: their index is moved to 0
        where it fails. Without it the address is only used where all of them hold.
        """
        parts: list[tuple[int, str]] = [(ENTRY, str(access.offset))] if access.offset else []
        conditions = iter(inside or ())
        for index, step, size in zip(access.indices, access.strides, access.sizes, strict=True):
            if index.value is not None:
                at, whole = self._gathered(nest, index.value, size)
            elif access.guarded and may_miss(index, size, self.kernel.axes):
                at, whole = self.affine(nest, index)
                if inside is not None:
                    whole = nest.head(at).select(next(conditions), "i64", whole, "0")
            elif index.divisor != 1:
                at, whole = self.affine(nest, index)
            else:
                parts += self._parts(nest, index, step)
                continue
            parts.append((at, nest.head(at).value(f"mul nsw i64 {whole}, {step}")))
        type_ = MEMORY[self.kernel.parameters[access.parameter].dtype]
        pointer = f"%p{access.parameter}"
        for at in sorted({part_level for part_level, _ in parts}):
            w = nest.head(at)
            total, *names = [name for part_level, name in parts if part_level == at]
            for name in names:
                total = w.value(f"add nsw i64 {total}, {name}")
            pointer = element(w, type_, pointer, total)
        return pointer

    def _parts(self, nest: Nest, index: Index, step: int = 1) -> list[tuple[int, str]]:
        """The parts of the sum of an index times `step`: level, and name or literal."""
        parts = [(ENTRY, str(index.constant * step))] if index.constant * step else []
        for axis, coefficient in index.terms:
            for level, name in nest.axes[axis] if step else ():
                factor = coefficient * step
                part = name if factor == 1 else nest.head(level).value(f"mul nsw i64 {name}, {factor}")
                parts.append((level, part))
        return parts

    def _sum(self, nest: Nest, index: Index) -> tuple[int, str]:
        parts = sorted(self._parts(nest, index), key=lambda part: part[0])
        if not parts:
            return ENTRY, "0"
        level, total = parts[0]
        for level, name in parts[1:]:
            total = nest.head(level).value(f"add nsw i64 {total}, {name}")
        return level, total

    def _gathered(self, nest: Nest, value: int, size: int) -> tuple[int, str]:
        """An integer value as an index, clamped into its dimension."""
        level, name, dtype = self.level(nest, value), self.name(nest, value), self.types[value]
        w = nest.head(level)
        unsigned = dtype in (DType.UINT32, DType.UINT8, DType.BOOL)
        if dtype != DType.INT64:
            name = w.value(f"{'zext' if unsigned else 'sext'} {VALUE[dtype]} {name} to i64")
        if not unsigned:
            name = w.value(f"call i64 @llvm.smax.i64(i64 {name}, i64 0)")
        return level, w.value(f"call i64 @llvm.smin.i64(i64 {name}, i64 {size - 1})")

    def _checks(self, nest: Nest, access: Access) -> list[tuple[int, str]]:
        """For each dimension that may miss: the level and name of the condition that it does not."""
        checks = []
        for index, size in zip(access.indices, access.sizes, strict=True):
            if may_miss(index, size, self.kernel.axes):
                level, total = self._sum(nest, index)
                w = nest.head(level)
                holds = w.value(f"icmp ult i64 {total}, {size * index.divisor}")
                if index.divisor != 1:
                    even = w.value(f"icmp eq i64 {w.value(f'srem i64 {total}, {index.divisor}')}, 0")
                    holds = w.value(f"and i1 {holds}, {even}")
                checks.append((level, holds))
        return checks
