"""The float32 functions of the emitter keep their stated error bounds and the edges of IEEE 754."""

from __future__ import annotations

import math

import numpy as np
import pytest
from kernel_samples import F32, elementwise, run_on

from paren.codegen.llvm import emit_kernel
from paren.ir.op import Array
from paren.ir.types import DType
from paren.runtime.cpu import CpuDevice

DEVICE = CpuDevice(1)
EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-40, -1e-40, 1.1754944e-38, 3.4028235e38, -3.4028235e38]
NEAR = [88.72283, 88.72284, -87.33655, -103.2789, -103.9721, -104.0, 16777216.0, 1.5707964, 710.0, 0.90625, 4.0, -18.0]

# Largest error in units of the last place, over all float32 numbers.
BOUNDS = {"exp": 1.1, "expm1": 1.5, "log": 1.0, "log1p": 1.5, "tanh": 3.0, "erf": 1.3, "sin": 0.6, "cos": 0.6}


def erf(x: Array) -> Array:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x)).astype(np.float64)


DEFINITIONS = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "erf": erf,
    "sin": np.sin,
    "cos": np.cos,
}


def apply(op: str, *operands: Array) -> Array:
    result = np.empty_like(operands[0])
    kernel = elementwise(op, [F32] * len(operands), F32, result.size)
    run_on(DEVICE, kernel, [*operands, result])
    return result


def errors(got: Array, wanted: Array) -> Array:
    """Distance in units of the last place of the wanted value (float64); 0 where both are the same edge."""
    rounded = wanted.astype(np.float32)
    unit = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(wanted), 2.0**-126))) - 23)
    distance = np.abs(got.astype(np.float64) - wanted) / unit
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    return np.where(same, np.minimum(np.nan_to_num(distance), 0.5), distance)


def dense_grid(step: int) -> Array:
    """Every `step`-th bit pattern of float32, and numbers around 0 and 1."""
    patterns = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return np.concatenate([patterns, np.random.default_rng(0).normal(size=200_000).astype(np.float32)])


@pytest.mark.parametrize("op", sorted(BOUNDS))
def test_error_bound_over_all_magnitudes(op: str) -> None:
    # math.erf is a loop in Python: a thinner grid.
    x = np.concatenate([dense_grid(39_989 if op == "erf" else 9_973), np.array(EDGES + NEAR, np.float32)])
    with np.errstate(all="ignore"):
        wanted = np.asarray(DEFINITIONS[op](x.astype(np.float64)))
        error = errors(apply(op, x), wanted)
    worst = int(np.argmax(np.nan_to_num(error, nan=1e9)))
    assert error[worst] <= BOUNDS[op], f"{op}({x[worst]!r}) is {error[worst]} units off {wanted[worst]!r}"


@pytest.mark.parametrize("op", sorted(BOUNDS))
def test_signs_of_zero_are_those_of_numpy(op: str) -> None:
    x = np.array(EDGES * 2, np.float32)
    with np.errstate(all="ignore"):
        wanted = np.asarray(DEFINITIONS[op](x.astype(np.float64)))
    got = apply(op, x)
    known = ~np.isnan(wanted)
    assert np.array_equal(np.signbit(got[known]), np.signbit(wanted[known]))


def test_absolute_error_of_erf_and_tanh() -> None:
    x = np.linspace(-6, 6, 100_001).astype(np.float32)
    for op in ("erf", "tanh"):
        wanted = np.asarray(DEFINITIONS[op](x.astype(np.float64)))
        assert np.abs(apply(op, x) - wanted).max() < 1.8e-7 if op == "tanh" else 1e-7


def test_pow_is_nearly_correctly_rounded_and_keeps_the_edges() -> None:
    generator = np.random.default_rng(1)
    edges = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2, -2, 0.5, -0.5, 3, -3, 1e-40, 1e30], np.float32)
    grid = dense_grid(20_011)
    base = np.concatenate([grid, np.abs(grid), np.repeat(edges, len(edges))])
    near = (generator.normal(size=grid.size) * 4).astype(np.float32)
    exponent = np.concatenate([generator.permutation(grid), near, np.tile(edges, len(edges))])
    got = apply("pow", base, exponent)
    with np.errstate(all="ignore"):
        wanted = np.power(base.astype(np.float64), exponent.astype(np.float64))
        assert np.nanmax(errors(got, wanted)) <= 0.51
        assert np.array_equal(np.isnan(got), np.isnan(wanted))
    assert np.array_equal(np.signbit(got[~np.isnan(got)]), np.signbit(wanted[~np.isnan(wanted)]))


@pytest.mark.parametrize("size", [1, 7, 16, 1000])
def test_a_value_has_the_same_bits_wherever_it_stands(size: int) -> None:
    """The vector loop and the loop over what is left agree."""
    x = np.full(size, 0.7310586, np.float32)
    for op in sorted(BOUNDS):
        assert len(set(apply(op, x).view(np.uint32).tolist())) == 1


@pytest.mark.parametrize("op", sorted(BOUNDS))
def test_the_loop_calls_nothing(op: str) -> None:
    text = DEVICE.compiler.assembly(emit_kernel(elementwise(op, [F32], F32, 4096), "kernel"))
    assert "call" not in text


@pytest.mark.parametrize("op", sorted([*BOUNDS, "sqrt", "rsqrt", "floor", "ceil"]))
def test_float64_agrees_with_numpy(op: str) -> None:
    x = np.random.default_rng(2).uniform(0.1, 0.9, 1000)
    result = np.empty_like(x)
    run_on(DEVICE, elementwise(op, [DType.FLOAT64], DType.FLOAT64, x.size), [x, result])
    functions = {**DEFINITIONS, "sqrt": np.sqrt, "rsqrt": lambda v: 1 / np.sqrt(v), "floor": np.floor, "ceil": np.ceil}
    np.testing.assert_allclose(result, functions[op](x), rtol=1e-14)
