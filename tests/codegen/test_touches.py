"""What a range of units touches: the function changes nothing else, and needs nothing else."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_samples import F32, gelu, reduction
from random_kernels import buffers_for, kernels

from paren.codegen.touches import Touch, touched_by_kernel
from paren.ir.op import Array
from paren.plan.kernel import Kernel
from paren.plan.plan import Matrix, Product
from paren.runtime.cpu import KERNEL, CpuDevice
from paren.runtime.memory import allocate

DEVICE = CpuDevice(1)


def placed(array: Array) -> Array:
    copy = allocate(max(64, array.nbytes))[: array.nbytes].view(array.dtype)
    copy[...] = array
    return copy


def spoiled(array: Array, touches: list[Touch]) -> Array:
    """The array with other bytes wherever none of these touches reaches."""
    copy = placed(array)
    content = copy.view(np.uint8)
    inside = np.zeros(len(content), bool)
    for touch in touches:
        assert 0 <= touch.first < touch.end <= len(content)
        inside[touch.first : touch.end] = True
    content[~inside] = 0x7B
    return copy


def run_range(address: int, begin: int, end: int, arrays: list[Array], more: npt.NDArray[np.uint64]) -> None:
    pointers = np.array([*(array.ctypes.data for array in arrays), *more], np.uint64)
    KERNEL(address)(begin, end, pointers.ctypes.data)


def check(
    address: int, begin: int, end: int, arrays: list[Array], found: tuple[Touch, ...], more: npt.NDArray[np.uint64]
) -> None:
    whole = [placed(array) for array in arrays]
    run_range(address, begin, end, whole, more)
    only = [spoiled(array, [t for t in found if t.pointer == number]) for number, array in enumerate(arrays)]
    given_only = [array.copy() for array in only]
    run_range(address, begin, end, only, more)
    for number, array in enumerate(only):
        changes = np.zeros(array.nbytes, bool)
        for touch in found:
            if touch.pointer == number and touch.writes:
                changes[touch.first : touch.end] = True
        after, before = array.view(np.uint8), given_only[number].view(np.uint8)
        np.testing.assert_array_equal(after[~changes], before[~changes])
        np.testing.assert_array_equal(after[changes], whole[number].view(np.uint8)[changes])


def check_kernel(kernel: Kernel, begin: int, end: int, seed: int) -> None:
    DEVICE.load([kernel])
    loaded = DEVICE._kernels[kernel.digest]
    arrays = [np.ascontiguousarray(array).reshape(-1) for array in buffers_for(kernel, seed)]
    none = np.zeros(0, np.uint64)
    check(loaded.address, begin, end, arrays, touched_by_kernel(kernel, begin, end), none)


@settings(max_examples=150)
@given(kernels(), st.integers(0, 99), st.data())
def test_a_kernel_touches_no_more(kernel: Kernel, seed: int, data: st.DataObject) -> None:
    DEVICE.load([kernel])
    units = DEVICE._kernels[kernel.digest].units
    begin = data.draw(st.integers(0, units - 1))
    check_kernel(kernel, begin, data.draw(st.integers(begin + 1, units)), seed)


def test_ranges_of_rows_and_of_columns_lie_apart() -> None:
    """Of rows in memory; columns lie between each other, and are taken for everything from the first to the last."""
    rows = reduction("sum", 128, 64, "row")
    assert touched_by_kernel(rows, 0, 64)[0] == Touch(0, 0, 64 * 64 * 4, False)
    assert touched_by_kernel(rows, 64, 128)[0] == Touch(0, 64 * 64 * 4, 128 * 64 * 4, False)
    mapped = gelu(100, 1000)
    assert touched_by_kernel(mapped, 1, 2) == (Touch(0, 30784, 61568, False), Touch(1, 30784, 61568, True))
    columns = reduction("sum", 1024, 64, "column")
    assert touched_by_kernel(columns, 0, 1)[0].end > touched_by_kernel(columns, 1, 2)[0].first


@settings(max_examples=100)
@given(st.data())
def test_a_product_touches_no_more(data: st.DataObject) -> None:
    m, n, k = (data.draw(st.integers(1, 70)) for _ in range(3))
    loops = data.draw(st.integers(1, 3))
    turned_a, turned_b = data.draw(st.booleans()), data.draw(st.booleans())
    batch = (loops,) if loops > 1 else ()
    a = Matrix(0, 0, m if turned_a else k, turned_a, (m * k,) * len(batch))
    b = Matrix(1, 0, k if turned_b else n, turned_b, (k * n,) * len(batch))
    product = Product(
        a, b, Matrix(2, 0, n, False, (m * n,) * len(batch)), m, n, k, batch, data.draw(st.booleans()), (), ()
    )
    bound = DEVICE._product(product, (F32,) * 3)
    begin = data.draw(st.integers(0, bound.loaded.units - 1))
    end = data.draw(st.integers(begin + 1, bound.loaded.units))
    generator = np.random.default_rng(0)
    given_arrays = [generator.normal(size=loops * size).astype(np.float32) for size in (m * k, k * n, m * n)]
    arrays = [given_arrays[0]] * 3
    for place, array in zip(bound.places, given_arrays, strict=True):
        arrays[place] = array
    more = bound.pointers[3:]
    check(bound.loaded.address, begin, end, arrays, tuple(bound.loaded.touches(begin, end)), more)
