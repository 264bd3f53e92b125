"""bfloat16: roundings and widenings, bit for bit: the definition, torch, the kernels; gradients of casts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kernel_samples import elementwise, run_on
from torch_table import array_of

import paren.ir.ops  # noqa: F401 fills the table
from paren.ir.evaluate import evaluate
from paren.ir.graph import Builder
from paren.ir.op import OPS, Array
from paren.ir.types import DType, TensorType, TypeMismatch
from paren.passes.gradient import differentiate
from paren.runtime.cpu import CpuDevice
from paren.text.source import Source, Span

SPAN = Span(Source("bfloat16.paren", "(x)"), 0, 3)
HALF = DType.BFLOAT16
DEVICE = CpuDevice(1)


def every_upper_half() -> Array:
    """float32 values with every upper half, and lower halves below, at and above the middle."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    return np.concatenate([upper | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).view(np.float32)


def bits(values: Array) -> Array:
    return values.view(np.uint16)


def rounded(values: Array) -> Array:
    return OPS["cast"].evaluate([values], {"dtype": HALF})


def test_rounding_takes_the_nearest_and_the_even_one_of_two() -> None:
    values = every_upper_half()
    known = np.isfinite(values)
    wide = values[known].astype(np.float64)
    found = rounded(values)[known].astype(np.float64)
    upper = (values[known].view(np.uint32) >> 16).astype(np.uint16)
    below = upper.view(HALF.numpy).astype(np.float64)
    above = (upper + np.uint16(1)).view(HALF.numpy).astype(np.float64)  # away from zero
    above = np.where(np.isinf(above), np.copysign(2.0**128, above), above)
    largest = 2.0**127 * (2 - 2.0**-7)
    to_below, to_above = np.abs(wide - below), np.abs(above - wide)
    wanted = np.where((to_below < to_above) | ((to_below == to_above) & (upper % 2 == 0)), below, above)
    wanted = np.where(np.abs(wanted) > largest, np.copysign(np.inf, wanted), wanted)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(wide))


def test_rounding_is_torchs() -> None:
    values = every_upper_half()
    expected = array_of(torch.from_numpy(values).to(torch.bfloat16))
    missing = np.isnan(values)
    np.testing.assert_array_equal(bits(rounded(values))[~missing], bits(expected)[~missing])
    assert np.isnan(rounded(values)[missing].astype(np.float32)).all()


@pytest.mark.parametrize("count", [1 << 16, 1, 7, 33])
def test_kernels_round_as_the_definition_bit_for_bit(count: int) -> None:
    every = every_upper_half()
    values = every if count == 1 << 16 else np.random.default_rng(count).choice(every, count)
    got = np.empty(values.size, HALF.numpy)
    run_on(DEVICE, elementwise("cast", [DType.FLOAT32], HALF, values.size), [values, got])
    missing = np.isnan(values)
    np.testing.assert_array_equal(bits(got)[~missing], bits(rounded(values))[~missing])
    assert np.isnan(got[missing].astype(np.float32)).all()
    np.testing.assert_array_equal(np.signbit(got), np.signbit(values))


def test_kernels_widen_every_value() -> None:
    values = np.arange(1 << 16, dtype=np.uint16).view(HALF.numpy)
    got = np.empty(values.size, np.float32)
    run_on(DEVICE, elementwise("cast", [HALF], DType.FLOAT32, values.size), [values, got])
    np.testing.assert_array_equal(got.view(np.uint32), bits(values).astype(np.uint32) << 16)


@pytest.mark.parametrize("dtype", [d for d in DType if d is not HALF])
def test_every_other_type_goes_through_float32(dtype: DType) -> None:
    largest = 65504 if dtype is DType.FLOAT16 else 2**24 + 1
    values = np.array([0, 1, 3, 100, 255, 1000, largest]).astype(dtype.numpy)
    np.testing.assert_array_equal(bits(rounded(values)), bits(values.astype(np.float32).astype(HALF.numpy)))
    widened = OPS["cast"].evaluate([rounded(values)], {"dtype": dtype})
    assert widened.dtype == dtype.numpy


def test_products_of_halves_are_in_float32() -> None:
    attrs = {"batch": ((), ()), "contracting": ((1,), (0,))}
    a, b = (rounded(np.random.default_rng(i).normal(size=(5, 5)).astype(np.float32)) for i in range(2))
    found = OPS["contract"].evaluate([a, b], attrs)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["add", "mul", "maximum", "lt", "exp", "neg"])
def test_arithmetic_in_bfloat16_is_refused(name: str) -> None:
    half = TensorType(HALF, (3,))
    with pytest.raises(TypeMismatch) as caught:
        OPS[name].infer([half] * (1 if name in ("exp", "neg") else 2), {})
    wanted = "the operand is bfloat16[3], and bfloat16 is for storage and products: cast it to float32"
    assert str(caught.value) == wanted


def test_gradients_pass_a_rounding_as_they_are_and_add_up_in_float32() -> None:
    """x is rounded, used twice as it is and once in a product, whose operands are rounded."""
    builder = Builder("gradient")
    x = builder.input("x", TensorType(DType.FLOAT32, (3,)), "state", SPAN)
    half = builder.emit("cast", (x,), {"dtype": HALF}, SPAN)
    wide = builder.emit("cast", (half,), {"dtype": DType.FLOAT32}, SPAN)
    turned = builder.emit("reshape", (half,), {"shape": (1, 3)}, SPAN)
    square = builder.emit("contract", (half, half), {"batch": ((), ()), "contracting": ((0,), (0,))}, SPAN)
    again = builder.emit("cast", (turned,), {"dtype": DType.FLOAT32}, SPAN)
    parts = [builder.emit("sum", (node,), {"axes": tuple(range(node.type.rank))}, SPAN) for node in (wide, again)]
    total = builder.apply("add", builder.apply("add", *parts), square)
    (gradient,) = differentiate(builder, total, [x])
    assert gradient.dtype is DType.FLOAT32
    values = np.array([1.001, -2.003, 0.1], np.float32)
    found = evaluate(builder.graph({"gradient": gradient}), {"x": values})["gradient"]
    np.testing.assert_array_equal(found, 2 + 2 * rounded(values).astype(np.float32))


def test_a_constant_is_rounded() -> None:
    builder = Builder("constant")
    node = builder.constant(1.001, HALF, SPAN)
    assert node.attrs["value"] == 1.0
    assert evaluate(builder.graph({"c": node}), {})["c"].dtype == HALF.numpy
