"""Reductions: accumulators on the stack, one or one for each lane, which LLVM keeps in registers where it can."""

from __future__ import annotations

from dataclasses import dataclass

from paren.codegen.nest import Nest
from paren.codegen.operations import Operation
from paren.codegen.places import Places, element
from paren.codegen.positions import position_index
from paren.codegen.writer import MEMORY, VALUE, Writer, literal
from paren.ir.types import DType
from paren.plan.kernel import Reduce, Stage

PARTIAL = 64  # iterations from which an inner sum of its own pays


@dataclass(frozen=True)
class Reduction:
    """One reduction of a nest: where its result is left (argmax and argmin leave the position in the second)."""

    reduce: Reduce
    accumulators: tuple[str, ...]


def write_reduction(places: Places, nest: Nest, stage: Stage, reduce: Reduce) -> Reduction:
    """Combines a value into accumulators at the innermost level of a nest."""
    dtype, kind = places.types[reduce.value], reduce.kind
    kinds = [dtype, DType.INT32] if kind in ("argmax", "argmin") else [dtype]
    firsts = [_identity(kind, dtype), "0"]
    accumulators = tuple(_accumulator(places, nest, each) for each in kinds)
    for place, each, first in zip(accumulators, kinds, firsts, strict=False):
        _clear(nest, 0, place, each, first)
    targets = accumulators
    if kind == "sum" and dtype.is_float and _inner_sum_pays(nest):
        targets = (_inner_sum(places, nest, accumulators[0], dtype),)
    if nest.arranged.lane is not None:
        targets = tuple(places.lane(nest, array, each) for array, each in zip(targets, kinds, strict=True))
    value = places.name(nest, reduce.value)
    depth, w = nest.depth, nest.head(nest.depth)
    before = places.get(nest, depth, dtype, targets[0])
    if len(kinds) == 1:
        places.put(nest, depth, _combine(w, kind, before, value, dtype), dtype, targets[0])
        return Reduction(reduce, accumulators)
    better = _better(w, kind, value, before, dtype)
    at = places.get(nest, depth, DType.INT32, targets[1])
    position = _position(places, nest, stage)
    places.put(nest, depth, w.select(better, VALUE[dtype], value, before), dtype, targets[0])
    places.put(nest, depth, w.select(better, "i32", position, at), DType.INT32, targets[1])
    return Reduction(reduce, accumulators)


def finish_reduction(places: Places, nest: Nest, reduction: Reduction) -> None:
    """Makes the result visible to later nests: each lane's on the stack, a single one by name."""
    result, dtype, place = reduction.reduce.result, reduction.reduce.dtype, reduction.accumulators[-1]
    if nest.arranged.lane is not None:
        places.types[result], places.arrays[result] = dtype, place
        return
    name = nest.after.value(f"load {MEMORY[dtype]}, ptr {place}, align {dtype.bytes}")
    if dtype == DType.BOOL:
        name = nest.after.value(f"icmp ne i8 {name}, 0")
    places.define(result, name, dtype, 0)


def _accumulator(places: Places, nest: Nest, dtype: DType) -> str:
    if nest.arranged.lane is not None:
        return places.stack_array(dtype)
    return places.entry.value(f"alloca {MEMORY[dtype]}")


def _clear(nest: Nest, level: int, place: str, dtype: DType, first: str) -> None:
    """Sets an accumulator to its first value before the loops inside `level`."""
    w, type_ = nest.head(level), MEMORY[dtype]
    stored = {"true": "1", "false": "0"}.get(first, first)
    if nest.arranged.lane is None:
        w.put(f"store {type_} {stored}, ptr {place}, align {dtype.bytes}")
    else:
        nest.over_lanes(w, lambda index: w.put(f"store {type_} {stored}, ptr {element(w, type_, place, index)}"))


def _inner_sum_pays(nest: Nest) -> bool:
    if nest.summing < 2:
        return False
    count = nest.loops[nest.summing - 1].count
    return count.startswith("%") or int(count) >= PARTIAL


def _inner_sum(places: Places, nest: Nest, total: str, dtype: DType) -> str:
    """A sum over the innermost stage loop alone, added to the total after it."""
    inner = _accumulator(places, nest, dtype)
    above = nest.summing - 1
    _clear(nest, above, inner, dtype, literal(0.0, dtype))
    w, type_ = nest.tail(above), VALUE[dtype]

    def add(part_place: str, total_place: str) -> None:
        part = w.value(f"load {type_}, ptr {part_place}, align {dtype.bytes}")
        so_far = w.value(f"load {type_}, ptr {total_place}, align {dtype.bytes}")
        w.put(f"store {type_} {w.value(f'fadd {type_} {so_far}, {part}')}, ptr {total_place}, align {dtype.bytes}")

    if nest.arranged.lane is None:
        add(inner, total)
    else:
        nest.over_lanes(w, lambda index: add(element(w, type_, inner, index), element(w, type_, total, index)))
    return inner


def _combine(w: Writer, kind: str, a: str, b: str, dtype: DType) -> str:
    type_ = VALUE[dtype]
    if kind == "sum":
        return w.value(f"{'fadd reassoc' if dtype.is_float else 'add'} {type_} {a}, {b}")
    if dtype.is_float:
        return w.call(type_, f"llvm.{kind}imum.{'f64' if dtype == DType.FLOAT64 else 'f32'}", a, b)
    return Operation(w, set()).maximum(a, b, dtype, least=kind == "min")


def _position(places: Places, nest: Nest, stage: Stage) -> str:
    """The number of the iteration over the stage's axes."""
    level, whole = places.affine(nest, position_index(places.kernel, stage))
    return nest.head(level).value(f"trunc i64 {whole} to i32")


def _identity(kind: str, dtype: DType) -> str:
    """What a reduction starts from."""
    if kind == "sum":
        return literal(0, dtype)
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
