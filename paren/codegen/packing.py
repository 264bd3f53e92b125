"""Packing: a panel of A or B copied into a buffer as tiles read it, its elements for one k side by side.

Where elements lie side by side across the panel, each k is copied; where they lie side by side along k, squares of
lanes by lanes are transposed in registers. Lanes beyond the panel's width hold anything: no element of C depends on
them.

Operands of products in bfloat16 are packed whatever their type: float32 is rounded to the nearest. Multiplied in pairs,
a lane has the elements for k and k + 1 (0 beyond the end) in its lower and upper half, and counts as one k.
"""

from __future__ import annotations

from collections.abc import Callable

from paren.codegen.flow import first_lanes, least, loop, move, negate, shuffle, spread, when
from paren.codegen.tile import Shape, masked_load, sums_of, vector_type
from paren.codegen.writer import VALUE, Writer
from paren.ir.types import DType

ARGUMENTS = "ptr %source, i64 %k.stride, i64 %line.stride, i64 %width, ptr %target, i64 %k"


def emit_copy(shape: Shape, dtype: DType, source: DType, vectors: int, name: str, attributes: str) -> str:
    """`void @name(...)`: a panel as wide as some vectors, for products of `dtype`; `width` elements side by side are
    valid for each k."""
    packing = _Packing(shape, dtype, source, vectors)
    packing.copy()
    return packing.function(name, attributes)


def emit_transpose(shape: Shape, dtype: DType, source: DType, vectors: int, name: str, attributes: str) -> str:
    """`void @name(...)`: the same where `width` lines of elements lie along k.

    `target` has room for k rounded up to twice the lanes of a vector.
    """
    packing = _Packing(shape, dtype, source, vectors)
    packing.transpose()
    return packing.function(name, attributes)


class _Packing:
    def __init__(self, shape: Shape, dtype: DType, source: DType, vectors: int) -> None:
        self.source = source
        self.rounds = dtype is DType.BFLOAT16
        self.paired = shape.paired(dtype)
        self.vectors = vectors
        self.lanes = shape.lanes(dtype)
        self.type = f"<{self.lanes} x i32>" if self.paired else vector_type(shape, dtype)
        self.item = VALUE[sums_of(dtype)]
        self.bytes = shape.bits // 8
        self.w = Writer("t")

    def function(self, name: str, attributes: str) -> str:
        lines = "\n".join(self.w.lines)
        return f"define internal void @{name}({ARGUMENTS}) {attributes} {{\nentry:\n{lines}\n  ret void\n}}\n"

    def load(self, place: str, mask: str | None) -> str:
        """Elements that lie side by side: for pairs their 16 bits, else a vector of sums' type."""
        w, lanes = self.w, self.lanes
        item = "i16" if self.source is DType.BFLOAT16 else VALUE[self.source]
        if mask is None:
            value = w.value(f"load <{lanes} x {item}>, ptr {place}, align {self.source.bytes}")
        else:
            value = masked_load(w, lanes, item, place, mask)
        if not self.rounds:
            return value
        if item != "i16":
            value = narrow(w, lanes, value)
        if self.paired:
            return value
        wide = self.wide(value, upper=True)
        return w.value(f"bitcast <{lanes} x i32> {wide} to {self.type}")

    def wide(self, halves: str, upper: bool) -> str:
        """16 bits of each lane as the lower or upper half of 32."""
        w, lanes = self.w, self.lanes
        value = w.value(f"zext <{lanes} x i16> {halves} to <{lanes} x i32>")
        return w.value(f"shl <{lanes} x i32> {value}, {spread(w, 'i32', lanes, '16')}") if upper else value

    def store(self, value: str, place: str) -> None:
        self.w.put(f"store {self.type} {value}, ptr {place}, align {self.bytes}")

    def copy(self) -> None:
        w, lanes, count = self.w, self.lanes, self.vectors
        whole = w.value(f"icmp eq i64 %width, {count * lanes}")
        masks: list[str | None] = [first_lanes(w, lanes, w.value(f"sub i64 %width, {i * lanes}")) for i in range(count)]
        everything: list[str | None] = [None] * count
        for condition, chosen in ((whole, everything), (negate(w, whole), masks)):
            with when(w, condition):
                if self.paired:
                    pairs = w.value("lshr i64 %k, 1")
                    with loop(w, "0", pairs) as pair:
                        self._line(pair, w.value(f"shl i64 {pair}, 1"), chosen, alone=False)
                    with when(w, w.value(f"trunc i64 {w.value('and i64 %k, 1')} to i1")):
                        self._line(pairs, w.value(f"shl i64 {pairs}, 1"), chosen, alone=True)
                else:
                    with loop(w, "0", "%k") as k:
                        self._line(k, k, chosen, alone=True)

    def _line(self, number: str, k: str, masks: list[str | None], alone: bool) -> None:
        """One line of the panel from one k, or from two for a pair that is not `alone`."""
        w = self.w
        source = move(w, "%source", w.value(f"mul i64 {k}, %k.stride"))
        target = move(w, "%target", w.value(f"mul i64 {number}, {self.vectors * self.bytes}"))
        for i, mask in enumerate(masks):
            distance = str(i * self.lanes * self.source.bytes)
            value = self.load(move(w, source, distance), mask)
            if self.paired:
                value = self.wide(value, upper=False)
                if not alone:
                    second = self.load(move(w, move(w, source, "%k.stride"), distance), mask)
                    value = w.value(f"or {self.type} {value}, {self.wide(second, upper=True)}")
            self.store(value, move(w, target, str(i * self.bytes)))

    def transpose(self) -> None:
        w, lanes = self.w, self.lanes
        step = 2 * lanes if self.paired else lanes
        whole = w.value(f"and i64 %k, {-step}")
        with loop(w, "0", str(self.vectors)) as vector:
            before = w.value(f"mul i64 {vector}, {lanes}")
            valid = w.value(f"sub i64 %width, {before}")
            target = move(w, "%target", w.value(f"mul i64 {vector}, {self.bytes}"))
            with when(w, w.value(f"icmp sgt i64 {valid}, 0")):
                last = w.value(f"sub i64 {valid}, 1")
                corner = move(w, "%source", w.value(f"mul i64 %line.stride, {before}"))
                lines = [
                    move(w, corner, w.value(f"mul i64 %line.stride, {least(w, str(lane), last)}"))
                    for lane in range(lanes)
                ]
                with loop(w, "0", whole, str(step)) as k:
                    self._square(target, lines, k, lambda _first: None)
                with when(w, w.value(f"icmp slt i64 {whole}, %k")):
                    left = w.value(f"sub i64 %k, {whole}")
                    self._square(target, lines, whole, self._masks(left))

    def _masks(self, left: str) -> Callable[[int], str]:
        """The masks of vectors along k of which `left` elements are valid, by their first element."""
        w = self.w
        made = {
            first: first_lanes(w, self.lanes, w.value(f"sub i64 {left}, {first}"))
            for first in ((0, self.lanes) if self.paired else (0,))
        }
        return made.__getitem__

    def _square(self, target: str, lines: list[str], k: str, mask: Callable[[int], str | None]) -> None:
        """As many k as there are lanes, or pairs of them."""
        w = self.w
        distance = w.value(f"mul i64 {k}, {self.source.bytes}")
        rows = [self._row(move(w, line, distance), mask) for line in lines]
        number = w.value(f"lshr i64 {k}, 1") if self.paired else k
        first = move(w, target, w.value(f"mul i64 {number}, {self.vectors * self.bytes}"))
        for lane, row in enumerate(_transposed(w, self.type, rows)):
            self.store(row, move(w, first, str(lane * self.vectors * self.bytes)))

    def _row(self, place: str, mask: Callable[[int], str | None]) -> str:
        """The elements of one line: those of a vector, or of two as pairs."""
        w, lanes = self.w, self.lanes
        if not self.paired:
            return self.load(place, mask(0))
        first = self.load(place, mask(0))
        second = self.load(move(w, place, str(lanes * self.source.bytes)), mask(lanes))
        both = shuffle(w, f"<{lanes} x i16>", first, second, range(2 * lanes))
        return w.value(f"bitcast <{2 * lanes} x i16> {both} to {self.type}")


def narrow(w: Writer, lanes: int, value: str) -> str:
    """The bits of floats rounded to the nearest bfloat16, to the even one of two; NaN stays NaN."""
    whole = f"<{lanes} x i32>"

    def copies(number: int) -> str:
        return spread(w, "i32", lanes, str(number))

    bits = w.value(f"bitcast <{lanes} x float> {value} to {whole}")
    odd = w.value(f"and {whole} {w.value(f'lshr {whole} {bits}, {copies(16)}')}, {copies(1)}")
    raised = w.value(f"add {whole} {w.value(f'add {whole} {bits}, {copies(0x7FFF)}')}, {odd}")
    quiet = w.value(f"or {whole} {bits}, {copies(0x400000)}")
    none = w.value(f"fcmp uno <{lanes} x float> {value}, {value}")
    chosen = w.value(f"select <{lanes} x i1> {none}, {whole} {quiet}, {whole} {raised}")
    return w.value(f"trunc {whole} {w.value(f'lshr {whole} {chosen}, {copies(16)}')} to <{lanes} x i16>")


def _transposed(w: Writer, type_: str, rows: list[str]) -> list[str]:
    """The transpose of a square in registers: blocks off the diagonal change places, for sizes 1, 2, 4, ..."""
    lanes = len(rows)
    distance = 1
    while distance < lanes:
        upper = [lane if not lane & distance else lane - distance + lanes for lane in range(lanes)]
        lower = [lane + distance if not lane & distance else lane + lanes for lane in range(lanes)]
        for row in (row for row in range(lanes) if not row & distance):
            pair = rows[row], rows[row + distance]
            rows[row], rows[row + distance] = (shuffle(w, type_, *pair, order) for order in (upper, lower))
        distance *= 2
    return rows
