"""Emitted kernels under the checks of `emulation/checks.h`: no races, nothing beyond its end. The checks can fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from cuda_kernels import kernels_of_examples, kernels_of_operations, kernels_of_run
from emulation.checks import Violation, checked
from emulation.device import aligned
from emulation.run import compile_kernels, compile_text
from kernel_samples import reduction, softmax
from test_cuda import scatter
from test_cuda import test_an_output_on_its_input as test_an_output_on_its_input
from test_cuda import test_partial_results_fit_in_shared_memory as test_partial_results_fit_in_shared_memory
from test_cuda import test_rows_that_do_not_lie_on_16_bytes as test_rows_that_do_not_lie_on_16_bytes
from test_cuda import (
    test_scattered_sums_have_the_order_of_the_definition as test_scattered_sums_have_the_order_of_the_definition,
)
from test_cuda import test_softmax as test_softmax
from test_cuda import test_the_loss_of_tokens as test_the_loss_of_tokens
from test_cuda import test_transposing as test_transposing

from paren.codegen.cuda.emit import CudaKernel, emit_kernel
from paren.codegen.cuda.mapping import Mapping
from paren.ir.op import Array
from paren.ir.types import DType
from paren.plan.kernel import Kernel, Parameter
from paren.runtime.cuda.builtin import BUILTIN, COPY

F32 = DType.FLOAT32
TOGETHER = 64  # kernels that are compiled at once
LARGEST = 10**6  # elements of a buffer that is filled
HEAD = 'extern "C" __global__ void k_x(const int *stop, long long first, long long units, float *p0, float *p1) {\n'


@pytest.fixture(autouse=True)
def watched() -> Iterator[None]:
    with checked():
        yield


def violation(body: str, blocks: int = 1, threads: int = 64, sizes: tuple[int, int] = (64, 64)) -> str:
    """What is wrong with a kernel that reads p0 and writes p1; empty if nothing is."""
    given: list[Array] = [aligned(np.ones(size, np.float32)) for size in sizes]
    parameters = (Parameter(F32, sizes[0], True, False), Parameter(F32, sizes[1], False, True))
    mapping = Mapping(Kernel("x", (), 0, parameters, ()), None, False, 1, 0, 0, "int")
    emulation = compile_kernels([CudaKernel("k_x", f"{HEAD}{body}\n}}\n", threads, 1, mapping)])
    try:
        emulation.launch("k_x", blocks, threads, 0, 0, 1, [array.ctypes.data for array in given])
    except Violation as found:
        return str(found).removeprefix("k_x: ")
    return ""


SHARED = "const int t = threadIdx.x; __shared__ float s[64];\n"


BETWEEN = "a thread reads what another writes:"
WRONG = {
    "no barrier": (
        f"{SHARED}s[t] = p0[t];\np1[t] = s[63 - t];",
        "a thread reads what nobody wrote: shared memory, block 0, thread 0",
    ),
    "no barrier, backwards": (
        f"{SHARED}s[t] = p0[t];\np1[t] = s[t / 2];",
        f"{BETWEEN} shared memory, block 0, thread 1; block 0, thread 0",
    ),
    "no barrier before it is written again": (
        f"{SHARED}s[t] = p0[t];\n__syncthreads();\nfloat x = s[0];\ns[t] = x;\n__syncthreads();\np1[t] = s[t];",
        "a thread writes what another reads: shared memory, block 0, thread 0; block 0, thread 63",
    ),
    "a barrier of warps between two of them": (
        f"{SHARED}s[63 - t] = p0[t];\n__syncwarp();\nif (t > 31) p1[t] = s[t];",
        f"{BETWEEN} shared memory, block 0, thread 63; block 0, thread 0",
    ),
    "a shuffle is no barrier": (
        f"{SHARED}s[t ^ 1] = p0[t];\n__shfl_xor_sync(0xffffffffu, t, 1);\np1[t] = s[t];",
        f"{BETWEEN} shared memory, block 0, thread 31; block 0, thread 30",
    ),
    "different barriers": (
        f"{SHARED}s[t] = p0[t];\nif (t < 40)\n__syncthreads();\nelse\n__syncthreads();\np1[t] = s[63 - t];",
        "threads wait at different barriers, block 0, thread 40",
    ),
    "blocks that write one word": (
        "if (threadIdx.x == 0) p1[3] = p0[0];",
        "two threads write p1[3] of 64, block 1, thread 0; block 0, thread 0",
    ),
    "a block that reads what another wrote": (
        "if (threadIdx.x == 0 && blockIdx.x == 0) p1[3] = 1;\nif (blockIdx.x == 1) p1[4 + threadIdx.x % 8] = p1[3];",
        f"{BETWEEN} p1[3] of 64, block 1, thread 0; block 0, thread 0",
    ),
    "threads that write one word": (
        "p1[threadIdx.x / 2] = p0[threadIdx.x];",
        "two threads write p1[0] of 64, block 0, thread 1; block 0, thread 0",
    ),
    "one element behind the end": (
        "if (blockIdx.x == 0) p1[threadIdx.x] = p0[threadIdx.x + 1];",
        "a read of p0[64] of 64, block 0, thread 63",
    ),
    "one element before the beginning": (
        "p1[(int)threadIdx.x - 1] = p0[threadIdx.x];",
        "a write of p1[-1] of 64, block 0, thread 0",
    ),
    "16 bytes that end behind the end": (
        "float v[4];\nparen_get<4>(v, p0 + 4 * threadIdx.x % 68);\nif (blockIdx.x == 0) p1[threadIdx.x] = v[3];",
        "a read of p0[67] of 66, block 0, thread 16",
    ),
    "a write of what is only read": (
        "((float *)p0)[threadIdx.x + 64 * blockIdx.x] = 1;",
        "a write of p0[0] of 64, block 0, thread 0",
    ),
    "a read of what is only written": (
        "p1[threadIdx.x] = p1[threadIdx.x] + 1;",
        "a thread reads what nobody wrote: p1[0] of 64, block 0, thread 0",
    ),
    "behind an array in shared memory": (
        f"{SHARED}s[t] = p0[t];\n__syncthreads();\np1[t] = s[t + 1];",
        "an index beyond an array, block 0, thread 63",
    ),
    "an index that overflows": (
        "int j = (int)threadIdx.x + 2147483647 - 32;\nif (j == 0) p1[0] = p0[0];",
        "an integer sum that overflows, block 0, thread 33",
    ),
}
RIGHT = {
    "a barrier": f"{SHARED}s[t] = p0[t];\n__syncthreads();\nif (blockIdx.x == 0) p1[t] = s[63 - t];",
    "a barrier of a warp": f"{SHARED}s[t ^ 1] = p0[t];\n__syncwarp();\nif (blockIdx.x == 0) p1[t] = s[t];",
    "a barrier for those that are left": "const int t = threadIdx.x; if (t > 50) return;\n__shared__ float s[64];\n"
    "s[t] = p0[t];\n__syncthreads();\nif (blockIdx.x == 0) p1[t] = s[50 - t];",
    "many that read": "if (threadIdx.x == 0 && blockIdx.x == 0) p1[3] = p0[0];\nelse if (p0[0] != 1) p1[4] = 1;",
    "an element of its own": "if (blockIdx.x == 0) {\np1[threadIdx.x] = p0[threadIdx.x];\np1[threadIdx.x] += 1;\n}",
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_found(name: str) -> None:
    body, said = WRONG[name]
    found = violation(body, 2, sizes=(66 if "16 bytes" in name else 64, 64))
    assert found.splitlines()[0] == said
    lines = body.splitlines()
    assert "barriers" in name or any(line.strip() in lines for line in found.splitlines()[1:])


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_not_found(name: str) -> None:
    assert violation(RIGHT[name], 2) == ""


# Kernels ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "shift"), [(4096, 0), (1003, 0), (1003, 3), (7, 1)])
def test_copies(size: int, shift: int) -> None:
    source, target = aligned(np.ones(size + 16, np.uint8)), aligned(np.zeros(size, np.uint8))
    stop = np.zeros(1, np.int32)
    words = [source.ctypes.data + shift, target.ctypes.data]
    compile_text(BUILTIN).launch(COPY, 3, 64, stop.ctypes.data, 0, size, words)
    assert target.all()


def run_each(codes: Sequence[CudaKernel], blocks: int) -> None:
    """Kernels on buffers of their own, full of integers that are indices too, also beyond the end; some of so many
    blocks of each, the first and the last among them."""
    generator = np.random.default_rng(0)
    for begin in range(0, len(codes), TOGETHER):
        some = codes[begin : begin + TOGETHER]
        emulation = compile_kernels(some)
        for code in some:
            given = []
            for each in code.mapping.kernel.parameters:
                given.append(aligned_zeros(each.size, each.dtype))
                if each.size < LARGEST:
                    high = 60_000 if each.dtype in (DType.INT32, DType.INT64) else 5
                    given[-1][...] = generator.integers(0, high, each.size)
            units, addresses, number = code.units, [array.ctypes.data for array in given], code.blocks(code.units)
            apart = max(1, number // blocks)
            emulation.launch(code.name, number, code.threads, 0, 0, units, addresses, apart=apart)


def aligned_zeros(size: int, dtype: DType) -> Array:
    """Memory that is there when it is touched."""
    room = np.zeros(size * dtype.bytes + 64, np.uint8)
    return room[-room.ctypes.data % 64 :][: size * dtype.bytes].view(dtype.numpy)


@pytest.mark.long
def test_every_operation_and_its_gradient() -> None:
    run_each(list(kernels_of_operations().values()), 1 << 30)


@pytest.mark.long
@pytest.mark.parametrize("batch", [None, 32, 48])
def test_kernels_at_the_sizes_of_the_examples(batch: int | None) -> None:
    """Also those of GPT-2 124M without microbatches, which touch gigabytes, so that only some blocks run; places of the
    largest batch take 64 bits."""
    settings = (f"batch={batch}", "microbatches=1", 'precision="bfloat16"')
    found = kernels_of_examples() if batch is None else kernels_of_run("gpt", "gpt2", settings)
    assert (batch == 48) == any(code.mapping.index == "long long" for code in found.values())
    run_each(list(found.values()), 3)


BARRIERS = ("__syncthreads();", "__syncwarp();")


def without_barriers(kernel: Kernel, *buffers: Array) -> dict[int, str]:
    """What is wrong with a kernel without each of its barriers, by their lines; empty for those not missed."""
    code = emit_kernel(kernel)
    lines = code.text.splitlines(keepends=True)
    found = {}
    for number in (number for number, line in enumerate(lines) if line.strip() in BARRIERS):
        text = "".join([*lines[:number], ";\n", *lines[number + 1 :]])
        held = [aligned(buffer) for buffer in buffers]
        places = [buffer.ctypes.data for buffer in held]
        less = compile_kernels([replace(code, text=text)])
        found[number] = ""
        try:
            less.launch(code.name, code.blocks(code.units), code.threads, 0, 0, code.units, places)
        except Violation as violation:
            found[number] = str(violation)
    return found


@pytest.mark.parametrize("name", ["rows of several warps", "columns", "chosen rows"])
def test_every_barrier_is_needed(name: str) -> None:
    """Without any of them, something is found."""
    ones = partial(np.ones, dtype=np.float32)
    tokens = 9000  # in two rounds
    if name == "rows of several warps":
        found = without_barriers(softmax(4, 1024), ones((4, 1024)), ones((4, 1024)))
    elif name == "columns":
        found = without_barriers(reduction("max", 512, 64, "column"), ones((512, 64)), ones(64))
    else:
        chosen = (np.arange(tokens) % 10).astype(np.int32)
        found = without_barriers(scatter(tokens, 8, 10), chosen, ones((tokens, 8)), ones((10, 8)))
    assert len(found) == {"rows of several warps": 2, "columns": 2, "chosen rows": 4}[name]
    assert all(found.values())
