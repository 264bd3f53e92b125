"""Buffers bound to addresses, and steps bound to buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from paren.ir.op import Array
from paren.runtime.array import AnyArray, DeviceArray, on_host
from paren.runtime.meetings import Reach

Words = npt.NDArray[np.int64]
Addresses = npt.NDArray[np.uint64]


class Cell:
    """The place of one buffer. Its array may be replaced between runs; tables of addresses that watch it follow.

    `lasting`: what lies there means something after a sequence has run, as state does and an arena does not. `moves`
    counts how often any cell got another array.
    """

    moves = 0

    def __init__(self, array: AnyArray | None = None, lasting: bool = False) -> None:
        self._array = array
        self.lasting = lasting
        self._watchers: list[tuple[Addresses, int, int]] = []

    @property
    def array(self) -> AnyArray:
        if self._array is None:
            raise LookupError("the buffer has no array yet")
        return self._array

    @array.setter
    def array(self, array: AnyArray) -> None:
        if array is self._array:
            return
        self._array = array
        Cell.moves += 1
        address = address_of(array)
        for table, place, offset in self._watchers:
            table[place] = address + offset

    @property
    def values(self) -> Array:
        """The array, for a device whose arrays lie in host memory."""
        return on_host(self.array)

    def watch(self, table: Addresses, place: int, offset: int = 0) -> None:
        """Keeps `table[place]` at the address of the array, `offset` bytes further on."""
        self._watchers.append((table, place, offset))
        if self._array is not None:
            table[place] = address_of(self._array) + offset


def address_of(array: AnyArray) -> int:
    if isinstance(array, DeviceArray):
        return array.address
    return int(array.__array_interface__["data"][0])


@dataclass(frozen=True)
class Task:
    """A step bound to cells. `run` executes it alone; `records` (int64[count words]) are what a device's own
    sequence runs, if it can.

    `keep` holds what the records point to; `reaches` says for each of them what it touches, or is empty. A task with
    `flag` does nothing itself: a sequence ends at it if the flag (int32[]) is not 0.
    """

    run: Callable[[], None]
    records: Words | None = None
    keep: tuple[object, ...] = field(default=(), repr=False)
    flag: Cell | None = None
    reaches: tuple[Reach, ...] = field(default=(), repr=False)


class Runs(Protocol):
    """A sequence of tasks, ready to run."""

    def __call__(self, times: int = 1) -> int:
        """Runs it so many times, or until one of its flags ends it; returns how many times it ran to its end."""
