"""Scalar functions of float32 as straight lines of IR, so that LLVM vectorises the loops that use them.

Polynomials are least-maximum fits computed for this file; every multiply-add in them is an explicit `fma`, so results
are the same bits on every target and in scalar and vector code. Bounds, in units of the last place of float32, over
the whole domain (tests measure them): exp 1.1, expm1 1.5, log 1, log1p 1.5, tanh 3, erf 1.3, sin 0.6, cos 0.6,
pow 0.51.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, nan

from paren.codegen.writer import Writer, real

LOG2_E = real(1.4426950216293335)
LN2_HIGH = 0.693359375  # 9 bits: products with exponents are exact
LN2_LOW = -0.00021219444170128554
ROUND = 12582912.0  # 1.5 x 2^23: adding it to a float32 rounds to the nearest integer, which is then in the low bits
ROUND64 = 6755399441055744.0  # 1.5 x 2^52
SQRT_HALF_BITS = 0x3F3504F3

# (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2
EXP = (0.5, 0.166665181517601, 0.04166620597243309, 0.008368957787752151, 0.0013950553257018328)
EXPM1 = (
    0.5,
    0.1666666716337204,
    0.04166635125875473,
    0.008333277888596058,
    0.0013941192300990224,
    0.00019911360868718475,
)
# (log(1 + f) - f + f^2 / 2) / f^3 on sqrt(1/2) - 1 <= f <= sqrt(2) - 1
LOG = (
    0.3333331048488617,
    -0.24999986588954926,
    0.20002226531505585,
    -0.16669242084026337,
    0.14218641817569733,
    -0.12384489178657532,
    0.11873230338096619,
    -0.1178908422589302,
    0.0691395029425621,
)
# erf(x) / x - 1 in x^2 on |x| <= 0.90625, and -log(erfc(t)) / t on 0.88 <= t <= 4
ERF_NEAR = (
    0.12837915122509003,
    -0.3761252164840698,
    0.11282096803188324,
    -0.026776736602187157,
    0.005008005537092686,
    -0.0006066553760319948,
)
ERF_FAR = (
    1.128625750541687,
    0.6352448463439941,
    0.10608010739088058,
    -0.02362532541155815,
    0.003577049355953932,
    -0.00030654165311716497,
    9.590224181010853e-06,
)
# In double: (sin r / r - 1) / r^2, (cos r - 1 + r^2 / 2) / r^4 in r^2 on |r| <= pi / 4; (atanh s / s - 1) / s^2 in s^2
SIN = (-0.1666666664141413, 0.008333329361230947, -0.00019839326869430446, 2.7182351646223877e-06)
COS = (0.04166666662244734, -0.0013888883720506108, 2.4799511286113688e-05, -2.7209513213721243e-07)
ATANH = (
    0.3333333333329334,
    0.20000000026279038,
    0.14285708540254954,
    0.11111687690935008,
    0.09061758726256165,
    0.08410693021910527,
)
EXP64 = (
    0.4999999999959626,
    0.16666666666587257,
    0.041666666992824716,
    0.008333333381282339,
    0.0013888807027972285,
    0.0001984117173747217,
    2.4882526100288707e-05,
    2.764044610218963e-06,
)
HALF_PI = 1.5707963267948966
HALF_PI_LOW = 6.123233995736766e-17


class Float(Writer):
    """A writer of arithmetic in one floating type (`float` or `double`); operands are names or literals."""

    def __init__(self, type_: str, prefix: str = "t") -> None:
        super().__init__(prefix)
        self.type = type_
        self.suffix = "f32" if type_ == "float" else "f64"
        self.integer = "i32" if type_ == "float" else "i64"

    def add(self, a: str, b: str) -> str:
        return self.value(f"fadd {self.type} {a}, {b}")

    def sub(self, a: str, b: str) -> str:
        return self.value(f"fsub {self.type} {a}, {b}")

    def mul(self, a: str, b: str) -> str:
        return self.value(f"fmul {self.type} {a}, {b}")

    def div(self, a: str, b: str) -> str:
        return self.value(f"fdiv {self.type} {a}, {b}")

    def neg(self, a: str) -> str:
        return self.value(f"fneg {self.type} {a}")

    def abs(self, a: str) -> str:
        return self.call(self.type, f"llvm.fabs.{self.suffix}", a)

    def fma(self, a: str, b: str, c: str) -> str:
        return self.call(self.type, f"llvm.fma.{self.suffix}", a, b, c)

    def copysign(self, a: str, b: str) -> str:
        return self.call(self.type, f"llvm.copysign.{self.suffix}", a, b)

    def when(self, a: str, predicate: str, b: str, yes: str, no: str) -> str:
        """`yes` if the comparison of a and b holds, else `no`."""
        return self.select(self.value(f"fcmp {predicate} {self.type} {a}, {b}"), self.type, yes, no)

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """Horner's scheme, lowest coefficient first."""
        total = real(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            total = self.fma(total, x, real(coefficient))
        return total

    def bits(self, a: str) -> str:
        return self.value(f"bitcast {self.type} {a} to {self.integer}")

    def float(self, a: str) -> str:
        return self.value(f"bitcast {self.integer} {a} to {self.type}")

    def int(self, operation: str, a: str, b: str | int) -> str:
        return self.value(f"{operation} {self.integer} {a}, {b}")

    def power_of_two(self, n: str) -> str:
        """2^n for an integer n in the range of normal exponents."""
        bias, shift = (127, 23) if self.type == "float" else (1023, 52)
        return self.float(self.int("shl", self.int("add", n, bias), shift))

    def nearest(self, a: str) -> tuple[str, str]:
        """The nearest integer, as float and as integer; |a| < 2^22. Not a number gives garbage in the integer."""
        magic = real(ROUND if self.type == "float" else ROUND64)
        shifted = self.add(a, magic)
        return self.sub(shifted, magic), self.int("sub", self.bits(shifted), self.bits(magic))


def exp(w: Float, x: str) -> str:
    """e^x = 2^n e^r with |r| <= ln 2 / 2; 2^n in two factors, so that denormals and overflow come out by themselves."""
    x = w.when(x, "ogt", real(89.0), real(89.0), x)
    x = w.when(x, "olt", real(-104.0), real(-104.0), x)
    p, whole = exp_fraction(w, x)
    half = w.int("ashr", whole, 1)
    return w.mul(w.mul(p, w.power_of_two(half)), w.power_of_two(w.int("sub", whole, half)))


def exp_fraction(w: Float, x: str) -> tuple[str, str]:
    """e^x = p 2^n: p and the integer n."""
    n, whole = w.nearest(w.mul(x, LOG2_E))
    r = w.fma(n, real(-LN2_LOW), w.fma(n, real(-LN2_HIGH), x))
    return w.add(w.fma(w.mul(r, r), w.polynomial(r, EXP), r), real(1.0)), whole


def expm1(w: Float, x: str) -> str:
    """2^n (e^r - 1) + (2^n - 1), computed at half the scale so that 2^128 is in range."""
    x = w.when(x, "ogt", real(89.0), real(89.0), x)
    low = w.when(x, "olt", real(-18.0), real(-18.0), x)
    n, whole = w.nearest(w.mul(low, LOG2_E))
    r = w.fma(n, real(-LN2_LOW), w.fma(n, real(-LN2_HIGH), low))
    p = w.fma(w.mul(r, r), w.polynomial(r, EXPM1), r)
    scale = w.power_of_two(w.int("add", whole, -1))
    y = w.mul(w.fma(p, scale, w.sub(scale, real(0.5))), real(2.0))
    # A tiny argument is its own result, sign of zero and denormals included.
    return w.when(w.abs(x), "olt", real(2.0**-26), x, y)


def _exponent(w: Float, x: str) -> tuple[str, str]:
    """x = m 2^e with sqrt(1/2) <= m < sqrt(2), for positive normal x: m and the integer e."""
    bits = w.bits(x)
    e = w.int("ashr", w.int("sub", bits, SQRT_HALF_BITS), 23)
    return w.float(w.int("sub", bits, w.int("shl", e, 23))), e


def _log_sum(w: Float, f: str, e: str) -> str:
    """log(1 + f) + e ln 2."""
    n = w.value(f"sitofp i32 {e} to float")
    square = w.mul(f, f)
    tail = w.fma(w.mul(square, f), w.polynomial(f, LOG), w.mul(n, real(LN2_LOW)))
    return w.fma(n, real(LN2_HIGH), w.add(f, w.fma(square, real(-0.5), tail)))


def _log_edges(w: Float, x: str, y: str) -> str:
    y = w.when(x, "oeq", real(inf), real(inf), y)
    y = w.when(x, "oeq", real(0.0), real(-inf), y)
    y = w.when(x, "olt", real(0.0), real(nan), y)
    return w.when(x, "uno", x, x, y)


def log(w: Float, x: str) -> str:
    tiny = w.value(f"fcmp olt float {x}, {real(2.0**-126)}")
    normal = w.select(tiny, "float", w.mul(x, real(2.0**23)), x)
    m, e = _exponent(w, normal)
    e = w.int("sub", e, w.select(tiny, "i32", "23", "0"))
    return _log_edges(w, x, _log_sum(w, w.sub(m, real(1.0)), e))


def log1p(w: Float, x: str) -> str:
    """log(u) for u = 1 + x rounded, with the rounding error put back into the fraction."""
    u = w.add(x, real(1.0))
    lost = w.when(x, "olt", real(1.0), w.sub(x, w.sub(u, real(1.0))), w.sub(real(1.0), w.sub(u, x)))
    lost = w.when(x, "olt", real(2.0**25), lost, real(0.0))
    m, e = _exponent(w, u)
    bounded = w.select(w.value(f"icmp slt i32 {e}, 120"), "i32", e, "120")
    f = w.fma(lost, w.power_of_two(w.int("sub", "0", bounded)), w.sub(m, real(1.0)))
    y = _log_edges(w, u, _log_sum(w, f, e))
    return w.when(w.abs(x), "olt", real(2.0**-26), x, y)


def tanh(w: Float, x: str) -> str:
    """-t / (2 + t) for t = e^(-2|x|) - 1."""
    t = w.call("float", "paren.expm1", w.mul(w.abs(x), real(-2.0)))
    y = w.div(w.neg(t), w.add(t, real(2.0)))
    return w.copysign(y, x)


def erf(w: Float, x: str) -> str:
    t = w.abs(x)
    near = w.fma(x, w.polynomial(w.mul(x, x), ERF_NEAR), x)
    bounded = w.when(t, "ogt", real(4.0), real(4.0), t)
    power, exponent = exp_fraction(w, w.mul(w.neg(bounded), w.polynomial(bounded, ERF_FAR)))
    far = w.copysign(w.fma(power, w.neg(w.power_of_two(exponent)), real(1.0)), x)
    return w.when(t, "olt", real(0.90625), near, far)


def _two_over_pi_bits(count: int) -> int:
    """The first `count` bits after the point of 2 / pi, from Machin's formula in integers."""
    scale = 1 << (count + 64)

    def arctangent_of_inverse(n: int) -> int:
        total, term, k = 0, scale // n, 1
        while term:
            total += term // k if k % 4 == 1 else -(term // k)
            term //= n * n
            k += 2
        return total

    pi = 4 * (4 * arctangent_of_inverse(5) - arctangent_of_inverse(239))
    return (2 * scale << count) // pi


def turn_table() -> tuple[list[int], list[int]]:
    """For each biased exponent of a float32: the fraction of 2^(exponent of its last bit) / (2 pi), as 96 bits.

    A float32 is an integer below 2^24 times 2^(biased - 150). Its number of turns modulo 1 is that integer times
    the entry, which wraps around as 64-bit arithmetic does. Gives the high 64 and the low 32 bits.
    """
    digits = 420
    quarter_turns = _two_over_pi_bits(digits)
    high, low = [], []
    for biased in range(256):
        # turns = 2^(biased - 150) x quarter_turns / 2^digits / 4, times 2^96, modulo 2^96
        shift = biased - 150 - digits - 2 + 96
        scaled = quarter_turns << shift if shift >= 0 else quarter_turns >> -shift
        scaled &= (1 << 96) - 1
        high.append(scaled >> 32)
        low.append(scaled & 0xFFFFFFFF)
    return high, low


def _reduce(w: Float, d: Float, x: str) -> tuple[str, str]:
    """x = q pi / 2 + r with |r| <= pi / 4: r as a double, q as an i64 modulo 4.

    Below 2^20 in double with pi in two parts; above with the table of turns, exact to 2^-72 of a turn.
    """
    wide = d.value(f"fpext float {x} to double")
    small = d.value(f"fcmp olt float {w.abs(x)}, {real(2.0**20)}")
    safe = d.select(small, "double", wide, real(0.0))
    n, q_small = d.nearest(d.mul(safe, real(0.6366197723675814)))
    r_small = d.fma(n, real(-HALF_PI_LOW), d.fma(n, real(-HALF_PI), safe))
    bits = d.value(f"zext i32 {w.bits(w.abs(x))} to i64")
    biased = d.int("lshr", bits, 23)
    index = d.select(small, "i64", "0", biased)
    entries = []
    for name in ("turns.high", "turns.low"):
        place = d.value(f"getelementptr inbounds [256 x i64], ptr @paren.{name}, i64 0, i64 {index}")
        entries.append(d.value(f"load i64, ptr {place}, align 8"))
    mantissa = d.int("or", d.int("and", bits, 0x7FFFFF), 0x800000)
    low = d.int("lshr", d.int("mul", mantissa, entries[1]), 32)
    turns = d.int("add", d.int("mul", mantissa, entries[0]), low)
    q_large = d.int("lshr", d.int("add", turns, 1 << 61), 62)
    rest = d.int("sub", turns, d.int("shl", q_large, 62))
    r_large = d.mul(d.value(f"sitofp i64 {rest} to double"), real(HALF_PI * 2.0**-62))
    negative = d.value(f"fcmp olt float {x}, {real(0.0)}")
    r_large = d.select(negative, "double", d.neg(r_large), r_large)
    q_large = d.select(negative, "i64", d.int("sub", "0", q_large), q_large)
    return d.select(small, "double", r_small, r_large), d.select(small, "i64", q_small, q_large)


def _sine(w: Float, x: str, quarter: int) -> str:
    """sin(x + quarter pi / 2)."""
    d = Float("double", "d")
    d.lines = w.lines
    r, q = _reduce(w, d, x)
    z = d.mul(r, r)
    sine = d.fma(d.mul(z, r), d.polynomial(z, SIN), r)
    cosine = d.fma(d.mul(z, z), d.polynomial(z, COS), d.fma(z, real(-0.5), real(1.0)))
    q = d.int("add", q, quarter)
    odd = d.value(f"trunc i64 {q} to i1")
    y = d.select(odd, "double", cosine, sine)
    sign = d.int("shl", d.int("and", q, 2), 62)
    y = d.float(d.int("xor", d.bits(y), sign))
    result = w.value(f"fptrunc double {y} to float")
    return w.when(w.abs(x), "olt", real(inf), result, w.sub(x, x))


def sin(w: Float, x: str) -> str:
    y = _sine(w, x, 0)
    return w.when(x, "oeq", real(0.0), x, y)


def cos(w: Float, x: str) -> str:
    return _sine(w, x, 1)


def pow_(w: Float, x: str, y: str) -> str:
    """e^(y log |x|) in double, then the signs and edges of IEEE 754 pow."""
    d = Float("double", "d")
    d.lines = w.lines
    magnitude = w.abs(x)
    bits = d.bits(d.value(f"fpext float {magnitude} to double"))
    e = d.int("ashr", d.int("sub", bits, 0x3FE6A09E667F3BCD), 52)
    m = d.float(d.int("sub", bits, d.int("shl", e, 52)))
    s = d.div(d.sub(m, real(1.0)), d.add(m, real(1.0)))
    z = d.mul(s, s)
    atanh = d.fma(d.mul(z, s), d.polynomial(z, ATANH), s)
    exponent = d.value(f"trunc i64 {e} to i32")
    n = d.value(f"sitofp i32 {exponent} to double")
    logarithm = d.fma(n, real(0.6931471805599453), d.mul(atanh, real(2.0)))
    zero = d.value(f"fcmp oeq float {x}, {real(0.0)}")
    logarithm = d.select(zero, "double", real(-inf), logarithm)
    logarithm = d.select(d.value(f"fcmp oeq float {magnitude}, {real(inf)}"), "double", real(inf), logarithm)
    t = d.mul(logarithm, d.value(f"fpext float {y} to double"))
    t = d.when(t, "ogt", real(90.0), real(90.0), t)
    t = d.when(t, "olt", real(-106.0), real(-106.0), t)
    n, whole = d.nearest(d.mul(t, real(1.4426950408889634)))
    r = d.fma(n, real(-0.6931471805599453), t)
    p = d.add(d.fma(d.mul(r, r), d.polynomial(r, EXP64), r), real(1.0))
    result = w.value(f"fptrunc double {d.mul(p, d.power_of_two(whole))} to float")
    rounded = w.call("float", "llvm.floor.f32", y)
    integral = w.value(f"fcmp oeq float {rounded}, {y}")
    half = w.mul(y, real(0.5))
    even = w.value(f"fcmp oeq float {w.call('float', 'llvm.floor.f32', half)}, {half}")
    odd = w.value(f"and i1 {integral}, {w.value(f'xor i1 {even}, true')}")
    result = w.select(odd, "float", w.copysign(result, x), result)
    finite_negative = w.value(
        f"and i1 {w.value(f'fcmp olt float {x}, {real(0.0)}')}, {w.value(f'fcmp ogt float {x}, {real(-inf)}')}"
    )
    undefined = w.value(f"and i1 {finite_negative}, {w.value(f'xor i1 {integral}, true')}")
    result = w.select(undefined, "float", real(nan), result)
    result = w.when(x, "uno", y, w.add(x, y), result)
    infinite = w.value(f"fcmp oeq float {w.abs(y)}, {real(inf)}")
    unit = w.value(f"fcmp oeq float {magnitude}, {real(1.0)}")
    result = w.select(w.value(f"and i1 {infinite}, {unit}"), "float", real(1.0), result)
    result = w.when(x, "oeq", real(1.0), real(1.0), result)
    return w.when(y, "oeq", real(0.0), real(1.0), result)


def _threefry() -> list[str]:
    """Threefry-2x32 with 20 rounds (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011)."""
    w = Writer()
    keys = ["%k0", "%k1", w.value(f"xor i32 {w.value('xor i32 %k0, %k1')}, {0x1BD11BDA}")]
    x0 = w.value("add i32 %c0, %k0")
    x1 = w.value("add i32 %c1, %k1")
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    for group in range(5):
        for rotation in rotations[group % 2]:
            x0 = w.value(f"add i32 {x0}, {x1}")
            turned = w.value(f"call i32 @llvm.fshl.i32(i32 {x1}, i32 {x1}, i32 {rotation})")
            x1 = w.value(f"xor i32 {turned}, {x0}")
        x0 = w.value(f"add i32 {x0}, {keys[(group + 1) % 3]}")
        x1 = w.value(f"add i32 {w.value(f'add i32 {x1}, {keys[(group + 2) % 3]}')}, {group + 1}")
    return [
        "define internal i32 @paren.threefry(i32 %k0, i32 %k1, i32 %c0, i32 %c1, i1 %second) alwaysinline {",
        *w.lines,
        f"  %result = select i1 %second, i32 {x1}, i32 {x0}",
        "  ret i32 %result",
        "}",
    ]


UNARY: dict[str, Callable[[Float, str], str]] = {
    "exp": exp,
    "expm1": expm1,
    "log": log,
    "log1p": log1p,
    "tanh": tanh,
    "erf": erf,
    "sin": sin,
    "cos": cos,
}
# What a function needs besides itself.
NEEDS = {"tanh": ("expm1",)}
# Functions of the C library, for float64, and their operands.
LIBRARY64 = {"log1p": "double", "expm1": "double", "tanh": "double", "erf": "double"}


def _unary(name: str) -> list[str]:
    w = Float("float")
    result = UNARY[name](w, "%x")
    return [f"define internal float @paren.{name}(float %x) alwaysinline {{", *w.lines, f"  ret float {result}", "}"]


def _pow() -> list[str]:
    w = Float("float")
    result = pow_(w, "%x", "%y")
    return [
        "define internal float @paren.pow(float %x, float %y) alwaysinline {",
        *w.lines,
        f"  ret float {result}",
        "}",
    ]


def definitions(names: set[str]) -> str:
    """The IR of the functions `paren.NAME` (threefry and those of float32) that a module uses."""
    wanted = set(names)
    for name in names:
        wanted.update(NEEDS.get(name, ()))
    lines: list[str] = []
    if wanted & {"sin", "cos"}:
        for label, table in zip(("high", "low"), turn_table(), strict=True):
            entries = ", ".join(f"i64 {entry - (1 << 64) if entry >> 63 else entry}" for entry in table)
            lines.append(f"@paren.turns.{label} = internal constant [256 x i64] [{entries}], align 64")
    for name in sorted(wanted):
        lines += _threefry() if name == "threefry" else _pow() if name == "pow" else _unary(name)
    return "\n".join(lines) + "\n" if lines else ""
