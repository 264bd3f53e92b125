"""The CPU: kernels as machine code on the threads of libgomp, products included, a whole plan in one native call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from functools import cached_property, partial
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paren.codegen.division import Division, arithmetic, divide, form_of, workspace_bytes
from paren.codegen.driver import DRIVER, MOST_POINTERS, WORDS, Call, Kind
from paren.codegen.llvm import emit_kernel, parallel_units
from paren.codegen.loops import arrange, work
from paren.codegen.product import emit_product
from paren.codegen.product_table import Pointer
from paren.codegen.touches import Touch, touched_by_kernel, touched_by_product
from paren.codegen.walk import emit_walk
from paren.ir.types import DType
from paren.plan.kernel import Kernel
from paren.plan.plan import Launch, Loop, Piece, Product
from paren.runtime.cache import KernelCache, kernel_key
from paren.runtime.kernels_only import KernelsOnly
from paren.runtime.meetings import Reach
from paren.runtime.memory import Available, Bytes, allocate, available_memory, resident_bytes
from paren.runtime.native import Compiler
from paren.runtime.native_call import RUN, NativeCall
from paren.runtime.openmp import find_openmp
from paren.runtime.task import Addresses, Cell, Runs, Task, Words, address_of
from paren.runtime.threads import default_threads
from paren.runtime.walk import NativeWalk, Walk
from paren.text.errors import InternalError

LEAST_PART = 1 << 7  # scalar statements, or multiply-adds of products, that a thread of a team takes part for
POOL_WORK = 1 << 20  # the same that the fall-back's threads are started for
WIDENED = "products of bfloat16 are computed in float32, which this processor multiplies faster"
KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


@dataclass(frozen=True)
class _Loaded:
    address: int
    units: int
    work: int
    touches: Callable[[int, int], Sequence[Touch]]


@dataclass(frozen=True)
class _Bound:
    """A product whose table of pointers lacks A, B and C, which belong at `places`; `held` is what others point to."""

    loaded: _Loaded
    pointers: Addresses
    places: tuple[int, int, int]
    held: tuple[object, ...]


class CpuDevice(KernelsOnly):
    """`threads` None means the physical cores this process may use. `openmp` False switches to the
    fall-back: a pool of Python threads."""

    name = "cpu"
    own_memory = False
    link = None

    def __init__(
        self,
        threads: int | None = None,
        cache: Path | None = None,
        reason: str = "",
        *,
        openmp: bool = True,
    ) -> None:
        self.threads = threads if threads is not None else default_threads()
        self.reason = reason
        self.compiler = Compiler(KernelCache(cache))
        self._kernels: dict[str, _Loaded] = {}
        self._products: dict[DType, int] = {}
        self._divisions: dict[Hashable, Division] = {}
        self._workspaces: Bytes | None = None
        self._openmp = find_openmp() if openmp else None
        self._pool: ThreadPoolExecutor | None = None
        self._fallbacks: list[str] = []
        if self.threads > 1 and self._openmp is None:
            self._fallbacks.append(
                "libgomp was not found: kernels run on Python threads, which costs more for each step"
            )
            self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="paren")
        self._table = np.zeros(len(Call), np.uint64)
        if self._openmp is not None:
            self._table[:] = astuple(self._openmp)
        self._run = RUN(self.compiler.load({"driver": DRIVER}, "run")["driver"])

    @property
    def target(self) -> str:
        return self.compiler.target

    @cached_property
    def walk(self) -> Walk:
        text = emit_walk("walk", self.compiler.vector_bits)
        return NativeWalk(self.compiler.load({"walk": text}, "walk", optimise=False)["walk"], self.compiler)

    @property
    def compiled(self) -> int:
        return self.compiler.compiled

    @property
    def reused(self) -> int:
        return self.compiler.reused

    @property
    def notes(self) -> Sequence[str]:
        return (*self._fallbacks, *self.compiler.cache.notes)

    def available(self) -> Available:
        return available_memory()

    def used_bytes(self) -> int:
        return resident_bytes()

    def allocate(self, size: int) -> Bytes:
        return allocate(size)

    def load(
        self,
        kernels: Sequence[Kernel],
        by_rows: Sequence[Kernel] = (),
        products: Sequence[tuple[Product, Sequence[DType]]] = (),
    ) -> None:
        wanted = [(kernel, False) for kernel in kernels]
        # Most kernels that loops run have rows as their units anyway.
        wanted += [(kernel, arrange(kernel).lane is not None) for kernel in by_rows]
        missing = {kernel_key(kernel, rows): (kernel, rows) for kernel, rows in wanted}
        missing = {key: entry for key, entry in missing.items() if key not in self._kernels}
        bits = self.compiler.vector_bits
        texts = {key: emit_kernel(kernel, "kernel", bits, rows) for key, (kernel, rows) in missing.items()}
        types = {arithmetic(product, dtypes[2]) for product, dtypes in products} - self._products.keys()
        functions = {dtype: emit_product(self.compiler.tile, dtype, "product") for dtype in DType if dtype in types}
        aside = [(text, True) for text in texts.values()] + [(text, False) for text in functions.values()]
        self.compiler.compile_aside(aside, self.threads)
        for dtype, text in functions.items():
            self._products[dtype] = self.compiler.load({dtype.value: text}, "product", optimise=False)[dtype.value]
        for key, address in self.compiler.load(texts, "kernel").items():
            kernel = missing[key][0]
            self._kernels[key] = _Loaded(
                address, parallel_units(kernel), work(kernel), partial(touched_by_kernel, kernel)
            )

    def launch(self, kernel: Kernel, cells: Sequence[Cell]) -> Task:
        loaded = self._kernels[kernel.digest]
        pointers = np.zeros(len(cells), np.uint64)
        for place, cell in enumerate(cells):
            cell.watch(pointers, place)
        return self._units(loaded, pointers, *cells)

    def library(self, product: Product, dtypes: tuple[DType, DType, DType], a: Cell, b: Cell, c: Cell) -> Task:
        bound = self._product(product, dtypes)
        for place, cell in zip(bound.places, (a, b, c), strict=True):
            cell.watch(bound.pointers, place)
        return self._units(bound.loaded, bound.pointers, bound, a, b, c)

    def _product(self, product: Product, dtypes: Sequence[DType]) -> _Bound:
        """A product without its operands' addresses."""
        shape, dtype = self.compiler.tile, arithmetic(product, dtypes[2])
        if self._workspaces is None:
            self._workspaces = allocate(self.threads * workspace_bytes(shape), sparse=True)
        if product.rounded and not shape.pairs and WIDENED not in self._fallbacks:
            self._fallbacks.append(WIDENED)
        if dtype not in self._products:
            self.load((), (), [(product, dtypes)])
        form = form_of(product, dtypes)
        division = self._divisions.get(form)
        if division is None:
            division = self._divisions[form] = divide(product, dtypes, shape, self.threads)
        work = product.m * product.n * product.k * len(division.offsets)
        loaded = _Loaded(self._products[dtype], division.units, work, partial(touched_by_product, division))
        pointers = np.zeros(len(Pointer), np.uint64)
        held = (division.table, division.offsets, self._workspaces)
        pointers[Pointer.TABLE :] = [address_of(array) for array in held]
        places = (Pointer.B, Pointer.A, Pointer.C) if division.swapped else (Pointer.A, Pointer.B, Pointer.C)
        return _Bound(loaded, pointers, places, held)

    def _units(self, loaded: _Loaded, pointers: Addresses, *keep: object) -> Task:
        """A task for the units of a function."""
        if self._pool is not None and loaded.work >= POOL_WORK and loaded.units > 1:
            return Task(self._on_pool(loaded, pointers, self._pool), keep=(pointers, *keep))
        parts = self._parts(loaded)
        record = np.zeros((1, WORDS), np.int64)
        record[0, :5] = (Kind.KERNEL, loaded.address, loaded.units, parts, pointers.ctypes.data)
        reach = Reach(pointers, loaded.touches, loaded.units, parts, loaded.work)
        return self._native(record, (reach,), pointers, *keep)

    def _parts(self, loaded: _Loaded) -> int:
        """How many threads share the units of a function."""
        threads = self.threads if self._openmp is not None else 1
        return max(1, min(threads, loaded.units, loaded.work // LEAST_PART))

    def loop(self, loop: Loop, cells: Mapping[int, Cell]) -> Task:
        if loop.lanes > 1:
            return self._side_by_side(loop, cells)
        parts = [self._piece(loop, piece, cells, shared=True) for piece in loop.body]
        return self._native(np.concatenate([record for record, _ in parts]), (), *(keep for _, keep in parts))

    def _side_by_side(self, loop: Loop, cells: Mapping[int, Cell]) -> Task:
        """A loop whose iterations the threads share out."""
        parts = [self._piece(loop, piece, cells, shared=False) for piece in loop.body]
        body = np.concatenate([record for record, _ in parts])
        team = min(self.threads, loop.lanes) if self._openmp is not None else 1
        record = np.zeros((1, WORDS), np.int64)
        record[0, :4] = (Kind.LOOP, body.ctypes.data, loop.iterations, team)
        record[0, 6] = len(loop.body)
        return self._native(record, (), body, *(keep for _, keep in parts))

    def _piece(
        self, loop: Loop, piece: Piece, cells: Mapping[int, Cell], *, shared: bool
    ) -> tuple[Words, tuple[object, ...]]:
        """The record of a piece, int64[1 WORDS], and what it points to. `shared`: all threads may take part."""
        step = piece.step
        offsets = [offset * dtype.bytes for offset, dtype in zip(piece.offsets, piece.dtypes, strict=True)]
        held: tuple[object, ...] = ()
        if isinstance(step, Launch):
            loaded = self._kernels[kernel_key(step.kernel, arrange(step.kernel).lane is not None)]
            pointers = np.zeros(len(piece.buffers), np.uint64)
            places, units = tuple(range(len(piece.buffers))), piece.rows
        else:
            bound = self._product(step, piece.dtypes)
            loaded, pointers, places, held = bound.loaded, bound.pointers, bound.places, bound.held
            units = loaded.units
        if len(pointers) > MOST_POINTERS:
            raise InternalError(
                "runtime", f"{step.nodes[0]} has {len(piece.buffers)} parameters, a loop takes {MOST_POINTERS}"
            )
        for place, id, offset in zip(places, piece.buffers, offsets, strict=True):
            cells[id].watch(pointers, place, offset)
        table, lanes = _tables(loop, piece, places, len(pointers))
        record = np.zeros((1, WORDS), np.int64)
        parts = self._parts(loaded) if shared else 1
        record[0, :5] = (Kind.KERNEL, loaded.address, units, parts, pointers.ctypes.data)
        record[0, 12:16] = (piece.first, table.ctypes.data, lanes.ctypes.data, len(pointers))
        return record, (pointers, *held, table, lanes, *(cells[id] for id in piece.buffers))

    def copy(self, source: Cell, target: Cell, size: int) -> Task:
        pointers = np.zeros(2, np.uint64)
        source.watch(pointers, 0)
        target.watch(pointers, 1)
        record = np.zeros((1, WORDS), np.int64)
        record[0, :5] = (Kind.COPY, size, 1, 1, pointers.ctypes.data)
        reach = Reach(pointers, partial(_touched_by_copy, size), 1, 1, size)
        return self._native(record, (reach,), pointers, source, target)

    def stop_if(self, flag: Cell) -> Task:
        pointers = np.zeros(1, np.uint64)
        flag.watch(pointers, 0)
        record = np.zeros((1, WORDS), np.int64)
        record[0, :5] = (Kind.STOP_IF, 0, 1, 1, pointers.ctypes.data)
        reach = Reach(pointers, _touched_by_question, 1, 1, 1, everywhere=True)
        return self._native(record, (reach,), pointers, flag)

    def sequence(self, tasks: Sequence[Task]) -> Runs:
        """Neighbouring tasks with records become one native call; the others run one by one in between."""
        calls: list[Runs] = []
        for native, group in groupby(tasks, key=lambda task: task.records is not None):
            members = list(group)
            if native:
                records = np.concatenate([task.records for task in members if task.records is not None])
                known = all(task.reaches for task in members)
                reaches = tuple(reach for task in members for reach in task.reaches) if known else ()
                calls.append(self._call(records, reaches, *members))
            else:
                calls += [_once(task) for task in members]
        if len(calls) == 1:
            return calls[0]

        def run(times: int = 1) -> int:
            for done in range(times):
                for call in calls:
                    if not call():
                        return done
            return times

        return run

    def timed(self, run: Callable[[], object]) -> float | None:
        run()
        return None

    def synchronise(self) -> None:
        """Every call has ended when it returns."""

    def _native(self, records: Words, reaches: tuple[Reach, ...], *keep: object) -> Task:
        """A task of records (int64[count WORDS]); what they point to lives as long as the task."""
        call = self._call(records, reaches, *keep)

        def run() -> None:
            call()

        return Task(run, records, keep, reaches=reaches)

    def _call(self, records: Words, reaches: Sequence[Reach], *keep: object) -> NativeCall:
        return NativeCall(self._run, self._table, records, reaches, (self, *keep))

    def _on_pool(self, loaded: _Loaded, pointers: Addresses, pool: ThreadPoolExecutor) -> Callable[[], None]:
        """The fall-back without libgomp: contiguous ranges of units on Python threads."""
        function = KERNEL(loaded.address)
        edges = [loaded.units * thread // self.threads for thread in range(self.threads + 1)]

        def run() -> None:
            parameters = pointers.ctypes.data
            parts = [pool.submit(function, first, last, parameters) for first, last in pairwise(edges)]
            for part in parts:
                part.result()

        return run


def _once(task: Task) -> Runs:
    """A task without a record, which a sequence of several calls runs once at a time."""

    def run(times: int = 1) -> int:
        for _ in range(times):
            task.run()
        return times

    return run


def _touched_by_copy(size: int, _begin: int, _end: int) -> tuple[Touch, ...]:
    return Touch(0, 0, size, False), Touch(1, 0, size, True)


def _touched_by_question(_begin: int, _end: int) -> tuple[Touch, ...]:
    return (Touch(0, 0, 4, False),)


def _tables(
    loop: Loop, piece: Piece, places: Sequence[int], count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """For each iteration the bytes to add to each of `count` pointers, then the rows to add to the first:
    int64[iterations count + 1]; and the bytes to add for each thread: int64[count]. `places` are the pointers of
    the piece's buffers; the others stay."""
    indices = np.indices(loop.sizes, dtype=np.int64).reshape(len(loop.sizes), loop.iterations).T
    items = np.array([dtype.bytes for dtype in piece.dtypes], np.int64)
    moves = np.array(piece.moves, np.int64).reshape(len(piece.buffers), len(loop.sizes)) * items[:, None]
    row_moves = np.array(piece.row_moves or (0,) * len(loop.sizes), np.int64)
    table, lanes = np.zeros((loop.iterations, count + 1), np.int64), np.zeros(count, np.int64)
    table[:, list(places)] = indices @ moves.T
    table[:, count] = indices @ row_moves
    lanes[list(places)] = [loop.lane if id == loop.scratch else 0 for id in piece.buffers]
    return table, lanes
