"""Products of matrices against numpy's and torch's, side by side in one process: `python bench/products.py [threads]`.

GFLOP/s of the fastest of some rounds, in which the contestants take turns. NT means that the second operand is the
transpose of what lies in memory, TN the first. With one thread, processor time is measured, so that other load on the
machine shows less. torch's product of bfloat16 has a result in bfloat16, and so has paren's.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from paren.ir.op import Array
from paren.ir.types import DType
from paren.plan.plan import Matrix, Product
from paren.runtime.cpu import CpuDevice
from paren.runtime.memory import allocate
from paren.runtime.task import Cell

THREADS = int(sys.argv[1]) if len(sys.argv) > 1 else 2
ROUNDS = 12
TURN = 0.02  # seconds of a contestant's turn, more or less
F32, BF16 = DType.FLOAT32, DType.BFLOAT16
SHAPES = [
    (1024, 3072, 768, "NN"),
    (1024, 768, 3072, "NN"),
    (1024, 768, 3072, "NT"),
    (768, 3072, 1024, "TN"),
    (1024, 50257, 768, "NT"),
    (1024, 768, 50257, "NN"),
    (50257, 768, 1024, "TN"),
    (1000, 1000, 1000, "NN"),
    (512, 512, 128, "NN"),
    (512, 128, 512, "NT"),
    (128, 512, 512, "TN"),
    (512, 128, 128, "NN"),
    (128, 64, 64, "NN"),
    (128, 64, 64, "NT"),
    (64, 64, 128, "TN"),
    (128, 1024, 64, "NT"),
    (128, 64, 1024, "NN"),
    (128, 64, 4, "NN"),
    (128, 1, 64, "NN"),
    (1, 768, 768, "NN"),
    (37, 65, 129, "NN"),
]


def matrix(rows: int, columns: int, turned: bool) -> Array:
    height, width = (columns, rows) if turned else (rows, columns)
    array = allocate(4 * rows * columns).view(np.float32).reshape(height, width)
    array[...] = np.random.default_rng(0).standard_normal(array.shape, np.float32)
    return array


def contestants(device: CpuDevice, m: int, n: int, k: int, form: str) -> dict[str, Callable[[int], object]]:
    """By name, what multiplies a number of times."""
    turned = [letter == "T" for letter in form]
    a, b, c = matrix(m, k, turned[0]), matrix(k, n, turned[1]), matrix(m, n, False)
    left, right = a.T if turned[0] else a, b.T if turned[1] else b
    product = Product(
        Matrix(0, 0, a.shape[1], turned[0], ()), Matrix(1, 0, b.shape[1], turned[1], ()), Matrix(2, 0, n, False, ()),
        m, n, k, (), False, (), (),
    )  # fmt: skip
    halves = [array.astype(BF16.numpy) for array in (a, b, c)]
    rounded = Product(product.a, product.b, product.c, m, n, k, (), False, (), (), rounded=True)
    ours = device.sequence([device.library(product, (F32, F32, F32), Cell(a), Cell(b), Cell(c))])
    ours_bf16 = device.sequence([device.library(rounded, (BF16, BF16, BF16), *(Cell(array) for array in halves))])
    tensors = [torch.from_numpy(left), torch.from_numpy(right)]
    tensors_bf16 = [tensor.bfloat16() for tensor in tensors]
    result, result_bf16 = torch.from_numpy(np.empty_like(c)), torch.empty((m, n), dtype=torch.bfloat16)
    out = np.empty_like(c)

    def repeat(function: Callable[[], object]) -> Callable[[int], object]:
        return lambda times: [function() for _ in range(times)]

    return {
        "paren": ours,
        "numpy": repeat(lambda: np.matmul(left, right, out=out)),
        "torch": repeat(lambda: torch.mm(*tensors, out=result)),
        "paren bf16": ours_bf16,
        "torch bf16": repeat(lambda: torch.mm(*tensors_bf16, out=result_bf16)),
    }


def rates(device: CpuDevice, m: int, n: int, k: int, form: str) -> dict[str, float]:
    clock = time.thread_time if THREADS == 1 else time.perf_counter
    flops, every = 2 * m * n * k, contestants(device, m, n, k, form)
    times = max(1, int(TURN * THREADS * 200e9 / flops))
    best = dict.fromkeys(every, float("inf"))
    for number in range(ROUNDS if flops < 1e10 else 4):
        for name, run in every.items():
            start = clock()
            run(times)
            if number > 0:
                best[name] = min(best[name], (clock() - start) / times)
    return {name: flops / seconds / 1e9 for name, seconds in best.items()}


def main() -> None:
    if os.environ.get("OPENBLAS_NUM_THREADS") != str(THREADS):  # numpy's library reads it when it is loaded
        os.environ["OPENBLAS_NUM_THREADS"] = str(THREADS)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    torch.set_num_threads(THREADS)
    device = CpuDevice(THREADS)
    print(f"{THREADS} threads, tile {device.compiler.tile}")
    for number, (m, n, k, form) in enumerate(SHAPES):
        found = rates(device, m, n, k, form)
        if number == 0:
            print(f"{'m x n x k':24}" + "".join(f"{name:>12}" for name in found))
        print(f"{f'{m} x {n} x {k} {form}':24}" + "".join(f"{rate:12.1f}" for rate in found.values()), flush=True)


if __name__ == "__main__":
    main()
