"""Packing: a panel of B, as wide as a tile, copied into a buffer with its elements for one k side by side.

Where elements lie side by side across the panel, each k is copied; where they lie side by side along k, squares of
lanes by lanes are transposed in registers. Lanes beyond the panel's width hold anything: no element of C depends on
them.
"""

from __future__ import annotations

from paren.codegen.flow import first_lanes, least, loop, move, negate, shuffle, when
from paren.codegen.tile import Shape, masked_load, vector_type
from paren.codegen.writer import Writer
from paren.ir.types import DType

ARGUMENTS = "ptr %source, i64 %stride, i64 %width, ptr %target, i64 %k"


def emit_copy(shape: Shape, dtype: DType, attributes: str) -> str:
    """`void @copy(...)`: `stride` bytes from k to k, `width` elements of each valid."""
    w, count = Writer("t"), shape.vectors
    type_, lanes, bytes_ = vector_type(shape, dtype), shape.lanes(dtype), shape.bits // 8
    whole = w.value(f"icmp eq i64 %width, {count * lanes}")
    masks = [first_lanes(w, lanes, w.value(f"sub i64 %width, {i * lanes}")) for i in range(count)]
    for condition, chosen in ((whole, [None] * count), (negate(w, whole), masks)):
        with when(w, condition), loop(w, "0", "%k") as k:
            source = move(w, "%source", w.value(f"mul i64 {k}, %stride"))
            target = move(w, "%target", w.value(f"mul i64 {k}, {count * bytes_}"))
            for i, mask in enumerate(chosen):
                place = move(w, source, str(i * bytes_))
                if mask is None:
                    value = w.value(f"load {type_}, ptr {place}, align {dtype.bytes}")
                else:
                    value = masked_load(w, shape, dtype, place, mask)
                w.put(f"store {type_} {value}, ptr {move(w, target, str(i * bytes_))}, align {bytes_}")
    return _function("@copy", w, attributes)


def emit_transpose(shape: Shape, dtype: DType, attributes: str) -> str:
    """`void @transpose(...)`: `stride` bytes from one of its `width` lines to the next.

    `target` has room for k rounded up to whole vectors.
    """
    w, count = Writer("t"), shape.vectors
    lanes, item, bytes_ = shape.lanes(dtype), dtype.bytes, shape.bits // 8
    for i in range(count):
        valid = w.value(f"sub i64 %width, {i * lanes}")
        with when(w, w.value(f"icmp sgt i64 {valid}, 0")):
            last = w.value(f"sub i64 {valid}, 1")
            corner = move(w, "%source", w.value(f"mul i64 %stride, {i * lanes}"))
            lines = [move(w, corner, w.value(f"mul i64 %stride, {least(w, str(lane), last)}")) for lane in range(lanes)]
            with loop(w, "0", "%k", str(lanes)) as k:
                mask = first_lanes(w, lanes, w.value(f"sub i64 %k, {k}"))
                distance = w.value(f"mul i64 {k}, {item}")
                rows = [masked_load(w, shape, dtype, move(w, line, distance), mask) for line in lines]
                target = move(w, "%target", w.value(f"mul i64 {k}, {count * bytes_}"))
                for number, row in enumerate(_transposed(w, vector_type(shape, dtype), rows)):
                    place = move(w, target, str((number * count + i) * bytes_))
                    w.put(f"store {vector_type(shape, dtype)} {row}, ptr {place}, align {bytes_}")
    return _function("@transpose", w, attributes)


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


def _function(name: str, w: Writer, attributes: str) -> str:
    lines = "\n".join(w.lines)
    return f"define internal void {name}({ARGUMENTS}) {attributes} {{\nentry:\n{lines}\n  ret void\n}}\n"
