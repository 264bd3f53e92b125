"""The compiler for cards, which is there without one: what it makes, what it says, what kernels take."""

from __future__ import annotations

import pytest

from paren.runtime.cuda.builtin import BUILTIN
from paren.runtime.cuda.nvrtc import Nvrtc
from paren.runtime.cuda.resources import Resources, read_resources
from paren.text.errors import InternalError

SMALL = 'extern "C" __global__ void k_small(float *p) { p[threadIdx.x] *= 2.0f; }\n'
# Indexed where only the run knows: an array in local memory. The bound on registers makes others spill.
LARGE = """
extern "C" __global__ void __launch_bounds__(1024, 2) k_large(float *p, int n) {
  __shared__ float shared[64];
  float x[64];
  #pragma unroll
  for (int i = 0; i < 64; i++) x[i] = p[i * 1024 + threadIdx.x];
  shared[threadIdx.x % 64] = x[3];
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < 64; i++) p[i * 1024 + threadIdx.x] = x[i] * x[(i + 7) % 64] + shared[i];
}
"""


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_a_module_is_machine_code(architecture: str) -> None:
    assert Nvrtc().compile(SMALL, architecture).startswith(b"\x7fELF")
    assert Nvrtc().compile(BUILTIN, architecture).startswith(b"\x7fELF")


def test_what_kernels_take() -> None:
    found = Nvrtc().measure(SMALL + LARGE, "sm_90")
    assert found["k_small"] == Resources(found["k_small"].registers, 0, 0, 0)
    assert 0 < found["k_small"].registers < 32
    assert found["k_large"].registers == 32
    assert found["k_large"].shared == 256
    assert found["k_large"].spilled > 0
    assert found["k_large"].stack > 0


def test_what_the_assembler_says() -> None:
    """As NVRTC 13.0 and 13.5 say it."""
    log = (
        "ptxas info    : 0 bytes gmem\n"
        "ptxas info    : Compiling entry function 'k_1' for 'sm_90'\n"
        "ptxas info    : Function properties for k_1\n"
        "    8 bytes stack frame, 12 bytes spill stores, 4 bytes spill loads\n"
        "ptxas info    : Used 40 registers, used 1 barriers, 8 bytes cumulative stack size, 512 bytes smem, "
        "536 bytes cmem[0]\n"
        "ptxas info    : Compiling entry function 'k_2' for 'sm_90'\n"
        "ptxas info    : Function properties for k_2\n"
        "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 8 registers, used 0 barriers\n"
        "ptxas info    : Compile time = 1.991 ms\n"
    )
    assert read_resources(log) == {"k_1": Resources(40, 512, 8, 16), "k_2": Resources(8, 0, 0, 0)}


def test_text_that_does_not_compile_is_a_fault_of_ours() -> None:
    with pytest.raises(InternalError, match=r"a kernel does not compile: kernels\.cu\(1\): error"):
        Nvrtc().compile("nonsense", "sm_90")
