"""What this machine can do at most: `python -m bench.limits [--threads N] [--json]`.

Rates of multiply-add instructions (registers only, from C if there is a compiler), of products, of memory. Products are
tried through MKL and through oneDNN and the higher rate counts: MKL keeps to AVX2 on processors of AMD, which is no
limit of the machine. The least of some repetitions is taken, as other load only makes them longer.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

SHAPES = ((1_024, 768, 3_072), (1_024, 768, 50_257), (2_048, 2_048, 2_048), (512, 128, 512))
MIB = 1 << 20
REPEAT = 15

# Twelve independent accumulators of 512 bits hide the latency of two units.
PEAK = r"""
#include <stdio.h>
#include <time.h>
#define EACH(I) I("0") I("1") I("2") I("3") I("4") I("5") I("6") I("7") I("8") I("9") I("10") I("11")
#define USED "zmm0","zmm1","zmm2","zmm3","zmm4","zmm5","zmm6","zmm7","zmm8","zmm9","zmm10","zmm11","zmm30","zmm31"
static double now(void) {
  struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec;
}
int main(void) {
  long n = 30000000;
  double start = now();
  #pragma omp parallel num_threads(THREADS)
  {
    __asm__ volatile("vpxorq %%zmm30,%%zmm30,%%zmm30\nvpxorq %%zmm31,%%zmm31,%%zmm31\n" ::: USED);
    for (long i = 0; i < n; i++) __asm__ volatile(EACH(INSTRUCTION) ::: USED);
  }
  printf("%f\n", n * 12.0 * OPERATIONS * THREADS / (now() - start) / 1e9);
}
"""
INSTRUCTIONS = {
    "float32 multiply-add, GFLOP/s": ("vfmadd231ps", 32, "avx512f"),
    "bfloat16 dot product, GFLOP/s": ("vdpbf16ps", 64, "avx512_bf16"),
}


def least(function: Callable[[], object], repeat: int = REPEAT) -> float:
    """Seconds of the fastest call, after one that does not count."""
    function()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def processor() -> dict[str, str]:
    """`model name` and `flags` of the first core, where the system tells."""
    found: dict[str, str] = {}
    path = Path("/proc/cpuinfo")
    for line in path.read_text().splitlines() if path.exists() else ():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    return found


def machine(threads: int) -> dict[str, object]:
    """What was measured on: processor, cores, memory, versions; no name of the machine."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": processor().get("model name", platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "memory, GiB": round(pages * size / 2**30, 1),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def instruction_rates(threads: int) -> dict[str, float]:
    """Of the instructions that the processor has; none without a C compiler."""
    compiler, flags = shutil.which("gcc") or shutil.which("cc"), processor().get("flags", "").split()
    rates = {}
    for name, (instruction, operations, flag) in INSTRUCTIONS.items():
        if compiler is None or flag not in flags:
            continue
        with tempfile.TemporaryDirectory() as folder:
            program = f"{folder}/peak"
            defined = [f"-DTHREADS={threads}", f"-DOPERATIONS={operations}"]
            text = f'#define INSTRUCTION(r) "{instruction} %%zmm30,%%zmm31,%%zmm" r "\\n"\n{PEAK}'
            command = [compiler, "-O2", "-march=native", "-fopenmp", *defined, "-xc", "-", "-o", program]
            subprocess.run(command, input=text, text=True, check=True)
            rates[name] = float(subprocess.run([program], capture_output=True, text=True, check=True).stdout)
    return rates


def product_rates() -> dict[str, float]:
    """GFLOP/s of [m k] times [n k]' for each library and shape, and the highest of float32 and of bfloat16."""
    rates: dict[str, float] = {}
    best = {"float32": 0.0, "bfloat16": 0.0}
    for m, k, n in SHAPES:
        left, right, result = torch.randn(m, k), torch.randn(n, k), torch.empty(m, n)
        small = (left.bfloat16(), right.bfloat16(), result.bfloat16())
        packed = torch.ops.mkldnn._reorder_linear_weight(right, m)

        def through_mkl(left: torch.Tensor = left, right: torch.Tensor = right, result: torch.Tensor = result) -> None:
            torch.mm(left, right.T, out=result)

        def through_onednn(left: torch.Tensor = left, packed: torch.Tensor = packed) -> None:
            torch.ops.mkldnn._linear_pointwise(left, packed, None, "none", [], "")

        def halved(operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = small) -> None:
            torch.mm(operands[0], operands[1].T, out=operands[2])

        repeat = REPEAT if m * k * n < 1e10 else 5
        for library, kind, call in (
            ("mkl", "float32", through_mkl),
            ("onednn", "float32", through_onednn),
            ("onednn", "bfloat16", halved),
        ):
            rate = 2e-9 * m * k * n / least(call, repeat)
            rates[f"{library} {kind} {m} x {k} x {n}, GFLOP/s"] = rate
            best[kind] = max(best[kind], rate)
    return {f"{kind} products, GFLOP/s": rate for kind, rate in best.items()} | rates


def memory_rates() -> dict[str, float]:
    """GB/s, read and written together: a copy, reading, first touch of fresh memory, AdamW in place."""
    source, target = torch.randn(64 * MIB), torch.empty(64 * MIB)  # 256 MiB each
    small, copy = source[:MIB], target[:MIB]
    parameter = torch.nn.Parameter(source[: 16 * MIB].clone())
    parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW([parameter], lr=1e-3, fused=True)
    moved = 7 * 4 * parameter.numel()  # weight, gradient and both moments are read; all but the gradient written

    def touch() -> None:
        torch.empty(64 * MIB).fill_(1)

    return {
        "copy of 256 MiB, GB/s": 2e-9 * source.nbytes / least(lambda: target.copy_(source)),
        "sum of 256 MiB, GB/s": 1e-9 * source.nbytes / least(source.sum),
        "copy of 4 MiB, GB/s": 2e-9 * small.nbytes / least(lambda: copy.copy_(small), 99),
        "first touch of 256 MiB, GB/s": 1e-9 * source.nbytes / least(touch),
        "AdamW in place of 64 MiB, GB/s": 1e-9 * moved / least(optimizer.step),
    }


def measure(threads: int) -> dict[str, float]:
    """All limits by name, the unit in the name."""
    torch.set_num_threads(threads)
    return product_rates() | instruction_rates(threads) | memory_rates()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = {"machine": machine(given.threads), "limits": measure(given.threads)}
    if given.json:
        print(json.dumps(found))
        return
    for group in found.values():
        for name, value in group.items():
            print(f"{name:55} {value:10.1f}" if isinstance(value, float) else f"{name:55} {value}")


if __name__ == "__main__":
    main()
