"""CUDA C executed on the CPU: compiled by the host's C++ compiler with `cuda.h`, launched on host memory."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from emulation import checks

from paren.codegen.cuda.emit import PRELUDE, CudaKernel

HEADER = (Path(__file__).parent / "cuda.h").read_text()
OPTIONS = ["-std=c++17", "-O1", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing", "-fwrapv", "-fPIC"]
WAITS = re.compile(r"__sync|paren_group|__shfl|__ballot")
SIGNATURE = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\(.*?\) )?(\w+)\(([^)]*)\)')
LAUNCH = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_longlong, ctypes.c_int, ctypes.c_bool)


@dataclass(frozen=True)
class Emulation:
    """Kernels that can be launched. Not for several threads at once. `checked` says that `checks.h` watches;
    `codes` are the kernels of plans among them, by their names."""

    library: ctypes.CDLL
    source: str
    checked: bool
    codes: Mapping[str, CudaKernel] = field(default_factory=dict)

    def launch(
        self,
        name: str,
        blocks: int,
        threads: int,
        stop: int,
        first: int,
        units: int,
        addresses: Sequence[int],
        backwards: bool = False,
        apart: int = 1,
    ) -> None:
        """Runs units `first` up to `first + units` of a kernel, whose parameters lie at addresses of host memory.

        `stop` is the address of an int32, or 0. Between barriers the threads of a block run one after another, or
        `backwards`: what a barrier is missing for differs. Under checks, blocks may be `apart`.
        """
        arguments = (ctypes.c_longlong * (3 + len(addresses)))(stop, first, units, *addresses)
        launch = LAUNCH((f"launch_{name}", self.library))

        def run() -> None:
            launch(ctypes.addressof(arguments), blocks, threads, backwards)

        if not self.checked:
            run()
            return
        checks.run_checked(self.library, self.source, name, self.codes.get(name), stop, units, addresses, run, apart)


def _launcher(text: str) -> str:
    """A function of C linkage for each kernel of a text, which takes its arguments as an array of 64-bit words."""
    parts = []
    for match in SIGNATURE.finditer(text):
        name, parameters = match.groups()
        body = text[match.end() : text.find("\n}\n", match.end())]
        words = ", ".join(
            f"(({parameter.rsplit('*', 1)[0]}*)words[{i}])" if "*" in parameter else f"words[{i}]"
            for i, parameter in enumerate(parameters.split(", "))
        )
        waits = "true" if WAITS.search(body) else "false"
        parts.append(
            f"static void call_{name}(void *arguments) {{\n"
            f"  long long *words = (long long *)arguments;\n  {name}({words});\n}}\n"
            f'extern "C" void launch_{name}(void *arguments, long long blocks, int threads, bool backwards) {{\n'
            f"  emulated_launch(call_{name}, arguments, blocks, threads, {waits}, backwards);\n}}\n"
        )
    return "".join(parts)


def compile_kernels(kernels: Sequence[CudaKernel]) -> Emulation:
    """The kernels as one shared library, cached by content."""
    codes = {kernel.name: kernel for kernel in kernels}
    return compile_text("\n".join(codes[name].text for name in sorted(codes)), codes)


def compile_text(text: str, codes: Mapping[str, CudaKernel] | None = None) -> Emulation:
    """Kernels whose text stands after the prelude."""
    library, source = _build(text, checks.checking())
    return Emulation(library, source, checks.checking(), codes or {})


@lru_cache(maxsize=256)
def _build(text: str, checked: bool) -> tuple[ctypes.CDLL, str]:
    """The library of a text, and all that was compiled."""
    options = checks.OPTIONS if checked else OPTIONS
    source = "\n".join([HEADER, checks.HEADER if checked else "", PRELUDE, text, _launcher(text)])
    digest = hashlib.sha256((source + " ".join(options)).encode()).hexdigest()[:32]
    folder = Path(tempfile.gettempdir()) / f"paren-emulation-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    library = folder / f"{digest}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=folder) as work:
            path, object_, made = (Path(work) / name for name in ("kernels.cpp", "kernels.o", "kernels.so"))
            path.write_text(source)
            _run(["g++", *options, "-w", "-c", str(path), "-o", str(object_)])
            _run(["g++", "-shared", "-Wl,-z,defs", str(object_), "-o", str(made)])  # without a sanitizer's library
            made.replace(library)
    return ctypes.CDLL(str(library)), source


def _run(command: Sequence[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise AssertionError(f"the emulation does not compile:\n{result.stderr[:4000]}")
