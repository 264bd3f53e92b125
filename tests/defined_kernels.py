"""Kernels of a fake card that run by their definition: a unit is a row, the text is the kernel's name."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from pathlib import Path

import numpy as np
from fake_card import FakeCard, Launchable

from paren.codegen.python import run_kernel
from paren.ir.op import Array
from paren.ir.types import DType
from paren.parallel.tree import sum_as_tree
from paren.plan.kernel import Kernel
from paren.runtime.cuda import builtin, sums
from paren.runtime.cuda.device import CudaDevice
from paren.runtime.cuda.kernels import Emitter

BFLOAT16 = DType.BFLOAT16.numpy


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

    def kernel(self, name: str) -> Kernel:
        """A kernel that was emitted."""
        return self._kernels[name]

    def compile(self, text: str, architecture: str) -> bytes:
        self.compiled.append(text)
        return text.encode()

    def functions(self, image: bytes, name: str) -> Launchable:
        known = BUILTIN.get(name)
        if known is not None:

            def call(blocks: int, threads: int, arguments: Sequence[int]) -> None:
                with np.errstate(all="ignore"):
                    known(*arguments)

            return call
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


def _order(own: Array, others: Array, place: int) -> list[Array]:
    rows = list(others.reshape(-1, own.size))
    return [*rows[:place], own, *rows[place:]]


def _add(stop: int, first: int, units: int, own: int, others: int, count: int, place: int) -> None:
    mine = _at(own, np.float32, units)
    mine[...] = reduce(np.add, _order(mine, _at(others, np.float32, (count - 1) * units), place))


def _add_tree(stop: int, first: int, units: int, own: int, others: int, count: int, place: int) -> None:
    mine = _at(own, np.float32, units)
    mine[...] = sum_as_tree(_order(mine, _at(others, np.float32, (count - 1) * units), place), np.add)


def _weight(bits: int) -> np.float32:
    return np.array(bits, np.uint32).view(np.float32)[()]


def _round(
    stop: int, first: int, units: int, own: int, carried: int, rest: int, rounded: int, weight: int, counts: int
) -> None:
    value, short = _at(own, np.float32, units), _at(rounded, BFLOAT16, units)
    if counts:
        value = value + _at(carried, np.float32, units) * _weight(weight)
    short[...] = value
    if counts:
        _at(rest, np.float32, units)[...] = value - short.astype(np.float32)


def _add_rounded(
    stop: int, first: int, units: int, own: int, others: int, rest: int, count: int, place: int, counts: int
) -> None:
    mine = _at(own, BFLOAT16, units)
    rows = _order(mine, _at(others, BFLOAT16, (count - 1) * units), place)
    total = reduce(np.add, [row.astype(np.float32) for row in rows])
    mine[...] = total
    if counts:
        _at(rest, np.float32, units)[...] += total - mine.astype(np.float32)


def _widen(stop: int, first: int, units: int, rounded: int, own: int, rest: int, weight: int, counts: int) -> None:
    _at(own, np.float32, units)[...] = _at(rounded, BFLOAT16, units)
    if counts:
        quotient = _at(rest, np.float32, units) / _weight(weight)
        _at(rest, np.float32, units)[...] = np.where(np.isfinite(quotient), quotient, 0)


BUILTIN: dict[str, Callable[..., None]] = {
    builtin.BEGIN: _begin,
    builtin.END: _end,
    builtin.COUNT: _count,
    builtin.COPY: _copy,
    sums.ADD: _add,
    sums.ADD_TREE: _add_tree,
    sums.ROUND: _round,
    sums.ADD_ROUNDED: _add_rounded,
    sums.WIDEN: _widen,
}


def defined_device(size: int = 1 << 40, cache: Path | None = None, lazy: bool = False) -> tuple[CudaDevice, FakeCard]:
    """A CUDA device on a fake card of `size` bytes."""
    kernels = DefinedKernels()
    card = FakeCard(kernels.functions, size, lazy)
    return CudaDevice(card, kernels, Emitter(kernels.emit, "// prelude\n"), cache), card
