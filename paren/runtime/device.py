"""What a plan needs of a device, and how one is opened by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from paren.ir.types import DType
from paren.plan.epilogue import Epilogue
from paren.plan.kernel import Kernel
from paren.plan.plan import Attention, Loop, Product
from paren.runtime.array import AnyBytes
from paren.runtime.cuda.probes import MachineProbes, Probes
from paren.runtime.cuda.requirements import OTHERS, examine_cuda, require_cuda
from paren.runtime.link import Link
from paren.runtime.memory import Available
from paren.runtime.reference import ReferenceDevice
from paren.runtime.task import Cell, Runs, Task
from paren.runtime.walk import Walk
from paren.text.errors import ParenError, did_you_mean

_CUDA = re.compile(r"cuda(:[0-9]+)?")
DEVICES = ("cpu", "cuda", "auto", "reference")


class Device(Protocol):
    """Allocate, load, launch, library, synchronise; `copy` moves bytes, and `sequence` makes many tasks one call."""

    name: str
    reason: str  # why this device, when `auto` chose it; else empty
    threads: int

    @property
    def walk(self) -> Walk | None:
        """Machine code for the order of samples, `paren.data.order`, on the host; None where nothing makes any."""

    @property
    def link(self) -> Link | None:
        """What exchanges arrays with the devices of other ranks; None where they go through the hosts."""

    @property
    def own_memory(self) -> bool:
        """Whether `allocate` gives arrays of a memory that is not the host's, as `DeviceArray`."""

    @property
    def target(self) -> str:
        """The processor and its features that code is made for; empty where none is made."""

    @property
    def compiled(self) -> int:
        """Kernels compiled so far."""

    @property
    def reused(self) -> int:
        """Kernels taken from the cache so far."""

    @property
    def notes(self) -> Sequence[str]:
        """What went less well than it could, in words: a cache that cannot be written, a fall-back in use."""

    @property
    def retried(self) -> Sequence[int]:
        """Bytes of each allocation so far that succeeded only once memory in reserve was given back."""

    def available(self) -> Available:
        """What of the memory that `allocate` gives out may still be allocated."""

    def used_bytes(self) -> int:
        """The most bytes of that memory that were in use since the call before; what is in use now, where nothing
        counts along. A loop may ask at every step."""

    def allocate(self, size: int) -> AnyBytes:
        """`size` bytes of zeros, aligned to 64 bytes, in the memory that kernels read. Raises E-MEM-002."""

    def load(
        self,
        kernels: Sequence[Kernel],
        by_rows: Sequence[Kernel] = (),
        products: Sequence[tuple[Product, Sequence[DType]]] = (),
    ) -> None:
        """Makes kernels ready to launch, those `by_rows` ready to run some of their rows in a loop, and products, with
        the types of A, B and C; equal ones once. The more at once, the better."""

    def launch(self, kernel: Kernel, cells: Sequence[Cell]) -> Task:
        """A loaded kernel on buffers, one for each parameter."""

    def library(self, product: Product, dtypes: tuple[DType, DType, DType], a: Cell, b: Cell, c: Cell) -> Task:
        """A product of matrices of these element types. Offsets, strides and leading dimensions count elements."""

    def attend(self, step: Attention, cells: Mapping[int, Cell]) -> Task:
        """A step of attention on the buffers of a plan. Only devices whose traits say that they attend have it."""

    def joins(self, epilogue: Epilogue) -> bool:
        """Whether a library computes a product and the launch after it as one step. Raises E-MEM-002."""

    def join(self, epilogue: Epilogue, cells: Mapping[int, Cell]) -> tuple[Task, Task]:
        """What stands for a product and the launch after it that it joins: the library's step, and nothing."""

    def compare_joined(self, epilogue: Epilogue, cells: Mapping[int, Cell]) -> tuple[float, float]:
        """Seconds of the two steps, and of the library's one, for an epilogue that it joins."""

    def copy(self, source: Cell, target: Cell, size: int) -> Task:
        """Copies `size` bytes."""

    def loop(self, loop: Loop, cells: Mapping[int, Cell]) -> Task:
        """A loop on the buffers of a plan."""

    def stop_if(self, flag: Cell) -> Task:
        """Ends a sequence there if the flag, int32[], is not 0."""

    def sequence(self, tasks: Sequence[Task]) -> Runs:
        """The tasks in order, with as few calls as the device can."""

    def timed(self, run: Callable[[], object]) -> float | None:
        """Runs something to its end. Gives its seconds by a clock of the device, None where it has none."""

    def synchronise(self) -> None:
        """Waits until everything that was started has ended."""


def open_device(
    name: str, threads: int | None = None, cache: Path | None = None, tf32: bool = False, probes: Probes | None = None
) -> Device:
    """Opens a device by its name. Raises E-DEV-002 for an unknown one, and what `require_cuda` raises for a card that
    cannot be used; only `auto` takes the CPU then, and says why.

    `threads` is the number of threads (default: the physical cores this process may use). `cache` is the folder for
    compiled kernels; None keeps none. `tf32` lets a card round the operands of float32 products; other devices refuse
    it with E-DEV-014, and a CPU that `auto` took says that it does not. `probes` are this machine's by default.
    """
    if threads is not None and threads < 1:
        raise ParenError("E-DEV-003", f"the number of threads is {threads}, at least 1 is needed")
    if tf32 and name in ("cpu", "reference"):
        raise ParenError(
            "E-DEV-014", f"--tf32 is for CUDA, and the device is {name}", fix="leave out --tf32, or use the device cuda"
        )
    if name == "reference":
        return ReferenceDevice()
    if name == "cpu":
        return _open_cpu(threads, cache, "")
    probes = probes if probes is not None else MachineProbes()
    if name == "auto":
        missing = next((finding for finding in examine_cuda(probes) if finding.stops), None)
        if missing is not None:
            unused = "; --tf32 has no effect" if tf32 else ""
            return _open_cpu(threads, cache, f"auto: the CPU, because {missing.detail}{unused}")
        return _open_card("cuda", 0, cache, tf32, probes, chosen=True)
    if _CUDA.fullmatch(name):
        return _open_card(name, int(name.partition(":")[2] or 0), cache, tf32, probes)
    meant = name.lower().replace("gpu", "cuda")
    hint = f" (did you mean {meant}?)" if _CUDA.fullmatch(meant) else did_you_mean(name.lower(), DEVICES)
    raise ParenError(
        "E-DEV-002",
        f"unknown device {name}{hint}",
        fix=f"use one of {', '.join(DEVICES)}, or cuda:N",
    )


def _open_cpu(threads: int | None, cache: Path | None, reason: str) -> Device:
    from paren.runtime.cpu import CpuDevice  # llvmlite takes 0.1 s to import, and the reference needs none of it

    return CpuDevice(threads, cache, reason)


def _open_card(name: str, ordinal: int, cache: Path | None, tf32: bool, probes: Probes, chosen: bool = False) -> Device:
    """The card `ordinal`; `chosen`: by `auto`, which then says which it is."""
    card, findings = require_cuda(name, ordinal, probes)
    from paren.runtime.cuda.device import open_cuda  # the emitter for cards, which the CPU does without

    others = next((finding.detail for finding in findings if finding.code == OTHERS), "")
    return open_cuda(ordinal, cache, tf32, f"auto: {card.name}" if chosen else "", others)
