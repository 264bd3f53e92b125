"""LLVM IR to machine code in this process, through llvmlite, with the objects kept in the kernel cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import llvmlite
import llvmlite.binding as llvm

from paren.codegen.llvm import VERSION
from paren.codegen.tile import LARGEST, Shape
from paren.runtime.cache import KernelCache

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
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self.cache = cache
        self.processor = llvm.get_host_cpu_name()
        features = llvm.get_host_cpu_features()
        self.features = features.flatten()
        self.vector_bits = WIDE if features.get("avx512f") and features.get("avx512vl") else None
        self.tile = choose_tile(llvm.get_default_triple().split("-")[0], features, self.processor)
        self.compiled = 0
        self.reused = 0
        self._machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=self.processor, features=self.features, opt=3, reloc="pic", codemodel="jitdefault"
        )
        self._jit = llvm.create_lljit_compiler()
        self._loaded: list[object] = []

    @property
    def target(self) -> str:
        """What compiled bits depend on besides the text."""
        version = ".".join(map(str, llvm.llvm_version_info))
        return f"{self.processor} {self.features} llvmlite {llvmlite.__version__} LLVM {version} paren {VERSION}"

    def load(self, texts: Mapping[str, str], name: str, optimise: bool = True) -> dict[str, int]:
        """The address of function `name` of each module, by the keys of `texts`. Without `optimise`, for text that is
        written as it should run, only instructions are chosen and ordered, in a third of the time."""
        return {key: self._load(self._object(text, optimise), name, key) for key, text in texts.items()}

    def assembly(self, text: str, optimise: bool = True) -> str:
        """The machine code of a module as text, for tests and `paren show code`."""
        return str(self._machine.emit_assembly(self._module(text, optimise)))

    def _object(self, text: str, optimise: bool) -> bytes:
        key = self.cache.key(text, self.target, "optimised" if optimise else "as written")
        known = self.cache.read(key)
        if known is not None:
            self.reused += 1
            return known
        self.compiled += 1
        built = bytes(self._machine.emit_object(self._module(text, optimise)))
        self.cache.write(key, built)
        return built

    def _module(self, text: str, optimise: bool) -> llvm.ModuleRef:
        module = llvm.parse_assembly(text, llvm.create_context())
        module.verify()
        if not optimise:
            return module
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization = True
        options.loop_interleaving = True
        # Unrolling and joining straight lines doubled the compile time and made no kernel faster (bench/NOTES.md).
        options.slp_vectorization = False
        options.loop_unrolling = False
        builder = llvm.create_pass_builder(self._machine, options)
        builder.getModulePassManager().run(module, builder)
        return module

    def _load(self, built: bytes, name: str, key: str) -> int:
        library = llvm.JITLibraryBuilder().add_object_img(built).add_current_process().export_symbol(name)
        tracker = library.link(self._jit, f"{key}.{len(self._loaded)}")
        self._loaded.append(tracker)
        return int(tracker[name])
