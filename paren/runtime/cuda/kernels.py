"""Kernels of plans as functions on a card: emitted, compiled on several threads, kept in the cache, loaded once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from paren.plan.kernel import Kernel
from paren.runtime.cache import KernelCache, kernel_key
from paren.runtime.cuda.builtin import BUILTIN, NAMES
from paren.runtime.cuda.driver import Compiler, Driver


class Code(Protocol):
    """A kernel as CUDA C, and how it is launched: see `paren.codegen.cuda`."""

    @property
    def name(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def units(self) -> int: ...
    def blocks(self, units: int) -> int: ...


@dataclass(frozen=True)
class Emitter:
    """How CUDA C is made of kernels: `emit(kernel, by rows)`, `prelude` before any of them."""

    emit: Callable[[Kernel, bool], Code]
    prelude: str


@dataclass(frozen=True)
class Loaded:
    """A function on the card, and the kernel's code."""

    function: object
    code: Code


class Kernels:
    """The functions that were loaded so far. `compiled` and `reused` count modules, each of one kernel: that compiles
    in parallel, and a change of a model compiles what is new."""

    def __init__(self, driver: Driver, compiler: Compiler, emitter: Emitter, cache: KernelCache) -> None:
        self.cache = cache
        self.compiled = 0
        self.reused = 0
        self._driver = driver
        self._compiler = compiler
        self._emitter = emitter
        self._loaded: dict[str, Loaded] = {}
        self.builtin = self.functions(BUILTIN, NAMES)

    def functions(self, text: str, names: Sequence[str]) -> dict[str, object]:
        """The functions of a text that is no plan's, by their names."""
        image = self._images({"": text})[""]
        return {name: self._driver.load(image, name) for name in names}

    def load(self, kernels: Sequence[Kernel], by_rows: Sequence[Kernel]) -> None:
        """Makes kernels ready, and those `by_rows` in the form whose units are rows; equal ones once."""
        wanted = [(kernel, False) for kernel in kernels] + [(kernel, True) for kernel in by_rows]
        missing = {kernel_key(*entry): entry for entry in wanted if kernel_key(*entry) not in self._loaded}
        codes = {key: self._emitter.emit(*entry) for key, entry in missing.items()}
        images = self._images({key: self._emitter.prelude + code.text for key, code in codes.items()})
        for key, code in codes.items():
            self._loaded[key] = Loaded(self._driver.load(images[key], code.name), code)

    def loaded(self, kernel: Kernel, by_rows: bool = False) -> Loaded:
        """A kernel that was loaded."""
        return self._loaded[kernel_key(kernel, by_rows)]

    def _images(self, texts: Mapping[str, str]) -> dict[str, bytes]:
        """The module of each text."""
        keys = {name: self.cache.key(text, *self._identity) for name, text in texts.items()}
        known = {name: self.cache.read(key) for name, key in keys.items()}
        images = {name: image for name, image in known.items() if image is not None}
        new = [name for name in texts if name not in images]
        self.reused += len(images)
        self.compiled += len(new)
        if new:
            with ThreadPoolExecutor(min(len(new), os.cpu_count() or 1), thread_name_prefix="paren-compile") as pool:
                built = pool.map(lambda name: self._compiler.compile(texts[name], self._driver.architecture), new)
                images |= dict(zip(new, built, strict=True))
            for name in new:
                self.cache.write(keys[name], images[name])
        return images

    @property
    def _identity(self) -> tuple[str, ...]:
        """What machine code depends on besides the text."""
        return ("cuda", self._driver.architecture, self._compiler.version)
