"""The CPU device: threads do not show in bits, products are right, fall-backs give the same, sequences are one call."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_samples import F32, gelu, reduction, softmax

from paren.ir.op import Array
from paren.ir.types import DType
from paren.plan.kernel import Kernel
from paren.plan.plan import Matrix, Product
from paren.runtime import cpu
from paren.runtime.cpu import CpuDevice
from paren.runtime.matrices import operands
from paren.runtime.task import Cell
from paren.text.errors import InternalError

KERNELS = [gelu(300, 1000), softmax(500, 300), reduction("sum", 3000, 300, "column"), reduction("sum", 500, 999, "row")]
SHAPES = [(300_000, 300_000), (150_000, 150_000), (900_000, 300), (499_500, 500)]


def run(device: CpuDevice, kernel: Kernel, arrays: list[Array]) -> None:
    device.load([kernel])
    device.sequence([device.launch(kernel, [Cell(array) for array in arrays])])()


def output(device: CpuDevice, number: int) -> Array:
    inputs, outputs = SHAPES[number]
    x = np.random.default_rng(number).normal(size=inputs).astype(np.float32)
    result = np.empty(outputs, np.float32)
    run(device, KERNELS[number], [x, result])
    return result


@pytest.mark.parametrize("number", range(len(KERNELS)))
def test_threads_do_not_show_in_bits(number: int) -> None:
    wanted = output(CpuDevice(1), number)
    for threads in (2, 3):
        np.testing.assert_array_equal(output(CpuDevice(threads), number), wanted)
        np.testing.assert_array_equal(output(CpuDevice(threads, openmp=False), number), wanted)


def test_without_libgomp_a_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "find_openmp", lambda: None)
    device = CpuDevice(2)
    assert list(device.notes) == [
        "libgomp was not found: kernels run on Python threads, which costs more for each step"
    ]
    assert list(CpuDevice(1).notes) == []


def test_small_kernels_stay_on_one_thread() -> None:
    device = CpuDevice(2)
    for kernel, shared in ((gelu(2, 10), False), (gelu(300, 1000), True)):
        device.load([kernel])
        size = kernel.parameters[0].size
        cells = [Cell(np.zeros(size, np.float32)), Cell(np.zeros(size, np.float32))]
        records = device.launch(kernel, cells).records
        assert records is not None
        assert records[0, 3] == (2 if shared else 1)


@st.composite
def products(draw: st.DrawFn) -> tuple[Product, DType]:
    """A product with offsets, leading dimensions, transpositions and batch loops."""
    m, n, k = (draw(st.integers(1, 40)) for _ in range(3))
    batch = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))

    def matrix(rows: int, columns: int, result: bool = False) -> Matrix:
        transposed = draw(st.booleans()) and not result
        height, width = (columns, rows) if transposed else (rows, columns)
        leading = width + draw(st.integers(0, 3))
        strides, step = [], height * leading
        for size in reversed(batch):
            strides.insert(0, 0 if not result and draw(st.booleans()) else step)
            step *= size
        return Matrix(0, draw(st.integers(0, 5)), leading, transposed, tuple(strides))

    matrices = matrix(m, k), matrix(k, n), matrix(m, n, result=True)
    product = Product(*matrices, m, n, k, batch, draw(st.booleans()), (), ())
    return product, draw(st.sampled_from([DType.FLOAT32, DType.FLOAT64]))


def room(matrix: Matrix, rows: int, columns: int, batch: tuple[int, ...]) -> int:
    height = columns if matrix.transposed else rows
    reach = sum(stride * (size - 1) for stride, size in zip(matrix.batch_strides, batch, strict=True))
    return matrix.offset + reach + height * matrix.leading


def multiply(device: CpuDevice, product: Product, dtype: DType) -> tuple[Array, Array]:
    """What the device leaves in C, and what numpy says."""
    generator = np.random.default_rng(0)
    m, n, k = product.m, product.n, product.k
    shapes = [(product.a, m, k), (product.b, k, n), (product.c, m, n)]
    sizes = [room(matrix, rows, columns, product.batch) for matrix, rows, columns in shapes]
    a, b, c = (generator.normal(size=size).astype(dtype.numpy) for size in sizes)
    wanted = c.copy()
    left, right, result = operands(product, a, b, wanted)
    value = np.matmul(left, right)
    np.copyto(result, result + value if product.accumulate else value)
    device.library(product, (dtype,) * 3, Cell(a), Cell(b), Cell(c)).run()
    return c, wanted


DEVICES = [CpuDevice(1), CpuDevice(2), CpuDevice(2, openmp=False)]


@settings(max_examples=40)
@given(products(), st.sampled_from(range(len(DEVICES))))
def test_products(case: tuple[Product, DType], device: int) -> None:
    """Elements of C's buffer outside the product keep their value: all of the buffer is compared."""
    product, dtype = case
    got, wanted = multiply(DEVICES[device], product, dtype)
    np.testing.assert_allclose(got, wanted, atol=1e-4 if dtype == DType.FLOAT32 else 1e-12)


def plain(m: int, n: int, k: int, batch: int) -> Product:
    loops = (batch,) if batch > 1 else ()
    a = Matrix(0, 0, k, False, (m * k,) * len(loops))
    b = Matrix(1, 0, n, False, (k * n,) * len(loops))
    return Product(a, b, Matrix(2, 0, n, False, (m * n,) * len(loops)), m, n, k, loops, False, (), ())


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("product", [plain(300, 200, 500, 1), plain(40, 30, 20, 60)], ids=["large", "many"])
def test_products_repeat_their_bits(threads: int, product: Product) -> None:
    first, _ = multiply(CpuDevice(threads), product, F32)
    for _ in range(3):
        again, _ = multiply(CpuDevice(threads), product, F32)
        np.testing.assert_array_equal(again, first)


def test_small_products_stay_on_one_thread() -> None:
    device = CpuDevice(2)
    cells = [Cell(np.zeros(100_000, np.float32)) for _ in range(3)]
    for product, shared in (
        (plain(40, 30, 20, 60), True),
        (plain(2, 2, 2, 3), False),
        (plain(300, 200, 100, 1), True),
    ):
        records = device.library(product, (F32,) * 3, *cells).records
        assert records is not None
        assert records[0, 3] == (2 if shared else 1)


def test_a_result_that_is_transposed_is_a_fault_of_ours() -> None:
    cells = [Cell(np.zeros(1, np.float32)) for _ in range(3)]
    product = plain(1, 1, 1, 1)
    turned = replace(product, c=replace(product.c, transposed=True))
    with pytest.raises(InternalError, match="the result of a product is transposed"):
        CpuDevice(1).library(turned, (F32,) * 3, *cells)


def test_a_sequence_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernel, product, copy, kernel; with and without the fall-backs between native calls."""
    for device in (CpuDevice(2), CpuDevice(2, openmp=False)):
        kernel = gelu(300, 300)
        device.load([kernel])
        x = np.random.default_rng(0).normal(size=(300, 300)).astype(np.float32)
        y, z, copied, last = (Cell(np.empty_like(x)) for _ in range(4))
        tasks = [
            device.launch(kernel, [Cell(x), y]),
            device.library(plain(300, 300, 300, 1), (F32,) * 3, y, Cell(x), z),
            device.copy(z, copied, x.nbytes),
            device.launch(kernel, [copied, last]),
        ]
        device.sequence(tasks)()
        device.synchronise()
        np.testing.assert_allclose(z.array, y.array @ x, atol=1e-3)
        np.testing.assert_array_equal(copied.array, z.array)
        alone = Cell(np.empty_like(x))
        device.launch(kernel, [z, alone]).run()
        np.testing.assert_array_equal(last.array, alone.array)


def test_cells_can_be_given_other_arrays() -> None:
    device = CpuDevice(1)
    kernel = gelu(3, 5)
    device.load([kernel])
    x, y = Cell(), Cell()
    with pytest.raises(LookupError, match="the buffer has no array yet"):
        _ = x.array
    call = device.sequence([device.launch(kernel, [x, y])])
    results = []
    for value in (0.0, 1.0):
        x.array, y.array = np.full(15, value, np.float32), np.empty(15, np.float32)
        call()
        results.append(float(y.array[0]))
    assert results[0] == 0.0
    assert results[1] == pytest.approx(0.8413447)


def test_a_sequence_keeps_what_it_points_to() -> None:
    """Arrays, tables of addresses and offsets are held by the call alone."""
    device = CpuDevice(1)
    kernel = gelu(100, 100)
    device.load([kernel])
    result = np.empty(10_000, np.float32)
    middle = Cell(np.empty(10_000, np.float32))
    tasks = [
        device.launch(kernel, [Cell(np.ones(10_000, np.float32)), middle]),
        device.library(plain(100, 100, 100, 1), (F32,) * 3, middle, Cell(np.eye(100, dtype=np.float32)), Cell(result)),
    ]
    call = device.sequence(tasks)
    del tasks, middle
    gc.collect()
    garbage = [np.full(10_000, 7.0, np.float32) for _ in range(20)]
    call()
    assert result == pytest.approx(0.8413447)
    assert garbage


@pytest.mark.parametrize("pairs", [True, False])
def test_a_device_says_where_it_computes_bfloat16_in_float32(pairs: bool) -> None:
    """Both ways give the sums of the same products."""
    device = CpuDevice(1)
    device.compiler.tile = replace(device.compiler.tile, pairs=pairs and device.compiler.tile.pairs)
    dtypes = (DType.BFLOAT16, F32, DType.BFLOAT16)
    arrays = [np.random.default_rng(i).integers(-3, 4, (20, 20)).astype(d.numpy) for i, d in enumerate(dtypes)]
    wanted = (arrays[0].astype(np.float32) @ arrays[1]).astype(DType.BFLOAT16.numpy)
    product = replace(plain(20, 20, 20, 1), rounded=True, batch=(), a=_square(0), b=_square(1), c=_square(2))
    device.library(product, dtypes, *map(Cell, arrays)).run()
    np.testing.assert_array_equal(arrays[2].astype(np.float32), wanted.astype(np.float32))
    text = "products of bfloat16 are computed in float32, which this processor multiplies faster"
    assert list(device.notes) == ([] if device.compiler.tile.pairs else [text])


def _square(buffer: int) -> Matrix:
    return Matrix(buffer, 0, 20, False, ())
