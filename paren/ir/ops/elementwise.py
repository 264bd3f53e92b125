"""Operations that treat each element alone: one operand and two operands."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from paren.ir.graph import Builder, Node
from paren.ir.op import Array, Attrs, Op, Sample, Vjp, register
from paren.ir.ops import operands as need
from paren.ir.types import DType, TensorType

Gradients = Sequence[Node | None]
Function = Callable[..., Array]


def _floats(low: float, high: float, count: int = 1) -> Callable[[np.random.Generator], list[Sample]]:
    """Samples with `count` operands in [low, high): a scalar, a small shape, a larger one."""

    def draw(generator: np.random.Generator) -> list[Sample]:
        shapes: list[tuple[int, ...]] = [(), (3,), (4, 1, 5)]
        return [Sample(tuple(generator.uniform(low, high, shape) for _ in range(count)), {}) for shape in shapes]

    return draw


def _integers(dtype: DType, low: int, high: int, count: int) -> Callable[[np.random.Generator], list[Sample]]:
    """Samples with `count` integer operands in [low, high)."""

    def draw(generator: np.random.Generator) -> list[Sample]:
        def array(shape: tuple[int, ...]) -> Array:
            return np.asarray(generator.integers(low, high, shape)).astype(dtype.numpy)

        return [Sample(tuple(array(shape) for _ in range(count)), {}) for shape in ((), (6,), (3, 4))]

    return draw


def _both(*draws: Callable[[np.random.Generator], list[Sample]]) -> Callable[[np.random.Generator], list[Sample]]:
    return lambda generator: [sample for draw in draws for sample in draw(generator)]


def _define(
    name: str,
    function: Function,
    vjp: Vjp | None,
    samples: Callable[[np.random.Generator], list[Sample]],
    *,
    operands: int,
    domain: tuple[DType, ...] = need.FLOATS,
    result: DType | None = None,
) -> Op:
    """An operation of `operands` equal types in `domain`; its element type is theirs, or `result`."""

    def infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        need.count(types, operands)
        need.member(types[0], domain)
        for other in types[1:]:
            need.same(types[0], other)
        return types[0] if result is None else TensorType(result, types[0].shape)

    def evaluate(arrays: Sequence[Array], attrs: Attrs) -> Array:
        return np.asarray(function(*arrays))

    return register(Op(name, "elementwise", infer, evaluate, vjp, samples))


unary = partial(_define, operands=1)
binary = partial(_define, operands=2)


def _at(builder: Builder, node: Node) -> Callable[..., Node]:
    """`Builder.apply` at the place of `node`."""
    return partial(builder.apply, span=node.span)


# One operand.


def _neg(builder: Builder, node: Node, g: Node) -> Gradients:
    return [_at(builder, node)("neg", g)]


def _abs(builder: Builder, node: Node, g: Node) -> Gradients:
    do = _at(builder, node)
    return [do("mul", g, do("sign", node.args[0]))]


def _exp(builder: Builder, node: Node, g: Node) -> Gradients:
    return [_at(builder, node)("mul", g, node)]


def _log(builder: Builder, node: Node, g: Node) -> Gradients:
    return [_at(builder, node)("div", g, node.args[0])]


def _log1p(builder: Builder, node: Node, g: Node) -> Gradients:
    do = _at(builder, node)
    return [do("div", g, do("add", node.args[0], 1.0))]


def _expm1(builder: Builder, node: Node, g: Node) -> Gradients:
    do = _at(builder, node)
    return [do("mul", g, do("add", node, 1.0))]


def _sqrt(builder: Builder, node: Node, g: Node) -> Gradients:
    do = _at(builder, node)
    return [do("div", g, do("mul", node, 2.0))]


def _rsqrt(builder: Builder, node: Node, g: Node) -> Gradients:
    do = _at(builder, node)
    cube = do("mul", node, do("mul", node, node))
    return [do("mul", g, do("mul", cube, -0.5))]


def _tanh(builder: Builder, node: Node, g: Node) -> Gradients:
    do = _at(builder, node)
    return [do("mul", g, do("sub", 1.0, do("mul", node, node)))]


def _erf(builder: Builder, node: Node, g: Node) -> Gradients:
    do = _at(builder, node)
    x = node.args[0]
    bell = do("exp", do("neg", do("mul", x, x)))
    return [do("mul", g, do("mul", bell, 2.0 / math.sqrt(math.pi)))]


def _sin(builder: Builder, node: Node, g: Node) -> Gradients:
    do = _at(builder, node)
    return [do("mul", g, do("cos", node.args[0]))]


def _cos(builder: Builder, node: Node, g: Node) -> Gradients:
    do = _at(builder, node)
    return [do("neg", do("mul", g, do("sin", node.args[0])))]


def _erf_of(x: Array) -> Array:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x)).astype(x.dtype)


def _reciprocal_root(x: Array) -> Array:
    return np.asarray(np.divide(x.dtype.type(1), np.sqrt(x)))


def _sign_samples(generator: np.random.Generator) -> list[Sample]:
    away = generator.uniform(0.1, 2.0, (3, 4)) * np.where(generator.random((3, 4)) < 0.5, -1.0, 1.0)
    return [Sample((away,), {}), Sample((np.array([-3, 0, 5], np.int32),), {})]


def _fractions(generator: np.random.Generator) -> list[Sample]:
    whole = generator.integers(-4, 4, (3, 4)).astype(np.float64)
    return [Sample((whole + generator.uniform(0.1, 0.9, (3, 4)),), {})]


def _is_finite_samples(_generator: np.random.Generator) -> list[Sample]:
    return [Sample((np.array([1.0, -np.inf, np.inf, np.nan, 0.0]),), {})]


unary("neg", np.negative, _neg, _both(_floats(-2, 2), _integers(DType.INT32, -9, 9, 1)), domain=need.NUMBERS)
unary("abs", np.abs, _abs, _sign_samples, domain=need.NUMBERS)
unary("sign", np.sign, None, _sign_samples, domain=need.NUMBERS)
unary("exp", np.exp, _exp, _floats(-3, 3))
unary("log", np.log, _log, _floats(0.2, 4))
unary("log1p", np.log1p, _log1p, _floats(-0.7, 3))
unary("expm1", np.expm1, _expm1, _floats(-2, 2))
unary("sqrt", np.sqrt, _sqrt, _floats(0.2, 4))
unary("rsqrt", _reciprocal_root, _rsqrt, _floats(0.3, 4))
unary("tanh", np.tanh, _tanh, _floats(-2, 2))
unary("erf", _erf_of, _erf, _floats(-2, 2))
unary("sin", np.sin, _sin, _floats(-4, 4))
unary("cos", np.cos, _cos, _floats(-4, 4))
unary("floor", np.floor, None, _fractions)
unary("ceil", np.ceil, None, _fractions)
unary("not", np.logical_not, None, _integers(DType.BOOL, 0, 2, 1), domain=(DType.BOOL,))
unary("is_finite", np.isfinite, None, _is_finite_samples, result=DType.BOOL)
unary("stop_gradient", np.copy, None, _floats(-2, 2), domain=need.EVERY)


# Two operands.


def _add(builder: Builder, node: Node, g: Node) -> Gradients:
    return [g, g]


def _sub(builder: Builder, node: Node, g: Node) -> Gradients:
    return [g, _at(builder, node)("neg", g)]


def _mul(builder: Builder, node: Node, g: Node) -> Gradients:
    do = _at(builder, node)
    a, b = node.args
    return [do("mul", g, b), do("mul", g, a)]


def _div(builder: Builder, node: Node, g: Node) -> Gradients:
    do = _at(builder, node)
    share = do("div", g, node.args[1])
    return [share, do("neg", do("mul", share, node))]


def _pow(builder: Builder, node: Node, g: Node) -> Gradients:
    """d/dx = y x^(y-1), 0 where y = 0; d/dy = x^y log x, 0 where x = 0 and y >= 0 (the limit there)."""
    do = _at(builder, node)
    x, y = node.args
    slope = do("mul", y, do("pow", x, do("sub", y, 1.0)))
    to_x = do("where", do("eq", y, 0.0), 0.0, do("mul", g, slope))
    flat = do("and", do("eq", x, 0.0), do("ge", y, 0.0))
    to_y = do("where", flat, 0.0, do("mul", g, do("mul", node, do("log", x))))
    return [to_x, to_y]


def _extreme(better: str) -> Vjp:
    """The gradient goes to the better operand, half to each where they are equal; where one is NaN, to neither."""

    def vjp(builder: Builder, node: Node, g: Node) -> Gradients:
        do = _at(builder, node)
        a, b = node.args
        tie = do("where", do("eq", a, b), do("mul", g, 0.5), 0.0)
        return [do("where", do(better, a, b), g, tie), do("where", do(better, b, a), g, tie)]

    return vjp


def _remainder(a: Array, b: Array) -> Array:
    """Takes the sign of the divisor; an integer remainder by 0 is 0."""
    return np.asarray(np.remainder(a, b))


def _remainder_vjp(builder: Builder, node: Node, g: Node) -> Gradients:
    """The remainder is a - b floor(a / b), whose floor is constant almost everywhere."""
    do = _at(builder, node)
    return [g, do("neg", do("mul", g, do("floor_divide", *node.args)))]


def _apart(generator: np.random.Generator) -> list[Sample]:
    """Two operands that differ by at least 0.1 everywhere, and integers."""
    a = generator.uniform(-2, 2, (4, 5))
    gap = generator.uniform(0.1, 1.0, (4, 5)) * np.where(generator.random((4, 5)) < 0.5, -1.0, 1.0)
    return [Sample((a, a + gap), {}), Sample((np.array([1, 4, -2], np.int32), np.array([2, 4, -3], np.int32)), {})]


def _quotients(generator: np.random.Generator) -> list[Sample]:
    """Floats whose quotient is away from integers, and integers of all four sign combinations."""
    divisor = generator.uniform(0.5, 2, (3, 4)) * np.where(generator.random((3, 4)) < 0.5, -1.0, 1.0)
    quotient = generator.integers(-3, 3, (3, 4)) + generator.uniform(0.2, 0.8, (3, 4))
    a, b = np.array([7, -7, 7, -7, 5], np.int32), np.array([2, 2, -2, -2, 0], np.int32)
    return [
        Sample((divisor * quotient, divisor), {}),
        Sample((a, b), {}),
        Sample((np.array([9, 4], np.uint32), np.array([4, 9], np.uint32)), {}),
    ]


def _pow_samples(generator: np.random.Generator) -> list[Sample]:
    return [Sample((generator.uniform(0.3, 3, (3, 4)), generator.uniform(-2, 3, (3, 4))), {})]


def _comparable(generator: np.random.Generator) -> list[Sample]:
    equal = np.array([1.0, 2.0, -3.0, np.nan])
    return [*_apart(generator), Sample((equal, np.array([1.0, 3.0, -4.0, np.nan])), {})]


def _shift(function: Function) -> Function:
    """Shifts by 32 or more give 0."""
    return lambda a, n: np.where(n < 32, function(a, np.minimum(n, np.uint32(31))), np.uint32(0))


def _shift_samples(generator: np.random.Generator) -> list[Sample]:
    words = generator.integers(0, 2**32, 6, dtype=np.uint32)
    return [Sample((words, np.array([0, 1, 8, 31, 32, 40], np.uint32)), {})]


_arithmetic = _both(_floats(-2, 2, 2), _integers(DType.INT32, -9, 9, 2), _integers(DType.UINT32, 0, 2**32, 2))
binary("add", np.add, _add, _arithmetic, domain=need.NUMBERS)
binary("sub", np.subtract, _sub, _arithmetic, domain=need.NUMBERS)
binary("mul", np.multiply, _mul, _arithmetic, domain=need.NUMBERS)
binary("div", np.divide, _div, _floats(0.3, 2, 2))
binary("pow", np.power, _pow, _pow_samples)
binary("maximum", np.maximum, _extreme("gt"), _apart, domain=need.NUMBERS)
binary("minimum", np.minimum, _extreme("lt"), _apart, domain=need.NUMBERS)
binary("remainder", _remainder, _remainder_vjp, _quotients, domain=need.NUMBERS)
binary("floor_divide", np.floor_divide, None, _quotients, domain=need.NUMBERS)
binary("lt", np.less, None, _comparable, domain=need.NUMBERS, result=DType.BOOL)
binary("le", np.less_equal, None, _comparable, domain=need.NUMBERS, result=DType.BOOL)
binary("gt", np.greater, None, _comparable, domain=need.NUMBERS, result=DType.BOOL)
binary("ge", np.greater_equal, None, _comparable, domain=need.NUMBERS, result=DType.BOOL)
binary("eq", np.equal, None, _comparable, domain=need.EVERY, result=DType.BOOL)
binary("ne", np.not_equal, None, _comparable, domain=need.EVERY, result=DType.BOOL)
_bits = _both(_integers(DType.BOOL, 0, 2, 2), _integers(DType.UINT32, 0, 2**32, 2), _integers(DType.INT32, -99, 99, 2))
binary("and", np.bitwise_and, None, _bits, domain=need.LOGICAL)
binary("or", np.bitwise_or, None, _bits, domain=need.LOGICAL)
binary("xor", np.bitwise_xor, None, _bits, domain=need.LOGICAL)
binary("shift_left", _shift(np.left_shift), None, _shift_samples, domain=(DType.UINT32,))
binary("shift_right", _shift(np.right_shift), None, _shift_samples, domain=(DType.UINT32,))
