"""A kernel as CUDA C: one function that runs a range of the kernel's units of work.

Every value of a lane is an array over the lanes of a thread, in loops that unroll, so that all loads of a statement are
under way before the first result is needed. Sums have a fixed order: lanes as a tree, a thread's turns one after
another, the threads of a warp by shuffles, warps through shared memory. Nothing is contracted but what says so.

An output may lie exactly on an input if their accesses are identical; barriers keep what one stage stores from what
other threads load before or after it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from paren.codegen.cuda.body import Body
from paren.codegen.cuda.mapping import LONG, Mapping, map_kernel, wide_parameters
from paren.codegen.cuda.places import memory
from paren.codegen.cuda.prelude import PRELUDE as PRELUDE
from paren.codegen.cuda.scatter import Scatter
from paren.plan.kernel import Kernel


@dataclass(frozen=True)
class CudaKernel:
    """`text` is complete but for `PRELUDE`, which stands once before all kernels of a module. `name` is that of
    `extern "C" void NAME(const int *stop, long long first, long long units, T0 *p0, ...)`, which does nothing if
    `*stop` is not 0, and else units `first` up to `first + units`, on blocks of `threads`. The kernel has `units` in
    all. Parameters lie on multiples of 16 bytes, unless units are rows."""

    name: str
    text: str
    threads: int
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
    # Two long rows to a processor: one is worked on while the other waits, and both stay in its cache.
    together = ", 2" if mapping.lane is None and mapping.group == LONG else ""
    lines = [
        f'extern "C" __global__ void __launch_bounds__({mapping.threads}{together}) {name}({signature}) {{',
        "  const int ended = stop ? *stop : 0;",
        *(f"  {line}" for line in _inside(mapping)),
        "}",
    ]
    return CudaKernel(name, "\n".join(lines) + "\n", mapping.threads, mapping.units, mapping)


def _inside(mapping: Mapping) -> list[str]:
    """The lines of the function. Ranges of rows may begin anywhere, so what moves in wide accesses is looked at."""
    body = Scatter(mapping) if mapping.ranges else Body(mapping)
    body.write()
    wide = wide_parameters(mapping) if mapping.in_order and mapping.lane is None else []
    if not wide:
        return body.lines
    narrow = Body(replace(mapping, narrow=True))
    narrow.write()
    places = " | ".join(f"(unsigned long long)p{parameter}" for parameter in wide)
    return [f"if ((({places}) & 15) == 0) {{", *body.lines, "} else {", *narrow.lines, "}"]
