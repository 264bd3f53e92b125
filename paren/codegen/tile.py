"""The innermost loops of a matrix product: tiles of C held in registers while one block of k runs past.

A tile has up to `rows` rows and `vectors` vectors of columns. For each k the vectors of B are loaded, an element of A
is broadcast for each row, and each accumulator takes one multiply-add; the accumulators start at 0 and are stored, or
added to C, at the end of the block. So every element of C is a chain of multiply-adds over a block of k, wherever in a
tile it lies: bits do not depend on how C is divided.

Operands in bfloat16 are multiplied in pairs, where the processor can: for k and k + 1 there are two elements of A in 32
bits, and of B in each lane, and both products are added to a sum in float32. Elsewhere packing widens them to float32.
"""

from __future__ import annotations

from dataclasses import dataclass

from paren.codegen.flow import first_lanes, loop, move, negate, spread, when
from paren.codegen.writer import BITS, VALUE, Writer
from paren.ir.types import DType

ARGUMENTS = (
    "ptr %a, i64 %a.row, i64 %a.k, ptr %b, i64 %b.k, i64 %k, ptr %c, i64 %c.row, "
    "i64 %panels, i64 %a.panel, i64 %width, i64 %accumulate"
)
DOT = "@llvm.x86.avx512bf16.dpbf16ps.512"
SHORT = {"float": "f32", "double": "f64", "i16": "i16"}  # item types in the names of intrinsics
GROUP = 3  # rows whose elements of A are addressed from one pointer, with strides times 0, 1 and 2


@dataclass(frozen=True)
class Shape:
    """A tile for a processor: `bits` of its vectors, at most `rows` by `vectors` accumulators. `fused` says whether it
    has a multiply-add with one rounding; without one a product is rounded before it is added. `pairs` says whether it
    adds products of pairs of bfloat16 (AVX-512 only)."""

    bits: int
    rows: int
    vectors: int
    fused: bool
    pairs: bool = False

    def lanes(self, dtype: DType) -> int:
        """Sums of a vector, in products of operands of a type."""
        return self.bits // (8 * sums_of(dtype).bytes)

    def columns(self, dtype: DType) -> int:
        """Columns of a whole tile."""
        return self.vectors * self.lanes(dtype)

    def paired(self, dtype: DType) -> bool:
        """Whether operands of a type are multiplied in pairs."""
        return self.pairs and dtype is DType.BFLOAT16


LARGEST = Shape(512, 14, 2, fused=True, pairs=True)


def sums_of(dtype: DType) -> DType:
    """The type of sums of products of operands of a type."""
    return DType.FLOAT32 if dtype is DType.BFLOAT16 else dtype


def tile_name(rows: int, vectors: int) -> str:
    return f"@tile.{rows}.{vectors}"


def vector_type(shape: Shape, dtype: DType) -> str:
    return f"<{shape.lanes(dtype)} x {VALUE[sums_of(dtype)]}>"


def suffix(shape: Shape, dtype: DType) -> str:
    """The suffix of intrinsics on vectors of sums."""
    return f"v{shape.lanes(dtype)}f{8 * sums_of(dtype).bytes}"


def emit_tile(shape: Shape, dtype: DType, rows: int, vectors: int, attributes: str) -> str:
    """`void @tile.R.V(...)`: `panels` tiles below one another, `rows` by `vectors` each, with the same columns of B.

    `a` and `c` are the first tile's corners, `a.row`, `a.k`, `c.row` the bytes from row to row and from k to k,
    `a.panel` from tile to tile in A; B has `b.k` bytes from k to k and its vectors side by side. `width` is the number
    of valid lanes of the last vector. `k`, which counts pairs if the type is multiplied so, and `panels` are at least
    1.
    """
    return _Tile(shape, dtype, rows, vectors).function(attributes)


class _Tile:
    def __init__(self, shape: Shape, dtype: DType, rows: int, vectors: int) -> None:
        self.shape = shape
        self.dtype = dtype
        self.sums = sums_of(dtype)
        self.paired = shape.paired(dtype)
        self.rows = rows
        self.vectors = vectors
        self.lanes = shape.lanes(dtype)
        self.type = vector_type(shape, dtype)
        self.places = [(row, vector) for row in range(rows) for vector in range(vectors)]
        self.w = Writer("t")

    def function(self, attributes: str) -> str:
        w = self.w
        double = w.value("shl i64 %a.row, 1")
        triple = w.value(f"add i64 {double}, %a.row")
        whole = w.value(f"icmp eq i64 %width, {self.lanes}")
        adds = w.value("icmp ne i64 %accumulate, 0")
        mask = first_lanes(w, self.lanes, "%width")
        c_step = w.value(f"mul i64 %c.row, {self.rows}")
        with loop(w, "0", "%panels") as panel:
            a = move(w, "%a", w.value(f"mul i64 {panel}, %a.panel"))
            c = move(w, "%c", w.value(f"mul i64 {panel}, {c_step}"))
            sums = self._sums(a, double, triple)
            self._finish(c, sums, whole, adds, mask)
        w.put("ret void")
        name = tile_name(self.rows, self.vectors)
        return f"define internal void {name}({ARGUMENTS}) {attributes} {{\nentry:\n" + "\n".join(w.lines) + "\n}\n"

    def _sums(self, a: str, double: str, triple: str) -> list[str]:
        """The chains over k, one for each accumulator."""
        w, before, label = self.w, self.w.block, self.w.fresh()
        groups = -(-self.rows // GROUP)
        starts = [a]
        for _ in range(groups - 1):
            starts.append(move(w, starts[-1], triple))
        w.put(f"br label %{label}")
        w.begin(label)

        def phi(type_: str, name: str, start: str) -> str:
            w.put(f"%{label}.{name} = phi {type_} [ {start}, %{before} ], [ %{label}.{name}.next, %{label} ]")
            return f"%{label}.{name}"

        left = phi("i64", "left", "%k")
        b = phi("ptr", "b", "%b")
        pointers = [phi("ptr", f"a{group}", start) for group, start in enumerate(starts)]
        sums = {place: phi(self.type, "sum{}.{}".format(*place), "zeroinitializer") for place in self.places}
        bytes_ = self.shape.bits // 8
        item = "i32" if self.paired else VALUE[self.sums]
        factor = f"<{self.lanes} x {item}>"
        align = self.sums.bytes // 2 if self.paired else self.sums.bytes
        columns = [
            self._factor(w.value(f"load {factor}, ptr {move(w, b, str(vector * bytes_))}, align {align}"))
            for vector in range(self.vectors)
        ]
        for row in range(self.rows):
            group, number = divmod(row, GROUP)
            place = move(w, pointers[group], ("0", "%a.row", double)[number])
            element = w.value(f"load {item}, ptr {place}, align {align}")
            copies = self._factor(spread(w, item, self.lanes, element))
            for vector in range(self.vectors):
                name = f"%{label}.sum{row}.{vector}.next"
                self._multiply_add(name, copies, columns[vector], sums[row, vector])
        for group in range(groups):
            w.put(f"%{label}.a{group}.next = getelementptr i8, ptr {pointers[group]}, i64 %a.k")
        w.put(f"%{label}.b.next = getelementptr i8, ptr {b}, i64 %b.k")
        w.put(f"%{label}.left.next = sub i64 {left}, 1")
        w.put(f"%{label}.more = icmp ne i64 %{label}.left.next, 0")
        after = w.fresh()
        w.put(f"br i1 %{label}.more, label %{label}, label %{after}")
        w.begin(after)
        return [f"%{label}.sum{row}.{vector}.next" for row, vector in self.places]

    def _factor(self, value: str) -> str:
        """A vector as the multiply-add takes it."""
        if not self.paired:
            return value
        return self.w.value(f"bitcast <{self.lanes} x i32> {value} to <{2 * self.lanes} x bfloat>")

    def _multiply_add(self, name: str, left: str, right: str, sum_: str) -> None:
        w, type_ = self.w, self.type
        if self.paired:
            pairs = f"<{2 * self.lanes} x bfloat>"
            w.put(f"{name} = call {type_} {DOT}({type_} {sum_}, {pairs} {left}, {pairs} {right})")
        elif self.shape.fused:
            function = f"@llvm.fma.{suffix(self.shape, self.dtype)}"
            w.put(f"{name} = call {type_} {function}({type_} {left}, {type_} {right}, {type_} {sum_})")
        else:
            product = w.value(f"fmul {type_} {left}, {right}")
            w.put(f"{name} = fadd {type_} {product}, {sum_}")

    def _finish(self, c: str, sums: list[str], whole: str, adds: str, mask: str) -> None:
        """Stores the sums, or adds them to what is there; the last vector by its mask if it is not whole."""
        w, bytes_ = self.w, self.shape.bits // 8
        rows = [move(w, c, w.value(f"mul i64 %c.row, {row}")) for row in range(self.rows)]
        places = [move(w, rows[row], str(vector * bytes_)) for row, vector in self.places]
        for condition, chosen in ((whole, None), (negate(w, whole), mask)):
            masks = [chosen if vector == self.vectors - 1 else None for _, vector in self.places]
            with when(w, condition):
                with when(w, adds):
                    for place, sum_, lanes in zip(places, sums, masks, strict=True):
                        self._store(place, w.value(f"fadd {self.type} {self._load(place, lanes)}, {sum_}"), lanes)
                with when(w, negate(w, adds)):
                    for place, sum_, lanes in zip(places, sums, masks, strict=True):
                        self._store(place, sum_, lanes)

    def _load(self, place: str, mask: str | None) -> str:
        align, type_ = self.sums.bytes, self.type
        if mask is None:
            return self.w.value(f"load {type_}, ptr {place}, align {align}")
        return masked_load(self.w, self.lanes, VALUE[self.sums], place, mask)

    def _store(self, place: str, value: str, mask: str | None) -> None:
        align, type_ = self.sums.bytes, self.type
        if mask is None:
            self.w.put(f"store {type_} {value}, ptr {place}, align {align}")
        else:
            masked_store(self.w, self.lanes, VALUE[self.sums], value, place, mask)


def masked_load(w: Writer, lanes: int, item: str, place: str, mask: str) -> str:
    """The lanes of a vector in memory that a mask chooses; 0 in the others, which are not touched."""
    type_ = f"<{lanes} x {item}>"
    function = f"@llvm.masked.load.v{lanes}{SHORT[item]}.p0"
    operands = f"ptr {place}, i32 {BITS[item] // 8}, <{lanes} x i1> {mask}, {type_} zeroinitializer"
    return w.value(f"call {type_} {function}({operands})")


def masked_store(w: Writer, lanes: int, item: str, value: str, place: str, mask: str) -> None:
    """Stores the lanes that a mask chooses."""
    function = f"@llvm.masked.store.v{lanes}{SHORT[item]}.p0"
    w.put(
        f"call void {function}(<{lanes} x {item}> {value}, ptr {place}, i32 {BITS[item] // 8}, <{lanes} x i1> {mask})"
    )


def declarations(shape: Shape, dtype: DType) -> str:
    """The intrinsics that tiles and packing use."""
    type_, lanes, kind = vector_type(shape, dtype), shape.lanes(dtype), suffix(shape, dtype)
    lines = [
        f"declare {type_} @llvm.fma.{kind}({type_}, {type_}, {type_})",
        f"declare {type_} @llvm.masked.load.{kind}.p0(ptr, i32, <{lanes} x i1>, {type_})",
        f"declare <{lanes} x i16> @llvm.masked.load.v{lanes}i16.p0(ptr, i32, <{lanes} x i1>, <{lanes} x i16>)",
        f"declare void @llvm.masked.store.{kind}.p0({type_}, ptr, i32, <{lanes} x i1>)",
        f"declare void @llvm.masked.store.v{lanes}i16.p0(<{lanes} x i16>, ptr, i32, <{lanes} x i1>)",
    ]
    if shape.paired(dtype):
        pairs = f"<{2 * lanes} x bfloat>"
        lines.append(f"declare {type_} {DOT}({type_}, {pairs}, {pairs})")
    return "\n".join(lines) + "\n"
