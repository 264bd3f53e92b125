"""Arrays that lie in one allocation of a device and cross to host memory together, in one transfer."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from math import prod

import numpy as np
import numpy.typing as npt

from paren.ir.op import Array
from paren.ir.types import TensorType
from paren.plan.plan import Place, Plan
from paren.runtime.array import AnyArray, AnyBytes, DeviceArray, fetch, on_host
from paren.runtime.device import Device
from paren.runtime.memory import ALIGNMENT, allocate


class Block:
    """An array of zeros for each type, by name, each on 64 bytes: `arrays`, where the device has them.

    `host` is the same in host memory. Where the device's arrays lie there, the two are one and `send` and `fetch`
    do nothing; else `send` uploads all of `host`, and `fetch` downloads all of it.
    """

    def __init__(self, device: Device, types: Mapping[str, TensorType]) -> None:
        ends = _ends(types)
        self._block = device.allocate(block_bytes(types))
        self.arrays = _cut(self._block, types, ends)
        self._mirror = self._block if isinstance(self._block, np.ndarray) else allocate(self._block.size)
        self.host = {name: on_host(array) for name, array in _cut(self._mirror, types, ends).items()}

    def send(self) -> None:
        """Lets the device have what is in `host`."""
        if isinstance(self._block, DeviceArray):
            self._block[...] = self._mirror

    def fetch(self) -> None:
        """Lets `host` have what the device has."""
        if isinstance(self._block, DeviceArray):
            fetch(self._block, self._mirror)


def block_bytes(types: Mapping[str, TensorType]) -> int:
    """The bytes of a block of these types."""
    return max([ALIGNMENT, *_ends(types)])


def _ends(types: Mapping[str, TensorType]) -> list[int]:
    return list(accumulate(-(-type_.bytes // ALIGNMENT) * ALIGNMENT for type_ in types.values()))


def _cut(block: AnyBytes, types: Mapping[str, TensorType], ends: list[int]) -> dict[str, AnyArray]:
    places = zip(types.items(), [0, *ends], strict=False)
    return {
        name: block[begin : begin + type_.bytes].view(type_.dtype.numpy).reshape(type_.shape)
        for (name, type_), begin in places
    }


def input_types(plan: Plan) -> dict[str, TensorType]:
    """What a plan reads beside state, by name."""
    return {buffer.name: buffer.type for buffer in plan.buffers if buffer.place is Place.INPUT}


def allocate_array(device: Device, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> AnyArray:
    """An array of zeros in the memory that the device's kernels read. Raises E-MEM-002."""
    size = np.dtype(dtype).itemsize * prod(shape)
    return device.allocate(max(ALIGNMENT, size))[:size].view(dtype).reshape(shape)


def place(device: Device, values: Array) -> AnyArray:
    """An array where the device's kernels can read it: itself if they read host memory, else a copy."""
    if not device.own_memory:
        return values
    array = allocate_array(device, values.dtype, values.shape)
    array[...] = values
    return array
