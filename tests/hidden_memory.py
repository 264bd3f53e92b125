"""A memory like a card's: arrays in it have an address and cannot be read, only transferred."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paren import api, restored, run
from paren.ir.op import Array
from paren.plan.traits import CPU
from paren.runtime.array import DeviceArray
from paren.runtime.cpu import CpuDevice
from paren.runtime.memory import Available, allocate

HIDDEN = replace(CPU, own_memory=True)


class HiddenMemory:
    """Allocates in host memory that it hides; counts the bytes of each transfer. It refuses ranges that it did not
    give out."""

    def __init__(self) -> None:
        self.ranges: dict[int, int] = {}
        self.uploads: list[int] = []
        self.downloads: list[int] = []
        self.fills: list[int] = []

    def allocate(self, size: int) -> DeviceArray:
        block = allocate(size)
        address = block.__array_interface__["data"][0]
        self.ranges[address] = size
        weakref.finalize(block, self.ranges.pop, address)
        return DeviceArray(address, np.dtype(np.uint8), (size,), block, self)

    @property
    def used(self) -> int:
        return sum(self.ranges.values())

    def upload(self, source: Array, address: int) -> None:
        assert source.flags.c_contiguous
        self._check(address, source.nbytes)
        self.uploads.append(source.nbytes)
        ctypes.memmove(address, source.ctypes.data, source.nbytes)

    def download(self, address: int, target: Array) -> None:
        assert target.flags.c_contiguous
        self._check(address, target.nbytes)
        self.downloads.append(target.nbytes)
        ctypes.memmove(target.ctypes.data, address, target.nbytes)

    def fill(self, address: int, size: int, byte: int) -> None:
        self._check(address, size)
        self.fills.append(size)
        ctypes.memset(address, byte, size)

    def _check(self, address: int, size: int) -> None:
        assert size > 0
        assert any(begin <= address and address + size <= begin + length for begin, length in self.ranges.items())


class HiddenDevice:
    """The CPU, with arrays in hidden memory: the same bits as the CPU's, or something reads where it cannot."""

    name = "cpu"
    own_memory = True
    link = None

    def __init__(self, threads: int | None = 1, cache: Path | None = None) -> None:
        self.memory = HiddenMemory()
        self._processor = CpuDevice(threads, cache)

    def allocate(self, size: int) -> DeviceArray:
        return self.memory.allocate(size)

    def available(self) -> Available:
        return Available(1 << 30, 1 << 31, "hidden memory")

    def used_bytes(self) -> int:
        return self.memory.used

    def __getattr__(self, name: str) -> object:
        return getattr(self._processor, name)


@contextmanager
def hidden() -> Iterator[list[HiddenDevice]]:
    """Every device that is opened inside is a hidden one, and plans are for memory of its own; gives them."""
    opened: list[HiddenDevice] = []

    def open_hidden(_name: str, threads: int | None, cache: Path | None, _tf32: bool = False) -> HiddenDevice:
        opened.append(HiddenDevice(threads, cache))
        return opened[-1]

    with pytest.MonkeyPatch.context() as patch:
        for module in (api, run):
            patch.setattr(module, "traits_of", lambda _name: HIDDEN)
        patch.setattr(run, "open_device", open_hidden)
        patch.setattr(restored, "traits_of", lambda _name: HIDDEN)
        yield opened
