"""Large values that only neighbouring steps use become loops over tiles: whole, they are never in memory.

Scores of attention, and logits with their gradient, are made by a product, worked on by kernels row by row, and
consumed by products. Such a cluster of steps becomes one `Loop`: for each index of the value's outer axes on one
thread, or, where it has none, chunk after chunk of rows on all threads. Nothing here knows of attention: a cluster is
found by its sizes, and cut where `paren.plan.slices` can.

A value that the backward needs again is computed again (`paren.plan.recompute`), if then both its uses can be cut.
Columns that a mask makes irrelevant are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, prod

from paren.ir.types import DType, TensorType
from paren.plan.decision import Decision, Pattern
from paren.plan.exact_sums import sum_in_float32
from paren.plan.kernel import Kernel
from paren.plan.mask import Masked, cut_columns, masked_columns
from paren.plan.memory import place
from paren.plan.plan import Buffer, Launch, Loop, Piece, Place, Plan, Product, Step
from paren.plan.recompute import Uses, compute_again, find_chain, uses_of
from paren.plan.schedule import dependencies
from paren.plan.slices import (
    Grid,
    ProductRoles,
    Tile,
    cut_launch,
    cut_product,
    product_roles,
    row_form,
    rows_fit,
)
from paren.plan.traits import CPU, TileSizes
from paren.text.size import count_of

NEAR = 12  # steps between the first and the last use of a value that a loop can hold
CAUSAL = "causal tiles"  # the name of loops that leave out what a mask removes
MOST_VARIANTS = 8  # numbers of columns for which kernels are compiled


def tile(plan: Plan, sizes: TileSizes = CPU.tiles, *, again: bool = True) -> Plan:
    """The plan with every cluster of steps around a large short-lived value as a loop over tiles of it, and what was
    decided about each. Without `again`, a value that is used late is kept for that, and not made again."""
    uses = uses_of(plan)
    for find in (_find_again, _find) if again else (_find,):
        for value in _large(plan, sizes.smallest):
            if value in uses.touching:  # no loop holds it already
                found = find(plan, uses, value, sizes)
                if found is not None:
                    plan, uses = found, uses_of(found)
    decisions = [_decision(step) for step in plan.steps if isinstance(step, Loop)]
    decisions += [_left_whole(plan, uses, product, sizes) for product in _outer_products(plan, sizes)]
    return replace(plan, decisions=(*plan.decisions, *decisions))


def _decision(loop: Loop) -> Decision:
    pieces = len(loop.body) // len(loop.steps) * loop.iterations
    text = f"{count_of(len(loop.steps), 'step')} in {count_of(pieces, 'tile')} of {loop.lane >> 10} KiB"
    if loop.name == CAUSAL:
        text += ", without what is masked"
    pattern = Pattern.ATTENTION if loop.sizes else Pattern.HEAD
    return Decision(pattern, True, text, loop.spans[0], max(0, loop.whole_bytes - loop.lanes * loop.lane))


def _outer_products(plan: Plan, sizes: TileSizes) -> list[Product]:
    """The products that made values like scores, for several matrices, and like logits, larger than both operands and
    than a tile."""
    bytes_of = {buffer.id: buffer.type.bytes for buffer in plan.buffers}
    large = set(_large(plan, sizes.smallest))
    return [
        step
        for step in plan.steps
        if isinstance(step, Product)
        and step.c.buffer in large
        and bytes_of[step.c.buffer] > max(bytes_of[step.a.buffer], bytes_of[step.b.buffer])
        and (step.batch or bytes_of[step.c.buffer] > sizes.sequential)
    ]


def _left_whole(plan: Plan, uses: Uses, product: Product, sizes: TileSizes) -> Decision:
    buffer = next(buffer for buffer in plan.buffers if buffer.id == product.c.buffer)
    found = find_cluster(plan, uses, buffer.id, sizes)
    reason = found if isinstance(found, str) else "it is no larger than a tile"
    pattern = Pattern.ATTENTION if product.batch else Pattern.HEAD
    return Decision(pattern, False, reason, buffer.span, buffer.type.bytes)


def _large(plan: Plan, smallest: int) -> list[int]:
    """Values that are worth it, largest first."""
    outputs = set(plan.outputs.values())
    found = [
        buffer
        for buffer in plan.buffers
        if buffer.place is Place.ARENA
        and buffer.id not in outputs
        and buffer.type.bytes >= smallest
        and len(_plain(buffer)) >= 2
    ]
    return [buffer.id for buffer in sorted(found, key=lambda buffer: (-buffer.type.bytes, buffer.id))]


def _plain(buffer: Buffer) -> tuple[int, ...]:
    return tuple(size for size in buffer.type.shape if size != 1)


def _find(plan: Plan, uses: Uses, value: int, sizes: TileSizes) -> Plan | None:
    """The plan with the cluster around a value as a loop, if it is one and its tiles are fewer than the whole."""
    cluster = find_cluster(plan, uses, value, sizes)
    if isinstance(cluster, str) or len(tiles_of(plan, cluster, sizes)) * prod(cluster.grid.loops) == 1:
        return None
    return _with_loop(plan, cluster, sizes)


def _find_again(plan: Plan, uses: Uses, value: int, sizes: TileSizes) -> Plan | None:
    """The same for a value that no cluster holds, because it is used again late: it is made again after the widest gap
    between its uses."""
    touching = uses.touching[value]
    gaps = [(after - before, -after) for before, after in pairwise(touching)]
    if not gaps or max(gaps)[0] == 1 or isinstance(find_cluster(plan, uses, value, sizes), Cluster):
        return None
    late = -max(gaps)[1]
    again = find_chain(plan, uses, value, late)
    if again is None:
        return None
    remade = {id for step in again.steps for id in step.writes} - {value}
    if any(uses.touching[id][-1] - uses.touching[id][0] > NEAR for id in remade):
        return None
    doubled, copy = compute_again(plan, again)
    early = _find(doubled, uses_of(doubled), value, sizes)
    if early is None:
        return None
    return _find(early, uses_of(early), copy, sizes)


# Clusters -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cluster:
    """Steps (numbers) that a loop replaces, the values that live in it only, and how they are cut."""

    steps: tuple[int, ...]
    values: frozenset[int]
    grid: Grid
    roles: dict[int, ProductRoles]  # by number of the step
    kernels: dict[int, Kernel]
    masked: Masked | None


def find_cluster(plan: Plan, uses: Uses, value: int, sizes: TileSizes) -> Cluster | str:
    """The cluster around a value, or why there is none, in words."""
    buffers, touching = uses.buffers, uses.touching
    outputs = set(plan.outputs.values())
    shape = _plain(buffers[value])

    def may_live_inside(id: int) -> bool:
        buffer, uses = buffers[id], touching[id]
        inside = buffer.place is Place.ARENA and id not in outputs and _plain(buffer) == shape
        return inside and uses[-1] - uses[0] <= NEAR

    if value not in touching or not may_live_inside(value):
        return "it is used again too far from where it is made"
    values, pending, numbers = {value}, [value], set[int]()
    while pending:
        for number in touching[pending.pop()]:
            if number in numbers:
                continue
            numbers.add(number)
            step = plan.steps[number]
            if not isinstance(step, Launch | Product):
                return "a copy or a loop uses it"
            for id in (*step.reads, *step.writes):
                if id not in values and may_live_inside(id):
                    values.add(id)
                    pending.append(id)
    steps = tuple(sorted(numbers))
    if len(steps) < 2 or not any(isinstance(plan.steps[n], Product) for n in steps):
        return "no product makes or uses it"
    if not _is_convex(plan, steps):
        return "a step outside needs one of its steps and is needed by another"
    for grid in (Grid((), prod(shape[:-1]), shape[-1]), Grid(shape[:-2], shape[-2], shape[-1])):
        cluster = _fit(plan, steps, frozenset(values), grid)
        if cluster is not None:
            return cluster if sizes.lanes or not grid.loops else "one step takes all matrices at once on such a device"
    return "a step that uses it reads or writes other rows than its own"


def _is_convex(plan: Plan, steps: Sequence[int]) -> bool:
    """Whether no step outside stands between two of the cluster: one that needs the one and that the other needs."""
    first, last = steps[0], steps[-1]
    inside = {number - first for number in steps}
    after: set[int] = set()  # steps outside that need one inside
    for number, needs in enumerate(dependencies(plan.steps[first : last + 1])):
        if number in inside:
            if needs & after:
                return False
        elif needs & inside or needs & after:
            after.add(number)
    return True


def _fit(plan: Plan, steps: tuple[int, ...], values: frozenset[int], grid: Grid) -> Cluster | None:
    """The cluster with the roles of its steps, if each can be cut."""
    roles: dict[int, ProductRoles] = {}
    kernels: dict[int, Kernel] = {}
    for number in steps:
        step = plan.steps[number]
        if isinstance(step, Product):
            found = product_roles(step, values, grid)
            if found is None or (found.rows == "k" and step.c.buffer in values):
                return None
            roles[number] = found
        elif isinstance(step, Launch):
            kernel = row_form(step.kernel, grid.columns)
            own = [i for i, id in enumerate(step.buffers) if id in values]
            if kernel is None or not rows_fit(kernel, own, grid):
                return None
            kernels[number] = kernel
    return Cluster(steps, values, grid, roles, kernels, _mask(plan, values, grid, roles, kernels))


def _mask(
    plan: Plan,
    values: frozenset[int],
    grid: Grid,
    roles: dict[int, ProductRoles],
    kernels: dict[int, Kernel],
) -> Masked | None:
    """What a mask removes from every step of the cluster, or None."""
    reach: int | None = None
    zero: set[int] = set()
    for number, kernel in kernels.items():
        step = plan.steps[number]
        assert isinstance(step, Launch)
        own = [i for i, id in enumerate(step.buffers) if id in values]
        if kernel.axes[kernel.rows - 1] != grid.rows:
            return None  # the grid counts several axes as its rows, and the mask knows the last of them only
        found = masked_columns(kernel, grid.columns, own, [i for i in own if step.buffers[i] in zero])
        if found is None:
            return None
        reach = found.reach if reach is None else max(reach, found.reach)
        zero |= {step.buffers[i] for i in found.zero}
    if reach is None or grid.rows + reach < grid.columns:
        return None
    for number in roles:
        step = plan.steps[number]
        assert isinstance(step, Product)
        if any(matrix.buffer in values and matrix.buffer not in zero for matrix in (step.a, step.b)):
            return None
    return Masked(reach, frozenset(zero))


# Loops --------------------------------------------------------------------------------------------------------------


def _with_loop(plan: Plan, cluster: Cluster, sizes: TileSizes) -> Plan:
    """The plan with a loop in place of the cluster's steps, where the last of them stood; steps between that need a
    result of the cluster come after it."""
    inside = set(cluster.steps)
    first, last = cluster.steps[0], cluster.steps[-1]
    needs = dependencies(plan.steps[: last + 1])
    after: set[int] = set()
    for number in range(first, last):
        if number not in inside and needs[number] & (inside | after):
            after.add(number)
    between = [n for n in range(first, last) if n not in inside and n not in after]
    parts = len(tiles_of(plan, cluster, sizes))
    plan, roundings = sum_in_float32(plan, [n for n, r in cluster.roles.items() if r.rows == "k" and parts > 1])
    loop, scratch = make_loop(plan, cluster, max(buffer.id for buffer in plan.buffers) + 1, sizes)
    order: list[Step] = [plan.steps[n] for n in (*range(first), *between)]
    order += [loop, *roundings]
    order += [plan.steps[n] for n in (*sorted(after), *range(last + 1, len(plan.steps)))]
    buffers = tuple(buffer for buffer in plan.buffers if buffer.id not in cluster.values)
    return replace(plan, buffers=(*buffers, scratch), steps=tuple(order))


def make_loop(plan: Plan, cluster: Cluster, scratch_id: int, sizes: TileSizes) -> tuple[Loop, Buffer]:
    """The loop of a cluster and the buffer of its scratch."""
    grid = cluster.grid
    lanes = prod(grid.loops)
    parallel = lanes > 1
    tiles = tiles_of(plan, cluster, sizes)
    rows = max(t.last - t.first for t in tiles)
    types = {buffer.id: buffer.type.dtype for buffer in plan.buffers}
    places, lane = _place_values(plan, cluster, rows, scratch_id)
    lanes = max(1, min(lanes, sizes.lanes, sizes.lane_bytes // lane))
    body: list[Piece] = []
    for each in tiles:
        for number in cluster.steps:
            step = plan.steps[number]
            if isinstance(step, Product):
                body.append(cut_product(step, cluster.roles[number], each, grid, places, types))
            elif isinstance(step, Launch):
                kernel = cluster.kernels[number]
                if each.columns < grid.columns:
                    kernel = cut_columns(kernel, each.columns)
                body.append(cut_launch(step, kernel, each, grid, places, types))
    span = next(step.spans[0] for step in (plan.steps[n] for n in cluster.steps))
    scratch = Buffer(scratch_id, "tiles", TensorType(DType.UINT8, (lanes * lane,)), Place.ARENA, 0, 0, 0, span)
    whole = sum(buffer.type.bytes for buffer in plan.buffers if buffer.id in cluster.values)
    steps = tuple(step for step in (plan.steps[n] for n in cluster.steps) if isinstance(step, Launch | Product))
    name = CAUSAL if cluster.masked is not None else "tiles"
    return Loop(name, grid.loops, lanes if parallel else 1, lane, scratch_id, tuple(body), steps, whole), scratch


def tiles_of(plan: Plan, cluster: Cluster, sizes: TileSizes) -> list[Tile]:
    """The tiles in the order in which they run: the last rows first, for only they may need all columns."""
    grid, masked = cluster.grid, cluster.masked
    item = max(buffer.type.dtype.bytes for buffer in plan.buffers if buffer.id in cluster.values)
    limit = sizes.parallel if prod(grid.loops) > 1 else sizes.sequential
    least = sizes.least_rows
    rows = max(least, limit // (grid.columns * item) // least * least)
    if masked is not None:
        rows = min(rows, max(least, grid.rows // MOST_VARIANTS))
    even = ceil(grid.rows / ceil(grid.rows / rows))
    rows = ceil(even / least) * least
    count = -(-grid.rows // rows)
    step = -(-grid.columns // MOST_VARIANTS)
    tiles = []
    for number in reversed(range(count)):
        first, last = number * rows, min(grid.rows, (number + 1) * rows)
        columns = grid.columns
        if masked is not None:
            columns = min(columns, -(-max(1, last + masked.reach) // step) * step)
        tiles.append(Tile(first, last, columns, number == count - 1))
    return tiles


def _place_values(plan: Plan, cluster: Cluster, rows: int, scratch: int) -> tuple[dict[int, tuple[int, int]], int]:
    """Where the tile of each value lies in a lane, as (buffer, offset in its elements), and the bytes of a lane.

    The same placement as for whole buffers, of the cluster's steps alone: a tile may lie on one that ends with it.
    """
    steps = tuple(plan.steps[n] for n in cluster.steps)
    tile_type = (rows * cluster.grid.columns,)
    touched = {id for step in steps for id in (*step.reads, *step.writes)}
    buffers = tuple(
        replace(buffer, type=TensorType(buffer.type.dtype, tile_type))
        if buffer.id in cluster.values
        else replace(buffer, place=Place.INPUT)
        for buffer in plan.buffers
        if buffer.id in touched
    )
    placed = place(Plan("tiles", buffers, steps, {}, 0, ()))
    places = {
        buffer.id: (scratch, buffer.offset // buffer.type.dtype.bytes)
        for buffer in placed.buffers
        if buffer.id in cluster.values
    }
    return places, placed.arena_bytes
