"""The table of functions that are written in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from paren.ir.types import DType
from paren.lang.signature import builtin_signature
from paren.lang.value import Builtin, Value

BUILTINS: dict[str, Value] = {
    "none": None,
    "all": "all",
    "pi": 3.141592653589793,
    "infinity": float("inf"),
    **{dtype.value: dtype for dtype in DType},
}

Implementation = TypeVar("Implementation", bound=Callable[..., Value])


def builtin(name: str, signature: str, **defaults: Value) -> Callable[[Implementation], Implementation]:
    """Registers `apply(session, site, parameters...)`; defaults of keywords are written with `_` for `-`."""

    def register(function: Implementation) -> Implementation:
        values = {key.replace("_", "-"): value for key, value in defaults.items()}
        documentation = (function.__doc__ or "").strip()
        BUILTINS[name] = Builtin(name, builtin_signature(signature, values), function, documentation)
        return function

    return register
