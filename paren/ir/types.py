"""Types of tensors: an element type and a concrete shape."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from math import prod

import numpy as np


class DType(Enum):
    """Element types. The value is the name in programs, dumps and files."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    INT64 = "int64"
    INT32 = "int32"
    UINT32 = "uint32"
    UINT8 = "uint8"
    BOOL = "bool"

    @property
    def numpy(self) -> np.dtype[np.generic]:
        return np.dtype(self.value)

    @property
    def bytes(self) -> int:
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        return self in (DType.FLOAT64, DType.FLOAT32)

    @property
    def is_integer(self) -> bool:
        return self in (DType.INT64, DType.INT32, DType.UINT32, DType.UINT8)

    def __str__(self) -> str:
        return self.value


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

    @property
    def bytes(self) -> int:
        return self.size * self.dtype.bytes

    def __str__(self) -> str:
        return f"{self.dtype}[{' '.join(map(str, self.shape))}]"


class TypeMismatch(Exception):
    """An operation's operands do not fit. Whoever emits the node turns it into an error with a place."""
