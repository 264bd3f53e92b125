"""libgomp, whose threads run kernels and products: torch's own copy, so that a process has one pool of threads."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from paren.environment import bound_busy_waiting

FUNCTIONS = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads", "omp_get_wtime", "GOMP_barrier")


@dataclass(frozen=True)
class OpenMP:
    """Addresses of libgomp's functions, in the order of `paren.codegen.driver.Call`: start a team, number of this
    thread, number of threads, seconds of a clock, wait for all threads of the team."""

    parallel: int
    thread: int
    threads: int
    clock: int
    meet: int


def _torch_folder() -> Path | None:
    """The folder of torch's libraries, found without importing it."""
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent / "lib" if spec is not None and spec.origin is not None else None


def _address(library: ctypes.CDLL, name: str) -> int | None:
    function = getattr(library, name, None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


@cache
def find_openmp() -> OpenMP | None:
    """libgomp as torch carries it, else the system's; None where there is neither."""
    bound_busy_waiting()
    folder = _torch_folder()
    candidates = [str(path) for path in sorted(folder.glob("libgomp*"))] if folder is not None else []
    system = ctypes.util.find_library("gomp")
    for candidate in [*candidates, *([system] if system else [])]:
        try:
            library = ctypes.CDLL(candidate)
        except OSError:
            continue
        found = [_address(library, name) for name in FUNCTIONS]
        if None not in found:
            return OpenMP(*(address for address in found if address is not None))
    return None
