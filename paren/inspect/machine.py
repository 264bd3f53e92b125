"""The doctor's rows that use paren's own runtime; they are imported only where all packages are installed."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from paren.inspect.examination import FAIL, NOTE, PASS, Row
from paren.ir.types import DType
from paren.parallel.topology import find_topology
from paren.parallel.visible import ordinal_of, visible_devices
from paren.plan.plan import Matrix, Product
from paren.runtime.block import allocate_array
from paren.runtime.cache import KernelCache
from paren.runtime.cuda.probes import MachineProbes, Probes
from paren.runtime.cuda.requirements import examine_cuda
from paren.runtime.device import Device, open_device
from paren.runtime.limits import limits_of
from paren.runtime.memory import available_memory, processor_quota
from paren.runtime.openmp import find_openmp
from paren.runtime.task import Cell
from paren.text.errors import ParenError, first_line
from paren.text.size import count_of
from paren.train.places.open import open_place

LITTLE_MEMORY = 1 << 30  # bytes

# A function of one integer, compiled as kernels are.
_TINY = "define i64 @answer(i64 %x) {\n  %y = mul i64 %x, 6\n  ret i64 %y\n}\n"


def check_compiler() -> Row:
    """llvmlite compiles a function for this processor, and the function gives the right answer."""

    def attempt() -> str:
        from paren.runtime.native import Compiler  # llvmlite

        compiler = Compiler(KernelCache(None))
        address = compiler.load({"answer": _TINY}, "answer")["answer"]
        answer = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(7)
        if answer != 42:
            raise ArithmeticError(f"6 times 7 gave {answer}")
        return f"compiles and runs for {compiler.machine.processor}"

    return _attempt("machine code", FAIL, "E-DEV-104", attempt)


def check_products() -> Row:
    """The product of matrices that paren compiles for this processor, on a small case with an exact answer."""

    def attempt() -> str:
        from paren.runtime.cpu import CpuDevice  # llvmlite

        device = CpuDevice(1)
        _multiply(device)
        tile = device.compiler.tile
        return f"tiles of {tile.rows} x {tile.columns(DType.FLOAT32)} in vectors of {tile.bits} bits"

    return _attempt("matrix products", FAIL, "E-DEV-104", attempt)


def check_threads() -> Row:
    """The OpenMP runtime that kernels and products share, and the processors this process may use."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = processor_quota()
    processors = count_of(min(count, quota or count), "processor")
    if find_openmp() is None:
        return Row("threads", NOTE, f"no OpenMP runtime (libgomp) of {processors}; kernels use one", "E-DEV-106")
    return Row("threads", PASS, f"OpenMP, {processors}")


def check_memory(limit: int | None) -> Row:
    """Free memory; `limit` is what PAREN_MEMORY sets, in bytes."""
    free = available_memory()
    detail = f"{free.bytes / 2**30:.1f} GiB, the {free.limit}"
    if limit is not None:
        detail += f"; PAREN_MEMORY plans for {limit / 2**30:.1f} GiB"
    if free.bytes < LITTLE_MEMORY:
        return Row("free memory", NOTE, detail, "E-DEV-107")
    return Row("free memory", PASS, detail)


def check_cache(folder: Path) -> Row:
    """The cache folder can be made and written."""

    def attempt() -> str:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(b"paren")
        return str(folder)

    return _attempt("cache folder", NOTE, "E-DEV-108", attempt)


def check_device(name: str) -> Row:
    """The device that runs use where none is named opens."""

    def attempt() -> str:
        device = open_device(name)
        return f"{device.name}, {count_of(device.threads, 'thread')}"

    return _attempt("device", FAIL, "E-DEV-104", attempt)


def check_ranks(variables: Mapping[str, str], device: str) -> Row:
    """The ranks that runs have where nothing else is said, by the variables that say so."""

    def attempt() -> str:
        topology = find_topology(variables, visible_devices(device), ordinal_of(device))
        if topology.ranks == 1:
            return "1 rank"
        node = f"node {topology.node} of {topology.nodes}, " if topology.nodes > 1 else ""
        return f"{topology.ranks} ranks, {node}here on devices {', '.join(map(str, topology.devices))}"

    return _attempt("ranks", FAIL, "E-DP-009", attempt)


def check_speed(cache: Path) -> Row:
    """The limits of the machine that reports count on, measured again; the best of all measurements is kept."""
    return _attempt("speed", FAIL, "E-DEV-104", lambda: _rates(open_device("cpu", None, cache), cache))


def check_cuda(cache: Path | None, probes: Probes | None = None) -> list[Row]:
    """A row for each requirement of CUDA; the CPU alone is enough, so none of them fails the machine. Where all hold, a
    card multiplies matrices, and its limits are measured; `cache` as for `check_speed`."""
    probes = probes if probes is not None else MachineProbes()
    findings = list(examine_cuda(probes))
    rows = [
        Row(f"cuda: {finding.name}", PASS if finding.code is None else NOTE, finding.detail, finding.code)
        for finding in findings
    ]
    if cache is None or any(finding.stops for finding in findings):
        return rows

    def attempt() -> str:
        device = open_device("cuda", None, cache, probes=probes)
        _multiply(device)
        return _rates(device, cache)

    return [*rows, _attempt("cuda: speed", NOTE, "E-DEV-033", attempt)]


def _multiply(device: Device) -> None:
    """A product of small integers on a device. Raises `ArithmeticError` if it is wrong."""
    size = 40
    numbers = np.arange(size * size, dtype=np.float32).reshape(size, size) % 7
    operands, result = (allocate_array(device, numbers.dtype, numbers.shape) for _ in range(2))
    operands[...] = numbers
    lines = Matrix(0, 0, size, False, ())
    product = Product(lines, lines, lines, size, size, size, (), False, (), ())
    device.library(product, (DType.FLOAT32,) * 3, Cell(operands), Cell(operands), Cell(result)).run()
    device.synchronise()
    if not np.array_equal(np.asarray(result), numbers @ numbers):
        raise ArithmeticError("a product of small integers is wrong")


def _rates(device: Device, cache: Path) -> str:
    """The limits of a device, measured again, in words."""
    limits = limits_of(device, cache, again=True)
    rates = [f"{name} products {rate / 1e9:.0f} GFLOP/s" for name, rate in limits.products.items()]
    return ", ".join([*rates, f"memory {limits.traffic / 1e9:.0f} GB/s"])


def _attempt(name: str, state: str, code: str, attempt: Callable[[], str]) -> Row:
    """The row of a check that uses what it checks: any failure of it is the finding, `code` if it has no own."""
    try:
        return Row(name, PASS, attempt())
    except ParenError as error:
        return Row(name, state, error.message, error.code)
    except Exception as error:
        return Row(name, state, first_line(error), code)


def check_place(called: str) -> Row:
    """Whether checkpoints can go to a place: for a bucket, also whether there are credentials, and what they allow."""
    try:
        place = open_place(called)
        place.probe()
    except ParenError as error:
        return Row("checkpoints", FAIL, error.message, error.code)
    return Row("checkpoints", PASS, f"{place} can be written, read, listed and deleted")
