"""What the kernels of a run take of a card of some architecture, by compiling them for it; no card need be there."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paren.codegen.cuda.emit import PRELUDE, CudaKernel, emit_kernel
from paren.forecast.plans import Plans
from paren.plan.memory import launches_of
from paren.plan.plan import Launch, Loop
from paren.runtime.cache import KernelCache
from paren.runtime.cuda.resources import Resources
from paren.text.json import Json, parse_json

if TYPE_CHECKING:
    from paren.runtime.cuda.nvrtc import Nvrtc

MODULE = 16  # kernels compiled at once: what stands before them is read once


@dataclass(frozen=True)
class KernelCode:
    """One kernel: what it fuses, where it stands first in the program, the threads of a block, what it takes."""

    name: str
    place: str
    threads: int
    resources: Resources


@dataclass(frozen=True)
class CardCode:
    """All kernels of a run for an architecture, by `compiler`."""

    architecture: str
    compiler: str
    kernels: tuple[KernelCode, ...]

    @property
    def data(self) -> dict[str, Json]:
        kernels: list[Json] = [
            {"name": kernel.name, "place": kernel.place, "threads": kernel.threads, **asdict(kernel.resources)}
            for kernel in self.kernels
        ]
        return {"architecture": self.architecture, "compiler": self.compiler, "kernels": kernels}


def compile_for_card(plans: Plans, architecture: str, cache: Path) -> CardCode | None:
    """Compiles the kernels of a run's plans and tells what they take; None where NVRTC is not installed. What is known
    from an earlier time is in the kernel cache `cache`."""
    try:
        from paren.runtime.cuda.nvrtc import Nvrtc  # optional: the extra `cuda`

        compiler = Nvrtc()
    except (ImportError, OSError, RuntimeError):
        return None
    launches = _distinct(plans)
    codes = {key: emit_kernel(launch.kernel, rows=key[1]) for key, launch in launches.items()}
    found = _resources(list(codes.values()), architecture, compiler, KernelCache(cache))
    kernels = [
        KernelCode(launch.kernel.name, str(launch.spans[0]), codes[key].threads, found[codes[key].name])
        for key, launch in launches.items()
    ]
    return CardCode(architecture, compiler.name, tuple(kernels))


def _distinct(plans: Plans) -> dict[tuple[str, bool], Launch]:
    """The first launch of each kernel, by its digest and whether it is in a loop, where it runs ranges of its rows."""
    found: dict[tuple[str, bool], Launch] = {}
    for plan in {id(plan): plan for plan in plans.all.values()}.values():
        for step in plan.steps:
            for launch in launches_of([step]):
                found.setdefault((launch.kernel.digest, isinstance(step, Loop)), launch)
    return found


def _resources(
    kernels: Sequence[CudaKernel], architecture: str, compiler: Nvrtc, cache: KernelCache
) -> Mapping[str, Resources]:
    keys = {k.name: cache.key(PRELUDE, k.text, "resources", architecture, compiler.version) for k in kernels}
    kept = {name: cache.read(key) for name, key in keys.items()}
    found = {name: Resources(**parse_json(text)) for name, text in kept.items() if text is not None}
    new = [kernel.text for kernel in kernels if kernel.name not in found]
    modules = [PRELUDE + "".join(new[begin : begin + MODULE]) for begin in range(0, len(new), MODULE)]
    with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="paren-compile") as pool:
        for measured in pool.map(lambda text: compiler.measure(text, architecture), modules):
            for name, resources in measured.items():
                cache.write(keys[name], json.dumps(asdict(resources)).encode())
                found[name] = resources
    return found
