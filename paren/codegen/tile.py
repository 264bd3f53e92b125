"""The innermost loops of a matrix product: tiles of C held in registers while one block of k runs past.

A tile has up to `rows` rows and `vectors` vectors of columns. For each k the vectors of B are loaded, an element of A
is broadcast for each row, and each accumulator takes one multiply-add; the accumulators start at 0 and are stored, or
added to C, at the end of the block. So every element of C is a chain of multiply-adds over a block of k, wherever in a
tile it lies: bits do not depend on how C is divided.
"""

from __future__ import annotations

from dataclasses import dataclass

from paren.codegen.flow import first_lanes, loop, move, negate, spread, when
from paren.codegen.writer import VALUE, Writer
from paren.ir.types import DType

ARGUMENTS = (
    "ptr %a, i64 %a.row, i64 %a.k, ptr %b, i64 %b.k, i64 %k, ptr %c, i64 %c.row, "
    "i64 %panels, i64 %a.panel, i64 %width, i64 %accumulate"
)
GROUP = 3  # rows whose elements of A are addressed from one pointer, with strides times 0, 1 and 2


@dataclass(frozen=True)
class Shape:
    """A tile for a processor: `bits` of its vectors, at most `rows` by `vectors` accumulators. `fused` says whether it
    has a multiply-add with one rounding; without one a product is rounded before it is added."""

    bits: int
    rows: int
    vectors: int
    fused: bool

    def lanes(self, dtype: DType) -> int:
        """Elements of a vector."""
        return self.bits // (8 * dtype.bytes)

    def columns(self, dtype: DType) -> int:
        """Columns of a whole tile."""
        return self.vectors * self.lanes(dtype)


def tile_name(rows: int, vectors: int) -> str:
    return f"@tile.{rows}.{vectors}"


def vector_type(shape: Shape, dtype: DType) -> str:
    return f"<{shape.lanes(dtype)} x {VALUE[dtype]}>"


def suffix(shape: Shape, dtype: DType) -> str:
    """The suffix of intrinsics on vectors of the tile."""
    return f"v{shape.lanes(dtype)}f{8 * dtype.bytes}"


def emit_tile(shape: Shape, dtype: DType, rows: int, vectors: int, attributes: str) -> str:
    """`void @tile.R.V(...)`: `panels` tiles below one another, `rows` by `vectors` each, with the same columns of B.

    `a` and `c` are the first tile's corners, `a.row`, `a.k`, `c.row` the bytes from row to row and from k to k,
    `a.panel` from tile to tile in A; B has `b.k` bytes from k to k and its vectors side by side. `width` is the number
    of valid lanes of the last vector. `k` and `panels` are at least 1.
    """
    return _Tile(shape, dtype, rows, vectors).function(attributes)


class _Tile:
    def __init__(self, shape: Shape, dtype: DType, rows: int, vectors: int) -> None:
        self.shape = shape
        self.dtype = dtype
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
        columns = [
            w.value(f"load {self.type}, ptr {move(w, b, str(vector * bytes_))}, align {self.dtype.bytes}")
            for vector in range(self.vectors)
        ]
        for row in range(self.rows):
            group, number = divmod(row, GROUP)
            place = move(w, pointers[group], ("0", "%a.row", double)[number])
            element = w.value(f"load {VALUE[self.dtype]}, ptr {place}, align {self.dtype.bytes}")
            copies = spread(w, VALUE[self.dtype], self.lanes, element)
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

    def _multiply_add(self, name: str, left: str, right: str, sum_: str) -> None:
        w, type_ = self.w, self.type
        if self.shape.fused:
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
        align, type_ = self.dtype.bytes, self.type
        if mask is None:
            return self.w.value(f"load {type_}, ptr {place}, align {align}")
        return masked_load(self.w, self.shape, self.dtype, place, mask)

    def _store(self, place: str, value: str, mask: str | None) -> None:
        align, type_, lanes = self.dtype.bytes, self.type, self.lanes
        if mask is None:
            self.w.put(f"store {type_} {value}, ptr {place}, align {align}")
        else:
            function = f"@llvm.masked.store.{suffix(self.shape, self.dtype)}.p0"
            self.w.put(f"call void {function}({type_} {value}, ptr {place}, i32 {align}, <{lanes} x i1> {mask})")


def masked_load(w: Writer, shape: Shape, dtype: DType, place: str, mask: str) -> str:
    """The lanes of a vector in memory that a mask chooses; 0 in the others, which are not touched."""
    type_, lanes = vector_type(shape, dtype), shape.lanes(dtype)
    function = f"@llvm.masked.load.{suffix(shape, dtype)}.p0"
    mask = f"<{lanes} x i1> {mask}"
    return w.value(f"call {type_} {function}(ptr {place}, i32 {dtype.bytes}, {mask}, {type_} zeroinitializer)")


def declarations(shape: Shape, dtype: DType) -> str:
    """The intrinsics that tiles and packing use."""
    type_, lanes, kind = vector_type(shape, dtype), shape.lanes(dtype), suffix(shape, dtype)
    return (
        f"declare {type_} @llvm.fma.{kind}({type_}, {type_}, {type_})\n"
        f"declare {type_} @llvm.masked.load.{kind}.p0(ptr, i32, <{lanes} x i1>, {type_})\n"
        f"declare void @llvm.masked.store.{kind}.p0({type_}, ptr, i32, <{lanes} x i1>)\n"
    )
