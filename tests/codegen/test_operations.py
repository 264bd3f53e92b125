"""Every elementwise operation, on every element type it takes, gives what its record in `paren.ir.ops` defines."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_samples import comparable, elementwise, filled, run_on

import paren.ir.ops  # noqa: F401 fills the table
from paren.codegen.operations import Operation
from paren.codegen.writer import Writer
from paren.ir.op import OPS, Array
from paren.ir.types import DType, TensorType, TypeMismatch
from paren.runtime.cpu import CpuDevice
from paren.text.errors import InternalError

DEVICE = CpuDevice(1)
SIZE = 203
BINARY = {
    *("add", "sub", "mul", "div", "pow", "maximum", "minimum", "remainder", "floor_divide"),
    *("lt", "le", "gt", "ge", "eq", "ne", "and", "or", "xor", "shift_left", "shift_right"),
}
SPECIAL = {"where", "threefry", "cast"}
APPROXIMATE = {"exp", "log", "log1p", "expm1", "tanh", "erf", "sin", "cos", "pow"}


def cases() -> list[tuple[str, DType]]:
    """Each elementwise operation with each element type that its record accepts."""
    found = []
    for name, op in sorted(OPS.items()):
        if op.kind != "elementwise" or name in SPECIAL:
            continue
        for dtype in DType:
            types = [TensorType(dtype, (SIZE,))] * (2 if name in BINARY else 1)
            try:
                op.infer(types, {})
            except TypeMismatch:
                continue
            found.append((name, dtype))
    return found


def operands(name: str, dtype: DType, count: int) -> list[Array]:
    """Random values with the edges of the type mixed in."""
    generator = np.random.default_rng(3)
    arrays = [filled(generator, dtype, SIZE) for _ in range(count)]
    if dtype.is_float:
        edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.5], dtype.numpy)
        pairs = np.repeat(edges, 8), np.tile(edges, 8)
    elif dtype == DType.BOOL:
        return arrays
    else:
        info = np.iinfo(dtype.value)
        edges = np.array([info.min, info.max, 0, 1, 2, info.max - 1, 40, 7], dtype.numpy)
        pairs = np.repeat(edges, 8), np.tile(edges, 8)
        if info.min < 0:
            pairs[1][:8] = -1
    for array, pair in zip(arrays, pairs, strict=False):
        array[: pair.size] = pair
    return arrays


@pytest.mark.parametrize(("name", "dtype"), cases())
def test_operation_is_its_definition(name: str, dtype: DType) -> None:
    op = OPS[name]
    arrays = operands(name, dtype, 2 if name in BINARY else 1)
    with np.errstate(all="ignore"):
        wanted = op.evaluate(arrays, {})
    result_type = op.infer([TensorType(dtype, (SIZE,))] * len(arrays), {}).dtype
    got = np.empty(SIZE, result_type.numpy)
    run_on(DEVICE, elementwise(name, [dtype] * len(arrays), result_type, SIZE), [*arrays, got])
    if name in APPROXIMATE:
        np.testing.assert_allclose(got, wanted, rtol=3e-7 if dtype == DType.FLOAT32 else 1e-13, atol=1e-30)
    else:
        np.testing.assert_array_equal(comparable(got), comparable(wanted))
        if result_type.is_float:
            # Equal operands of opposite zero sign may give either zero as the larger.
            known = ~np.isnan(comparable(wanted)) & ~((wanted == 0) & (name in ("maximum", "minimum")))
            np.testing.assert_array_equal(np.signbit(got[known]), np.signbit(wanted[known]))


@pytest.mark.parametrize("source", list(DType))
@pytest.mark.parametrize("target", list(DType))
def test_casts_are_numpys(source: DType, target: DType) -> None:
    values = filled(np.random.default_rng(4), source, SIZE)
    if source.is_float:
        values = np.abs(values * 50)  # inside the range of every type
    elif target in (DType.UINT8, DType.UINT32):
        values = np.abs(values) if source != DType.BOOL else values
    got = np.empty(SIZE, target.numpy)
    run_on(DEVICE, elementwise("cast", [source], target, SIZE), [values, got])
    through = np.float32 if DType.BFLOAT16 in (source, target) else values.dtype
    np.testing.assert_array_equal(got, values.astype(through).astype(target.numpy))


def test_floats_outside_an_integer_type_become_its_bounds() -> None:
    values = np.array([1e30, -1e30, np.inf, -np.inf, np.nan, 3.9, -3.9], np.float32)
    got = np.empty(values.size, np.int32)
    run_on(DEVICE, elementwise("cast", [DType.FLOAT32], DType.INT32, values.size), [values, got])
    assert got.tolist() == [2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 0, 3, -3]


@pytest.mark.parametrize("dtype", list(DType))
def test_where_chooses(dtype: DType) -> None:
    generator = np.random.default_rng(5)
    condition = filled(generator, DType.BOOL, SIZE)
    a, b = filled(generator, dtype, SIZE), filled(generator, dtype, SIZE)
    got = np.empty(SIZE, dtype.numpy)
    run_on(DEVICE, elementwise("where", [DType.BOOL, dtype, dtype], dtype, SIZE), [condition, a, b, got])
    np.testing.assert_array_equal(got, np.where(condition, a, b))


@pytest.mark.parametrize("word", [0, 1])
def test_threefry_is_its_definition(word: int) -> None:
    generator = np.random.default_rng(6)
    words = [generator.integers(0, 2**32, SIZE, dtype=np.uint32) for _ in range(4)]
    got = np.empty(SIZE, np.uint32)
    kernel = elementwise("threefry", [DType.UINT32] * 4, DType.UINT32, SIZE, {"word": word})
    run_on(DEVICE, kernel, [*words, got])
    np.testing.assert_array_equal(got, OPS["threefry"].evaluate(words, {"word": word}))


def test_threefry_known_answers() -> None:
    """The vectors that the generator's authors published with their code."""
    cases = [((0, 0, 0, 0), (0x6B200159, 0x99BA4EFE)), ((2**32 - 1,) * 4, (0x1CB996FC, 0xBB002BE7))]
    for operands_, wanted in cases:
        for word in (0, 1):
            got = np.empty(1, np.uint32)
            kernel = elementwise("threefry", [DType.UINT32] * 4, DType.UINT32, 1, {"word": word})
            run_on(DEVICE, kernel, [*(np.array([value], np.uint32) for value in operands_), got])
            assert got[0] == wanted[word]


def test_an_operation_without_instructions_is_our_fault() -> None:
    with pytest.raises(InternalError, match="operation sqrt on int32 has no instructions"):
        Operation(Writer(), set()).write("sqrt", ["%a"], [DType.INT32], DType.INT32, {})
