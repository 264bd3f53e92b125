"""Kernels of the CPU against torch, side by side in one process: `python bench/kernels.py [threads ...]`.

Times are the least of some repetitions, in milliseconds. The machine should be idle.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from kernel_samples import Body, access, gelu, reads, reduction, softmax, writes

from paren.ir.op import Array
from paren.ir.types import DType
from paren.plan.kernel import Index, Kernel, Parameter
from paren.runtime.cpu import CpuDevice
from paren.runtime.task import Cell

REPEAT = 20
F32 = DType.FLOAT32


def layer_norm(rows: int, columns: int) -> Kernel:
    shape = (rows, columns)
    body = Body()
    body.stage(1)
    total = body.reduce("sum", body.load(access(0, shape, 0, 1)))
    body.stage()
    share = body.constant(1.0 / columns)
    mean = body.compute("mul", total, share)
    body.stage(1)
    away = body.compute("sub", body.load(access(0, shape, 0, 1)), mean)
    squares = body.reduce("sum", body.compute("mul", away, away))
    body.stage()
    variance = body.compute("mul", squares, share)
    scale = body.compute("rsqrt", body.compute("add", variance, body.constant(1e-5)))
    body.stage(1)
    away = body.compute("sub", body.load(access(0, shape, 0, 1)), mean)
    normal = body.compute("mul", away, scale)
    gained = body.compute("mul", normal, body.load(access(1, (columns,), 1)))
    body.store(access(3, shape, 0, 1), body.compute("add", gained, body.load(access(2, (columns,), 1))))
    size = rows * columns
    return body.kernel(shape, 1, [reads(size), reads(columns), reads(columns), writes(size)], "layer norm")


def adamw(size: int) -> Kernel:
    """Parameters: weights, gradient, both moments, and (rate, 1 / (1 - b1^t), 1 / (1 - b2^t))."""
    body = Body()
    body.stage()
    weight, gradient, first, second = (body.load(access(i, (size,), 0)) for i in range(4))
    rate, correct1, correct2 = (body.load(access(4, (3,), Index((), i))) for i in range(3))

    def mixed(old: int, new: int, keep: float) -> int:
        kept = body.compute("mul", old, body.constant(keep))
        return body.compute("add", kept, body.compute("mul", new, body.constant(1 - keep)))

    first = mixed(first, gradient, 0.9)
    second = mixed(second, body.compute("mul", gradient, gradient), 0.999)
    root = body.compute("sqrt", body.compute("mul", second, correct2))
    step = body.compute("div", body.compute("mul", first, correct1), body.compute("add", root, body.constant(1e-8)))
    step = body.compute("add", step, body.compute("mul", weight, body.constant(0.01)))
    body.store(access(0, (size,), 0), body.compute("sub", weight, body.compute("mul", step, rate)))
    body.store(access(2, (size,), 0), first)
    body.store(access(3, (size,), 0), second)
    both = Parameter(F32, size, True, True)
    return body.kernel((size,), 1, [both, reads(size), both, both, reads(3)], "adamw")


def least(function: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEAT):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def normal(*shape: int) -> Array:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def cases() -> list[tuple[str, Kernel, list[Array], Callable[[], object]]]:
    """Name, kernel, buffers, and what torch does for it."""
    tensor = torch.from_numpy
    activations, scores, sums = normal(3072, 1024), normal(8192, 1024), normal(8192, 768)
    hidden, gain, shift = normal(1024, 768), normal(768), normal(768)
    size = 10_000_000
    weights, gradient = normal(size), normal(size)
    moments = [np.zeros(size, np.float32), np.zeros(size, np.float32)]
    parameter = torch.nn.Parameter(tensor(weights.copy()))
    parameter.grad = tensor(gradient)
    optimizer = torch.optim.AdamW([parameter], lr=1e-3, fused=True)
    rates = np.array([1e-3, 1.0, 1.0], np.float32)
    norm = torch.nn.functional.layer_norm
    return [
        ("gelu of 3M", gelu(3072, 1024), [activations, np.empty_like(activations)],
         lambda: torch.nn.functional.gelu(tensor(activations))),
        ("softmax 8192 x 1024", softmax(8192, 1024), [scores, np.empty_like(scores)],
         lambda: torch.softmax(tensor(scores), 1)),
        ("layer norm 1024 x 768", layer_norm(1024, 768), [hidden, gain, shift, np.empty_like(hidden)],
         lambda: norm(tensor(hidden), (768,), tensor(gain), tensor(shift))),
        ("column sum 8192 x 768", reduction("sum", 8192, 768, "column"), [sums, np.empty(768, np.float32)],
         lambda: tensor(sums).sum(0)),
        ("AdamW of 10M", adamw(size), [weights, gradient, *moments, rates], lambda: optimizer.step()),
    ]  # fmt: skip


def main() -> None:
    every = cases()
    print(f"{'kernel':24}{'threads':>8}{'paren':>9}{'torch':>9}{'ratio':>7}")
    for threads in [int(argument) for argument in sys.argv[1:]] or [1, 2]:
        torch.set_num_threads(threads)
        device = CpuDevice(threads)
        for name, kernel, arrays, peer in every:
            device.load([kernel])
            ours = least(device.sequence([device.launch(kernel, [Cell(array) for array in arrays])]))
            theirs = least(peer)
            print(f"{name:24}{threads:8}{ours:9.2f}{theirs:9.2f}{ours / theirs:7.2f}")


if __name__ == "__main__":
    main()
