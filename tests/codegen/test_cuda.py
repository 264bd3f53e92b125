"""The CUDA C of a kernel, executed by the emulation, computes what numpy says; elementwise with the CPU's bits."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import random_kernels
from emulation.device import Case, aligned, run_emulated
from emulation.run import compile_kernels
from hypothesis import HealthCheck, Phase, given, settings
from kernel_samples import (
    F32,
    Body,
    access,
    axis,
    comparable,
    elementwise,
    filled,
    gather,
    gelu,
    reads,
    reduction,
    run_on,
    softmax,
    writes,
)
from random_kernels import buffers_for, kernels
from test_operations import BINARY, SIZE, cases, operands

from paren.codegen.cuda.emit import emit_kernel
from paren.codegen.cuda.mapping import map_kernel
from paren.codegen.cuda.one_hot import choose_elements
from paren.codegen.cuda.spelling import spell
from paren.codegen.python import run_kernel
from paren.ir.op import OPS, Array
from paren.ir.types import DType, TensorType
from paren.plan.kernel import Kernel, Parameter, Reduce
from paren.runtime.cpu import CpuDevice
from paren.text.errors import InternalError

DEVICE = CpuDevice(1)
KINDS = ["sum", "max", "min", "argmax", "argmin"]
FUNCTIONS = {"sum": np.sum, "max": np.max, "min": np.min, "argmax": np.argmax, "argmin": np.argmin}
HALF = DType.BFLOAT16
LARGEST = 10**6  # elements of a parameter of a random kernel


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def same_bits(got: Array, wanted: Array) -> None:
    """Equal, signs of zeros included; NaNs whatever their payload."""
    np.testing.assert_array_equal(comparable(got), comparable(wanted))
    if comparable(wanted).dtype.kind == "f":
        known = ~np.isnan(comparable(wanted))
        np.testing.assert_array_equal(np.signbit(comparable(got)[known]), np.signbit(comparable(wanted)[known]))


def as_on_the_cpu(kernels_and_inputs: list[tuple[Kernel, list[Array]]]) -> None:
    """Runs elementwise kernels on both targets and compares what they write."""
    emulated = []
    for kernel, inputs in kernels_and_inputs:
        parameter = kernel.parameters[-1]
        emulated.append(Case(kernel, [*inputs, np.empty(parameter.size, parameter.dtype.numpy)]))
    run_emulated(*emulated)
    for case in emulated:
        wanted = np.empty_like(case.buffers[-1])
        run_on(DEVICE, case.kernel, [*case.buffers[:-1], wanted])
        same_bits(case.buffers[-1], wanted)


def test_operations_have_the_bits_of_the_cpu() -> None:
    found = []
    for name, dtype in cases():
        count = 2 if name in BINARY else 1
        result = OPS[name].infer([TensorType(dtype, (SIZE,))] * count, {}).dtype
        found.append((elementwise(name, [dtype] * count, result, SIZE), operands(name, dtype, count)))
    as_on_the_cpu(found)


def test_casts_have_the_bits_of_the_cpu() -> None:
    found = []
    for source in DType:
        for target in DType:
            values = filled(np.random.default_rng(4), source, 208)
            if source.is_float:
                with np.errstate(over="ignore"):
                    values[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 0.5]
                    values = values * values.dtype.type(50)
            found.append((elementwise("cast", [source], target, 208), [values]))
    as_on_the_cpu(found)


@pytest.mark.parametrize("name", ["exp", "expm1", "log", "log1p", "tanh", "erf", "sin", "cos"])
def test_functions_have_the_bits_of_the_cpu_everywhere(name: str) -> None:
    patterns = np.arange(0, 2**32, 65521, dtype=np.uint64).astype(np.uint32).view(np.float32)
    as_on_the_cpu([(elementwise(name, [F32], F32, patterns.size), [patterns])])


def test_pow_and_threefry_have_the_bits_of_the_cpu() -> None:
    x, y = normal(40_000) * 20, normal(40_000, seed=1) * 9
    words = [np.random.default_rng(6).integers(0, 2**32, 4096, dtype=np.uint32) for _ in range(4)]
    random = [(elementwise("threefry", [DType.UINT32] * 4, DType.UINT32, 4096, {"word": w}), words) for w in (0, 1)]
    as_on_the_cpu([(elementwise("pow", [F32, F32], F32, x.size), [x, y]), *random])


def test_exp_of_what_is_never_above_0() -> None:
    """It takes a shorter way to the same bits."""
    x = np.arange(0, 2**32, 262_139, dtype=np.uint64).astype(np.uint32).view(np.float32)
    body = Body()
    body.stage()
    value = body.load(access(0, [x.size], 0))
    power = body.compute("exp", body.compute("neg", body.compute("mul", value, value)))
    body.store(access(1, [x.size], 0), power)
    kernel = body.kernel([x.size], 1, [reads(x.size), writes(x.size)])
    assert "paren_exp_below" in emit_kernel(kernel).text
    as_on_the_cpu([(kernel, [x])])


@pytest.mark.parametrize("dtype", list(DType))
def test_where_chooses(dtype: DType) -> None:
    generator = np.random.default_rng(5)
    inputs = [filled(generator, DType.BOOL, 256), filled(generator, dtype, 256), filled(generator, dtype, 256)]
    as_on_the_cpu([(elementwise("where", [DType.BOOL, dtype, dtype], dtype, 256), inputs)])


@pytest.mark.parametrize(
    ("count", "sizes", "most"),
    [
        (120, [1, 2, 3, 7, 17, 33], 3000),
        (60, [1, 2, 8, 40, 96, 264, 1032], 60_000),
        pytest.param(3000, [1, 2, 3, 8, 17, 33, 264], 20_000, marks=pytest.mark.long),
    ],
    ids=["within a warp", "across warps", "many"],
)
def test_random_kernels(count: int, sizes: list[int], most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, threads in both orders between barriers, and in ranges of rows; all compiled at once, so their number is
    fixed."""
    monkeypatch.setattr(random_kernels, "SIZES", sizes)
    found: list[Kernel] = []

    @settings(
        max_examples=count, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(kernels())
    def collect(kernel: Kernel) -> None:
        if prod(kernel.axes) <= most and all(parameter.size <= LARGEST for parameter in kernel.parameters):
            found.append(kernel)

    collect()
    ways = [(None, False), (None, True), (1, False), (7, False)]
    runs = [Case(kernel, buffers_for(kernel, 3), *way) for kernel in found for way in ways]
    run_emulated(*runs)
    for case in runs:
        wanted = buffers_for(case.kernel, 3)
        run_kernel(case.kernel, wanted)
        for number, (mine, right) in enumerate(zip(case.buffers, wanted, strict=True)):
            np.testing.assert_array_equal(mine, right, err_msg=f"parameter {number} of {case.kernel}")


@pytest.mark.parametrize("along", ["row", "column"])
@pytest.mark.parametrize("kind", KINDS)
def test_reductions(kind: str, along: str) -> None:
    """Rows of one warp, of several, and of loops; columns of few and of many blocks; even sizes and odd ones."""
    runs, wanted = [], []
    for rows in (1, 3, 33, 1000, 9000):
        for inner in (1, 7, 64, 300, 1024):
            if rows * inner > 3_000_000:
                continue
            x = normal(rows, inner)
            wanted.append(FUNCTIONS[kind](x.astype(np.float64), axis=1 if along == "row" else 0))
            result = np.empty(wanted[-1].shape, np.int32 if kind.startswith("arg") else np.float32)
            runs.append(Case(reduction(kind, rows, inner, along), [x, result]))
    run_emulated(*runs)
    for case, right in zip(runs, wanted, strict=True):
        size = case.buffers[0].size / right.size
        if kind == "sum":
            np.testing.assert_allclose(case.buffers[1], right, atol=2e-6 * np.sqrt(size) + 1e-6, rtol=1e-6)
        else:
            np.testing.assert_array_equal(case.buffers[1], right)


@pytest.mark.parametrize("along", ["row", "column"])
@pytest.mark.parametrize("kind", KINDS)
def test_reductions_of_every_type(kind: str, along: str) -> None:
    runs, wanted = [], []
    for dtype in DType:
        if dtype.is_short or (kind == "sum" and dtype is DType.BOOL):
            continue
        x = filled(np.random.default_rng(1), dtype, 80 * 144).reshape(80, 144)
        right = FUNCTIONS[kind](x, axis=1 if along == "row" else 0)
        wanted.append(right.astype(np.int32 if kind.startswith("arg") else dtype.numpy))
        runs.append(Case(reduction(kind, 80, 144, along, dtype), [x, np.empty_like(wanted[-1])]))
    run_emulated(*runs)
    for case, right in zip(runs, wanted, strict=True):
        np.testing.assert_allclose(case.buffers[1], right, rtol=1e-12 if right.dtype != np.float32 else 1e-5)


@pytest.mark.parametrize("along", ["row", "column"])
@pytest.mark.parametrize("kind", ["max", "min", "argmax", "argmin"])
def test_extremes_with_missing_and_infinite_values(kind: str, along: str) -> None:
    x = normal(6, 2048)
    x[1, 5] = x[1, 50] = x[4, 2047] = np.nan
    x[2], x[3], x[5] = -np.inf, np.inf, 2.0
    matrix = x if along == "row" else np.ascontiguousarray(x.T)
    got = np.empty(6, np.int32 if kind.startswith("arg") else np.float32)
    run_emulated(Case(reduction(kind, *matrix.shape, along), [matrix, got]))
    np.testing.assert_array_equal(got, FUNCTIONS[kind](x, axis=1))


@pytest.mark.parametrize("rows", [None, 5])
@pytest.mark.parametrize(("height", "columns"), [(3, 7), (33, 64), (5, 768), (4, 1000), (2, 5000), (1, 40_000)])
def test_softmax(height: int, columns: int, rows: int | None) -> None:
    x = normal(height, columns) * 3
    y = np.empty_like(x)
    run_emulated(Case(softmax(height, columns), [x, y], rows))
    power = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, power / power.sum(1, keepdims=True), rtol=2e-6)


def test_an_output_on_its_input() -> None:
    """A row's softmax in place: what one thread stores, others loaded before."""
    x = normal(4, 1024)
    kernel = softmax(4, 1024)
    separate, together = np.empty_like(x), aligned(x)
    run_emulated(Case(kernel, [x, separate]))
    emitted = emit_kernel(kernel)
    place = together.ctypes.data
    compile_kernels([emitted]).launch(emitted.name, emitted.blocks(4), emitted.threads, 0, 0, 4, [place, place])
    np.testing.assert_array_equal(together.reshape(4, 1024), separate)


def test_nothing_runs_after_a_stop() -> None:
    emitted = emit_kernel(gelu(4, 64))
    x, y = aligned(normal(256)), aligned(np.full(256, 7, np.float32))
    for flag, changed in ((1, False), (0, True)):
        stop = np.array([flag], np.int32)
        compile_kernels([emitted]).launch(
            emitted.name, emitted.blocks(emitted.units), emitted.threads, stop.ctypes.data, 0,
            emitted.units, [x.ctypes.data, y.ctypes.data],
        )  # fmt: skip
        assert bool(np.any(y != 7)) is changed


def scatter(tokens: int, width: int, table: int) -> Kernel:
    """Adds rows to the rows of a table that integers choose."""
    body = Body()
    body.stage(1)
    token = body.load(access(0, [tokens], 1), DType.INT32)
    body.accumulate(access(2, (table, width), gather(token), 0), body.load(access(1, (tokens, width), 1, 0)))
    return body.kernel(
        (width, tokens),
        1,
        [reads(tokens, DType.INT32), reads(tokens * width), Parameter(F32, table * width, True, True)],
    )


@pytest.mark.parametrize(("tokens", "width", "table"), [(7, 3, 4), (500, 64, 10), (3000, 24, 700), (64, 1, 100)])
def test_scattered_sums_have_the_order_of_the_definition(tokens: int, width: int, table: int) -> None:
    chosen = np.minimum(np.random.default_rng(2).geometric(0.05, tokens), table + 1).astype(np.int32) - 1
    rows, got = normal(tokens, width), normal(table, width, seed=1)
    wanted = got.copy()
    np.add.at(wanted, np.clip(chosen, 0, table - 1), rows)
    run_emulated(Case(scatter(tokens, width, table), [chosen, rows, got]))
    np.testing.assert_array_equal(got, wanted)


def joined(rows: int, width: int) -> Kernel:
    """Three matrices of bfloat16 side by side in one of three times the width, by guarded loads."""
    body = Body()
    body.stage()
    total = None
    for part in range(3):
        moved = axis((1, 1), constant=-part * width)
        value = body.load(access(part, (rows, width), 0, moved, guarded=True), HALF)
        wide = body.compute("cast", value, dtype=F32)
        total = wide if total is None else body.compute("add", total, wide)
    assert total is not None
    body.store(access(3, (rows, 3 * width), 0, 1), body.compute("cast", total, dtype=HALF))
    sizes = [reads(rows * width, HALF)] * 3
    return body.kernel((rows, 3 * width), 2, [*sizes, writes(3 * rows * width, HALF)])


@pytest.mark.parametrize("width", [64, 12, 7])
def test_matrices_side_by_side(width: int) -> None:
    parts = [normal(9, width, seed=seed).astype(HALF.numpy) for seed in range(3)]
    got = np.empty((9, 3 * width), HALF.numpy)
    run_emulated(Case(joined(9, width), [*parts, got]))
    np.testing.assert_array_equal(got, np.concatenate(parts, axis=1))
    assert map_kernel(joined(9, width), False).width == {64: 8, 12: 4, 7: 1}[width]


def test_partial_results_fit_in_shared_memory() -> None:
    """Those of all stages together: 48 KiB is what a kernel may declare."""
    body = Body()
    results = []
    for _ in range(4):
        body.stage(1)
        value = body.load(access(0, (512, 64), 1, 0))
        results += [body.reduce("argmax", body.compute("neg", value)) for _ in range(4)]
    body.stage()
    total = results[0]
    for result in results[1:]:
        total = body.compute("add", total, result)
    body.store(access(1, [64], 0), total)
    kernel = body.kernel((64, 512), 1, [reads(64 * 512), writes(64, DType.INT32)])
    mapping = map_kernel(kernel, False)
    assert mapping.group > 1
    assert 16 * 16 * mapping.threads * mapping.width <= 48 * 1024
    x, got = normal(512, 64), np.empty(64, np.int32)
    run_emulated(Case(kernel, [x, got]))
    np.testing.assert_array_equal(got, 16 * np.argmin(x, axis=0))


def loss(rows: int, words: int, padded: int) -> Kernel:
    """Logits of bfloat16 [rows padded] and targets to the loss of each row and the gradient of the logits, over the
    first `words` columns."""
    shape = (rows, padded)
    body = Body()
    body.stage()
    target = body.load(access(1, [rows], 0), DType.INT32)
    body.stage(1)
    greatest = body.reduce("max", body.compute("cast", body.load(access(0, shape, 0, 1), HALF), dtype=F32))
    body.stage(1)
    moved = body.compute("sub", body.compute("cast", body.load(access(0, shape, 0, 1), HALF), dtype=F32), greatest)
    total = body.reduce("sum", body.compute("exp", moved))
    body.stage()
    logarithm = body.compute("log", total)
    body.stage(1)
    here = body.compute("eq", body.index(axis((1, 1))), target, dtype=DType.BOOL)
    moved = body.compute("sub", body.compute("cast", body.load(access(0, shape, 0, 1), HALF), dtype=F32), greatest)
    zero = body.constant(0.0)
    chosen = body.compute("where", here, body.compute("sub", moved, logarithm), zero, dtype=F32)
    lost = body.reduce("sum", body.compute("neg", chosen))
    share = body.compute("div", body.compute("exp", moved), total)
    one = body.compute("where", here, body.constant(1.0), zero, dtype=F32)
    body.store(access(2, shape, 0, 1), body.compute("cast", body.compute("sub", share, one), dtype=HALF))
    body.stage()
    body.store(access(3, [rows], 0), lost)
    sizes = [reads(rows * padded, HALF), reads(rows, DType.INT32), writes(rows * padded, HALF), writes(rows)]
    return body.kernel((rows, words), 1, sizes)


@pytest.mark.parametrize("rows", [None, 1, 2])
@pytest.mark.parametrize(("words", "padded"), [(7, 7), (1000, 1000), (16_501, 16_504), (16_501, 16_501)])
def test_the_loss_of_tokens(words: int, padded: int, rows: int | None) -> None:
    """The sum over the words of which one counts is a choice; a target out of range counts nothing."""
    kernel = loss(3, words, padded)
    logits = (normal(3, padded) * 3).astype(HALF.numpy)
    buffers = [logits, np.array([words - 1, 4, words + 3], np.int32), np.zeros_like(logits), np.zeros(3, np.float32)]
    wanted = [buffer.reshape(-1).copy() for buffer in buffers]
    run_kernel(kernel, wanted)
    run_emulated(Case(kernel, buffers, rows))
    assert buffers[3][2] == 0
    np.testing.assert_allclose(buffers[3], wanted[3], rtol=1e-6)
    np.testing.assert_allclose(buffers[2].reshape(-1).astype(np.float32), wanted[2].astype(np.float32), rtol=1e-2)
    sums = [r for stage in choose_elements(kernel).stages for r in stage.body if isinstance(r, Reduce)]
    assert [reduce.kind for reduce in sums] == ["max", "sum"]


def test_rows_that_do_not_lie_on_16_bytes() -> None:
    """A range of rows may begin anywhere: what moves 16 bytes at once looks where it is."""
    x = normal(3, 768)
    wanted = np.empty_like(x)
    run_emulated(Case(softmax(3, 768), [x, wanted]))
    emitted = emit_kernel(softmax(3, 768), True)
    source, result = aligned(np.concatenate([x[0, :1], x.reshape(-1)])), aligned(np.zeros(x.size + 1, np.float32))
    compile_kernels([emitted]).launch(
        emitted.name, emitted.blocks(3), emitted.threads, 0, 0, 3,
        [source.ctypes.data + 4, result.ctypes.data + 4],
    )  # fmt: skip
    np.testing.assert_allclose(result[1:].reshape(3, 768), wanted, rtol=1e-6)


def turned(rows: int, columns: int) -> Kernel:
    """The transpose of a matrix of bfloat16, as float32."""
    body = Body()
    body.stage()
    value = body.load(access(0, (rows, columns), 0, 1), HALF)
    body.store(access(1, (columns, rows), 1, 0), body.compute("cast", value, dtype=F32))
    return body.kernel((rows, columns), 2, [reads(rows * columns, HALF), writes(rows * columns)])


@pytest.mark.parametrize(("rows", "columns"), [(64, 40), (7, 24), (24, 7), (5, 3)])
@pytest.mark.parametrize("ranges", [None, 5])
def test_transposing(rows: int, columns: int, ranges: int | None) -> None:
    x = normal(rows, columns).astype(HALF.numpy)
    got = np.empty((columns, rows), np.float32)
    run_emulated(Case(turned(rows, columns), [x, got], ranges))
    np.testing.assert_array_equal(got, x.T.astype(np.float32))


def test_large_kernels_count_in_64_bits() -> None:
    """Places beyond 2^31 need wider indices; no kernel that fits pays for them."""
    assert map_kernel(gelu(2**16, 2**15), False).index == "long long"
    assert map_kernel(gelu(2**14, 2**15), False).index == "int"


def test_an_instruction_without_a_spelling_is_our_fault() -> None:
    with pytest.raises(InternalError, match="no C for: frobnicate float %b"):
        spell("  %a = frobnicate float %b")
