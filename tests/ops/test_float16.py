"""float16: roundings and widenings, bit for bit: the definition, torch, the kernels, all values and their borders."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kernel_samples import elementwise, run_on
from torch_table import array_of

import paren.ir.ops  # noqa: F401 fills the table
from paren.ir.op import OPS, Array
from paren.ir.types import DType, TensorType, TypeMismatch
from paren.runtime.cpu import CpuDevice

DEVICE = CpuDevice(1)
EVERY = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def borders() -> Array:
    """float32: every value of float16, what lies half way to the next one, and the floats next to both."""
    finite = np.append(np.unique(EVERY[np.isfinite(EVERY)]).astype(np.float32), np.float32(65536))
    middle = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
    middle = np.concatenate([middle, -middle])
    exact = np.concatenate([finite, middle])
    near = [np.nextafter(exact, np.float32(to)) for to in (-np.inf, np.inf)]
    special = np.array([np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45, 3e38, -0.0, 1e5], np.float32)
    return np.concatenate([exact, *near, special])


def rounded(values: Array) -> Array:
    return OPS["cast"].evaluate([values], {"dtype": DType.FLOAT16})


def test_rounding_is_torchs() -> None:
    values = borders()
    known = ~np.isnan(values)
    expected = array_of(torch.from_numpy(values).to(torch.float16))
    np.testing.assert_array_equal(rounded(values)[known].view(np.uint16), expected[known].view(np.uint16))
    assert np.isnan(rounded(values)[~known]).all()


@pytest.mark.parametrize("count", [0, 1, 7, 33])
def test_kernels_round_as_the_definition_bit_for_bit(count: int) -> None:
    every = borders()
    values = np.random.default_rng(count).choice(every, count) if count else every
    got = np.empty(values.size, np.float16)
    run_on(DEVICE, elementwise("cast", [DType.FLOAT32], DType.FLOAT16, values.size), [values, got])
    known = ~np.isnan(values)
    np.testing.assert_array_equal(got[known].view(np.uint16), rounded(values)[known].view(np.uint16))
    assert np.isnan(got[~known]).all()
    np.testing.assert_array_equal(np.signbit(got), np.signbit(values))


def test_kernels_widen_every_value() -> None:
    got = np.empty(EVERY.size, np.float32)
    run_on(DEVICE, elementwise("cast", [DType.FLOAT16], DType.FLOAT32, EVERY.size), [EVERY, got])
    known = ~np.isnan(EVERY)
    np.testing.assert_array_equal(got[known].view(np.uint32), EVERY[known].astype(np.float32).view(np.uint32))
    assert np.isnan(got[~known]).all()


@pytest.mark.parametrize("name", ["add", "mul", "maximum", "lt", "exp", "neg"])
def test_arithmetic_in_float16_is_refused(name: str) -> None:
    half = TensorType(DType.FLOAT16, (3,))
    with pytest.raises(TypeMismatch) as caught:
        OPS[name].infer([half] * (1 if name in ("exp", "neg") else 2), {})
    wanted = "the operand is float16[3], and float16 is for storage and products: cast it to float32"
    assert str(caught.value) == wanted
