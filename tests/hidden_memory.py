"""A memory like a card's: arrays in it have an address and cannot be read, only transferred."""

from __future__ import annotations

import ctypes

import numpy as np

from paren.ir.op import Array
from paren.runtime.array import DeviceArray
from paren.runtime.memory import allocate


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
        return DeviceArray(address, np.dtype(np.uint8), (size,), block, self)

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
