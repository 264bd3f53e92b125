"""The loops of a kernel around its statements: rows, stages in dependency order, axes split where reshapes need it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import cast

import numpy as np

from paren.ir.graph import Node
from paren.ir.types import DType
from paren.plan.body import Body, Indices, Uncomputable
from paren.plan.fuse import CHUNK, FEW_ROWS, Group, domain_of
from paren.plan.index import ZERO, NeedsSplit, add, affine
from paren.plan.kernel import Accumulate, Index, Kernel, Load, Reduce, Stage, Statement, Store
from paren.plan.storage import is_reduction

LoadFrom = Callable[[Node], "int | None"]
MOST_SPLITS = 40


@dataclass
class Axes:
    """Kernel axes by what they run over. A dimension is a tuple key and a size; splits cut it into several axes."""

    rows: tuple[int, ...]
    splits: dict[tuple[object, ...], tuple[int, ...]] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    dimension: list[tuple[object, ...]] = field(default_factory=list)
    row_count: int = 0
    row_index: Indices = ()
    _stages: dict[tuple[int, ...], tuple[tuple[int, ...], Indices]] = field(default_factory=dict)

    def open(self) -> None:
        """Makes the row axes. A kernel has at least one."""
        self.sizes, self.dimension, self._stages = [], [], {}
        found = [self._dimension(("row", i), size) for i, size in enumerate(self.rows)]
        self.row_index = tuple(index for _, index in found)
        if not self.sizes:
            self.sizes.append(1)
            self.dimension.append(("row", -1))
        self.row_count = len(self.sizes)

    def stage(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], Indices]:
        """The axes and the indices of a stage over `shape`; stages of equal shape share axes."""
        if shape not in self._stages:
            found = [self._dimension(("stage", shape, i), size) for i, size in enumerate(shape)]
            axes = tuple(axis for numbers, _ in found for axis in numbers)
            if not axes:
                # A loop needs an axis to run over, be it once.
                axes = (len(self.sizes),)
                self.sizes.append(1)
                self.dimension.append(("stage", shape, -1))
            self._stages[shape] = (axes, tuple(index for _, index in found))
        return self._stages[shape]

    def split(self, axis: int, inner: int) -> None:
        """Cuts an axis in two from the next `open` on."""
        key = self.dimension[axis]
        members = [i for i, k in enumerate(self.dimension) if k == key]
        parts = [self.sizes[i] for i in members]
        place = members.index(axis)
        parts[place : place + 1] = [parts[place] // inner, inner]
        self.splits[key] = tuple(parts)

    def _dimension(self, key: tuple[object, ...], size: int) -> tuple[list[int], Index]:
        if size == 1:
            return [], Index()
        parts = self.splits.get(key, (size,))
        numbers = []
        for part in parts:
            numbers.append(len(self.sizes))
            self.sizes.append(part)
            self.dimension.append(key)
        terms = []
        step = 1
        for number, part in reversed(list(zip(numbers, parts, strict=True))):
            terms.append((number, step))
            step *= part
        return numbers, Index(tuple(sorted(terms)))


Write = Callable[[Body, Axes], list[Stage]]


def _build(
    name: str, rows: tuple[int, ...], stages: list[tuple[int, ...]], root: Node, load_from: LoadFrom, write: Write
) -> tuple[Body, Kernel]:
    """Writes a kernel, again with a split axis whenever a reshape asks for one."""
    axes = Axes(rows)
    for _ in range(MOST_SPLITS):
        axes.open()
        for shape in stages:
            axes.stage(shape)
        body = Body(axes.sizes, axes.row_count, load_from)
        try:
            written = write(body, axes)
        except NeedsSplit as need:
            axes.split(need.axis, need.inner)
            continue
        kernel = Kernel(name, tuple(axes.sizes), axes.row_count, tuple(body.parameters), tuple(written))
        return body, kernel
    raise Uncomputable(root)


def _name(nodes: list[Node]) -> str:
    return "_".join(dict.fromkeys(node.op.name for node in nodes))[:60]


# Groups -------------------------------------------------------------------------------------------------------------


def group_kernel(group: Group, targets: Mapping[int, int], load_from: LoadFrom) -> tuple[Body, Kernel]:
    """The kernel of a map, row or column group. `targets` are the buffers of the members that are kept."""
    members = [m for m in group.members if m.number in targets or is_reduction(m)]
    levels = _levels(members, load_from)
    shapes = list(dict.fromkeys(_stage_shape(m, group) for m in members if _needs_loop(m, group)))

    def write(body: Body, axes: Axes) -> list[Stage]:
        return _GroupWriter(group, members, levels, targets, body, axes).run()

    return _build(_name(members), group.rows, shapes, members[-1], load_from, write)


def _stage_shape(node: Node, group: Group) -> tuple[int, ...]:
    return domain_of(node).stage if is_reduction(node) else node.shape[len(group.rows) :]


def _needs_loop(node: Node, group: Group) -> bool:
    return is_reduction(node) or prod(_stage_shape(node, group)) > 1


def _levels(members: list[Node], load_from: LoadFrom) -> dict[int, int]:
    """For each member how many reductions of the kernel must have run one after another before it."""
    levels: dict[int, int] = {}
    inner: dict[int, int] = {}
    reductions = {m.number for m in members if is_reduction(m)}

    def level(node: Node) -> int:
        if node.number in reductions:
            return levels[node.number] + 1
        if node.number not in inner:
            pending = [] if node.op.name == "input" or load_from(node) is not None else node.args
            inner[node.number] = max((level(arg) for arg in pending), default=0)
        return inner[node.number]

    for member in members:
        levels[member.number] = max((level(arg) for arg in member.args), default=0)
    return levels


@dataclass
class _GroupWriter:
    group: Group
    members: list[Node]
    levels: dict[int, int]
    targets: Mapping[int, int]
    body: Body
    axes: Axes

    def run(self) -> list[Stage]:
        stages: list[Stage] = []
        waiting: list[Node] = []  # reductions of the level before, to be stored once a row
        for level in range(max(self.levels.values()) + 2):
            here = [m for m in self.members if self.levels[m.number] == level]
            prologue: list[Statement] = []
            self.body.prologue = prologue
            self.body.open_loop(None, {})
            for node in waiting:
                self.body.store(self.targets[node.number], node, self.axes.row_index, self.body.known[node.number])
            loops: dict[tuple[int, ...], tuple[list[Statement], dict[tuple[object, ...], int]]] = {}
            found: dict[int, int] = {}
            waiting = []
            for node in here:
                shape = _stage_shape(node, self.group)
                if _needs_loop(node, self.group):
                    statements, values = loops.setdefault(shape, ([], {}))
                    self.body.open_loop(statements, values)
                else:
                    self.body.open_loop(None, {})
                if is_reduction(node):
                    found[node.number] = self._reduce(node, shape)
                    if node.number in self.targets:
                        waiting.append(node)
                else:
                    indices = self._indices(shape)
                    self.body.store(self.targets[node.number], node, indices, self.body.value(node, indices))
            # A reduction is known only after its loop: members of this level do not read it.
            self.body.known.update(found)
            self.body.filled.update(
                {n.number: self.targets[n.number] for n in here if not is_reduction(n) and _needs_loop(n, self.group)}
            )
            if prologue:
                stages.append(Stage((), tuple(prologue)))
            for shape, (statements, _) in loops.items():
                stages.append(Stage(self.axes.stage(shape)[0], tuple(statements)))
        return stages

    def _indices(self, shape: tuple[int, ...]) -> Indices:
        return self.axes.row_index + (self.axes.stage(shape)[1] if prod(shape) > 1 else (ZERO,) * len(shape))

    def _reduce(self, node: Node, shape: tuple[int, ...]) -> int:
        stage = self.axes.stage(shape)[1]
        value, kind = reduced_value(self.body, node, self.axes.row_index, stage)
        number = self.body.fresh(row_level=True)
        assert self.body.loop is not None
        self.body.loop.append(Reduce(number, kind, value, node.dtype))
        return number


def reduced_value(body: Body, node: Node, rows: Indices, stage: Indices) -> tuple[int, str]:
    """The value that a reduction combines at row indices `rows` and stage indices `stage`, and how it combines."""
    arg = node.args[0]
    if node.op.name == "fold":
        return _folded(body, node, rows, stage), "sum"
    axes = domain_of(node).axes
    kept = iter(rows)
    reduced = dict(zip(axes, stage, strict=True))
    indices = tuple(reduced[i] if i in reduced else next(kept) for i in range(arg.type.rank))
    return body.value(arg, indices), node.op.name


def _folded(body: Body, node: Node, rows: Indices, stage: Indices) -> int:
    """The gradient that element (n, c, y, x) of an image gets through one position of the window.

    The window at output o reads y = o x stride + position x dilation - low, so o = (y + low - position x dilation) /
    stride.
    """
    stride, dilation = cast(tuple[int, int], node.attrs["stride"]), cast(tuple[int, int], node.attrs["dilation"])
    padding = cast(tuple[tuple[int, int], tuple[int, int]], node.attrs["padding"])
    places = []
    for axis in (0, 1):
        moved = add(affine(rows[2 + axis], 1, padding[axis][0]), affine(stage[axis], -dilation[axis], 0))
        places.append(Index(moved.terms, moved.constant, stride[axis]))
    return body.value(node.args[0], (rows[0], rows[1], *stage, *places))


# Other kernels ------------------------------------------------------------------------------------------------------


def value_kernel(value: Node, target: Node, buffer: int, load_from: LoadFrom) -> tuple[Body, Kernel]:
    """A kernel that writes `value` to the buffer of `target`, which has its type."""

    def write(body: Body, axes: Axes) -> list[Stage]:
        number = body.value(value, axes.row_index)
        body.store(buffer, target, axes.row_index, number)
        return [Stage((), tuple(body.prologue))]

    return _build(f"base_{target.op.name}", target.shape, [], value, load_from, write)


def scatter_kernel(node: Node, buffer: int, load_from: LoadFrom) -> tuple[Body, Kernel]:
    """A kernel that adds the updates of a scatter-add to a buffer: rows are the kept axes, the stage runs over
    updates."""
    ids, updates = node.args[1], node.args[2]
    kept = node.shape[1:]

    def write(body: Body, axes: Axes) -> list[Stage]:
        numbers, stage = axes.stage(ids.shape)
        statements: list[Statement] = []
        body.open_loop(statements, {})
        place = body.value(ids, stage)
        value = body.value(updates, stage + axes.row_index)
        parameter = body.parameter(buffer, node.dtype, node.type.size, reads=True, writes=True)
        access = body.access(parameter, node.shape, (Index(value=place), *axes.row_index))
        statements.append(Accumulate(access, value))
        before = [Stage((), tuple(body.prologue))] if body.prologue else []
        return [*before, Stage(numbers, tuple(statements))]

    return _build("scatter_add", kept, [ids.shape], updates, load_from, write)


@dataclass(frozen=True)
class Cut:
    """How a long reduction is cut: reduced axis number `place` into `chunks` of `length`; the last may be shorter."""

    place: int
    chunks: int
    length: int


def cut(node: Node) -> Cut:
    """Cuts a reduced axis so that a chunk holds about `CHUNK` elements: the first that is long, so that the elements of
    a chunk lie side by side in most values, else the longest."""
    stage = domain_of(node).stage
    long = [i for i, size in enumerate(stage) if size >= FEW_ROWS]
    place = long[0] if long else max(range(len(stage)), key=lambda i: stage[i])
    others = prod(stage) // stage[place]
    length = max(1, min(stage[place], CHUNK // max(1, others)))
    return Cut(place, -(-stage[place] // length), length)


def chunked_kernels(node: Node, partial: int, target: int, load_from: LoadFrom) -> Iterator[tuple[Body, Kernel]]:
    """Two kernels for a long reduction with few rows: one row per chunk into `partial`, then the chunks into
    `target`."""
    stage, piece = domain_of(node).stage, cut(node)
    shape = (*stage[: piece.place], piece.length, *stage[piece.place + 1 :])
    rows = (*node.shape, piece.chunks)
    identity = _identity(node)

    def write_chunks(body: Body, axes: Axes) -> list[Stage]:
        numbers, inner = axes.stage(shape)
        statements: list[Statement] = []
        body.open_loop(statements, {})
        whole = add(affine(axes.row_index[-1], piece.length, 0), inner[piece.place])
        indices = (*inner[: piece.place], whole, *inner[piece.place + 1 :])
        value, kind = reduced_value(body, node, axes.row_index[:-1], indices)
        if piece.chunks * piece.length != stage[piece.place]:
            place = body.axis_index(whole, DType.INT64)
            inside = body.compute("lt", (place, body.constant(stage[piece.place], DType.INT64)), DType.BOOL)
            value = body.compute("where", (inside, value, body.constant(identity, node.dtype)), node.dtype)
        number = body.fresh(row_level=True)
        statements.append(Reduce(number, kind, value, node.dtype))
        return _finish(body, axes, Stage(numbers, tuple(statements)), partial, rows, number, node)

    def write_total(body: Body, axes: Axes) -> list[Stage]:
        numbers, inner = axes.stage((piece.chunks,))
        statements: list[Statement] = []
        body.open_loop(statements, {})
        parameter = body.parameter(partial, node.dtype, prod(rows), reads=True)
        access = body.access(parameter, rows, axes.row_index + inner)
        loaded = body.fresh(row_level=False)
        statements.append(Load(loaded, access, node.dtype))
        number = body.fresh(row_level=True)
        statements.append(Reduce(number, node.op.name, loaded, node.dtype))
        return _finish(body, axes, Stage(numbers, tuple(statements)), target, node.shape, number, node)

    yield _build(f"chunks_{node.op.name}", rows, [shape], node, load_from, write_chunks)
    yield _build(f"total_{node.op.name}", node.shape, [(piece.chunks,)], node, load_from, write_total)


def _finish(
    body: Body, axes: Axes, loop: Stage, buffer: int, shape: tuple[int, ...], value: int, node: Node
) -> list[Stage]:
    """The stages before, the loop, and one that stores the row's result in a buffer of `shape`."""
    parameter = body.parameter(buffer, node.dtype, prod(shape), writes=True)
    store = Store(body.access(parameter, shape, axes.row_index), value)
    before = [Stage((), tuple(body.prologue))] if body.prologue else []
    return [*before, loop, Stage((), (store,))]


def _identity(node: Node) -> float | int:
    """The value that changes nothing when it is combined."""
    if node.op.name == "sum":
        return 0
    if node.dtype.is_float:
        return float("-inf") if node.op.name == "max" else float("inf")
    limits = np.iinfo(node.dtype.value)
    return int(limits.min if node.op.name == "max" else limits.max)
