"""A kernel as CUDA C: one function that runs a range of the kernel's units of work.

Every value of a lane is an array over the lanes of a thread, in loops that unroll, so that all loads of a statement are
under way before the first result is needed. Sums have a fixed order: lanes as a tree, a thread's turns one after
another, the threads of a warp by shuffles, warps through shared memory. Nothing is contracted but what says so.

An output may lie exactly on an input if their accesses are identical; barriers keep what one stage stores from what
other threads load before or after it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from paren.codegen.cuda.body import Body
from paren.codegen.cuda.mapping import Mapping, map_kernel
from paren.codegen.cuda.places import memory
from paren.codegen.cuda.prelude import PRELUDE as PRELUDE
from paren.codegen.cuda.scatter import Scatter
from paren.plan.kernel import Kernel


@dataclass(frozen=True)
class CudaKernel:
    """`text` is complete but for `PRELUDE`, which stands once before all kernels of a module. `name` is that of
    `extern "C" void NAME(const int *stop, long long first, long long units, T0 *p0, ...)`, which does nothing if
    `*stop` is not 0, and else units `first` up to `first + units`, on blocks of `threads` with `shared` bytes of
    dynamic shared memory. The kernel has `units` in all. Parameters lie on multiples of 16 bytes, unless units are
    rows."""

    name: str
    text: str
    threads: int
    shared: int
    units: int
    mapping: Mapping

    def blocks(self, units: int) -> int:
        """How many blocks run so many units."""
        return self.mapping.blocks(units)


def emit_kernel(kernel: Kernel, rows: bool = False) -> CudaKernel:
    """A kernel for CUDA. With `rows`, units are the kernel's rows in order (row axes counted as one)."""
    mapping = map_kernel(kernel, rows)
    digest = hashlib.sha256(f"{kernel.digest} rows".encode()).hexdigest() if rows else kernel.digest
    name = f"k_{digest[:16]}"
    parameters = [f"{memory(parameter.dtype)} *p{i}" for i, parameter in enumerate(kernel.parameters)]
    signature = ", ".join(["const int *stop", "long long first", "long long units", *parameters])
    body = Scatter(mapping) if mapping.ranges else Body(mapping)
    body.write()
    lines = [
        f'extern "C" __global__ void __launch_bounds__({mapping.threads}) {name}({signature}) {{',
        "  if (stop && *stop) return;",
        *(f"  {line}" for line in body.lines),
        "}",
    ]
    return CudaKernel(name, "\n".join(lines) + "\n", mapping.threads, 0, mapping.units, mapping)
