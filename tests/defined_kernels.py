"""Kernels of a fake card that run by their definition: a unit is a row, the text is the kernel's name."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from fake_card import FakeCard, Launchable

from paren.codegen.python import run_kernel
from paren.ir.op import Array
from paren.plan.kernel import Kernel
from paren.runtime.cuda import builtin
from paren.runtime.cuda.device import CudaDevice
from paren.runtime.cuda.kernels import Emitter


@dataclass(frozen=True)
class Defined:
    """The code of a kernel that `DefinedKernels` runs."""

    name: str
    text: str
    units: int
    threads: int = 32

    def blocks(self, units: int) -> int:
        return units


class DefinedKernels:
    """Emitter, compiler and functions in one. `compiled` lists the texts that were compiled."""

    version = "definition"

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self._kernels: dict[str, Kernel] = {}

    def emit(self, kernel: Kernel, by_rows: bool) -> Defined:
        name = f"k_{kernel.digest[:16]}{'_rows' if by_rows else ''}"
        self._kernels[name] = kernel
        return Defined(name, name, prod(kernel.axes[: kernel.rows]))

    def compile(self, text: str, architecture: str) -> bytes:
        self.compiled.append(text)
        return text.encode()

    def functions(self, image: bytes, name: str) -> Launchable:
        known = BUILTIN.get(name)
        if known is not None:
            return lambda blocks, threads, arguments: known(*arguments)
        kernel = self._kernels[name]
        assert image.decode() == f"// prelude\n{name}"

        def run(blocks: int, threads: int, arguments: Sequence[int]) -> None:
            stop, first, units, *addresses = arguments
            if stop and _at(stop, np.int32, 1)[0]:
                return
            parameters = zip(addresses, kernel.parameters, strict=True)
            arrays = [_at(address, parameter.dtype.numpy, parameter.size) for address, parameter in parameters]
            run_kernel(kernel, arrays, range(first, first + units))

        return run


def _at(address: int, dtype: np.typing.DTypeLike, size: int) -> Array:
    """Elements at an address. Parts that are not touched need not be memory."""
    item = np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * (size * item)).from_address(address), np.uint8).view(dtype)


def _begin(stop: int, first: int, units: int, ended: int, count: int) -> None:
    _at(ended, np.int32, 1)[0] = 0
    _at(count, np.int64, 1)[0] = 0


def _end(stop: int, first: int, units: int, ended: int, flag: int) -> None:
    if _at(flag, np.int32, 1)[0]:
        _at(ended, np.int32, 1)[0] = 1


def _count(stop: int, first: int, units: int, count: int) -> None:
    if not _at(stop, np.int32, 1)[0]:
        _at(count, np.int64, 1)[0] += 1


def _copy(stop: int, first: int, units: int, source: int, target: int) -> None:
    if not _at(stop, np.int32, 1)[0]:
        ctypes.memmove(target, source, units)


BUILTIN: dict[str, Callable[..., None]] = {
    builtin.BEGIN: _begin,
    builtin.END: _end,
    builtin.COUNT: _count,
    builtin.COPY: _copy,
}


def defined_device(size: int = 1 << 40, cache: Path | None = None) -> tuple[CudaDevice, FakeCard]:
    """A CUDA device on a fake card of `size` bytes."""
    kernels = DefinedKernels()
    card = FakeCard(kernels.functions, size)
    return CudaDevice(card, kernels, Emitter(kernels.emit, "// prelude\n"), cache), card
