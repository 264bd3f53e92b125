"""`paren doctor`: whether this machine has what paren needs, found out by using it."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paren.environment import Environment, read_environment
from paren.runtime.cache import KernelCache
from paren.runtime.library import find_blas, find_openmp
from paren.runtime.memory import available_memory, processor_quota
from paren.text.errors import ParenError

if TYPE_CHECKING:
    from rich.table import Table

PASS, FAIL, NOTE = "PASS", "FAIL", "NOTE"

PYTHON = (3, 11)
TORCH = (2, 10)
LITTLE_MEMORY = 1 << 30  # bytes
PACKAGES = ("numpy", "llvmlite", "safetensors", "tokenizers", "rich", "typer", "filelock", "platformdirs", "matplotlib")
OPTIONAL = (
    ("pyarrow", "pyarrow", "parquet", "Parquet files"),
    ("sklearn", "scikit-learn", "digits", "the digits images"),
    ("tensorboard", "tensorboard", "tensorboard", "--tensorboard"),
)

# A function of one integer, compiled as kernels are.
_TINY = "define i64 @answer(i64 %x) {\n  %y = mul i64 %x, 6\n  ret i64 %y\n}\n"


@dataclass(frozen=True)
class Row:
    """One thing that was looked at.

    `state` is PASS, FAIL (paren cannot train on this machine) or NOTE (it can, with less); the last two have a code.
    """

    name: str
    state: str
    detail: str
    code: str | None = None


@dataclass(frozen=True)
class Examination:
    """All rows, in the order of the table."""

    rows: tuple[Row, ...]

    @property
    def usable(self) -> bool:
        """Whether the CPU can be used for training."""
        return all(row.state != FAIL for row in self.rows)

    @property
    def data(self) -> dict[str, object]:
        """The rows as plain values, for JSON."""
        return {"usable": self.usable, "rows": [asdict(row) for row in self.rows]}

    def table(self) -> Table:
        """The rows as a table; what did not pass is named by its code, which `paren help CODE` explains."""
        from rich.table import Table  # drawn on request only
        from rich.text import Text

        table = Table("check", "result", "detail", box=None, pad_edge=False)
        colours = {PASS: "green", FAIL: "red", NOTE: "yellow"}
        for row in self.rows:
            table.add_row(row.name, Text(row.code or row.state, colours[row.state]), Text(row.detail))
        return table


def examine() -> Examination:
    """Looks at everything; takes a few seconds, because torch is loaded and a function compiled."""
    environment, row = _read_environment()
    rows = [
        check_python(sys.version_info[:3]),
        *(check_package(name) for name in PACKAGES),
        check_torch(),
        check_compiler(),
        check_products(),
        check_threads(),
        check_memory(environment.memory if environment else None),
        row,
    ]
    if environment is not None:
        rows.append(check_cache(environment.cache))
    rows += [check_cuda(), *(check_optional(*entry) for entry in OPTIONAL)]
    return Examination(tuple(rows))


def check_python(version: tuple[int, int, int]) -> Row:
    """The interpreter's version."""
    detail = f"{'.'.join(map(str, version))} on {platform.system()} {platform.machine()}"
    if version[:2] < PYTHON:
        return Row("python", FAIL, f"{detail}; at least {'.'.join(map(str, PYTHON))} is needed", "E-DEV-101")
    return Row("python", PASS, detail)


def check_package(name: str) -> Row:
    """A package that paren always needs, without importing it."""
    version = _version(name, name)
    if version is None:
        return Row(name, FAIL, f"not installed; pip install {name}", "E-DEV-102")
    return Row(name, PASS, version)


def check_torch() -> Row:
    """torch loads, is new enough, and is no build for ROCm."""
    try:
        import torch  # takes over a second
    except (ImportError, OSError) as error:
        return Row("torch", FAIL, f"cannot be loaded: {_first_line(error)}", "E-DEV-103")
    return judge_torch(str(torch.__version__), getattr(torch.version, "hip", None))


def judge_torch(version: str, rocm: str | None) -> Row:
    """Whether a version of torch can be used; `rocm` is the version of ROCm it was built for."""
    if rocm:
        return Row("torch", FAIL, f"{version} is built for ROCm {rocm}, which is not supported yet", "E-DEV-103")
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < TORCH:
        return Row("torch", FAIL, f"{version}; at least {'.'.join(map(str, TORCH))} is needed", "E-DEV-103")
    return Row("torch", PASS, version)


def check_compiler() -> Row:
    """llvmlite compiles a function for this processor, and the function gives the right answer."""

    def attempt() -> str:
        from paren.runtime.native import Compiler  # llvmlite

        compiler = Compiler(KernelCache(None))
        address = compiler.load({"answer": _TINY}, "answer")["answer"]
        answer = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(7)
        if answer != 42:
            raise ArithmeticError(f"6 times 7 gave {answer}")
        return f"compiles and runs for {compiler.processor}"

    return _attempt("machine code", FAIL, "E-DEV-104", attempt)


def check_products() -> Row:
    """The matrix products that torch's library exports, or the slower way through torch."""
    if find_blas() is None:
        detail = "torch's library exports no matrix product; products go through torch, small ones slower"
        return Row("matrix products", NOTE, detail, "E-DEV-105")
    return Row("matrix products", PASS, "sgemm and dgemm of torch's library")


def check_threads() -> Row:
    """The OpenMP runtime that kernels and products share, and the processors this process may use."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = processor_quota()
    processors = f"{min(count, quota or count)} processors"
    if find_openmp() is None:
        return Row("threads", NOTE, f"no OpenMP runtime (libgomp) of {processors}; kernels use one", "E-DEV-106")
    return Row("threads", PASS, f"OpenMP, {processors}")


def check_memory(limit: int | None) -> Row:
    """Free memory; `limit` is what PAREN_MEMORY sets, in bytes."""
    free = available_memory()
    detail = f"{free.bytes / 2**30:.1f} GiB, the {free.limit}"
    if limit is not None:
        detail += f"; PAREN_MEMORY plans for {limit / 2**30:.1f} GiB"
    if free.bytes < LITTLE_MEMORY:
        return Row("free memory", NOTE, detail, "E-DEV-107")
    return Row("free memory", PASS, detail)


def check_cache(folder: Path) -> Row:
    """The cache folder can be made and written."""

    def attempt() -> str:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(b"paren")
        return str(folder)

    return _attempt("cache folder", NOTE, "E-DEV-108", attempt)


def check_cuda() -> Row:
    """Why CUDA cannot be used, with what there is of it; the CPU alone is enough."""
    driver = Path("/proc/driver/nvidia/version")
    found = "an NVIDIA driver is installed" if driver.exists() else "there is no NVIDIA driver either"
    return Row("cuda", NOTE, f"this version of paren trains on the CPU only; {found}", "E-DEV-001")


def check_optional(module: str, package: str, extra: str, purpose: str) -> Row:
    """A package that some files or options need."""
    version = _version(module, package)
    if version is None:
        return Row(package, NOTE, f"not installed, needed for {purpose}; pip install 'paren[{extra}]'", "E-DEV-109")
    return Row(package, PASS, version)


def _read_environment() -> tuple[Environment | None, Row]:
    try:
        environment = read_environment()
    except ParenError as error:
        return None, Row("environment", FAIL, error.message, error.code)
    return environment, Row("environment", PASS, f"device {environment.device}")


def _attempt(name: str, state: str, code: str, attempt: Callable[[], str]) -> Row:
    """The row of a check that uses what it checks: any failure of it is the finding."""
    try:
        return Row(name, PASS, attempt())
    except Exception as error:
        return Row(name, state, _first_line(error), code)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _version(module: str, package: str) -> str | None:
    try:
        return importlib.metadata.version(package) if importlib.util.find_spec(module) is not None else None
    except importlib.metadata.PackageNotFoundError:
        return "version unknown"
