"""Kernels as machine code compute what numpy says, at sizes where vector loops, tiles and remainders meet."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_samples import (
    F32,
    Body,
    access,
    axis,
    filled,
    gather,
    gelu,
    reads,
    reduction,
    run_on,
    softmax,
    writes,
)

from paren.codegen.llvm import emit_kernel, parallel_units
from paren.codegen.loops import arrange
from paren.ir.op import Array
from paren.ir.types import DType
from paren.plan.kernel import Kernel, Parameter
from paren.runtime.cpu import CpuDevice

DEVICE = CpuDevice(1)
SIZES = [1, 7, 64, 1000]
KINDS = ["sum", "max", "min", "argmax", "argmin"]
FUNCTIONS = {"sum": np.sum, "max": np.max, "min": np.min, "argmax": np.argmax, "argmin": np.argmin}


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("columns", SIZES)
@pytest.mark.parametrize("rows", [1, 3, 33])
def test_softmax(rows: int, columns: int) -> None:
    x = normal(rows, columns) * 3
    y = np.empty_like(x)
    run_on(DEVICE, softmax(rows, columns), [x, y])
    power = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, power / power.sum(1, keepdims=True), rtol=2e-6)


@pytest.mark.parametrize("along", ["row", "column"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [*SIZES, 9000])
@pytest.mark.parametrize("inner", [1, 7, 64, 300])
def test_reductions_of_matrices(kind: str, rows: int, inner: int, along: str) -> None:
    x = normal(rows, inner)
    kernel = reduction(kind, rows, inner, along)
    wanted = FUNCTIONS[kind](x.astype(np.float64), axis=1 if along == "row" else 0)
    got = np.empty(wanted.shape, np.int32 if kind.startswith("arg") else np.float32)
    run_on(DEVICE, kernel, [x, got])
    if kind == "sum":
        np.testing.assert_allclose(got, wanted, atol=2e-6 * np.sqrt(x.size / wanted.size) + 1e-6, rtol=1e-6)
    else:
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("along", ["row", "column"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.FLOAT32 and not d.is_short])
def test_reductions_of_every_type(kind: str, dtype: DType, along: str) -> None:
    if kind == "sum" and dtype == DType.BOOL:
        return
    x = filled(np.random.default_rng(1), dtype, 40 * 21).reshape(40, 21)
    wanted = FUNCTIONS[kind](x, axis=1 if along == "row" else 0)
    wanted = wanted.astype(np.int32 if kind.startswith("arg") else dtype.numpy)
    got = np.empty_like(wanted)
    run_on(DEVICE, reduction(kind, 40, 21, along, dtype), [x, got])
    np.testing.assert_allclose(got, wanted, rtol=1e-12)


@pytest.mark.parametrize("along", ["row", "column"])
@pytest.mark.parametrize("kind", ["max", "min", "argmax", "argmin"])
def test_extremes_with_missing_and_infinite_values(kind: str, along: str) -> None:
    x = normal(6, 70)
    x[1, 5] = np.nan
    x[1, 50] = np.nan
    x[2] = -np.inf
    x[3] = np.inf
    x[4, 69] = np.nan
    x[5] = 2.0
    matrix = x if along == "row" else np.ascontiguousarray(x.T)
    wanted = FUNCTIONS[kind](x, axis=1)
    got = np.empty(6, np.int32 if kind.startswith("arg") else np.float32)
    run_on(DEVICE, reduction(kind, *matrix.shape, along), [matrix, got])
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("size", [*SIZES, 4096, 4097, 100_003])
def test_a_sum_of_everything_is_accurate(size: int) -> None:
    x = np.abs(normal(size))
    got = np.empty(1, np.float32)
    run_on(DEVICE, reduction("sum", 1, size, "row"), [x, got])
    np.testing.assert_allclose(got[0], x.sum(dtype=np.float64), rtol=5e-7)


@pytest.mark.parametrize("rows", [4096, 100_000])
def test_a_sum_down_long_columns_is_accurate(rows: int) -> None:
    x = np.abs(normal(rows, 20))
    got = np.empty(20, np.float32)
    run_on(DEVICE, reduction("sum", rows, 20, "column"), [x, got])
    np.testing.assert_allclose(got, x.sum(0, dtype=np.float64), rtol=4e-6)


@pytest.mark.parametrize("kind", ["sum", "max", "argmax"])
@pytest.mark.parametrize("shape", [(3, 4, 5, 6), (2, 1, 300, 3), (1, 7, 1, 64), (2, 3, 64, 1)])
def test_reductions_over_several_axes(kind: str, shape: tuple[int, int, int, int]) -> None:
    """Over axes 0, 2 and 3 of four, as of a bias of a convolution; positions count in loop order."""
    x = normal(*shape)
    body = Body()
    body.stage(1, 2, 3)
    reduced = body.reduce(kind, body.load(access(0, shape, 1, 0, 2, 3)))
    body.stage()
    body.store(access(1, (shape[1],), 0), reduced)
    kernel = body.kernel((shape[1], shape[0], *shape[2:]), 1, [reads(x.size), writes(shape[1], body.types[reduced])])
    flat = x.transpose(1, 0, 2, 3).reshape(shape[1], -1).astype(np.float64)
    got = np.empty(shape[1], body.types[reduced].numpy)
    run_on(DEVICE, kernel, [x, got])
    np.testing.assert_allclose(got, FUNCTIONS[kind](flat, axis=1), atol=1e-4)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0), (2, 1, 0)])
@pytest.mark.parametrize("shape", [(3, 5, 70), (64, 7, 2), (1, 33, 33)])
def test_maps_over_transposed_operands(order: tuple[int, int, int], shape: tuple[int, int, int]) -> None:
    x, y = normal(*shape), normal(*(shape[i] for i in order), seed=1)
    body = Body()
    body.stage()
    places: list[int] = [0, 0, 0]
    for position, source in enumerate(order):
        places[source] = position
    value = body.compute("mul", body.load(access(0, shape, *places)), body.load(access(1, y.shape, 0, 1, 2)))
    body.store(access(2, y.shape, 0, 1, 2), value)
    got = np.empty_like(y)
    run_on(DEVICE, body.kernel(y.shape, 3, [reads(x.size), reads(x.size), writes(x.size)]), [x, y, got])
    np.testing.assert_array_equal(got, x.transpose(order) * y)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("before", [0, 1, 9])
@pytest.mark.parametrize("after", [0, 3])
def test_padding_reads_nothing_outside(size: int, before: int, after: int) -> None:
    """Both dimensions are padded; the operand lies between bytes that no kernel may read as numbers."""
    x = normal(5, size)
    shape = (5 + 2, before + size + after)
    body = Body()
    body.stage()
    indices = (axis((0, 1), constant=-1), axis((1, 1), constant=-before))
    body.store(access(1, shape, 0, 1), body.load(access(0, x.shape, *indices, guarded=True), fill=2.5))
    got = np.empty(shape, np.float32)
    run_on(DEVICE, body.kernel(shape, 2, [reads(x.size), writes(got.size)]), [x, got])
    np.testing.assert_array_equal(got, np.pad(x, ((1, 1), (before, after)), constant_values=np.float32(2.5)))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("width", [5, 7, 64])
def test_windows_and_their_transpose(width: int, stride: int) -> None:
    """patches: a guarded read for each window; fold: the sum over the windows that an element is in, by divisors."""
    kernel_size, pad = 3, 1
    out = (width + 2 * pad - kernel_size) // stride + 1
    x = normal(2, width)
    body = Body()
    body.stage()
    place = axis((1, 1), (2, stride), constant=-pad)
    shape = (2, kernel_size, out)
    body.store(access(1, shape, 0, 1, 2), body.load(access(0, x.shape, 0, place, guarded=True)))
    windows = np.empty(shape, np.float32)
    run_on(DEVICE, body.kernel(shape, 3, [reads(x.size), writes(windows.size)]), [x, windows])
    padded = np.pad(x, ((0, 0), (pad, pad)))
    for k in range(kernel_size):
        np.testing.assert_array_equal(windows[:, k], padded[:, k : k + stride * (out - 1) + 1 : stride])

    body = Body()
    body.stage(2)
    place = axis((1, 1), (2, -1), constant=pad, divisor=stride)
    part = body.reduce("sum", body.load(access(0, shape, 0, 2, place, guarded=True)))
    body.stage()
    body.store(access(1, x.shape, 0, 1), part)
    got = np.empty_like(x)
    run_on(DEVICE, body.kernel((2, width, kernel_size), 2, [reads(windows.size), writes(x.size)]), [windows, got])
    wanted = np.zeros_like(padded)
    for k in range(kernel_size):
        wanted[:, k : k + stride * (out - 1) + 1 : stride] += windows[:, k]
    np.testing.assert_allclose(got, wanted[:, pad : pad + width], rtol=1e-6)


@pytest.mark.parametrize("dtype", [DType.INT64, DType.INT32, DType.UINT32, DType.UINT8])
@pytest.mark.parametrize("width", SIZES)
def test_gathers_clamp(dtype: DType, width: int) -> None:
    table = normal(9, width)
    ids = np.array([0, 8, 3, 9, 200], dtype.numpy)
    if dtype in (DType.INT64, DType.INT32):
        ids = np.append(ids, np.array([-1, -(2**31)], dtype.numpy))
    body = Body()
    body.stage()
    row = body.load(access(1, ids.shape, 0), dtype)
    body.store(access(2, (ids.size, width), 0, 1), body.load(access(0, table.shape, gather(row), 1)))
    got = np.empty((ids.size, width), np.float32)
    kernel = body.kernel(got.shape, 2, [reads(table.size), reads(ids.size, dtype), writes(got.size)])
    run_on(DEVICE, kernel, [table, ids, got])
    np.testing.assert_array_equal(got, table[np.clip(ids.astype(np.int64), 0, 8)])


@pytest.mark.parametrize("width", SIZES)
def test_scatter_add_keeps_its_order(width: int) -> None:
    base, updates = normal(6, width), normal(40, width, seed=1)
    ids = np.random.default_rng(2).integers(0, 6, 40).astype(np.int32)
    body = Body()
    body.stage(1)
    body.store(access(3, base.shape, 1, 0), body.load(access(0, base.shape, 1, 0)))
    body.stage(2)
    row = body.load(access(1, ids.shape, 2), DType.INT32)
    body.accumulate(access(3, base.shape, gather(row), 0), body.load(access(2, updates.shape, 2, 0)))
    parameters = [reads(base.size), reads(40, DType.INT32), reads(updates.size), Parameter(F32, base.size, True, True)]
    got = np.empty_like(base)
    run_on(DEVICE, body.kernel((width, 6, 40), 1, parameters), [base, ids, updates, got])
    wanted = base.copy()
    np.add.at(wanted, ids, updates)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("size", SIZES)
def test_scatter_of_scalars(size: int) -> None:
    """Without row axes: one row, one loop, additions in order."""
    ids = np.random.default_rng(2).integers(0, 5, size).astype(np.int32)
    updates, got = normal(size), np.zeros(5, np.float32)
    body = Body()
    body.stage(0)
    row = body.load(access(0, ids.shape, 0), DType.INT32)
    body.accumulate(access(2, (5,), gather(row)), body.load(access(1, updates.shape, 0)))
    kernel = body.kernel((size,), 0, [reads(size, DType.INT32), reads(size), Parameter(F32, 5, True, True)])
    run_on(DEVICE, kernel, [ids, updates, got])
    wanted = np.zeros(5, np.float32)
    np.add.at(wanted, ids, updates)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("columns", SIZES)
def test_values_of_one_loop_reach_later_loops(columns: int) -> None:
    """Down columns: a mean, the deviations from it, their sum; values cross loops on the stack."""
    rows = 30
    x = normal(rows, columns)
    body = Body()
    body.stage(1)
    total = body.reduce("sum", body.load(access(0, x.shape, 1, 0)))
    body.stage()
    mean = body.compute("mul", total, body.constant(1.0 / rows))
    positive = body.compute("gt", mean, body.constant(0.0), dtype=DType.BOOL)
    body.stage(1)
    away = body.compute("sub", body.load(access(0, x.shape, 1, 0)), mean)
    kept = body.compute("where", positive, away, body.compute("neg", away), dtype=F32)
    body.store(access(1, x.shape, 1, 0), kept)
    square = body.reduce("sum", body.compute("mul", kept, kept))
    body.stage()
    body.store(access(2, (columns,), 0), square)
    deviations, squares = np.empty_like(x), np.empty(columns, np.float32)
    kernel = body.kernel((columns, rows), 1, [reads(x.size), writes(x.size), writes(columns)])
    assert arrange(kernel).lane == 0 or columns == 1
    run_on(DEVICE, kernel, [x, deviations, squares])
    average = x.mean(0, dtype=np.float64)
    wanted = (x - average) * np.where(average > 0, 1, -1)
    np.testing.assert_allclose(deviations, wanted, atol=1e-6)
    np.testing.assert_allclose(squares, (wanted**2).sum(0), rtol=1e-5)


def test_positions_become_values_of_every_type() -> None:
    for dtype in (DType.INT32, DType.INT64, DType.UINT32, DType.UINT8, DType.FLOAT32, DType.FLOAT64):
        body = Body()
        body.stage()
        body.store(access(0, (5, 7), 0, 1), body.index(axis((0, 7), (1, 1), constant=3), dtype))
        got = np.empty((5, 7), dtype.numpy)
        run_on(DEVICE, body.kernel((5, 7), 2, [writes(35, dtype)]), [got])
        np.testing.assert_array_equal(got, np.arange(3, 38).reshape(5, 7).astype(dtype.numpy))


@pytest.mark.parametrize("kernel", [softmax(5, 70), gelu(5, 70)], ids=lambda kernel: kernel.name)
def test_an_output_may_lie_on_its_input(kernel: Kernel) -> None:
    x = normal(5, 70)
    apart = np.empty_like(x)
    run_on(DEVICE, kernel, [x, apart])
    together = x.copy()
    run_on(DEVICE, kernel, [together, together])
    np.testing.assert_array_equal(together, apart)


def test_a_state_that_is_read_and_written_in_place() -> None:
    """One parameter for both, as an optimizer's moments are."""
    x, moment = normal(1000), normal(1000, seed=1)
    body = Body()
    body.stage()
    mixed = body.compute("add", body.load(access(0, (1000,), 0)), body.load(access(1, (1000,), 0)))
    body.store(access(1, (1000,), 0), mixed)
    wanted = x + moment
    run_on(DEVICE, body.kernel((1000,), 1, [reads(1000), Parameter(F32, 1000, True, True)]), [x, moment])
    np.testing.assert_array_equal(moment, wanted)


@pytest.mark.parametrize("kernel", [softmax(8, 1024), gelu(8, 1024)], ids=lambda kernel: kernel.name)
def test_loops_of_float32_kernels_call_nothing(kernel: Kernel) -> None:
    text = DEVICE.compiler.assembly(emit_kernel(kernel, "kernel"))
    assert "call" not in text


def test_multiply_and_add_are_not_fused() -> None:
    """So that fusing loops, or computing a value again, does not change bits."""
    generator = np.random.default_rng(3)
    a, b, c = (generator.normal(size=500).astype(np.float32) for _ in range(3))
    body = Body()
    body.stage()
    product = body.compute("mul", body.load(access(0, (500,), 0)), body.load(access(1, (500,), 0)))
    body.store(access(3, (500,), 0), body.compute("add", product, body.load(access(2, (500,), 0))))
    got = np.empty_like(a)
    run_on(DEVICE, body.kernel((500,), 1, [reads(500)] * 3 + [writes(500)]), [a, b, c, got])
    np.testing.assert_array_equal(got, a * b + c)


def test_contiguous_axes_become_one_loop() -> None:
    loops = arrange(gelu(30, 50))
    assert loops.kernel.axes == (1500,)
    assert parallel_units(gelu(3000, 1000)) == -(-3_000_000 // loops_tile(gelu(3000, 1000)))
    assert arrange(softmax(30, 50)).kernel.axes == (30, 50)


def loops_tile(kernel: Kernel) -> int:
    return arrange(kernel).tile
