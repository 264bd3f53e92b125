"""Random numbers as nodes: a number is a function of (seed, site, step, row in the global batch, element) alone.

Two levels of Threefry: the key of a use is threefry(seed, site; step, 0), and the bits of an element are word 0 of
threefry(key; row, flat index of the element). They depend neither on how a batch is divided nor on the order of work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import prod

from paren.ir.graph import Builder, Node
from paren.ir.types import DType, TypeMismatch
from paren.text.source import Span

# Giles, "Approximating the erfinv function", GPU Computing Gems 2 (2010), single precision: coefficients in w - 2.5 for
# w < 5 and in sqrt(w) - 3 beyond, highest power first; w = -log(1 - x^2).
CENTRAL = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
TAIL = (
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)


@dataclass(frozen=True)
class Site:
    """One use of randomness. `seed` and `step` are uint32 scalars (no step: 0); `site` numbers the use.

    `rows` is uint32[R], the index of each example in the global batch. With rows the results are [R, *shape]; without,
    they are [*shape] and the row counts as 0 (initial values of parameters).
    """

    seed: Node
    site: int
    step: Node | None
    rows: Node | None
    span: Span


def random_bits(builder: Builder, site: Site, shape: tuple[int, ...]) -> Node:
    """uint32 bits, uniform over all 2^32 values. Raises `TypeMismatch` when the elements outnumber uint32."""
    span = site.span
    if prod(shape) >= 2**32:
        raise TypeMismatch(f"{prod(shape)} random numbers per row are more than {2**32 - 1}")

    def word(value: int) -> Node:
        return builder.constant(value, DType.UINT32, span)

    step = site.step if site.step is not None else word(0)
    source = (site.seed, word(site.site % 2**32), step, word(0))
    keys = [builder.emit("threefry", source, {"word": i}, span) for i in (0, 1)]
    whole = shape if site.rows is None else (site.rows.shape[0], *shape)
    if site.rows is None:
        row = builder.broadcast(word(0), whole, span=span)
    else:
        row = builder.broadcast(site.rows, whole, (0,), span=span)
    element = _flat_index(builder, whole, len(whole) - len(shape), span)
    spread = [builder.broadcast(key, whole, span=span) for key in keys]
    return builder.emit("threefry", (*spread, row, element), {"word": 0}, span)


def random_uniform(builder: Builder, site: Site, shape: tuple[int, ...]) -> Node:
    """float32 in [0, 1): the upper 24 bits times 2^-24, every one of them equally likely."""
    fraction = builder.emit("cast", (_upper_bits(builder, site, shape),), {"dtype": DType.FLOAT32}, site.span)
    return builder.apply("mul", fraction, 2.0**-24, span=site.span)


def random_normal(builder: Builder, site: Site, shape: tuple[int, ...]) -> Node:
    """float32 standard normals: sqrt(2) erfinv(x) with x = (2 k + 1 - 2^24) 2^-24 for the upper 24 bits k.

    x is exact, symmetric around 0 and never -1, 0 or 1, so the largest magnitude is about 5.42.
    """
    span = site.span
    upper = builder.emit("cast", (_upper_bits(builder, site, shape),), {"dtype": DType.INT32}, span)
    odd = builder.apply("sub", builder.apply("mul", upper, 2, span=span), 2**24 - 1, span=span)
    exact = builder.emit("cast", (odd,), {"dtype": DType.FLOAT32}, span)
    x = builder.apply("mul", exact, 2.0**-24, span=span)
    return builder.apply("mul", _inverse_erf(builder, x, span), math.sqrt(2.0), span=span)


def _upper_bits(builder: Builder, site: Site, shape: tuple[int, ...]) -> Node:
    return builder.apply("shift_right", random_bits(builder, site, shape), 8, span=site.span)


def _flat_index(builder: Builder, whole: tuple[int, ...], first: int, span: Span) -> Node:
    """The row-major index over the dimensions from `first` on, as uint32 of shape `whole`."""
    total: Node | None = None
    for axis in range(first, len(whole)):
        if whole[axis] == 1:
            continue
        index = builder.emit("iota", (), {"shape": whole, "axis": axis, "dtype": DType.UINT32}, span)
        stride = prod(whole[axis + 1 :])
        term = index if stride == 1 else builder.apply("mul", index, stride, span=span)
        total = term if total is None else builder.apply("add", total, term, span=span)
    if total is None:
        return builder.broadcast(builder.constant(0, DType.UINT32, span), whole, span=span)
    return total


def _inverse_erf(builder: Builder, x: Node, span: Span) -> Node:
    def do(name: str, *operands: Node | float) -> Node:
        return builder.apply(name, *operands, span=span)

    w = do("neg", do("log", do("mul", do("sub", 1.0, x), do("add", 1.0, x))))
    central = _polynomial(builder, do("sub", w, 2.5), CENTRAL, span)
    tail = _polynomial(builder, do("sub", do("sqrt", w), 3.0), TAIL, span)
    return do("mul", do("where", do("lt", w, 5.0), central, tail), x)


def _polynomial(builder: Builder, x: Node, coefficients: tuple[float, ...], span: Span) -> Node:
    """Horner's rule, highest power first; x is a node of any shape."""
    value = builder.apply("mul", x, coefficients[0], span=span)
    for coefficient in coefficients[1:-1]:
        value = builder.apply("mul", builder.apply("add", value, coefficient, span=span), x, span=span)
    return builder.apply("add", value, coefficients[-1], span=span)
