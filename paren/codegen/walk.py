"""The order of samples as machine code: what `paren.data.order` defines in numpy, for many numbers at a time.

`void @walk(ptr values, i64 size, ptr keys, i64 rounds, i64 bits, i64 count)` sends each of `values` (int64[size], below
`count`, which needs `bits` bits) through the rounds of a Feistel network whose keys are uint64[rounds], an even number,
and again while it is not below `count`. The numbers of a piece that are still to be sent stand side by side at the
beginning of `work`, their places in the piece in `places`, so that vectors are full.
"""

from __future__ import annotations

from paren.codegen.flow import least, loop, move, spread
from paren.codegen.writer import Writer

LANES = 32  # of a vector: several registers, whose rounds do not wait for each other
PIECE = 1024  # numbers that are sent at a time: what lies on the stack
VECTOR = f"<{LANES} x i64>"
MIXING = (30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, None)  # shifts, factors: SplitMix64's finaliser


def emit_walk(name: str, vector_bits: int | None) -> str:
    """An LLVM module with the function as `name`; `vector_bits`: the preferred width of vectors."""
    wide = f' "prefer-vector-width"="{vector_bits}"' if vector_bits is not None else ""
    attributes = f"nounwind{wide}"
    return f"declare i64 @llvm.smin.i64(i64, i64)\n{_rounds(attributes)}\n{_walk(name, attributes)}"


def _rounds(attributes: str) -> str:
    """`@send`: all rounds for the first numbers of `work`, whole vectors of them."""
    w = Writer("t")
    low_bits = w.value("lshr i64 %bits, 1")
    high_bits = w.value(f"sub i64 %bits, {low_bits}")
    low_mask, high_mask = (
        spread(w, "i64", LANES, w.value(f"sub i64 {w.value(f'shl i64 1, {size}')}, 1"))
        for size in (low_bits, high_bits)
    )
    shift = spread(w, "i64", LANES, low_bits)
    with loop(w, "0", "%size", str(LANES)) as first:
        place = w.value(f"getelementptr i64, ptr %work, i64 {first}")
        value = w.value(f"load {VECTOR}, ptr {place}, align 64")
        low, high = w.value(f"and {VECTOR} {value}, {low_mask}"), w.value(f"lshr {VECTOR} {value}, {shift}")
        before = w.block
        w.put("br label %pair")
        w.begin("pair")
        w.put(f"%round = phi i64 [ 0, %{before} ], [ %round.next, %pair ]")
        w.put(f"%low = phi {VECTOR} [ {low}, %{before} ], [ %low.next, %pair ]")
        w.put(f"%high = phi {VECTOR} [ {high}, %{before} ], [ %high.next, %pair ]")
        w.put(f"%high.next = xor {VECTOR} %high, {_mixed(w, '%low', '%round', high_mask)}")
        odd = w.value("add i64 %round, 1")
        w.put(f"%low.next = xor {VECTOR} %low, {_mixed(w, '%high.next', odd, low_mask)}")
        w.put("%round.next = add i64 %round, 2")
        w.put(f"br i1 {w.value('icmp slt i64 %round.next, %rounds')}, label %pair, label %sent")
        w.begin("sent")
        joined = w.value(f"or {VECTOR} {w.value(f'shl {VECTOR} %high.next, {shift}')}, %low.next")
        w.put(f"store {VECTOR} {joined}, ptr {place}, align 64")
    w.put("ret void")
    lines = "\n".join(w.lines)
    parameters = "ptr noalias %work, i64 %size, ptr noalias %keys, i64 %rounds, i64 %bits"
    return f"define internal void @send({parameters}) {attributes} {{\nentry:\n{lines}\n}}\n"


def _mixed(w: Writer, half: str, number: str, mask: str) -> str:
    """Numbers made of one half by the key of a round, with the bits of `mask`."""
    key = w.value(f"load i64, ptr {w.value(f'getelementptr i64, ptr %keys, i64 {number}')}, align 8")
    value = w.value(f"add {VECTOR} {half}, {spread(w, 'i64', LANES, key)}")
    for shift, factor in MIXING:
        value = w.value(f"xor {VECTOR} {value}, {w.value(f'lshr {VECTOR} {value}, {_all(shift)}')}")
        if factor is not None:
            value = w.value(f"mul {VECTOR} {value}, {_all(factor)}")
    return w.value(f"and {VECTOR} {value}, {mask}")


def _all(value: int) -> str:
    return f"<{', '.join([f'i64 {value}'] * LANES)}>"


def _walk(name: str, attributes: str) -> str:
    """The function itself: piece after piece is sent until no number of it is left outside."""
    w = Writer("t")
    w.put(f"%work = alloca [{PIECE} x i64], align 64")
    w.put(f"%places = alloca [{PIECE} x i64], align 64")
    w.put(f"call void @llvm.memset.p0.i64(ptr %work, i8 0, i64 {8 * PIECE}, i1 false)")
    with loop(w, "0", "%size", str(PIECE)) as first:
        piece = move(w, "%values", w.value(f"shl i64 {first}, 3"))
        size = least(w, w.value(f"sub i64 %size, {first}"), str(PIECE))
        with loop(w, "0", size) as i:
            value = w.value(f"load i64, ptr {w.value(f'getelementptr i64, ptr {piece}, i64 {i}')}, align 8")
            w.put(f"store i64 {value}, ptr {w.value(f'getelementptr i64, ptr %work, i64 {i}')}, align 8")
            w.put(f"store i64 {i}, ptr {w.value(f'getelementptr i64, ptr %places, i64 {i}')}, align 8")
        before = w.block
        w.put("br label %again")
        w.begin("again")
        w.put(f"%left = phi i64 [ {size}, %{before} ], [ %kept, %taken ]")
        w.put("call void @send(ptr %work, i64 %left, ptr %keys, i64 %rounds, i64 %bits)")
        w.put("br label %take")
        w.begin("take")
        w.put("%j = phi i64 [ 0, %again ], [ %j.next, %take ]")
        w.put("%kept.before = phi i64 [ 0, %again ], [ %kept, %take ]")
        sent = w.value(f"load i64, ptr {w.value('getelementptr i64, ptr %work, i64 %j')}, align 8")
        place = w.value(f"load i64, ptr {w.value('getelementptr i64, ptr %places, i64 %j')}, align 8")
        w.put(f"store i64 {sent}, ptr {w.value(f'getelementptr i64, ptr {piece}, i64 {place}')}, align 8")
        w.put(f"store i64 {sent}, ptr {w.value('getelementptr i64, ptr %work, i64 %kept.before')}, align 8")
        w.put(f"store i64 {place}, ptr {w.value('getelementptr i64, ptr %places, i64 %kept.before')}, align 8")
        outside = w.value(f"icmp uge i64 {sent}, %count")
        w.put(f"%kept = add i64 %kept.before, {w.value(f'zext i1 {outside} to i64')}")
        w.put("%j.next = add i64 %j, 1")
        w.put(f"br i1 {w.value('icmp slt i64 %j.next, %left')}, label %take, label %taken")
        w.begin("taken")
        w.put(f"br i1 {w.value('icmp sgt i64 %kept, 0')}, label %again, label %done")
        w.begin("done")
    w.put("ret void")
    lines = "\n".join(w.lines)
    parameters = "ptr noalias %values, i64 %size, ptr noalias %keys, i64 %rounds, i64 %bits, i64 %count"
    declared = "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)\n"
    return f"{declared}define void @{name}({parameters}) {attributes} {{\nentry:\n{lines}\n}}\n"
