"""Machine code for the order of samples, as `paren.data.order` calls it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Walk = Callable[[npt.NDArray[np.int64], npt.NDArray[np.uint64], int], None]
"""Sends each of the values (int64[n], in place) through the rounds with these keys (uint64[rounds]), and again while it
is not below the count: what `paren.data.order` defines."""


class NativeWalk:
    """The function of `paren.codegen.walk` that lies at an address; `keep` is what it lives by."""

    def __init__(self, address: int, keep: object) -> None:
        word, pointer = ctypes.c_int64, ctypes.c_void_p
        self._function = ctypes.CFUNCTYPE(None, pointer, word, pointer, word, word, word)(address)
        self._keep = keep

    def __call__(self, values: npt.NDArray[np.int64], keys: npt.NDArray[np.uint64], count: int) -> None:
        bits = (count - 1).bit_length()
        self._function(values.ctypes.data, len(values), keys.ctypes.data, len(keys), bits, count)
