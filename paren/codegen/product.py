"""Matrix products as one function for each element type: it takes all sizes, strides and choices from a table.

C is divided into cells, in lines along its longer side; a unit of work is a cell of one matrix of the batch. A range of
units makes rectangles of C, and each is computed in blocks that fit the caches: columns of B, then k, then rows of A,
then tiles (`paren.codegen.tile`). Panels of B are packed where that pays; A is read in place. An element of C is,
whatever the division,

    (C +) chain(block 0 of k) + chain(block 1 of k) + ...    from left to right,

where a chain adds its products one by one to 0; blocks of k depend on k alone. Where the processor has a multiply-add
of one rounding, chains use it.
"""

from __future__ import annotations

from enum import IntEnum

from paren.codegen import packing, tile
from paren.codegen.flow import least, loop, move, negate, when
from paren.codegen.tile import Shape
from paren.codegen.writer import Writer
from paren.ir.types import DType

HEADER = 64  # bytes at the start of a workspace: a word that is 1 while a thread uses it


class Word(IntEnum):
    """Words of the table, int64. Strides in bytes; `BLOCK_*` the largest blocks."""

    M = 0
    N = 1
    K = 2
    A_ROW = 3
    A_K = 4
    B_K = 5
    B_COLUMN = 6
    C_ROW = 7
    ACCUMULATE = 8
    PACKING = 9
    BLOCK_M = 10
    BLOCK_N = 11
    BLOCK_K = 12
    CELL_M = 13
    CELL_N = 14
    ALONG_N = 15  # 1: a line of cells has the same columns of C; 0: the same rows
    LINE = 16  # cells in a line
    CELLS = 17  # cells of a matrix
    WORKSPACES = 18
    WORKSPACE_BYTES = 19


class Packing(IntEnum):
    """How B reaches the tiles. A partial last panel is copied even where the others are read in place."""

    DIRECT = 0
    COPY = 1
    TRANSPOSE = 2


class Pointer(IntEnum):
    """The parameters of the function."""

    A = 0
    B = 1
    C = 2
    TABLE = 3
    OFFSETS = 4  # int64[matrices 3]: byte offsets of A, B and C
    WORKSPACES = 5


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
    parts.append(packing.emit_copy(shape, dtype, f"noinline {attributes}"))
    parts.append(packing.emit_transpose(shape, dtype, f"noinline {attributes}"))
    parts.append(_Rectangle(shape, dtype).function(attributes))
    parts.append(_entry(name, attributes))
    return "".join(parts)


def _word(w: Writer, word: Word) -> str:
    place = w.value(f"getelementptr i64, ptr %table, i64 {word.value}")
    return w.value(f"load i64, ptr {place}, align 8")


def _pieces(w: Writer, size: str, piece: str) -> str:
    """How many pieces of at most `piece` make up `size`."""
    raised = w.value(f"add i64 {size}, {w.value(f'sub i64 {piece}, 1')}")
    return w.value(f"udiv i64 {raised}, {piece}")


def _entry(name: str, attributes: str) -> str:
    """The function over units: takes a workspace, cuts the range of units into rectangles of single matrices."""
    w = Writer("t")
    for pointer in Pointer:
        place = w.value(f"getelementptr ptr, ptr %parameters, i64 {pointer.value}")
        w.put(f"%{pointer.name.lower()} = load ptr, ptr {place}, align 8")
    workspace = _claim(w)
    cells, line = _word(w, Word.CELLS), _word(w, Word.LINE)
    along_n = w.value(f"icmp ne i64 {_word(w, Word.ALONG_N)}, 0")
    cell_m, cell_n = _word(w, Word.CELL_M), _word(w, Word.CELL_N)
    m, n = _word(w, Word.M), _word(w, Word.N)
    w.put("br label %take")
    start = w.block
    w.begin("take")
    w.put(f"%unit = phi i64 [ %begin, %{start} ], [ %unit.next, %again ]")
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
    w.put(f"call void @rectangle({pointers}, {', '.join(f'i64 {edge}' for edge in edges)})")
    w.put("br label %take")
    w.begin("finish")
    w.put(f"store atomic i32 0, ptr {workspace} release, align 4")
    w.put("ret void")
    lines_ = "\n".join(w.lines)
    return f"define void @{name}(i64 %begin, i64 %end, ptr %parameters) {attributes} {{\nentry:\n{lines_}\n}}\n"


def _claim(w: Writer) -> str:
    """A workspace that no other thread uses; there are as many as threads, so one is free or soon will be."""
    count, size = _word(w, Word.WORKSPACES), _word(w, Word.WORKSPACE_BYTES)
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


class _Rectangle:
    """`void @rectangle(a, b, c, table, workspace, rows' first and end, columns' first and end)`."""

    def __init__(self, shape: Shape, dtype: DType) -> None:
        self.shape = shape
        self.item = dtype.bytes
        self.lanes = shape.lanes(dtype)
        self.columns = shape.columns(dtype)
        self.line_bytes = shape.vectors * shape.bits // 8  # of a packed panel, for one k
        self.w = Writer("t")

    def function(self, attributes: str) -> str:
        w = self.w
        for word in Word:
            place = w.value(f"getelementptr i64, ptr %table, i64 {word.value}")
            w.put(f"%{word.name.lower()} = load i64, ptr {place}, align 8")
        self.buffer = move(w, "%workspace", str(HEADER))
        rows = w.value("sub i64 %row.end, %row")
        blocks = _pieces(w, rows, "%block_m")
        block_m = _pieces(w, rows, blocks)
        with loop(w, "%column", "%column.end", "%block_n") as column:
            columns = least(w, "%block_n", w.value(f"sub i64 %column.end, {column}"))
            with loop(w, "0", "%k", "%block_k") as k:
                depth = least(w, "%block_k", w.value(f"sub i64 %k, {k}"))
                later = w.value(f"zext i1 {w.value(f'icmp ne i64 {k}, 0')} to i64")
                adds = w.value(f"or i64 %accumulate, {later}")
                self._pack_b(column, columns, k, depth)
                with loop(w, "%row", "%row.end", block_m) as row:
                    height = least(w, block_m, w.value(f"sub i64 %row.end, {row}"))
                    self._block(row, height, column, columns, k, depth, adds)
        w.put("ret void")
        arguments = (
            "ptr %a, ptr %b, ptr %c, ptr %table, ptr %workspace, i64 %row, i64 %row.end, i64 %column, i64 %column.end"
        )
        lines = "\n".join(w.lines)
        return f"define internal void @rectangle({arguments}) noinline {attributes} {{\nentry:\n{lines}\n}}\n"

    def _offset(self, pointer: str, *steps: tuple[str, str]) -> str:
        """A pointer moved by some indices, each times its stride."""
        for index, stride in steps:
            pointer = move(self.w, pointer, self.w.value(f"mul i64 {index}, {stride}"))
        return pointer

    def _pack_b(self, column: str, columns: str, k: str, depth: str) -> None:
        """Packs the panels of a block of B: all of them, or only a partial last one."""
        w = self.w
        # Room of a packed panel: k rounded up to what a transposition writes.
        rounded = w.value(f"and i64 {w.value(f'add i64 {depth}, {self.lanes - 1}')}, {-self.lanes}")
        self.b_panel = w.value(f"mul i64 {rounded}, {self.line_bytes}")
        self.b_source = self._offset("%b", (k, "%b_k"), (column, "%b_column"))
        direct = w.value(f"icmp eq i64 %packing, {Packing.DIRECT.value}")
        whole = w.value(f"and i64 {columns}, {-self.columns}")
        first = w.select(direct, "i64", whole, "0")
        turned = w.value(f"icmp eq i64 %packing, {Packing.TRANSPOSE.value}")
        with loop(w, first, columns, str(self.columns)) as inside:
            source = self._offset(self.b_source, (inside, "%b_column"))
            panel = w.value(f"udiv i64 {inside}, {self.columns}")
            width = least(w, str(self.columns), w.value(f"sub i64 {columns}, {inside}"))
            place = self._offset(self.buffer, (panel, self.b_panel))
            for condition, name, stride in (
                (turned, "transpose", "%b_column"),
                (negate(w, turned), "copy", "%b_k"),
            ):
                with when(w, condition):
                    operands = f"ptr {source}, i64 {stride}, i64 {width}, ptr {place}, i64 {depth}"
                    w.put(f"call void @{name}({operands})")

    def _block(self, row: str, height: str, column: str, columns: str, k: str, depth: str, adds: str) -> None:
        """A block of A times the block of B: rows are divided evenly into panels of `tall` or one less."""
        w = self.w
        panels = _pieces(w, height, str(self.shape.rows))
        tall = _pieces(w, height, panels)
        low = w.value(f"sub i64 {tall}, 1")
        tall_panels = w.value(f"sub i64 {height}, {w.value(f'mul i64 {panels}, {low}')}")
        a = self._offset("%a", (row, "%a_row"), (k, "%a_k"))
        with loop(w, "0", columns, str(self.columns)) as inside:
            width = least(w, str(self.columns), w.value(f"sub i64 {columns}, {inside}"))
            vectors = _pieces(w, width, str(self.lanes))
            earlier = w.value(f"sub i64 {vectors}, 1")
            rest = w.value(f"sub i64 {width}, {w.value(f'mul i64 {earlier}, {self.lanes}')}")
            partial = w.value(f"icmp slt i64 {width}, {self.columns}")
            all_packed = w.value(f"icmp ne i64 %packing, {Packing.DIRECT.value}")
            packed = w.value(f"or i1 {all_packed}, {partial}")
            panel = w.value(f"udiv i64 {inside}, {self.columns}")
            b = w.select(
                packed,
                "ptr",
                self._offset(self.buffer, (panel, self.b_panel)),
                self._offset(self.b_source, (inside, "%b_column")),
            )
            b_k = w.select(packed, "i64", str(self.line_bytes), "%b_k")
            c = self._offset("%c", (row, "%c_row"), (w.value(f"add i64 {column}, {inside}"), str(self.item)))
            for tiles, number, start in (
                (tall, tall_panels, "0"),
                (low, w.value(f"sub i64 {panels}, {tall_panels}"), tall_panels),
            ):
                with when(w, w.value(f"icmp sgt i64 {number}, 0")):
                    step = w.value(f"mul i64 {tiles}, %a_row")
                    above = w.value(f"mul i64 {start}, {tall}")
                    a_first, c_first = self._offset(a, (above, "%a_row")), self._offset(c, (above, "%c_row"))
                    line = w.value(f"mul i64 {earlier}, {self.shape.rows}")
                    place = w.value(f"add i64 {line}, {w.value(f'sub i64 {tiles}, 1')}")
                    entry = w.value(f"getelementptr ptr, ptr @tiles, i64 {place}")
                    function = w.value(f"load ptr, ptr {entry}, align 8")
                    w.put(
                        f"call void {function}(ptr {a_first}, i64 %a_row, i64 %a_k, ptr {b}, i64 {b_k}, i64 {depth}, "
                        f"ptr {c_first}, i64 %c_row, i64 {number}, i64 {step}, i64 {rest}, i64 {adds})"
                    )
