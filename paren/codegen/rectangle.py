"""A rectangle of C in blocks that fit the caches, as LLVM IR."""

from __future__ import annotations

from dataclasses import dataclass

from paren.codegen.flow import first_lanes, least, loop, move, negate, when
from paren.codegen.packing import narrow
from paren.codegen.product_table import HEADER, Packing, Word
from paren.codegen.tile import Shape, masked_store, sums_of
from paren.codegen.writer import Writer
from paren.ir.types import DType


def load_word(w: Writer, word: Word) -> str:
    place = w.value(f"getelementptr i64, ptr %table, i64 {word.value}")
    return w.value(f"load i64, ptr {place}, align 8")


def pieces(w: Writer, size: str, piece: str) -> str:
    """How many pieces of at most `piece` make up `size`."""
    raised = w.value(f"add i64 {size}, {w.value(f'sub i64 {piece}, 1')}")
    return w.value(f"udiv i64 {raised}, {piece}")


def emit_rectangle(shape: Shape, dtype: DType, attributes: str) -> str:
    """`void @rectangle(a, b, c, table, workspace, bytes of a row of c, rows' first and end, columns' first and end)`:
    the sums of a rectangle of C."""
    return _Rectangle(shape, dtype).function(attributes)


def emit_rounded(shape: Shape, attributes: str) -> str:
    """`void @rounded(a, b, c, table, workspace, rows' first and end, columns' first and end)`: a rectangle of a C in
    bfloat16. A block's sums lie in the workspace until they are complete."""
    w, lanes = Writer("t"), shape.lanes(DType.BFLOAT16)
    block_m, block_n = load_word(w, Word.BLOCK_M), load_word(w, Word.BLOCK_N)
    c_row = load_word(w, Word.C_ROW)
    sums = move(w, "%workspace", load_word(w, Word.SUMS_PLACE))
    sums_row = w.value(f"mul i64 {block_n}, {DType.FLOAT32.bytes}")
    with loop(w, "%column", "%column.end", block_n) as column:
        column_end = least(w, "%column.end", w.value(f"add i64 {column}, {block_n}"))
        with loop(w, "%row", "%row.end", block_m) as row:
            row_end = least(w, "%row.end", w.value(f"add i64 {row}, {block_m}"))
            # Where C would begin if the block were a part of it.
            above = w.value(f"mul i64 {row}, {sums_row}")
            before = w.value(f"add i64 {above}, {w.value(f'mul i64 {column}, {DType.FLOAT32.bytes}')}")
            start = move(w, sums, w.value(f"sub i64 0, {before}"))
            pointers = f"ptr %a, ptr %b, ptr {start}, ptr %table, ptr %workspace, i64 {sums_row}"
            bounds = f"i64 {row}, i64 {row_end}, i64 {column}, i64 {column_end}"
            w.put(f"call void @rectangle({pointers}, {bounds})")
            with loop(w, row, row_end) as line:
                source = move(w, start, w.value(f"mul i64 {line}, {sums_row}"))
                target = move(w, "%c", w.value(f"mul i64 {line}, {c_row}"))
                with loop(w, column, column_end, str(lanes)) as place:
                    from_ = move(w, source, w.value(f"mul i64 {place}, {DType.FLOAT32.bytes}"))
                    value = w.value(f"load <{lanes} x float>, ptr {from_}, align {DType.FLOAT32.bytes}")
                    to = move(w, target, w.value(f"mul i64 {place}, {DType.BFLOAT16.bytes}"))
                    mask = first_lanes(w, lanes, w.value(f"sub i64 {column_end}, {place}"))
                    masked_store(w, lanes, "i16", narrow(w, lanes, value), to, mask)
    w.put("ret void")
    return _function("rounded", "", w, attributes)


def _function(name: str, more: str, w: Writer, attributes: str) -> str:
    pointers = "ptr %a, ptr %b, ptr %c, ptr %table, ptr %workspace"
    bounds = "i64 %row, i64 %row.end, i64 %column, i64 %column.end"
    lines = "\n".join(w.lines)
    arguments = f"{pointers}, {more}{bounds}"
    return f"define internal void @{name}({arguments}) noinline {attributes} {{\nentry:\n{lines}\n}}\n"


@dataclass(frozen=True)
class _Block:
    """A block of B: columns and k from where, how many of each, k in steps of a tile, and whether its sums are added to
    C."""

    column: str
    columns: str
    k: str
    depth: str
    steps: str
    adds: str


@dataclass(frozen=True)
class _Rows:
    """Panels of rows: the first `tall_panels` of `panels` have `tall` rows, the others `low`."""

    panels: str
    tall: str
    low: str
    tall_panels: str


@dataclass(frozen=True)
class _Operand:
    """Where A's rows are, bytes from row to row and from step to step; `packed` is None, or whether they lie in place
    (an i1) and otherwise the bytes from panel to panel."""

    place: str
    row: str
    step: str
    packed: tuple[str, str] | None


class _Rectangle:
    def __init__(self, shape: Shape, dtype: DType) -> None:
        self.shape = shape
        self.item = sums_of(dtype).bytes
        self.lanes = shape.lanes(dtype)
        self.columns = shape.columns(dtype)
        self.per = 2 if shape.paired(dtype) else 1  # k in one step of a tile
        self.packs_a = dtype is DType.BFLOAT16
        self.a_line = -(-shape.rows // self.lanes) * shape.bits // 8  # bytes of a packed panel for one step
        self.b_line = shape.vectors * shape.bits // 8
        self.w = Writer("t")

    def function(self, attributes: str) -> str:
        w = self.w
        for word in Word:
            w.put(f"%{word.name.lower()} = add i64 {load_word(w, word)}, 0")
        self.b_buffer = move(w, "%workspace", str(HEADER))
        self.a_buffer = move(w, "%workspace", "%a_place")
        rows = w.value("sub i64 %row.end, %row")
        blocks = pieces(w, rows, "%block_m")
        block_m = pieces(w, rows, blocks)
        with loop(w, "%column", "%column.end", "%block_n") as column:
            columns = least(w, "%block_n", w.value(f"sub i64 %column.end, {column}"))
            with loop(w, "0", "%k", "%block_k") as k:
                depth = least(w, "%block_k", w.value(f"sub i64 %k, {k}"))
                later = w.value(f"zext i1 {w.value(f'icmp ne i64 {k}, 0')} to i64")
                adds = w.value(f"or i64 %accumulate, {later}")
                block = _Block(column, columns, k, depth, pieces(w, depth, str(self.per)), adds)
                b_panel = self._panel_bytes(block, self.b_line)
                self._pack_b(block, b_panel)
                with loop(w, "%row", "%row.end", block_m) as row:
                    height = least(w, block_m, w.value(f"sub i64 %row.end, {row}"))
                    self._block(block, b_panel, row, height)
        w.put("ret void")
        return _function("rectangle", "i64 %c.stride, ", w, attributes)

    def _offset(self, pointer: str, *steps: tuple[str, str]) -> str:
        """A pointer moved by some indices, each times its stride."""
        for index, stride in steps:
            pointer = move(self.w, pointer, self.w.value(f"mul i64 {index}, {stride}"))
        return pointer

    def _panel_bytes(self, block: _Block, line: int) -> str:
        """Room of a packed panel: as many steps as a transposition writes."""
        w = self.w
        rounded = w.value(f"and i64 {w.value(f'add i64 {block.steps}, {self.lanes - 1}')}, {-self.lanes}")
        return w.value(f"mul i64 {rounded}, {line}")

    def _pack(self, operand: str, source: str, width: str, place: str, block: _Block) -> None:
        """Packs a panel of A or B."""
        w = self.w
        strides = {"a": ("%a_k", "%a_row"), "b": ("%b_k", "%b_column")}[operand]
        chosen = w.value(f"call i64 @llvm.smax.i64(i64 %{operand}_packing, i64 {Packing.COPY.value})")
        number = w.value(f"sub i64 {chosen}, {Packing.COPY.value}")
        entry = w.value(f"getelementptr ptr, ptr @packers.{operand}, i64 {number}")
        function = w.value(f"load ptr, ptr {entry}, align 8")
        lines = f"ptr {source}, i64 {strides[0]}, i64 {strides[1]}, i64 {width}"
        w.put(f"call void {function}({lines}, ptr {place}, i64 {block.depth})")

    def _pack_b(self, block: _Block, panel_bytes: str) -> None:
        """Packs the panels of a block of B: all of them, or only a partial last one."""
        w = self.w
        corner = self._offset("%b", (block.k, "%b_k"), (block.column, "%b_column"))
        direct = w.value(f"icmp eq i64 %b_packing, {Packing.DIRECT.value}")
        whole = w.value(f"and i64 {block.columns}, {-self.columns}")
        with loop(w, w.select(direct, "i64", whole, "0"), block.columns, str(self.columns)) as inside:
            panel = w.value(f"udiv i64 {inside}, {self.columns}")
            width = least(w, str(self.columns), w.value(f"sub i64 {block.columns}, {inside}"))
            place = self._offset(self.b_buffer, (panel, panel_bytes))
            self._pack("b", self._offset(corner, (inside, "%b_column")), width, place, block)

    def _block(self, block: _Block, b_panel: str, row: str, height: str) -> None:
        """Rows of A times a block of B: the rows are divided evenly into panels of `tall` rows or one less."""
        w = self.w
        panels = pieces(w, height, str(self.shape.rows))
        tall = pieces(w, height, panels)
        low = w.value(f"sub i64 {tall}, 1")
        tall_panels = w.value(f"sub i64 {height}, {w.value(f'mul i64 {panels}, {low}')}")
        rows = _Rows(panels, tall, low, tall_panels)
        a = self._panels_of_a(block, row, rows)
        with loop(w, "0", block.columns, str(self.columns)) as inside:
            width = least(w, str(self.columns), w.value(f"sub i64 {block.columns}, {inside}"))
            partial = w.value(f"icmp slt i64 {width}, {self.columns}")
            all_packed = w.value(f"icmp ne i64 %b_packing, {Packing.DIRECT.value}")
            packed = w.value(f"or i1 {all_packed}, {partial}")
            panel = w.value(f"udiv i64 {inside}, {self.columns}")
            column = w.value(f"add i64 {block.column}, {inside}")
            b = w.select(
                packed,
                "ptr",
                self._offset(self.b_buffer, (panel, b_panel)),
                self._offset("%b", (block.k, "%b_k"), (column, "%b_column")),
            )
            b_step = w.select(packed, "i64", str(self.b_line), "%b_k")
            c = self._offset("%c", (row, "%c.stride"), (column, str(self.item)))
            self._tiles(block, a, f"ptr {b}, i64 {b_step}", c, rows, width)

    def _panels_of_a(self, block: _Block, row: str, rows: _Rows) -> _Operand:
        """A's rows where they lie, or packed."""
        w = self.w
        place = self._offset("%a", (row, "%a_row"), (block.k, "%a_k"))
        step = w.value(f"mul i64 %a_k, {self.per}")
        in_place = _Operand(place, "%a_row", step, None)
        if not self.packs_a:
            return in_place
        panel_bytes = self._panel_bytes(block, self.a_line)
        direct = w.value(f"icmp eq i64 %a_packing, {Packing.DIRECT.value}")
        with when(w, negate(w, direct)), loop(w, "0", rows.panels) as panel:
            taller = w.value(f"icmp slt i64 {panel}, {rows.tall_panels}")
            first = w.value(f"add i64 {w.value(f'mul i64 {panel}, {rows.low}')}, {least(w, panel, rows.tall_panels)}")
            source, target = self._offset(place, (first, "%a_row")), self._offset(self.a_buffer, (panel, panel_bytes))
            self._pack("a", source, w.select(taller, "i64", rows.tall, rows.low), target, block)
        return _Operand(
            w.select(direct, "ptr", place, self.a_buffer),
            w.select(direct, "i64", "%a_row", str(DType.FLOAT32.bytes)),
            w.select(direct, "i64", step, str(self.a_line)),
            (direct, panel_bytes),
        )

    def _tiles(self, block: _Block, a: _Operand, b: str, c: str, rows: _Rows, width: str) -> None:
        """One panel of B with all panels of A: the taller ones, then the others."""
        w = self.w
        vectors = pieces(w, width, str(self.lanes))
        earlier = w.value(f"sub i64 {vectors}, 1")
        rest = w.value(f"sub i64 {width}, {w.value(f'mul i64 {earlier}, {self.lanes}')}")
        others = w.value(f"sub i64 {rows.panels}, {rows.tall_panels}")
        for height, number, start in ((rows.tall, rows.tall_panels, "0"), (rows.low, others, rows.tall_panels)):
            with when(w, w.value(f"icmp sgt i64 {number}, 0")):
                panel_bytes, above = w.value(f"mul i64 {height}, {a.row}"), w.value(f"mul i64 {start}, {rows.tall}")
                skipped = w.value(f"mul i64 {above}, {a.row}")
                if a.packed is not None:
                    direct, packed_bytes = a.packed
                    panel_bytes = w.select(direct, "i64", panel_bytes, packed_bytes)
                    skipped = w.select(direct, "i64", skipped, w.value(f"mul i64 {start}, {packed_bytes}"))
                line = w.value(f"mul i64 {earlier}, {self.shape.rows}")
                place = w.value(f"add i64 {line}, {w.value(f'sub i64 {height}, 1')}")
                entry = w.value(f"getelementptr ptr, ptr @tiles, i64 {place}")
                function = w.value(f"load ptr, ptr {entry}, align 8")
                corner = self._offset(c, (above, "%c.stride"))
                w.put(
                    f"call void {function}(ptr {move(w, a.place, skipped)}, i64 {a.row}, i64 {a.step}, {b}, "
                    f"i64 {block.steps}, ptr {corner}, i64 %c.stride, i64 {number}, i64 {panel_bytes}, i64 {rest}, "
                    f"i64 {block.adds})"
                )
