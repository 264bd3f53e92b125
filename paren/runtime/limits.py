"""The limits of the machine, measured through the device itself and remembered: a quarter of a second, on a card one.

A busy machine gives lower figures: `measure_limits` takes the best of some repetitions, and what is remembered is the
best of all measurements.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path

from paren.ir.types import DType
from paren.plan.kernel import Access, Compute, Constant, Index, Kernel, Load, Parameter, Stage, Statement, Store
from paren.plan.limits import Limits
from paren.plan.plan import Matrix, Product
from paren.runtime.device import Device
from paren.runtime.task import Cell, Task
from paren.text.json import parse_json

FILE = "limits.json"
FORMAT = 2
REPETITIONS = 16  # short ones: on a busy machine some of them are not interrupted
STARTS = 256  # launches in one sequence


@dataclass(frozen=True)
class Sizes:
    """What is measured with. `far`: elements of float32 of each buffer of the copy, beyond the caches; `near`: elements
    of the kernel that computes, and `chain` the instructions for each of them; `shape`: rows, columns and inner size of
    the product, some milliseconds at nearly the best rate. `repeats`: how often the copy and the kernel run in one
    sequence, so that its start does not count."""

    far: int
    near: int
    chain: int
    shape: tuple[int, int, int]
    repeats: tuple[int, int]


# On the CPU so few elements that they stay on one thread, whatever else the others do.
SMALL = Sizes(far=1 << 24, near=512, chain=64, shape=(512, 1024, 512), repeats=(1, STARTS))
LARGE = Sizes(far=1 << 26, near=1 << 22, chain=512, shape=(8192, 8192, 8192), repeats=(8, 8))  # for a card


def limits_of(device: Device, cache: Path, *, again: bool = False) -> Limits:
    """The remembered limits of a device; measured if there are none, and with `again` in any case.

    `cache` is the folder that the file is in. One that cannot be read or written only costs the next measurement.
    """
    known = read_limits(device, cache)
    if known is not None and not again:
        return known
    measured = measure_limits(device)
    best = measured if known is None else _better(known, measured)
    _remember(device, cache, best)
    return best


def read_limits(device: Device, cache: Path) -> Limits | None:
    """The limits that an earlier measurement of such a device left in the cache folder, or None."""
    try:
        entry = parse_json((cache / FILE).read_bytes())[_key(device)]
        products = {str(name): float(rate) for name, rate in entry["products"].items()}
        rates = {field.name: float(entry[field.name]) for field in fields(Limits) if field.name != "products"}
        found = Limits(products=products, **rates)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    positive = all(rate > 0 for rate in (*found.products.values(), *rates.values()))
    return found if positive and DType.FLOAT32.value in found.products else None


def measure_limits(device: Device) -> Limits:
    """Measures everything; needs 128 MiB of memory for a moment, on a card about 1 GiB."""
    sizes = LARGE if device.own_memory else SMALL
    copies, kernels = sizes.repeats
    copy, chain, tiny = _map(sizes.far, 0), _map(sizes.near, sizes.chain), _map(1, 0)
    device.load([copy, chain, tiny])
    far = [device.launch(copy, _cells(device, sizes.far, sizes.far))] * copies
    near = [device.launch(chain, _cells(device, sizes.near, sizes.near))] * kernels
    starts = [device.launch(tiny, _cells(device, 1, 1))] * STARTS
    shape = sizes.shape
    return Limits(
        traffic=copies * 2 * 4 * sizes.far / _least(device, far),
        products={dtype.value: _product_rate(device, shape, dtype) for dtype in (DType.FLOAT32, DType.BFLOAT16)},
        instructions=device.threads * kernels * sizes.chain * sizes.near / _least(device, near),
        start=_least(device, starts) / STARTS,
    )


def _product_rate(device: Device, shape: tuple[int, int, int], dtype: DType) -> float:
    """Operations a second of a product whose operands and result are of a type."""
    m, n, k = shape
    rounded = dtype is DType.BFLOAT16
    product = Product(_matrix(k), _matrix(n), _matrix(n), m, n, k, (), False, (), (), rounded)
    cells = _cells(device, m * k, k * n, m * n, dtype=dtype)
    return 2 * m * n * k / _least(device, [device.library(product, (dtype,) * 3, *cells)])


def _map(size: int, instructions: int) -> Kernel:
    """A kernel that reads `size` elements, does so many instructions with each, and writes it."""
    index = (Index(((0, 1),)),)
    body: list[Statement] = [Constant(0, 0.5, DType.FLOAT32)]
    body.append(Load(1, Access(0, index, (1,), (size,)), DType.FLOAT32))
    for number in range(instructions):
        body.append(Compute(2 + number, ("mul", "add")[number % 2], (1 + number, 0), DType.FLOAT32))
    body.append(Store(Access(1, index, (1,), (size,)), 1 + instructions))
    parameters = (Parameter(DType.FLOAT32, size, True, False), Parameter(DType.FLOAT32, size, False, True))
    name = f"limit_{instructions}" if instructions else "limit_copy"
    return Kernel(name, (size,), 1, parameters, (Stage((), tuple(body if instructions else body[1:])),))


def _cells(device: Device, *sizes: int, dtype: DType = DType.FLOAT32) -> list[Cell]:
    """Buffers full of ones: pages that nobody wrote yet would all be read from one page of zeros."""
    arrays = [device.allocate(dtype.bytes * size).view(dtype.numpy) for size in sizes]
    for array in arrays:
        array[...] = 1
    return [Cell(array) for array in arrays]


def _matrix(leading: int) -> Matrix:
    return Matrix(0, 0, leading, False, ())


def _least(device: Device, tasks: Sequence[Task]) -> float:
    """Seconds of the fastest of some runs, after one that warms up."""
    run = device.sequence(tasks)
    times = []
    for _ in range(1 + REPETITIONS):
        begin = time.perf_counter()
        run()
        device.synchronise()
        times.append(time.perf_counter() - begin)
    return max(min(times[1:]), 1e-9)


def _better(one: Limits, other: Limits) -> Limits:
    products = {
        name: max(one.products.get(name, 0.0), other.products.get(name, 0.0))
        for name in {**one.products, **other.products}
    }
    return Limits(
        max(one.traffic, other.traffic),
        products,
        max(one.instructions, other.instructions),
        min(one.start, other.start),
    )


def _key(device: Device) -> str:
    """A device as far as its speed goes: its kind, processor and threads."""
    return sha256(f"{FORMAT} {device.name} {device.target} {device.threads}".encode()).hexdigest()


def _remember(device: Device, cache: Path, limits: Limits) -> None:
    """Adds the limits to the file. What another process adds at the same moment may be lost: it measures again."""
    path = cache / FILE
    try:
        kept = parse_json(path.read_bytes())
    except (OSError, ValueError):
        kept = {}
    content = {**(kept if isinstance(kept, dict) else {}), _key(device): asdict(limits)}
    with suppress(OSError):  # a folder that cannot be written costs the next start a measurement, nothing else
        cache.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=cache, prefix=".part-")
        with os.fdopen(handle, "w") as file:
            json.dump(content, file, indent=1)
        os.replace(temporary, path)
