"""Kernels run by their emulated CUDA C, whole or in ranges of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from emulation.run import compile_kernels

from paren.codegen.cuda.emit import emit_kernel
from paren.ir.op import Array
from paren.plan.kernel import Kernel

ALIGNMENT = 64  # of buffers, in bytes


@dataclass(frozen=True)
class Case:
    """A kernel and its buffers, which are changed in place; with `rows`, so many rows run at a time;
    `backwards` is the order of threads between barriers."""

    kernel: Kernel
    buffers: Sequence[Array]
    rows: int | None = None
    backwards: bool = False


def run_emulated(*cases: Case) -> None:
    """Runs cases one after another, compiled at once."""
    emitted = [emit_kernel(case.kernel, case.rows is not None) for case in cases]
    emulation = compile_kernels(emitted)
    for case, kernel in zip(cases, emitted, strict=True):
        held = [aligned(buffer) for buffer in case.buffers]
        addresses = [buffer.ctypes.data for buffer in held]
        piece = case.rows or kernel.units
        for first in range(0, kernel.units, piece):
            units = min(piece, kernel.units - first)
            blocks = kernel.blocks(units)
            emulation.launch(kernel.name, blocks, kernel.threads, 0, first, units, addresses, case.backwards)
        for buffer, changed in zip(case.buffers, held, strict=True):
            buffer.reshape(-1)[...] = changed


def aligned(values: Array) -> Array:
    """The values, flat, at a multiple of `ALIGNMENT`."""
    room = np.zeros(values.nbytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    copy = room[start : start + values.nbytes].view(values.dtype)
    copy[...] = values.reshape(-1)
    return copy
