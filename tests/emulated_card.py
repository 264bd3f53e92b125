"""A CUDA device on a fake card whose kernels are the CUDA C that a card would run, executed by the emulation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from emulation.run import Emulation, compile_text
from fake_card import FakeCard, Launchable

from paren.codegen.cuda.emit import PRELUDE, CudaKernel, emit_kernel
from paren.plan.kernel import Kernel
from paren.runtime.cuda.device import CudaDevice
from paren.runtime.cuda.kernels import Emitter


class EmulatedKernels:
    """Compiler and functions in one. Texts that were loaded are compiled together when the first of them runs."""

    version = "emulation"

    def __init__(self) -> None:
        self._codes: dict[str, CudaKernel] = {}
        self._waiting: dict[str, str] = {}
        self._built: dict[str, Emulation] = {}

    def emit(self, kernel: Kernel, rows: bool) -> CudaKernel:
        """What a plan's kernel is compiled from."""
        code = emit_kernel(kernel, rows)
        self._codes[code.name] = code
        return code

    def compile(self, text: str, architecture: str) -> bytes:
        return text.removeprefix(PRELUDE).encode()

    def functions(self, image: bytes, name: str) -> Launchable:
        if name not in self._built:
            self._waiting[name] = image.decode()

        def run(blocks: int, threads: int, arguments: Sequence[int]) -> None:
            if name not in self._built:
                self._build()
            stop, first, units, *addresses = arguments
            self._built[name].launch(name, blocks, threads, stop, first, units, addresses)

        return run

    def _build(self) -> None:
        emulation = compile_text("\n".join(dict.fromkeys(self._waiting.values())), self._codes)
        self._built |= dict.fromkeys(self._waiting, emulation)
        self._waiting.clear()


def emulated_device(size: int = 1 << 40, cache: Path | None = None) -> tuple[CudaDevice, FakeCard]:
    """A CUDA device on a fake card of `size` bytes."""
    kernels = EmulatedKernels()
    card = FakeCard(kernels.functions, size)
    return CudaDevice(card, kernels, Emitter(kernels.emit, PRELUDE), cache), card
