"""Types of tensors: an element type and a concrete shape."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from math import prod
from typing import Any, Protocol

import ml_dtypes
import numpy as np


class DType(Enum):
    """Element types. The value is the name in programs, dumps and files.

    `bfloat16`, the upper half of a float32, and `float16`, IEEE 754's, are types of storage. Values are moved, cast,
    compared for equality and multiplied by `contract` in them; all other arithmetic is done in float32.
    """

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    INT64 = "int64"
    INT32 = "int32"
    UINT32 = "uint32"
    UINT8 = "uint8"
    BOOL = "bool"

    @cached_property
    def numpy(self) -> np.dtype[np.generic]:
        return _BFLOAT16 if self is DType.BFLOAT16 else np.dtype(self.value)

    @cached_property
    def bytes(self) -> int:
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        return self in (DType.FLOAT64, DType.FLOAT32) or self.is_short

    @property
    def is_short(self) -> bool:
        """Whether it is a float of two bytes: for storage and products."""
        return self in (DType.BFLOAT16, DType.FLOAT16)

    @property
    def is_integer(self) -> bool:
        return self in (DType.INT64, DType.INT32, DType.UINT32, DType.UINT8)

    def __str__(self) -> str:
        return self.value


_BFLOAT16: np.dtype[np.generic] = np.dtype(ml_dtypes.bfloat16)


class _Elements(Protocol):
    @property
    def dtype(self) -> np.dtype[Any]: ...


def holds_floats(array: _Elements) -> bool:
    """Whether the elements of an array are floats, bfloat16 included, which is not one of NumPy's own."""
    return array.dtype.kind == "f" or array.dtype == _BFLOAT16


@dataclass(frozen=True)
class TensorType:
    """Element type and shape; shape `()` is a scalar. A size may be 0 only before checks; graphs hold sizes >= 1."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @cached_property
    def bytes(self) -> int:
        return self.size * self.dtype.bytes

    @property
    def gradient(self) -> TensorType:
        """The type of gradients of such a value: its own, but float32 for short floats, so that they add up in
        float32."""
        return TensorType(DType.FLOAT32, self.shape) if self.dtype.is_short else self

    def __str__(self) -> str:
        return f"{self.dtype}[{' '.join(map(str, self.shape))}]"


class TypeMismatch(Exception):
    """An operation's operands do not fit. Whoever emits the node turns it into an error with a place."""
