"""LLVM IR to machine code in this process, through llvmlite, with the objects kept in the kernel cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import llvmlite
import llvmlite.binding as llvm

from paren.codegen.llvm import VERSION
from paren.codegen.tile import LARGEST, Shape
from paren.runtime.cache import KernelCache
from paren.runtime.machine_code import Machine, emit_aside

WIDE = 512  # bits; measured: twice the speed of 256 in kernels that compute, equal in those that move memory


def choose_tile(architecture: str, features: Mapping[str, bool], processor: str = "") -> Shape:
    """The tile of products for a processor: as many accumulators as its vector registers hold beside operands.

    Pairs of bfloat16 are multiplied where that is faster than float32: AMD's processors have twice its rate, Intel's
    half of it. `processor` is LLVM's name of it.
    """
    if features.get("avx512f") and features.get("avx512vl"):
        pairs = bool(features.get("avx512bf16")) and processor.startswith("znver")
        return replace(LARGEST, pairs=pairs)
    if features.get("avx2") and features.get("fma"):
        return Shape(256, 6, 2, fused=True)
    if architecture in ("aarch64", "arm64"):
        return Shape(128, 6, 4, fused=True)
    return Shape(128, 6, 2, fused=False)


class Compiler:
    """Compiles modules for the host's processor. Every module has one function to be found by name.

    `vector_bits` is the preferred vector width for `paren.codegen.llvm`: 512 where the processor has AVX-512, else the
    target's own; `tile` is for `paren.codegen.product`. `compiled` and `reused` count modules.
    """

    def __init__(self, cache: KernelCache) -> None:
        self.cache = cache
        self.machine = Machine()
        features = self.machine.has
        self.vector_bits = WIDE if features.get("avx512f") and features.get("avx512vl") else None
        self.tile = choose_tile(llvm.get_default_triple().split("-")[0], features, self.machine.processor)
        self.compiled = 0
        self.reused = 0
        self._jit = llvm.create_lljit_compiler()
        self._ready: dict[str, bytes] = {}
        self._loaded: list[object] = []

    @property
    def target(self) -> str:
        """What compiled bits depend on besides the text."""
        version = ".".join(map(str, llvm.llvm_version_info))
        machine = self.machine
        return f"{machine.processor} {machine.features} llvmlite {llvmlite.__version__} LLVM {version} paren {VERSION}"

    def compile_aside(self, texts: Iterable[tuple[str, bool]], workers: int) -> None:
        """Compiles modules ahead of `load`, in so many processes, if those that the cache lacks are worth it. With each
        text whether it is to be optimised."""
        wanted = {self._key(text, optimise): (text, optimise) for text, optimise in texts}
        missing = {key: module for key, module in wanted.items() if not self.cache.holds(key)}
        self._ready |= emit_aside(missing, workers)

    def load(self, texts: Mapping[str, str], name: str, optimise: bool = True) -> dict[str, int]:
        """The address of function `name` of each module, by the keys of `texts`. For `optimise` see `Machine.emit`."""
        return {key: self._load(self._object(text, optimise), name, key) for key, text in texts.items()}

    def assembly(self, text: str, optimise: bool = True) -> str:
        """The machine code of a module as text, for tests and `paren show code`."""
        return self.machine.assembly(text, optimise)

    def _key(self, text: str, optimise: bool) -> str:
        return self.cache.key(text, self.target, "optimised" if optimise else "as written")

    def _object(self, text: str, optimise: bool) -> bytes:
        key = self._key(text, optimise)
        built = self._ready.pop(key, None)
        if built is None:
            known = self.cache.read(key)
            if known is not None:
                self.reused += 1
                return known
            built = self.machine.emit(text, optimise)
        self.compiled += 1
        self.cache.write(key, built)
        return built

    def _load(self, built: bytes, name: str, key: str) -> int:
        library = llvm.JITLibraryBuilder().add_object_img(built).add_current_process().export_symbol(name)
        tracker = library.link(self._jit, f"{key}.{len(self._loaded)}")
        self._loaded.append(tracker)
        return int(tracker[name])
