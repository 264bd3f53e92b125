"""Scalar functions as cards compute them: the bits of `paren.codegen.scalar`, in fewer instructions."""

from __future__ import annotations

from paren.codegen import scalar
from paren.codegen.scalar import Float
from paren.codegen.writer import real
from paren.ir.types import DType
from paren.plan.kernel import Accumulate, Compute, Kernel, Reduce, Store
from paren.plan.kernel_values import equal_values

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


def exp_below(w: Float, x: str) -> str:
    """The same for an argument that is not above 0."""
    x = w.call("float", "paren.greater", x, real(-104.0))
    p, whole = scalar.exp_fraction(w, x)
    scale = w.float(w.int("add", w.int("shl", whole, 23), (127 + 25) << 23))
    return w.mul(w.mul(p, scale), real(BELOW))


def definitions() -> str:
    """The functions `paren.NAME` as straight-line IR."""
    faster = []
    for name, function in (("exp", exp), ("exp_below", exp_below)):
        w = Float("float")
        result = function(w, "%x")
        faster += [
            f"define internal float @paren.{name}(float %x) alwaysinline {{",
            *w.lines,
            f"  ret float {result}",
            "}",
        ]
    return scalar.definitions({*scalar.UNARY, "pow", "threefry"} - {"exp"}) + "\n".join(faster) + "\n"


def below_zero(kernel: Kernel) -> set[int]:
    """Values that are never above 0, as arguments of `exp` often are: a value less the greatest of its kind, and
    squares with their sign turned."""
    statements = {s.result: s for stage in kernel.stages for s in stage.body if not isinstance(s, Store | Accumulate)}
    alike = equal_values(kernel)
    found = set()
    for number, statement in statements.items():
        if not isinstance(statement, Compute) or statement.dtype is not DType.FLOAT32:
            continue
        first, last = statements[statement.args[0]], statements[statement.args[-1]]
        greatest = isinstance(last, Reduce) and last.kind == "max" and alike[last.value] == alike[first.result]
        square = isinstance(first, Compute) and first.op == "mul" and alike[first.args[0]] == alike[first.args[1]]
        if (statement.op == "sub" and greatest) or (statement.op == "neg" and square):
            found.add(number)
    return found
