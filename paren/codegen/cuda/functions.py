"""Scalar functions as cards compute them: the bits of `paren.codegen.scalar`, in fewer instructions."""

from __future__ import annotations

from paren.codegen import scalar
from paren.codegen.scalar import Float
from paren.codegen.writer import real

BELOW = 2.0**-25


def exp(w: Float, x: str) -> str:
    """e^x as `scalar.exp`, with 2^n = 2^(n + 25) 2^-25 below 1 and 2^(n - 1) 2 above: the first product is exact as
    well, the second rounds once."""
    x = w.call("float", "paren.lesser", x, real(89.0))
    x = w.call("float", "paren.greater", x, real(-104.0))
    p, whole = scalar.exp_fraction(w, x)
    down = w.value(f"fcmp olt float {x}, {real(0.0)}")
    bias = w.select(down, "i32", str((127 + 25) << 23), str(126 << 23))
    factor = w.select(down, "float", real(BELOW), real(2.0))
    scale = w.float(w.int("add", w.int("shl", whole, 23), bias))
    return w.mul(w.mul(p, scale), factor)


def definitions() -> str:
    """The functions `paren.NAME` as straight-line IR."""
    w = Float("float")
    result = exp(w, "%x")
    faster = [
        "define internal float @paren.exp(float %x) alwaysinline {",
        *w.lines,
        f"  ret float {result}",
        "}",
    ]
    return scalar.definitions({*scalar.UNARY, "pow", "threefry"} - {"exp"}) + "\n".join(faster) + "\n"
