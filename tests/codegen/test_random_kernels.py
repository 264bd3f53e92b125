"""Random kernels give the bits of the definition, in pieces of the usual sizes and in pieces of a few elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kernel_samples import run_on
from random_kernels import buffers_for, kernels

from paren.codegen import llvm, loops, nest, reductions
from paren.codegen.loops import arrange, merge_axes
from paren.codegen.python import run_kernel
from paren.ir.op import Array
from paren.plan.kernel import Kernel
from paren.plan.sharing import may_share
from paren.runtime.cpu import CpuDevice

ITERATIONS = 3000  # of the definition, which is a loop in Python
SMALL = {
    loops: {"BLOCK": 4, "BLOCK_TILE": 3, "MAP_TILE": 5, "WIDE_TILE": 8, "FULL_VECTOR": 4},
    nest: {"BLOCK": 4, "STRIP": 6, "LANE_STRIP": 5},
    llvm: {"BLOCK": 4},
    reductions: {"PARTIAL": 2},
}


def compare(run: Callable[[Kernel, list[Array]], None], kernel: Kernel, seed: int) -> None:
    """Runs the definition and something else on equal buffers."""
    assume(prod(kernel.axes) <= ITERATIONS)
    wanted = buffers_for(kernel, seed)
    got = [buffer.copy() for buffer in wanted]
    run_kernel(kernel, wanted)
    run(kernel, got)
    for number, (mine, right) in enumerate(zip(got, wanted, strict=True)):
        np.testing.assert_array_equal(mine, right, err_msg=f"parameter {number} of {kernel}")


@pytest.fixture(name="device", params=["usual", "small"])
def device_with_pieces(request: pytest.FixtureRequest) -> Iterator[CpuDevice]:
    """A device for kernels in pieces of the usual sizes, or in tiles, blocks and strips of a few elements."""
    with pytest.MonkeyPatch.context() as patch:
        for module, constants in SMALL.items() if request.param == "small" else ():
            for name, value in constants.items():
                patch.setattr(module, name, value)
        arrange.cache_clear()
        yield CpuDevice(1)
    arrange.cache_clear()


def test_random_kernels(device: CpuDevice) -> None:
    @settings(max_examples=120)
    @given(kernels(), st.integers(0, 9))
    def check(kernel: Kernel, seed: int) -> None:
        compare(lambda kernel, buffers: run_on(device, kernel, buffers), kernel, seed)

    check()


def test_random_kernels_with_outputs_on_their_inputs(device: CpuDevice) -> None:
    """Wherever the planner may put an output on an input, the result is the same."""

    @settings(max_examples=250)
    @given(kernels(), st.integers(0, 9))
    def check(kernel: Kernel, seed: int) -> None:
        pairs = shared(kernel)
        if not pairs or prod(kernel.axes) > ITERATIONS:  # most kernels: `assume` would draw far too many
            return
        wanted = buffers_for(kernel, seed)
        got = [buffer.copy() for buffer in wanted]
        for written, read in pairs.items():
            got[written] = got[read]
        run_kernel(kernel, wanted)
        run_on(device, kernel, got)
        for number, right in enumerate(wanted):
            if number not in pairs.values():
                np.testing.assert_array_equal(got[number], right, err_msg=f"{pairs} of {kernel}")

    check()


def shared(kernel: Kernel) -> dict[int, int]:
    """Written parameters that may lie on a parameter that is read, each of those once."""
    pairs: dict[int, int] = {}
    for written, output in enumerate(kernel.parameters):
        for read, source in enumerate(kernel.parameters):
            fits = read != written and source.size == output.size and written not in pairs
            if fits and read not in pairs.values() and may_share(kernel, read, written):
                pairs[written] = read
    return pairs


@settings(max_examples=80)
@given(kernels(), st.integers(0, 9))
def test_merging_axes_keeps_the_meaning(kernel: Kernel, seed: int) -> None:
    merged = merge_axes(kernel)
    compare(lambda _kernel, buffers: run_kernel(merged, buffers), kernel, seed)
    assert merge_axes(merged) == merged
    assert len(merged.axes) <= len(kernel.axes)
