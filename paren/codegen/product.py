"""Matrix products as one function for each element type: it takes all sizes, strides and choices from a table.

C is divided into cells, in lines along its longer side; a unit of work is a cell of one matrix of the batch. A range of
units makes rectangles of C, and each is computed in blocks that fit the caches: columns of B, then k, then rows of A,
then tiles (`paren.codegen.tile`). Panels of B are packed where that pays; A is read in place. An element of C is,
whatever the division,

    (C +) chain(block 0 of k) + chain(block 1 of k) + ...    from left to right,

where a chain adds its products one by one to 0; blocks of k depend on k alone. Where the processor has a multiply-add
of one rounding, chains use it. Operands in bfloat16 are multiplied into sums of float32; a C in bfloat16 gets its sums,
made in the workspace, rounded once.
"""

from __future__ import annotations

from paren.codegen import packing, tile
from paren.codegen.flow import least, move, negate, when
from paren.codegen.product_table import Pointer, Word
from paren.codegen.rectangle import emit_rectangle, emit_rounded, load_word
from paren.codegen.tile import Shape
from paren.codegen.writer import Writer
from paren.ir.types import DType


def emit_product(shape: Shape, dtype: DType, name: str) -> str:
    """An LLVM module with `void @name(i64 begin, i64 end, ptr parameters)`, called as a kernel is; see `Pointer`."""
    attributes = f'nounwind "prefer-vector-width"="{shape.bits}"'
    heights, widths = range(1, shape.rows + 1), range(1, shape.vectors + 1)
    names = ", ".join(f"ptr {tile.tile_name(rows, vectors)}" for vectors in widths for rows in heights)
    count = len(heights) * len(widths)
    parts = [
        tile.declarations(shape, dtype),
        f"@tiles = private unnamed_addr constant [{count} x ptr] [{names}]\n",
        *(
            tile.emit_tile(shape, dtype, rows, vectors, f"noinline {attributes}")
            for rows in heights
            for vectors in widths
        ),
    ]
    parts += _packers("b", shape, dtype, shape.vectors, attributes)
    if dtype is DType.BFLOAT16:
        parts += _packers("a", shape, dtype, -(-shape.rows // shape.lanes(dtype)), attributes)
        parts.append(emit_rounded(shape, attributes))
    parts.append(emit_rectangle(shape, dtype, attributes))
    parts.append(_entry(name, dtype, attributes))
    return "".join(parts)


def _packers(operand: str, shape: Shape, dtype: DType, vectors: int, attributes: str) -> list[str]:
    """The functions that pack an operand, and `@packers.*`, their addresses in the order of `Packing`."""
    sources = (DType.FLOAT32, DType.BFLOAT16) if dtype is DType.BFLOAT16 else (dtype,)
    parts, names = [], []
    for source in sources:
        for kind, emit in (("copy", packing.emit_copy), ("transpose", packing.emit_transpose)):
            names.append(f"{kind}.{operand}.{source}")
            parts.append(emit(shape, dtype, source, vectors, names[-1], f"noinline {attributes}"))
    addresses = ", ".join(f"ptr @{name}" for name in names)
    return [*parts, f"@packers.{operand} = private unnamed_addr constant [{len(names)} x ptr] [{addresses}]\n"]


def _entry(name: str, dtype: DType, attributes: str) -> str:
    """The function over units: takes a workspace, cuts the range of units into rectangles of single matrices."""
    w = Writer("t")
    for pointer in Pointer:
        place = w.value(f"getelementptr ptr, ptr %parameters, i64 {pointer.value}")
        w.put(f"%{pointer.name.lower()} = load ptr, ptr {place}, align 8")
    workspace = _claim(w)
    cells, line = load_word(w, Word.CELLS), load_word(w, Word.LINE)
    along_n = w.value(f"icmp ne i64 {load_word(w, Word.ALONG_N)}, 0")
    cell_m, cell_n = load_word(w, Word.CELL_M), load_word(w, Word.CELL_N)
    m, n = load_word(w, Word.M), load_word(w, Word.N)
    w.put("br label %take")
    start = w.block
    w.begin("take")
    w.put(f"%unit = phi i64 [ %begin, %{start} ], [ %unit.next, %taken ]")
    w.put("%some = icmp slt i64 %unit, %end")
    w.put("br i1 %some, label %again, label %finish")
    w.begin("again")
    matrix = w.value(f"udiv i64 %unit, {cells}")
    cell = w.value(f"sub i64 %unit, {w.value(f'mul i64 {matrix}, {cells}')}")
    count = least(w, w.value("sub i64 %end, %unit"), w.value(f"sub i64 {cells}, {cell}"))
    first = w.value(f"udiv i64 {cell}, {line}")
    inside = w.value(f"sub i64 {cell}, {w.value(f'mul i64 {first}, {line}')}")
    # Whole lines where the range begins one and has at least one, else cells of one line.
    lines = w.value(f"udiv i64 {count}, {line}")
    whole = w.value(f"and i1 {w.value(f'icmp eq i64 {inside}, 0')}, {w.value(f'icmp sgt i64 {lines}, 0')}")
    high = w.select(whole, "i64", lines, "1")
    wide = w.select(whole, "i64", line, least(w, count, w.value(f"sub i64 {line}, {inside}")))
    w.put(f"%unit.next = add i64 %unit, {w.value(f'mul i64 {high}, {wide}')}")
    lines_end, inside_end = w.value(f"add i64 {first}, {high}"), w.value(f"add i64 {inside}, {wide}")
    edges = []
    for edge_n, edge_m, size, limit in (
        (inside, first, cell_m, m),
        (inside_end, lines_end, cell_m, m),
        (first, inside, cell_n, n),
        (lines_end, inside_end, cell_n, n),
    ):
        edge = w.select(along_n, "i64", edge_n, edge_m)
        edges.append(least(w, w.value(f"mul i64 {edge}, {size}"), limit))
    row = w.value(f"mul i64 {matrix}, 3")
    bases = []
    for number, operand in enumerate(("%a", "%b", "%c")):
        place = w.value(f"getelementptr i64, ptr %offsets, i64 {w.value(f'add i64 {row}, {number}')}")
        bases.append(move(w, operand, w.value(f"load i64, ptr {place}, align 8")))
    pointers = ", ".join(f"ptr {base}" for base in (*bases, "%table", workspace))
    bounds = ", ".join(f"i64 {edge}" for edge in edges)
    rounded = w.value(f"icmp ne i64 {load_word(w, Word.ROUNDED)}, 0")
    if dtype is DType.BFLOAT16:
        with when(w, rounded):
            w.put(f"call void @rounded({pointers}, {bounds})")
    with when(w, negate(w, rounded)):
        w.put(f"call void @rectangle({pointers}, i64 {load_word(w, Word.C_ROW)}, {bounds})")
    w.put("br label %taken")
    w.begin("taken")
    w.put("br label %take")
    w.begin("finish")
    w.put(f"store atomic i32 0, ptr {workspace} release, align 4")
    w.put("ret void")
    lines_ = "\n".join(w.lines)
    return f"define void @{name}(i64 %begin, i64 %end, ptr %parameters) {attributes} {{\nentry:\n{lines_}\n}}\n"


def _claim(w: Writer) -> str:
    """A workspace that no other thread uses; there are as many as threads, so one is free or soon will be."""
    count, size = load_word(w, Word.WORKSPACES), load_word(w, Word.WORKSPACE_BYTES)
    w.put("br label %search")
    w.begin("search")
    w.put("%number = phi i64 [ 0, %entry ], [ %number.next, %search ]")
    place = move(w, "%workspaces", w.value(f"mul i64 %number, {size}"))
    before = w.value(f"atomicrmw xchg ptr {place}, i32 1 acquire, align 4")
    raised = w.value("add i64 %number, 1")
    over = w.value(f"icmp eq i64 {raised}, {count}")
    w.put(f"%number.next = select i1 {over}, i64 0, i64 {raised}")
    w.put(f"br i1 {w.value(f'icmp eq i32 {before}, 0')}, label %claimed, label %search")
    w.begin("claimed")
    return place
