"""NVRTC, which needs no card, compiles every kernel for every generation of cards, and the examples' do not spill."""

from __future__ import annotations

import pytest
from cuda_kernels import kernels_of_examples, kernels_of_operations

from paren.codegen.cuda.emit import PRELUDE, CudaKernel
from paren.runtime.cuda import sums
from paren.runtime.cuda.builtin import BUILTIN, NAMES
from paren.runtime.cuda.nvrtc import Nvrtc
from paren.runtime.cuda.resources import Resources

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
MOST_REGISTERS = 65536  # of a block, on all of them
# Bytes that a thread may keep in memory where an exact division leaves its fast path, for operands near the ends of the
# exponents; without the divisions of these kernels there are none.
ON_SLOW_PATHS = {"sm_100": 8}


def compiled(kernels: dict[str, CudaKernel], architecture: str) -> dict[str, Resources]:
    """What each kernel takes; all are one module."""
    text = PRELUDE + "".join(kernel.text for kernel in kernels.values())
    return Nvrtc().measure(text, architecture)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_kernels_of_the_examples_compile_and_keep_to_their_registers(architecture: str) -> None:
    kernels = kernels_of_examples()
    found = compiled(kernels, architecture)
    assert found.keys() == kernels.keys()
    most = ON_SLOW_PATHS.get(architecture, 0)
    assert {name: each for name, each in found.items() if each.spilled > most or each.stack > most} == {}
    for name, kernel in kernels.items():
        assert kernel.threads * found[name].registers <= MOST_REGISTERS
        assert found[name].shared <= 48 << 10


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_kernels_of_every_operation_compile(architecture: str) -> None:
    kernels = kernels_of_operations()
    assert compiled(kernels, architecture).keys() == kernels.keys()
    assert Nvrtc().measure(BUILTIN, architecture).keys() == set(NAMES)
    assert {name: each.spilled for name, each in Nvrtc().measure(sums.SUMS, architecture).items()} == dict.fromkeys(
        sums.NAMES, 0
    )
