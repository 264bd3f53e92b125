"""Functions of libcuda and cuBLAS by ctypes, every call checked."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paren.text.errors import InternalError

MAPS = Path("/proc/self/maps")


class Library:
    """A shared library whose functions give 0 for success. `functions` maps their names to the types of their
    arguments."""

    def __init__(self, path: str, functions: Mapping[str, Sequence[Any]]) -> None:
        try:
            self._library = ctypes.CDLL(path)
            self._functions = {name: getattr(self._library, name) for name in functions}
        except (OSError, AttributeError) as error:
            raise InternalError("cuda", f"{path}: {error}") from error
        for name, arguments in functions.items():
            self._functions[name].argtypes = list(arguments)
            self._functions[name].restype = ctypes.c_int

    def call(self, name: str, *arguments: object) -> None:
        """Calls a function. Raises `InternalError` with its name and what it gave."""
        result = self._functions[name](*arguments)
        if result:
            raise InternalError("cuda", f"{name}: {self.describe(result)}")

    def describe(self, result: int) -> str:
        """A failure in words."""
        return f"error {result}"


def loaded_library(prefix: str) -> str:
    """The path of a library that this process has loaded, by the beginning of its file's name."""
    for line in MAPS.read_text().splitlines():
        path = line.partition("/")[2]
        if path.rpartition("/")[2].startswith(prefix):
            return f"/{path}"
    raise InternalError("cuda", f"torch has not loaded {prefix}")
