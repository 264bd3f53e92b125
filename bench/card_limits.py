"""What the first card can do at most: `python -m bench.card_limits [--json]`.

Rates of large products and of a copy, through torch. The data are random: products of zeros are faster.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import torch

SIZE = 8192  # of square products
BYTES = 2 << 30  # of a copy: many times the second-level cache
REPEAT = 10


def seconds(function: Callable[[], object]) -> float:
    """The mean time of a call, after three that do not count."""
    for _ in range(3):
        function()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(REPEAT):
        function()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / REPEAT


def product_rate(dtype: torch.dtype) -> float:
    """GFLOP/s of a square product."""
    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=dtype) for _ in range(2))
    return 2 * SIZE**3 / seconds(lambda: torch.mm(a, b)) / 1e9


def measure() -> dict[str, dict[str, float | str | int]]:
    """`machine` and `limits`, named as those of `bench.limits`."""
    torch.backends.cuda.matmul.allow_tf32 = False
    source = torch.empty(BYTES, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    card = torch.cuda.get_device_properties(0)
    return {
        "machine": {
            "processor": card.name,
            "memory, MiB": card.total_memory >> 20,
            "multiprocessors": card.multi_processor_count,
            "torch": torch.__version__,
        },
        "limits": {
            "float32 products, GFLOP/s": product_rate(torch.float32),
            "bfloat16 products, GFLOP/s": product_rate(torch.bfloat16),
            "copy, read and written, GB/s": 2 * BYTES / seconds(lambda: target.copy_(source)) / 1e9,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measure()
    if given.json:
        print(json.dumps(found))
        return
    for part in found.values():
        for name, value in part.items():
            print(f"{name:32} {value if isinstance(value, str) else f'{value:,.0f}'}")


if __name__ == "__main__":
    main()
