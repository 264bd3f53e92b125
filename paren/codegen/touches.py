"""Which bytes of its parameters a range of a function's units touches, at most.

Neighbouring steps whose ranges lie apart need no meeting of the threads between them. An access is taken for everything
between the first and the last byte that it may touch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from paren.codegen.division import Division
from paren.codegen.loops import BLOCK, Loops, arrange
from paren.codegen.product_table import Pointer, Word
from paren.plan.kernel import Access, Accumulate, Index, Kernel, Load, Store

Range = tuple[int, int]  # the first and the last, both inside


@dataclass(frozen=True)
class Touch:
    """Bytes `first` up to `end` behind a pointer, by its place in the table of pointers."""

    pointer: int
    first: int
    end: int
    writes: bool


@lru_cache(maxsize=4096)
def touched_by_kernel(kernel: Kernel, begin: int, end: int) -> tuple[Touch, ...]:
    """What units `begin` up to `end` (at least one) of a kernel touch."""
    loops = arrange(kernel)
    axes = _box(loops, begin, end)
    found = []
    for stage in loops.kernel.stages:
        for statement in stage.body:
            if isinstance(statement, Load | Store | Accumulate):
                access = statement.access
                size = kernel.parameters[access.parameter].dtype.bytes
                first, last = _elements(access, axes)
                writes = not isinstance(statement, Load)
                found.append(Touch(access.parameter, first * size, (last + 1) * size, writes))
    return tuple(dict.fromkeys(found))


def touched_by_product(division: Division, begin: int, end: int) -> tuple[Touch, ...]:
    """What units `begin` up to `end` (at least one) of a product touch of its operands; each thread has a workspace of
    its own."""
    word = {name: int(division.table[name]) for name in Word}
    cells, line = word[Word.CELLS], word[Word.LINE]
    (matrix, slow, fast), (last_matrix, last_slow, last_fast) = (
        (unit // cells, unit % cells // line, unit % line) for unit in (begin, end - 1)
    )
    slow_range, fast_range = (0, cells // line - 1), (0, line - 1)
    if matrix == last_matrix:
        slow_range = (slow, last_slow)
        if slow == last_slow:
            fast_range = (fast, last_fast)
    row_cells, column_cells = (fast_range, slow_range) if word[Word.ALONG_N] else (slow_range, fast_range)
    rows = _of_cells(row_cells, word[Word.CELL_M], word[Word.M])
    columns = _of_cells(column_cells, word[Word.CELL_N], word[Word.N])
    along = (0, word[Word.K] - 1)
    places = {
        Pointer.A: (rows, word[Word.A_ROW], along, word[Word.A_K]),
        Pointer.B: (along, word[Word.B_K], columns, word[Word.B_COLUMN]),
        Pointer.C: (rows, word[Word.C_ROW], columns, division.items[Pointer.C]),
    }
    found = []
    for pointer, (outer, outer_step, inner, inner_step) in places.items():
        offsets = division.offsets[matrix : last_matrix + 1, pointer]
        first = int(offsets.min()) + outer[0] * outer_step + inner[0] * inner_step
        last = int(offsets.max()) + outer[1] * outer_step + inner[1] * inner_step
        found.append(Touch(pointer, first, last + division.items[pointer], pointer is Pointer.C))
    return tuple(found)


def _of_cells(cells: Range, size: int, extent: int) -> Range:
    return cells[0] * size, min((cells[1] + 1) * size, extent) - 1


def _box(loops: Loops, begin: int, end: int) -> list[Range]:
    """The indices of each axis that occur in a range of units, whose numbers count the outer axes, then blocks, then
    tiles."""
    ranges: list[Range] = [(0, size - 1) for size in loops.kernel.axes]
    sizes = [*(loops.kernel.axes[axis] for axis in loops.outer), loops.blocks, loops.tiles]
    *outer, blocks, tiles = _digits(sizes, begin, end - 1)
    for axis, digits in zip(loops.outer, outer, strict=True):
        ranges[axis] = digits
    for cut, piece, digits in ((loops.block, BLOCK, blocks), (loops.lane, loops.tile, tiles)):
        if cut is not None:
            ranges[cut] = _of_cells(digits, piece, loops.kernel.axes[cut])
    return ranges


def _digits(sizes: Sequence[int], first: int, last: int) -> list[Range]:
    """The least and the greatest of each digit between two numbers of mixed radix, the slowest first: up to the one in
    which they differ their digits are the same, after it all occur."""
    found: list[Range] = []
    for size in reversed(sizes):
        found.insert(0, (first % size, last % size) if first // size == last // size else (0, size - 1))
        first, last = first // size, last // size
    return found


def _elements(access: Access, axes: Sequence[Range]) -> Range:
    """The first and the last element that an access touches."""
    first = last = access.offset
    for index, step, size in zip(access.indices, access.strides, access.sizes, strict=True):
        low, high = _indices(index, axes, size, access.guarded)
        first, last = first + min(low * step, high * step), last + max(low * step, high * step)
    return first, last


def _indices(index: Index, axes: Sequence[Range], size: int, guarded: bool) -> Range:
    if index.value is not None:
        return 0, size - 1
    low = high = index.constant
    for axis, coefficient in index.terms:
        ends = [coefficient * end for end in axes[axis]]
        low, high = low + min(ends), high + max(ends)
    low, high = low // index.divisor, high // index.divisor
    # A guarded access outside is moved to index 0, or not made.
    return (min(max(low, 0), size - 1), max(min(high, size - 1), 0)) if guarded else (low, high)
