"""Floats of two bytes in LLVM: in a register such a value is the float it equals, in memory its 16 bits.

All of it is done in integers and plain additions: the processor's own conversions flush subnormals of bfloat16, and
those of float16 are not there on all processors.
"""

from __future__ import annotations

from paren.codegen.writer import Writer, real
from paren.ir.types import DType

_LEAST, _BEYOND = 2.0**-14, 65536.0  # of float16: the least normal number, and the first power that is too large
_SIGN, _MAGNITUDE, _INFINITE = -(1 << 31), (1 << 31) - 1, 0x7F800000
_EXPONENTS = (127 - 15) << 23  # by which the exponent of a float is above that of a float16


def write_rounded(w: Writer, a: str, dtype: DType) -> str:
    """A float rounded to the nearest value of a short type, to the even one of two."""
    bits = w.value(f"bitcast float {a} to i32")
    dropped = 16 if dtype is DType.BFLOAT16 else 13  # bits of the mantissa
    odd = w.value(f"lshr i32 {w.value(f'shl i32 {bits}, {31 - dropped}')}, 31")
    carried = w.value(f"add i32 {w.value(f'add i32 {bits}, {(1 << (dropped - 1)) - 1}')}, {odd}")
    missing = w.value(f"or i32 {bits}, {1 << 22}")  # quiet, whatever its payload
    whole = w.select(w.value(f"fcmp uno float {a}, {real(0.0)}"), "i32", missing, carried)
    rounded = w.value(f"bitcast i32 {w.value(f'and i32 {whole}, {-(1 << dropped)}')} to float")
    if dtype is DType.BFLOAT16:
        return rounded
    magnitude = _magnitude(w, bits)
    small = w.value(f"fsub float {_spaced(w, magnitude)}, {real(0.5)}")
    limited = w.select(
        w.value(f"fcmp oge float {w.call('float', 'llvm.fabs.f32', rounded)}, {real(_BEYOND)}"),
        "i32",
        str(_INFINITE),
        w.value(f"and i32 {w.value(f'bitcast float {rounded} to i32')}, {_MAGNITUDE}"),
    )
    tiny = w.value(f"fcmp olt float {magnitude}, {real(_LEAST)}")
    chosen = w.select(tiny, "i32", w.value(f"bitcast float {small} to i32"), limited)
    signed = w.value(f"or i32 {chosen}, {w.value(f'and i32 {bits}, {_SIGN}')}")
    return w.value(f"bitcast i32 {signed} to float")


def write_packed(w: Writer, a: str, dtype: DType) -> str:
    """The 16 bits of a float that is a value of a short type, as i16."""
    bits = w.value(f"bitcast float {a} to i32")
    if dtype is DType.BFLOAT16:
        return w.value(f"trunc i32 {w.value(f'lshr i32 {bits}, 16')} to i16")
    magnitude = _magnitude(w, bits)
    place = w.value(f"and i32 {bits}, {_MAGNITUDE}")
    normal = w.value(f"lshr i32 {w.value(f'sub i32 {place}, {_EXPONENTS}')}, 13")
    # Subnormals are multiples of the distance of floats at one half.
    spaced = w.value(f"bitcast float {_spaced(w, magnitude)} to i32")
    small = w.value(f"sub i32 {spaced}, {0x3F000000}")
    finite = w.select(w.value(f"fcmp olt float {magnitude}, {real(_LEAST)}"), "i32", small, normal)
    mantissa = w.value(f"and i32 {place}, {(1 << 23) - 1}")
    beyond = w.value(f"or i32 {w.value(f'lshr i32 {mantissa}, 13')}, {0x7C00}")
    found = w.select(w.value(f"icmp uge i32 {place}, {_INFINITE}"), "i32", beyond, finite)
    sign = w.value(f"and i32 {w.value(f'lshr i32 {bits}, 16')}, {1 << 15}")
    return w.value(f"trunc i32 {w.value(f'or i32 {found}, {sign}')} to i16")


def write_widened(w: Writer, a: str, dtype: DType) -> str:
    """The float that 16 bits of a short type stand for."""
    bits = w.value(f"zext i16 {a} to i32")
    if dtype is DType.BFLOAT16:
        return w.value(f"bitcast i32 {w.value(f'shl i32 {bits}, 16')} to float")
    place = w.value(f"and i32 {bits}, {(1 << 15) - 1}")
    shifted = w.value(f"shl i32 {place}, 13")
    small = w.value(f"fmul float {w.value(f'uitofp i32 {place} to float')}, {real(2.0**-24)}")
    normal = w.value(f"add i32 {shifted}, {_EXPONENTS}")
    tiny = w.value(f"icmp ult i32 {place}, {1 << 10}")
    finite = w.select(tiny, "i32", w.value(f"bitcast float {small} to i32"), normal)
    beyond = w.value(f"or i32 {shifted}, {_INFINITE}")
    found = w.select(w.value(f"icmp uge i32 {place}, {0x7C00}"), "i32", beyond, finite)
    sign = w.value(f"shl i32 {w.value(f'and i32 {bits}, {1 << 15}')}, 16")
    return w.value(f"bitcast i32 {w.value(f'or i32 {found}, {sign}')} to float")


def _magnitude(w: Writer, bits: str) -> str:
    return w.value(f"bitcast i32 {w.value(f'and i32 {bits}, {_MAGNITUDE}')} to float")


def _spaced(w: Writer, magnitude: str) -> str:
    """A small magnitude plus one half, where floats are as far apart as subnormals of float16: it rounds to them."""
    return w.value(f"fadd float {magnitude}, {real(0.5)}")
