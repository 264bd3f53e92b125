"""Arithmetic and comparison, on numbers while the file is evaluated and on tensors while it trains."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

from paren.ir.types import DType
from paren.lang.builtins.reduce import extreme
from paren.lang.builtins.registry import builtin
from paren.lang.elementwise import cast, combine, common_dtype, elementwise, lift
from paren.lang.operand import need_dtype, need_number, need_tensor, wrong_kind
from paren.lang.session import Session
from paren.lang.signature import Site
from paren.lang.value import Tensor, Value

Number = int | float
Scalar = Callable[[Number, Number], Number]
_MAXIMUM_BITS = 4096


def _fold(session: Session, site: Site, name: str, op: str, function: Scalar, values: Sequence[Value]) -> Value:
    """The operation from left to right over numbers and tensors."""
    result = values[0]
    if not isinstance(result, Tensor):
        need_number(session, site, result, 0)
    for index, value in enumerate(values[1:], start=1):
        if isinstance(result, Tensor) or isinstance(value, Tensor):
            place = site if len(values) == 2 else Site(site.span, (), {}, site.internal)
            result = elementwise(session, place, name, op, [result, value])
        else:
            result = _number(session, site, function, need_number(session, site, result, 0), value, index)
    return result


def _number(session: Session, site: Site, function: Scalar, a: Number, value: Value, index: int) -> Number:
    b = need_number(session, site, value, index)
    try:
        return function(a, b)
    except ZeroDivisionError:
        at = site.positional[index] if index < len(site.positional) else None
        raise session.error("E-CALL-010", "division by zero", site, at=at) from None
    except (OverflowError, ValueError) as error:
        raise session.error("E-CALL-010", f"the result is not a number: {error}", site) from None


@builtin("+", "& values")
def add(session: Session, site: Site, values: tuple[Value, ...]) -> Value:
    """The sum of numbers and tensors."""
    return _fold(session, site, "+", "add", operator.add, values) if values else 0


@builtin("*", "& values")
def multiply(session: Session, site: Site, values: tuple[Value, ...]) -> Value:
    """The product of numbers and tensors, by element."""
    return _fold(session, site, "*", "mul", operator.mul, values) if values else 1


@builtin("-", "x & values")
def subtract(session: Session, site: Site, x: Value, values: tuple[Value, ...]) -> Value:
    """The difference, or the negative of one value."""
    if values:
        return _fold(session, site, "-", "sub", operator.sub, (x, *values))
    if isinstance(x, Tensor):
        return elementwise(session, site, "-", "neg", [x])
    return -need_number(session, site, x, 0)


@builtin("/", "x y & values")
def divide(session: Session, site: Site, x: Value, y: Value, values: tuple[Value, ...]) -> Value:
    """The quotient as a float. For integers that stay integers there is `//`."""
    return _fold(session, site, "/", "div", operator.truediv, (x, y, *values))


@builtin("//", "x y")
def floor_divide(session: Session, site: Site, x: Value, y: Value) -> Value:
    """The quotient rounded down; of integers an integer."""
    return _fold(session, site, "//", "floor_divide", operator.floordiv, (x, y))


@builtin("%", "x y")
def remainder(session: Session, site: Site, x: Value, y: Value) -> Value:
    """The remainder of `//`; it has the sign of y."""
    return _fold(session, site, "%", "remainder", operator.mod, (x, y))


def _power(a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int) and b > 0 and a.bit_length() * b > _MAXIMUM_BITS:
        raise ValueError("it has too many digits")
    result = a**b
    if isinstance(result, complex):
        raise ValueError("a root of a negative number")
    return result


@builtin("pow", "x y")
def power(session: Session, site: Site, x: Value, y: Value) -> Value:
    """x to the power y."""
    return _fold(session, site, "pow", "pow", _power, (x, y))


@builtin("max", "x :axis :axes :keep & values", axis=-1, axes=None, keep=False)
def maximum(
    session: Session, site: Site, x: Value, axis: Value, axes: Value, keep: Value, values: tuple[Value, ...]
) -> Value:
    """With one tensor, its largest elements over axes; with several values, the larger by element."""
    if not values:
        return extreme(session, site, "max", x, axis, axes, keep)
    return _fold(session, site, "max", "maximum", max, (x, *values))


@builtin("min", "x :axis :axes :keep & values", axis=-1, axes=None, keep=False)
def minimum(
    session: Session, site: Site, x: Value, axis: Value, axes: Value, keep: Value, values: tuple[Value, ...]
) -> Value:
    """With one tensor, its smallest elements over axes; with several values, the smaller by element."""
    if not values:
        return extreme(session, site, "min", x, axis, axes, keep)
    return _fold(session, site, "min", "minimum", min, (x, *values))


def _define_unary(name: str, op: str, function: Callable[[Number], Number], documentation: str) -> None:
    def apply(session: Session, site: Site, x: Value) -> Value:
        if isinstance(x, Tensor):
            return elementwise(session, site, name, op, [x])
        number = need_number(session, site, x, 0)
        try:
            return function(number)
        except (ValueError, OverflowError, ZeroDivisionError):
            raise session.error("E-CALL-010", f"({name} {number}) is not a number", site) from None

    apply.__doc__ = documentation
    builtin(name, "x")(apply)


for _name, _op, _function, _documentation in (
    ("exp", "exp", math.exp, "e to the power x."),
    ("log", "log", math.log, "The natural logarithm."),
    ("log1p", "log1p", math.log1p, "log(1 + x), exact near 0."),
    ("expm1", "expm1", math.expm1, "exp(x) - 1, exact near 0."),
    ("sqrt", "sqrt", math.sqrt, "The square root."),
    ("rsqrt", "rsqrt", lambda x: 1 / math.sqrt(x), "1 / sqrt(x)."),
    ("tanh", "tanh", math.tanh, "The hyperbolic tangent."),
    ("erf", "erf", math.erf, "The error function."),
    ("sin", "sin", math.sin, "The sine, in radians."),
    ("cos", "cos", math.cos, "The cosine, in radians."),
    ("floor", "floor", math.floor, "The largest whole number that is not above x."),
    ("ceil", "ceil", math.ceil, "The smallest whole number that is not below x."),
    ("abs", "abs", abs, "The absolute value."),
    ("sign", "sign", lambda x: (x > 0) - (x < 0), "-1, 0 or 1."),
):
    _define_unary(_name, _op, _function, _documentation)


def _define_comparison(name: str, op: str, function: Callable[[Number, Number], bool]) -> None:
    def apply(session: Session, site: Site, x: Value, y: Value) -> Value:
        if isinstance(x, Tensor) or isinstance(y, Tensor):
            return elementwise(session, site, name, op, [x, y])
        if name in ("=", "/="):
            return (x == y and (type(x) is bool) == (type(y) is bool)) == (name == "=")
        return function(need_number(session, site, x, 0), need_number(session, site, y, 1))

    apply.__doc__ = f"x {name} y: a boolean, or a tensor of booleans."
    builtin(name, "x y")(apply)


for _name, _op, _compare in (
    ("=", "eq", operator.eq),
    ("/=", "ne", operator.ne),
    ("<", "lt", operator.lt),
    ("<=", "le", operator.le),
    (">", "gt", operator.gt),
    (">=", "ge", operator.ge),
):
    _define_comparison(_name, _op, _compare)


@builtin("not", "x")
def negate(session: Session, site: Site, x: Value) -> Value:
    """The opposite of a boolean, or of each element of a tensor of booleans."""
    if isinstance(x, bool):
        return not x
    if isinstance(x, Tensor) and x.dtype == DType.BOOL:
        return combine(session, site, "not", "not", [x])
    raise wrong_kind(session, site, x, 0, "a boolean")


def _define_connective(word: str) -> None:
    def apply(session: Session, site: Site, x: Value, y: Value) -> Value:
        tensors = [value for value in (x, y) if isinstance(value, Tensor)]
        if not tensors:
            raise wrong_kind(session, site, x, 0, "a tensor of booleans")
        common_dtype(session, site, word, tensors)
        return combine(session, site, word, word, [lift(session, site, v, i, DType.BOOL) for i, v in enumerate((x, y))])

    apply.__doc__ = f"`{word}` by element."
    builtin(f"elementwise-{word}", "x y")(apply)


_define_connective("and")
_define_connective("or")


@builtin("where", "condition then else")
def where(session: Session, site: Site, condition: Value, then: Value, otherwise: Value) -> Value:
    """By element: `then` where the condition holds, else `else`. Numbers take the type of the tensor they meet."""
    if isinstance(condition, bool):
        return then if condition else otherwise
    test = need_tensor(session, site, condition, 0)
    if test.dtype != DType.BOOL:
        raise wrong_kind(session, site, test, 0, "a tensor of booleans")
    branches = [then, otherwise]
    tensors = [value for value in branches if isinstance(value, Tensor)]
    if tensors:
        dtype = common_dtype(session, site, "where", tensors)
    else:
        for key, value in enumerate(branches, start=1):
            if not isinstance(value, bool):
                need_number(session, site, value, key)
        whole = all(isinstance(value, int) for value in branches)
        flags = all(isinstance(value, bool) for value in branches)
        dtype = DType.BOOL if flags else DType.INT32 if whole else DType.FLOAT32
    return combine(
        session, site, "where", "where", [test, *(lift(session, site, v, i, dtype) for i, v in enumerate(branches, 1))]
    )


@builtin("cast", "x dtype")
def cast_to(session: Session, site: Site, x: Value, dtype: Value) -> Value:
    """The tensor with another element type; floats become integers toward zero. A number becomes a constant."""
    wanted = need_dtype(session, site, dtype, 1)
    if isinstance(x, (bool, int, float)):
        if wanted == DType.BOOL:
            x = bool(x)
        elif wanted.is_integer:
            x = int(x)
        return lift(session, site, x, 0, wanted)
    return cast(session, site, need_tensor(session, site, x, 0), wanted)


@builtin("stop-gradient", "x")
def stop_gradient(session: Session, site: Site, x: Value) -> Value:
    """The same value; no gradient flows through it."""
    if isinstance(x, Tensor):
        return combine(session, site, "stop-gradient", "stop_gradient", [x])
    return need_number(session, site, x, 0)


@builtin("is-finite", "x")
def is_finite(session: Session, site: Site, x: Value) -> Value:
    """Whether each element is neither infinite nor NaN."""
    if isinstance(x, Tensor):
        return elementwise(session, site, "is-finite", "is_finite", [x])
    return math.isfinite(need_number(session, site, x, 0))


@builtin("round", "x")
def round_number(session: Session, site: Site, x: Value) -> Value:
    """A number rounded to the nearest integer, halves to even."""
    number = need_number(session, site, x, 0)
    if not math.isfinite(number):
        raise session.error("E-CALL-010", f"(round {number}) is not a number", site)
    return round(number)
