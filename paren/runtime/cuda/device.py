"""The CUDA device: steps of plans as calls of a `Driver`, on one stream; sequences as graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from paren.codegen.cuda.emit import PRELUDE, emit_kernel
from paren.ir.types import DType
from paren.plan.epilogue import Epilogue
from paren.plan.kernel import Kernel
from paren.plan.plan import Attention, Launch, Loop, Piece, Product
from paren.runtime.array import DeviceArray
from paren.runtime.cache import KernelCache
from paren.runtime.cuda.builtin import COPY, COPY_BLOCKS, COPY_THREADS, END
from paren.runtime.cuda.driver import Compiler, Driver, OutOfMemoryError
from paren.runtime.cuda.kernels import Emitter, Kernels, Loaded
from paren.runtime.cuda.link import CardLink
from paren.runtime.cuda.products import Gemm, gemm_calls
from paren.runtime.cuda.requirements import RESERVE
from paren.runtime.cuda.sequence import Work, check_cells, make_sequence
from paren.runtime.memory import Available
from paren.runtime.task import Addresses, Cell, Runs, Task
from paren.text.errors import InternalError, Note, ParenError
from paren.text.size import show_bytes

COMPARED = 5  # runs of each way
LIMIT = "free memory of the card, less 1 GiB for its libraries"


class CudaDevice:
    """A card as the device of plans. Work is started and not waited for; transfers of arrays wait. `others`: who else
    held memory of it when it was opened, in words. `tf32`: products of float32 may round their operands."""

    name = "cuda"
    threads = 1
    own_memory = True
    walk = None

    def __init__(
        self,
        driver: Driver,
        compiler: Compiler,
        emitter: Emitter,
        cache: Path | None = None,
        reason: str = "",
        tf32: bool = False,
        others: str = "",
    ) -> None:
        self.reason = reason
        self.others = others
        self.driver = driver
        self._compiler = compiler
        self._kernels = Kernels(driver, compiler, emitter, KernelCache(cache))
        self._products = "TF32" if tf32 else ""
        self.retried: list[int] = []
        self.link = CardLink(driver, self._kernels.functions, self.allocate)

    @property
    def target(self) -> str:
        parts = (self.driver.card, self.driver.architecture, self._compiler.version, self._products)
        return " ".join(part for part in (*parts, self.driver.libraries) if part)

    @property
    def compiled(self) -> int:
        return self._kernels.compiled

    @property
    def reused(self) -> int:
        return self._kernels.reused

    @property
    def notes(self) -> Sequence[str]:
        said = (note for note in (self.others, self.link.unused) if note)
        return (*self.driver.notes, *self._kernels.cache.notes, *said)

    def available(self) -> Available:
        """What may still be allocated on the card."""
        free, total = self.driver.memory()
        return Available(max(0, free - RESERVE), total, LIMIT, self.others)

    def used_bytes(self) -> int:
        """The most bytes of the card that were allocated at a time since the call before."""
        return self.driver.most_used()

    def allocate(self, size: int) -> DeviceArray:
        address, owner = self._memory(max(size, 1))
        return DeviceArray(address, np.dtype(np.uint8), (size,), owner, self.driver)

    def _memory(self, size: int) -> tuple[int, object]:
        try:
            return self.driver.allocate(size)
        except OutOfMemoryError:
            self.driver.release()
        try:
            memory = self.driver.allocate(size)
        except OutOfMemoryError as refusal:
            raise self._refused(show_bytes(size), refusal) from refusal
        self.retried.append(size)
        return memory

    def _refused(self, what: str, refusal: OutOfMemoryError) -> ParenError:
        free, total = self.driver.memory()
        return ParenError(
            "E-MEM-002",
            f"{what} could not be allocated, {show_bytes(free)} are free",
            notes=[Note(f"the card has {show_bytes(total)}"), Note(f"the system said: {refusal}")],
            fix="make the model or the microbatch smaller, or end other programs",
        )

    def load(
        self,
        kernels: Sequence[Kernel],
        by_rows: Sequence[Kernel] = (),
        products: Sequence[tuple[Product, Sequence[DType]]] = (),
    ) -> None:
        """Products are the library's."""
        self._kernels.load(kernels, by_rows)

    def launch(self, kernel: Kernel, cells: Sequence[Cell]) -> Task:
        loaded = self._kernels.loaded(kernel)
        addresses = _watched(cells)

        def issue(ended: int) -> None:
            self._launch(loaded, ended, 0, loaded.code.units, addresses.tolist())

        return _work(issue, cells)

    def _launch(self, loaded: Loaded, ended: int, first: int, units: int, addresses: Sequence[int]) -> None:
        code = loaded.code
        if units:
            blocks = code.blocks(units)
            self.driver.launch(loaded.function, blocks, code.threads, (ended, first, units, *addresses))

    def library(self, product: Product, dtypes: tuple[DType, DType, DType], a: Cell, b: Cell, c: Cell) -> Task:
        gemms = gemm_calls(product, dtypes)
        addresses = _watched((a, b, c))
        return _work(lambda ended: self._multiply(gemms, addresses.tolist()), (a, b, c), unguarded=c.lasting)

    def _multiply(self, gemms: Sequence[Gemm], addresses: Sequence[int]) -> None:
        """The calls of a product whose A, B and C are at these addresses."""
        a, b, c = addresses
        for gemm in gemms:
            self.driver.multiply(gemm, b + gemm.left.offset, a + gemm.right.offset, c + gemm.result.offset)

    def attend(self, step: Attention, cells: Mapping[int, Cell]) -> Task:
        used = {id: cells[id] for id in (*step.reads, *step.writes)}
        addresses = _watched(list(used.values()))

        def issue(ended: int) -> None:
            try:
                self.driver.attend(step, dict(zip(used, addresses.tolist(), strict=True)))
            except OutOfMemoryError as refusal:
                what = f"what the library needs for the attention at {step.spans[-1]}"
                raise self._refused(what, refusal) from refusal

        return _work(issue, list(used.values()), any(cells[id].lasting for id in step.writes))

    def joins(self, epilogue: Epilogue) -> bool:
        try:
            return self.driver.joins(epilogue)
        except OutOfMemoryError as refusal:
            what = f"what the library needs for the product at {epilogue.product.spans[-1]}"
            raise self._refused(what, refusal) from refusal

    def join(self, epilogue: Epilogue, cells: Mapping[int, Cell]) -> tuple[Task, Task]:
        used = {id: cells[id] for id in epilogue.buffers}
        addresses = _watched(list(used.values()))
        if not self.joins(epilogue):
            raise InternalError("cuda", f"{epilogue.product.nodes[0]} is to be joined, which the library does not do")

        def issue(ended: int) -> None:
            self.driver.join(epilogue, dict(zip(used, addresses.tolist(), strict=True)))

        return _work(issue, list(used.values())), Work(lambda: None, issue=lambda ended: None)

    def compare_joined(self, epilogue: Epilogue, cells: Mapping[int, Cell]) -> tuple[float, float]:
        product, launch = epilogue.product, epilogue.launch
        a, b, c = (cells[matrix.buffer] for matrix in (product.a, product.b, product.c))
        two = (
            self.library(product, epilogue.dtypes, a, b, c),
            self.launch(launch.kernel, [cells[id] for id in launch.buffers]),
        )
        runs = [self.sequence(tasks) for tasks in (two, self.join(epilogue, cells))]
        for run in runs:
            run(2)  # started call by call, then captured: what is timed is only what the card does
        times = [[self.driver.elapsed(run) for run in runs] for _ in range(COMPARED)]  # in turns: its clock changes
        return min(time[0] for time in times), min(time[1] for time in times)

    def copy(self, source: Cell, target: Cell, size: int) -> Task:
        addresses = _watched((source, target))

        def issue(ended: int) -> None:
            if not size:
                return
            begin, end = addresses.tolist()
            if not ended:
                self.driver.copy(begin, end, size)
                return
            blocks = min(COPY_BLOCKS, -(-size // (16 * COPY_THREADS)))
            function = self._kernels.builtin[COPY]
            self.driver.launch(function, blocks, COPY_THREADS, (ended, 0, size, begin, end))

        return _work(issue, (source, target))

    def loop(self, loop: Loop, cells: Mapping[int, Cell]) -> Task:
        """All iterations one after another, in the first lane of the scratch."""
        starts = [self._piece(piece, [cells[id] for id in piece.buffers]) for piece in loop.body]

        def issue(ended: int) -> None:
            for index in np.ndindex(*loop.sizes):
                for start in starts:
                    start(index, ended)

        touched = {id: cells[id] for piece in loop.body for id in piece.buffers}
        products = [piece.step for piece in loop.body if isinstance(piece.step, Product)]
        return _work(issue, list(touched.values()), any(cells[step.c.buffer].lasting for step in products))

    def _piece(self, piece: Piece, cells: Sequence[Cell]) -> Callable[[tuple[int, ...], int], None]:
        """What starts a piece at an index of the loop axes, with the address of `ended`."""
        step, addresses = piece.step, _watched(cells)

        def moved(index: tuple[int, ...]) -> list[int]:
            parts = zip(addresses.tolist(), piece.offsets, piece.moves, piece.dtypes, strict=True)
            return [place + dtype.bytes * (offset + _dot(moves, index)) for place, offset, moves, dtype in parts]

        if isinstance(step, Launch):
            loaded = self._kernels.loaded(step.kernel, by_rows=True)

            def start(index: tuple[int, ...], ended: int) -> None:
                first = piece.first + _dot(piece.row_moves, index)
                self._launch(loaded, ended, first, piece.rows, moved(index))

            return start
        gemms = gemm_calls(step, piece.dtypes)
        return lambda index, ended: self._multiply(gemms, moved(index))

    def stop_if(self, flag: Cell) -> Task:
        addresses = _watched((flag,))

        def issue(ended: int) -> None:
            if ended:  # alone it does nothing
                self.driver.launch(self._kernels.builtin[END], 1, 1, (0, 0, 1, ended, *addresses.tolist()))

        return Work(lambda: None, flag=flag, issue=issue, cells=(flag,))

    def sequence(self, tasks: Sequence[Task]) -> Runs:
        return make_sequence(self.driver, self._kernels.builtin, self.allocate, tasks)

    def timed(self, run: Callable[[], object]) -> float | None:
        return self.driver.elapsed(run)

    def synchronise(self) -> None:
        self.driver.synchronise()


def _work(issue: Callable[[int], None], cells: Sequence[Cell], unguarded: bool = False) -> Work:
    """A task that may run alone or in sequences."""

    def run() -> None:
        check_cells(cells)
        issue(0)

    return Work(run, issue=issue, cells=tuple(cells), unguarded=unguarded)


def _watched(cells: Sequence[Cell]) -> Addresses:
    """The addresses of the cells' arrays, which follow them."""
    addresses: Addresses = np.zeros(len(cells), np.uint64)
    for place, cell in enumerate(cells):
        cell.watch(addresses, place)
    return addresses


def _dot(moves: Sequence[int], index: Sequence[int]) -> int:
    return sum(move * i for move, i in zip(moves, index, strict=True))


def open_cuda(index: int, cache: Path | None, tf32: bool = False, reason: str = "", others: str = "") -> CudaDevice:
    """The card of that ordinal among those that this process sees, which `paren.runtime.cuda.requirements` found fit.
    `cache` is the folder for compiled kernels; the rest is as for `CudaDevice`."""
    # They import torch and cuda-bindings.
    from paren.runtime.cuda.card import Card
    from paren.runtime.cuda.nvrtc import Nvrtc

    return CudaDevice(Card(index, tf32, cache), Nvrtc(), Emitter(emit_kernel, PRELUDE), cache, reason, tf32, others)
