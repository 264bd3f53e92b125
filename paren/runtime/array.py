"""Arrays in the memory of a device that the processor cannot read: an address, and transfers of whole ranges.

Code that gets either kind of array says `AnyArray`. It moves whole ranges and never goes over elements: each transfer
of a `DeviceArray` waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import Protocol

import numpy as np
import numpy.typing as npt

from paren.ir.op import Array
from paren.runtime.memory import Bytes
from paren.text.errors import InternalError

PART = 1 << 23  # bytes of host memory that a fill with values, or a copy from one array to another, takes at a time


class Transfers(Protocol):
    """What moves bytes between host and device. Each function has done its work when it returns, after everything that
    was started on the device before. `source` and `target` are C-contiguous; sizes are in bytes, and above 0."""

    def upload(self, source: Array, address: int) -> None:
        """Copies all bytes of `source` to the device."""

    def download(self, address: int, target: Array) -> None:
        """Fills `target` from the device."""

    def fill(self, address: int, size: int, byte: int) -> None:
        """Sets `size` bytes of the device to `byte`, which is 0 to 255."""


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """A C-contiguous array on a device, with the part of numpy's interface that needs no strides.

    `owner` keeps the memory alive; views share it. Two arrays are equal if they are the same object. There is no
    `__array_interface__`: nothing reads the memory but kernels and `transfers`.
    """

    address: int
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    owner: object = field(repr=False)
    transfers: Transfers = field(repr=False)
    __iter__ = None  # numpy and Python would go over elements

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def view(self, dtype: npt.DTypeLike) -> DeviceArray:
        """The same bytes as elements of another type; the last axis changes its size."""
        wanted: np.dtype[np.generic] = np.dtype(dtype)
        if wanted.itemsize == self.itemsize:
            return replace(self, dtype=wanted)
        length = self.shape[-1] * self.itemsize if self.shape else -1
        if length < 0 or length % wanted.itemsize:
            raise InternalError("runtime", f"{self} cannot be seen as {wanted}")
        return replace(self, dtype=wanted, shape=(*self.shape[:-1], length // wanted.itemsize))

    def reshape(self, *shape: int | tuple[int, ...]) -> DeviceArray:
        """The same elements in another shape, given as numpy takes it; one size may be -1."""
        sizes = [size for part in shape for size in (part if isinstance(part, tuple) else (part,))]
        known = prod(size for size in sizes if size != -1)
        wanted = tuple(self.size // max(known, 1) if size == -1 else size for size in sizes)
        if prod(wanted) != self.size or sizes.count(-1) > 1:
            raise InternalError("runtime", f"{self} cannot be reshaped to {list(sizes)}")
        return replace(self, shape=wanted)

    def __getitem__(self, key: object) -> DeviceArray:
        """`array[...]`, `array[()]`, or a range of the first axis, without steps."""
        if key is Ellipsis or key == ():
            return self
        if not isinstance(key, slice) or not self.shape or key.step not in (None, 1):
            raise InternalError("runtime", f"{self} has no part {key}")
        begin, end, _ = key.indices(self.shape[0])
        end = max(begin, end)
        row = self.nbytes // max(self.shape[0], 1)
        return replace(self, address=self.address + begin * row, shape=(end - begin, *self.shape[1:]))

    def __setitem__(self, key: object, value: AnyArray | complex) -> None:
        """Uploads values of the part's shape, cast as numpy would; a single one fills the part; another array on a
        device is copied. Returns when it is done."""
        part = self[key]
        if isinstance(value, DeviceArray):
            _copy(value, part)
            return
        values = np.ascontiguousarray(value, part.dtype).reshape(np.shape(value))
        if not part.size:
            return
        if values.shape == part.shape:
            self.transfers.upload(values, part.address)
        elif values.size == 1:
            _fill(part, values)
        else:
            raise InternalError("runtime", f"values of shape {list(values.shape)} do not fit {part}")

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        """A copy in host memory."""
        if copy is False:
            raise ValueError(f"{self} cannot be read without a copy")
        values: Array = np.empty(self.shape, self.dtype)
        fetch(self, values)
        return values if dtype is None else values.astype(dtype, copy=False)

    def __float__(self) -> float:
        return float(self._element())

    def __int__(self) -> int:
        return int(self._element())

    def __bool__(self) -> bool:
        return bool(self._element())

    def __str__(self) -> str:
        return f"{self.dtype}[{' '.join(map(str, self.shape))}] on a device"

    def _element(self) -> float:
        """The value of an array of one element."""
        return np.asarray(self).item()  # type: ignore[no-any-return]


AnyArray = Array | DeviceArray
AnyBytes = Bytes | DeviceArray


def on_host(array: AnyArray) -> Array:
    """The array, where only one in host memory can be."""
    if isinstance(array, DeviceArray):
        raise InternalError("runtime", f"{array} is not in host memory")
    return array


def parts(array: AnyArray, size: int) -> Iterator[AnyArray]:
    """Views of consecutive elements of a C-contiguous array, at most `size` bytes each, and at least one element."""
    flat = array.reshape((array.size,))
    step = max(1, size // array.dtype.itemsize)
    for begin in range(0, array.size, step):
        yield flat[begin : begin + step]


def fetch(array: AnyArray, target: Array) -> None:
    """Fills a C-contiguous array in host memory with the values of one of its type and shape."""
    if not isinstance(array, DeviceArray):
        target[...] = array
    elif (array.dtype, array.shape) != (target.dtype, target.shape):
        raise InternalError("runtime", f"{array} does not fit {target.dtype}{list(target.shape)}")
    elif array.size:
        array.transfers.download(array.address, target)


def _fill(part: DeviceArray, value: Array) -> None:
    """Sets all elements of a part to one value."""
    pattern = value.reshape(1).view(np.uint8)
    if (pattern == pattern[0]).all():
        part.transfers.fill(part.address, part.nbytes, int(pattern[0]))
        return
    flat = part.reshape(-1)
    step = max(1, PART // part.itemsize)
    values = np.full(min(step, flat.size), value.reshape(()), part.dtype)
    for begin in range(0, flat.size, step):
        piece = flat[begin : begin + step]
        part.transfers.upload(values[: piece.size], piece.address)


def _copy(source: DeviceArray, target: DeviceArray) -> None:
    """Copies through host memory: rare, and no kernel is needed for it."""
    if (source.dtype, source.shape) != (target.dtype, target.shape):
        raise InternalError("runtime", f"{source} does not fit {target}")
    given, taken = source.reshape(-1), target.reshape(-1)
    step = max(1, PART // source.itemsize)
    for begin in range(0, given.size, step):
        piece = taken[begin : begin + step]
        target.transfers.upload(np.asarray(given[begin : begin + step]), piece.address)
