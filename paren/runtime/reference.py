"""The definition as a device: kernels by `paren.codegen.python`, products by numpy. Slow; for debugging and tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from paren.codegen.python import run_kernel
from paren.ir.types import DType
from paren.plan.kernel import Kernel
from paren.plan.plan import Launch, Loop, Piece, Product
from paren.runtime.kernels_only import KernelsOnly
from paren.runtime.matrices import multiply
from paren.runtime.memory import Available, Bytes, allocate, available_memory, resident_bytes
from paren.runtime.task import Cell, Runs, Task


class ReferenceDevice(KernelsOnly):
    name = "reference"
    own_memory = False
    link = None
    walk = None
    reason = ""
    threads = 1
    target = ""
    compiled = 0
    reused = 0
    notes: Sequence[str] = ()

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
        """Nothing needs preparation here."""

    def launch(self, kernel: Kernel, cells: Sequence[Cell]) -> Task:
        return Task(lambda: run_kernel(kernel, [cell.values.reshape(-1) for cell in cells]))

    def library(self, product: Product, dtypes: tuple[DType, DType, DType], a: Cell, b: Cell, c: Cell) -> Task:
        return Task(lambda: multiply(product, a.values, b.values, c.values))

    def copy(self, source: Cell, target: Cell, size: int) -> Task:
        def run() -> None:
            to = target.values.reshape(-1).view(np.uint8)
            to[:size] = source.values.reshape(-1).view(np.uint8)[:size]

        return Task(run)

    def loop(self, loop: Loop, cells: Mapping[int, Cell]) -> Task:
        def run() -> None:
            for index in np.ndindex(*loop.sizes):
                for piece in loop.body:
                    _run_piece(piece, index, cells)

        return Task(run)

    def stop_if(self, flag: Cell) -> Task:
        return Task(lambda: None, flag=flag)

    def sequence(self, tasks: Sequence[Task]) -> Runs:
        def run(times: int = 1) -> int:
            for done in range(times):
                for task in tasks:
                    if task.flag is not None and task.flag.values[()]:
                        return done
                    task.run()
            return times

        return run

    def timed(self, run: Callable[[], object]) -> float | None:
        run()
        return None

    def synchronise(self) -> None:
        """Nothing runs in the background."""


def _run_piece(piece: Piece, index: tuple[int, ...], cells: Mapping[int, Cell]) -> None:
    """A piece of a loop at an index of the loop axes, in the first lane of the scratch."""
    step = piece.step
    arrays = [
        cells[id].values.reshape(-1).view(dtype.numpy) for id, dtype in zip(piece.buffers, piece.dtypes, strict=True)
    ]
    offsets = [
        offset + sum(move * i for move, i in zip(moves, index, strict=True))
        for offset, moves in zip(piece.offsets, piece.moves, strict=True)
    ]
    if isinstance(step, Launch):
        first = piece.first + sum(move * i for move, i in zip(piece.row_moves, index, strict=True))
        run_kernel(step.kernel, arrays, range(first, first + piece.rows), offsets)
    else:
        a, b, c = (array[offset:] for array, offset in zip(arrays, offsets, strict=True))
        multiply(step, a, b, c)
