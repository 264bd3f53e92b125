"""Proof that the pieces of a loop do what its whole steps would: every row and every part of a product once, within the
buffers, and in the scratch within the lane.

Independent of how the pieces were cut. Whether a mask may leave columns out is not checked here: `paren.plan.mask` says
what it assumes, and tests compare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from paren.ir.types import DType
from paren.plan.kernel import Access, Accumulate, Kernel, Load, Store
from paren.plan.plan import Buffer, Launch, Loop, Matrix, Piece, Product
from paren.text.errors import InternalError


def check_loop(loop: Loop, buffers: Mapping[int, Buffer]) -> None:
    """Raises `InternalError` that names the piece which breaks a rule."""
    if loop.lanes * loop.lane > buffers[loop.scratch].type.bytes:
        raise InternalError(
            "plan", f"the scratch of {loop.name} has no room for {loop.lanes} lanes of {loop.lane} bytes"
        )
    if len(loop.body) % len(loop.steps):
        raise InternalError("plan", f"{loop.name} has {len(loop.body)} pieces of {len(loop.steps)} steps")
    for number, step in enumerate(loop.steps):
        pieces = loop.body[number :: len(loop.steps)]
        if isinstance(step, Launch):
            _check_rows(loop, step, pieces)
        else:
            _check_parts(loop, step, pieces)
    for piece in loop.body:
        if isinstance(piece.step, Product):
            check_types(piece.step, piece.dtypes)
        _check_places(loop, piece, buffers)


def check_types(step: Product, dtypes: Sequence[DType]) -> None:
    """The element types are those that a product takes."""
    if step.rounded:
        fits = all(dtype is DType.FLOAT32 or dtype.is_short for dtype in dtypes)
        fits = fits and not (step.accumulate and dtypes[2].is_short)
    else:
        fits = len(set(dtypes)) == 1 and dtypes[0] in (DType.FLOAT64, DType.FLOAT32)
    if not fits:
        into = "and adds to" if step.accumulate else "into"
        raise InternalError("plan", f"{step.nodes[0]} multiplies {dtypes[0]} by {dtypes[1]} {into} {dtypes[2]}")


def _check_rows(loop: Loop, step: Launch, pieces: tuple[Piece, ...]) -> None:
    """The rows of all pieces and iterations are the kernel's rows, each once."""
    name = step.nodes[0]
    total = prod(step.kernel.axes[: step.kernel.rows])
    ranges = sorted((piece.first, piece.first + piece.rows) for piece in pieces)
    end = 0
    for first, last in ranges:
        if first != end:
            raise InternalError("plan", f"rows {end} to {first} of {name} are computed twice or not at all")
        end = last
    for size, move in reversed(list(zip(loop.sizes, pieces[0].row_moves, strict=True))):
        if move != end:
            raise InternalError("plan", f"an iteration moves {name} by {move} rows, not by {end}")
        end *= size
    rows = prod(pieces[0].step.kernel.axes[: pieces[0].step.kernel.rows]) if isinstance(pieces[0].step, Launch) else 0
    # A kernel whose last row axis became the axis of its stages has fewer rows; each stands for that many.
    if end != rows or total % rows:
        raise InternalError("plan", f"{name} has {total} rows, {end} are computed")
    if any(piece.row_moves != pieces[0].row_moves for piece in pieces):
        raise InternalError("plan", f"the pieces of {name} move by different rows")


def _check_parts(loop: Loop, step: Product, pieces: tuple[Piece, ...]) -> None:
    """One dimension is cut into parts that together are whole; a sum over k starts once."""
    parts = [piece.step for piece in pieces if isinstance(piece.step, Product)]
    name = step.nodes[0]
    if len(parts) != len(pieces) or sorted(step.batch) != sorted(loop.sizes):
        raise InternalError("plan", f"the pieces of {name} are no parts of its product")
    whole = (step.m, step.n, step.k)
    sums = [sum(part.m for part in parts), sum(part.n for part in parts), sum(part.k for part in parts)]
    cut = [i for i in range(3) if sums[i] == whole[i]]
    if not cut:
        raise InternalError("plan", f"the pieces of {name} do not add up to it")
    if step.accumulate:
        starts = 0
    else:
        starts = 1 if cut == [2] else len(parts)
    begun = sum(not part.accumulate for part in parts)
    if begun != starts or (starts == 1 and parts[0].accumulate):
        raise InternalError("plan", f"{begun} pieces of {name} begin a sum, not {starts}")
    if starts == 1 and (parts[0].m, parts[0].n) != (step.m, step.n):
        raise InternalError("plan", f"the first piece of {name} does not fill its result")


def _check_places(loop: Loop, piece: Piece, buffers: Mapping[int, Buffer]) -> None:
    """What a piece touches lies within its buffers, at all indices of the loop."""
    step = piece.step
    for number, id in enumerate(piece.buffers):
        low, high = _reach(step, number, piece, loop)
        size = loop.lane if id == loop.scratch else buffers[id].type.bytes
        if id != loop.scratch and buffers[id].type.dtype is not piece.dtypes[number]:
            raise InternalError("plan", f"{step.nodes[0]} takes {buffers[id].name} as {piece.dtypes[number]}")
        if not 0 <= low <= high < size // piece.dtypes[number].bytes:
            raise InternalError(
                "plan",
                f"{step.nodes[0]} touches elements {low} to {high} of {buffers[id].name}, which has {size} bytes",
            )


def _reach(step: Launch | Product, number: int, piece: Piece, loop: Loop) -> tuple[int, int]:
    """The first and the last element that parameter `number` is touched at."""
    if isinstance(step, Launch):
        found = [
            _access_reach(step.kernel, stage.axes, s.access, piece, loop)
            for stage in step.kernel.stages
            for s in stage.body
            if isinstance(s, Load | Store | Accumulate) and s.access.parameter == number
        ]
        return min(low for low, _ in found), max(high for _, high in found)
    matrix: Matrix = (step.a, step.b, step.c)[number]
    rows, columns = ((step.m, step.k), (step.k, step.n), (step.m, step.n))[number]
    if matrix.transposed:
        rows, columns = columns, rows
    low = high = matrix.offset + piece.offsets[number]
    high += (rows - 1) * matrix.leading + columns - 1
    return _moved(low, high, piece.moves[number], loop)


def _moved(low: int, high: int, moves: tuple[int, ...], loop: Loop) -> tuple[int, int]:
    for size, move in zip(loop.sizes, moves, strict=True):
        low, high = low + min(0, move * (size - 1)), high + max(0, move * (size - 1))
    return low, high


def _access_reach(kernel: Kernel, axes: tuple[int, ...], access: Access, piece: Piece, loop: Loop) -> tuple[int, int]:
    """Exact for accesses that count rows one by one (row number x step + something), else over all rows."""
    moved = piece.offsets[access.parameter]
    if not access.is_affine:
        low = high = access.offset + moved
        high += sum(stride * (size - 1) for stride, size in zip(access.strides, access.sizes, strict=True))
        return _moved(low, high, piece.moves[access.parameter], loop)
    terms = access.steps
    low = high = access.start + moved
    for axis in axes:
        reach = terms.get(axis, 0) * (kernel.axes[axis] - 1)
        low, high = low + min(0, reach), high + max(0, reach)
    step = _row_step(kernel, terms)
    if step is None:
        for axis in range(kernel.rows):
            reach = terms.get(axis, 0) * (kernel.axes[axis] - 1)
            low, high = low + min(0, reach), high + max(0, reach)
        return _moved(low, high, piece.moves[access.parameter], loop)
    low, high = low + step * piece.first, high + step * (piece.first + piece.rows - 1)
    moves = tuple(move + step * rows for move, rows in zip(piece.moves[access.parameter], piece.row_moves, strict=True))
    return _moved(low, high, moves, loop)


def _row_step(kernel: Kernel, terms: Mapping[int, int]) -> int | None:
    """The elements from each row to the next, where that is one number."""
    step: int | None = None
    expected = 1
    for axis in reversed(range(kernel.rows)):
        if kernel.axes[axis] == 1:
            continue
        each = terms.get(axis, 0)
        if step is None:
            step = each
        elif each != step * expected:
            return None
        expected *= kernel.axes[axis]
    return step or 0
