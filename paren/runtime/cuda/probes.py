"""What this machine and this Python have for CUDA: facts, not yet judged. `requirements.py` judges them."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from paren.environment import visible_devices
from paren.runtime.cuda import driver_libraries
from paren.runtime.cuda.driver_libraries import LIBCUDA, Visible
from paren.runtime.cuda.nccl import Nccl
from paren.runtime.link import LinkLost
from paren.runtime.memory import read_lines
from paren.text.errors import first_line

UNNAMED = 64 << 20  # bytes in use that the driver may hold itself, where no process is named
_TRIAL = 'extern "C" __global__ void k_trial(float *p) { p[threadIdx.x] *= 2.0f; }\n'


@dataclass(frozen=True)
class Torch:
    """The installed torch: its version, and the versions of CUDA and ROCm it was built for, empty where it was not."""

    version: str
    cuda: str
    rocm: str


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver: its version, empty where it does not tell; the newest CUDA it supports; and the number and name
    of what CUDA failed with when it was started, 0 where it did not."""

    version: str
    cuda: tuple[int, int]
    status: int = 0
    failure: str = ""


@dataclass(frozen=True)
class Compiler:
    """NVRTC: its version, empty where it cannot be used, and why it cannot compile, empty where it can."""

    version: str
    failure: str = ""


@dataclass(frozen=True)
class Connector:
    """NCCL: its version, as `NCCL 2.28.9`, empty where it cannot be used, and why."""

    version: str
    failure: str = ""


@dataclass(frozen=True)
class Occupancy:
    """Memory of a card in bytes: free, in all, held by other processes; and those processes, `1234 (python)`."""

    free: int
    total: int
    others: int = 0
    processes: tuple[str, ...] = ()


class Probes(Protocol):
    """What can be asked. Each answer is looked for when it is asked for, since some take a second."""

    @property
    def torch(self) -> Torch | None:
        """The installed torch, read without importing it; None without one."""

    @property
    def driver(self) -> Driver | None:
        """NVIDIA's driver, with CUDA started in this process; None without one."""

    @property
    def mask(self) -> str | None:
        """The value of CUDA_VISIBLE_DEVICES, None where it is not set."""

    @property
    def machine(self) -> Sequence[tuple[str, str]]:
        """Name and UUID of each card of the machine, whether this process sees it or not."""

    @property
    def cards(self) -> Sequence[Visible]:
        """The cards that this process sees."""

    def compiler(self, arch: str) -> Compiler:
        """NVRTC, tried on a small kernel for an architecture (`sm_90`)."""

    @property
    def cublas(self) -> str:
        """Why torch's cuBLAS cannot be used, empty where it can."""

    @property
    def cudnn(self) -> tuple[int, int, int] | None:
        """The version of torch's cuDNN, None without one."""

    @property
    def nccl(self) -> Connector:
        """What connects several cards."""

    def occupancy(self, card: Visible) -> Occupancy | None:
        """Who holds the memory of a card; None where the driver does not tell."""


class MachineProbes:
    """The probes of the machine that this is."""

    @cached_property
    def torch(self) -> Torch | None:
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.origin is None:
            return None
        described = importlib.util.spec_from_file_location("torch_version", Path(spec.origin).with_name("version.py"))
        if described is None or described.loader is None:
            return None
        module = importlib.util.module_from_spec(described)
        described.loader.exec_module(module)  # a few assignments; torch itself takes over a second
        return Torch(str(module.__version__), module.cuda or "", module.hip or "")

    @cached_property
    def driver(self) -> Driver | None:
        cuda = driver_libraries.load_library(LIBCUDA)
        if cuda is None:
            return None
        status, failure = driver_libraries.start_cuda(cuda)
        return Driver(driver_libraries.driver_version(), driver_libraries.cuda_version(cuda), status, failure)

    @property
    def mask(self) -> str | None:
        return visible_devices()

    @cached_property
    def machine(self) -> Sequence[tuple[str, str]]:
        return driver_libraries.cards_of_machine()

    @cached_property
    def cards(self) -> Sequence[Visible]:
        cuda = driver_libraries.load_library(LIBCUDA)
        return driver_libraries.visible_cards(cuda) if cuda is not None else ()

    def compiler(self, arch: str) -> Compiler:
        try:
            from cuda.bindings import nvrtc  # optional: the extra `cuda`

            _, major, minor = nvrtc.nvrtcVersion()
        except (ImportError, OSError, RuntimeError) as error:
            return Compiler("", first_line(error))
        version = f"{major}.{minor}"
        _, program = nvrtc.nvrtcCreateProgram(_TRIAL.encode(), b"trial.cu", 0, [], [])
        try:
            (status,) = nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture={arch}".encode()])
        finally:
            nvrtc.nvrtcDestroyProgram(program)
        return Compiler(version, "" if status == nvrtc.nvrtcResult.NVRTC_SUCCESS else status.name)

    @cached_property
    def cublas(self) -> str:
        import torch  # takes over a second; it loads its libraries

        try:
            ctypes.CDLL(f"libcublas.so.{(torch.version.cuda or '').partition('.')[0]}")
        except OSError as error:
            return first_line(error)
        return ""

    @cached_property
    def cudnn(self) -> tuple[int, int, int] | None:
        import torch  # see cublas

        version: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        return None if version is None else (version // 10000, version // 100 % 100, version % 100)

    @cached_property
    def nccl(self) -> Connector:
        import torch  # noqa: F401  see cublas

        try:
            return Connector(Nccl().version)
        except LinkLost as error:
            return Connector("", str(error))

    def occupancy(self, card: Visible) -> Occupancy | None:
        usage = driver_libraries.usage_of(card.uuid)
        if usage is None:
            return None
        others = [(number, held) for number, held in usage.processes if number != os.getpid()]
        # Where the processes are not told, as in many containers, all that is in use belongs to others, unless this
        # process computes on a card already: torch then holds some of it.
        held = sum(held for _, held in others)
        if not usage.processes and not _computes():
            held = usage.used if usage.used > UNNAMED else 0
        names = tuple(_process_name(number) for number, _ in others)
        return Occupancy(usage.free, usage.total, held, names)


def _computes() -> bool:
    """Whether this process has begun to compute on a card."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def _process_name(number: int) -> str:
    name = read_lines(Path(f"/proc/{number}/comm"))
    return f"{number} ({name[0]})" if name else str(number)
