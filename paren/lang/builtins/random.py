"""Random numbers by site: a function of the seed, the scope path with an ordinal, the step, and the example's number
in the global batch."""

from __future__ import annotations

from collections.abc import Callable

from paren.ir import random as draw
from paren.ir.graph import Builder, Node
from paren.ir.types import DType, TensorType, TypeMismatch
from paren.lang.builtins.registry import builtin
from paren.lang.elementwise import elementwise
from paren.lang.operand import need_number, need_shape
from paren.lang.session import Session
from paren.lang.signature import Site
from paren.lang.value import Tensor, Value


def _draw(
    session: Session, site: Site, shape: Value, make: Callable[[Builder, draw.Site, tuple[int, ...]], Node]
) -> Tensor:
    trace = session.need_trace(site)
    if trace.stateless:
        raise session.error("E-OPT-003", "an update rule cannot draw random numbers", site)
    sizes = need_shape(session, site, shape, 0)
    builder, span = trace.builder, session.span(site)
    scalar = TensorType(DType.UINT32, ())
    seed = builder.input("$seed", scalar, "scalar", span)
    step = rows = None
    if trace.rows is not None:
        step = builder.input("$step", scalar, "scalar", span)
        rows = builder.input("$rows", TensorType(DType.UINT32, (trace.rows,)), "batch", span)
    try:
        node = make(builder, draw.Site(seed, trace.scope.next_site(), step, rows, span), sizes)
    except TypeMismatch as mismatch:
        raise session.error("E-TYPE-006", str(mismatch), site) from None
    return session.tensor(node, rows is not None, site)


@builtin("random-uniform", "shape :low :high", low=0.0, high=1.0)
def random_uniform(session: Session, site: Site, shape: Value, low: Value, high: Value) -> Value:
    """Numbers low <= x < high, every one of 2^24 steps equally likely; other ones for each example and each step."""
    a, b = need_number(session, site, low, "low"), need_number(session, site, high, "high")
    unit: Value = _draw(session, site, shape, draw.random_uniform)
    if b - a != 1:
        unit = elementwise(session, site, "random-uniform", "mul", [unit, b - a])
    return elementwise(session, site, "random-uniform", "add", [unit, a]) if a != 0 else unit


@builtin("random-normal", "shape")
def random_normal(session: Session, site: Site, shape: Value) -> Value:
    """Numbers from the standard normal distribution; other ones for each example and each step."""
    return _draw(session, site, shape, draw.random_normal)
