"""Reductions over axes of one example: sum, mean, max, min, argmax, argmin. The default is the last axis."""

from __future__ import annotations

import math
from collections.abc import Callable

from paren.ir.types import DType
from paren.lang.builtins.registry import builtin
from paren.lang.elementwise import cast, elementwise
from paren.lang.operand import (
    argument,
    forbid_weight,
    need_axes,
    need_axis,
    need_boolean,
    need_integer,
    need_number,
    need_tensor,
    node_axis,
    wrong_kind,
)
from paren.lang.session import Session
from paren.lang.signature import Site
from paren.lang.value import Tensor, Value
from paren.text.errors import Note


def reduce(session: Session, site: Site, name: str, x: Tensor, axis: Value, axes: Value, keep: Value) -> Tensor:
    """`sum`, `max` or `min` over axes of one example; `keep` leaves them with size 1."""
    forbid_weight(session, site, x)
    kept = need_boolean(session, site, keep, "keep")
    along = need_axes(session, site, x, axis, axes)
    if x.dtype == DType.BOOL:
        x = cast(session, site, x, DType.INT32)
    if not along:
        return x
    node = session.emit(name, (x.node,), {"axes": tuple(node_axis(x, a) for a in along)}, site)
    if kept:
        shape = tuple(1 if a in along else size for a, size in enumerate(x.shape))
        node = session.emit("reshape", (node,), {"shape": (*x.node.shape[:1], *shape) if x.batched else shape}, site)
    return session.tensor(node, x.batched, site)


def extreme(session: Session, site: Site, name: str, x: Value, axis: Value, axes: Value, keep: Value) -> Value:
    """`max` or `min` of a tensor over axes, or of a list of numbers."""
    if isinstance(x, tuple):
        numbers = _numbers(session, site, x)
        if not numbers:
            raise wrong_kind(session, site, x, 0, "a list with elements")
        return max(numbers) if name == "max" else min(numbers)
    return reduce(session, site, name, need_tensor(session, site, x, 0), axis, axes, keep)


def _numbers(session: Session, site: Site, values: tuple[Value, ...]) -> list[int | float]:
    return [need_number(session, site, value, 0) for value in values]


@builtin("sum", "x :axis :axes :keep", axis=-1, axes=None, keep=False)
def total(session: Session, site: Site, x: Value, axis: Value, axes: Value, keep: Value) -> Value:
    """The sum over axes; of booleans, how many are true. Also of a list of numbers."""
    if isinstance(x, tuple):
        return sum(_numbers(session, site, x))
    return reduce(session, site, "sum", need_tensor(session, site, x, 0), axis, axes, keep)


@builtin("mean", "x :axis :axes :keep", axis=-1, axes=None, keep=False)
def mean(session: Session, site: Site, x: Value, axis: Value, axes: Value, keep: Value) -> Value:
    """The mean over axes, a float. Also of a list of numbers."""
    if isinstance(x, tuple):
        numbers = _numbers(session, site, x)
        if not numbers:
            raise wrong_kind(session, site, x, 0, "a list with elements")
        return sum(numbers) / len(numbers)
    tensor = need_tensor(session, site, x, 0)
    if not tensor.dtype.is_float:
        tensor = cast(session, site, tensor, DType.FLOAT32)
    along = need_axes(session, site, tensor, axis, axes)
    count = math.prod(tensor.shape[a] for a in along)
    summed = reduce(session, site, "sum", tensor, axis, axes, keep)
    return elementwise(session, site, "mean", "div", [summed, float(count)]) if count != 1 else summed


def _define_position(name: str) -> None:
    def apply(session: Session, site: Site, x: Value, axis: Value, keep: Value) -> Value:
        tensor = need_tensor(session, site, x, 0)
        forbid_weight(session, site, tensor)
        along = need_axis(
            session, site, tensor, need_integer(session, site, axis, "axis", "an axis (an integer)"), "axis"
        )
        if tensor.shape[along] >= 2**31:
            raise session.error(
                "E-TYPE-006",
                f"{name} counts positions as int32, and the axis has {tensor.shape[along]} elements",
                site,
                at=argument(site, 0),
                notes=[Note(f"the tensor is {tensor}", tensor.origin)],
            )
        node = session.emit(name, (tensor.node,), {"axis": node_axis(tensor, along)}, site)
        if need_boolean(session, site, keep, "keep"):
            shape = list(tensor.node.shape)
            shape[node_axis(tensor, along)] = 1
            node = session.emit("reshape", (node,), {"shape": tuple(shape)}, site)
        return session.tensor(node, tensor.batched, site)

    apply.__doc__ = f"The position (int32) of the {name[3:]}imum along an axis; of equal ones the first."
    builtin(name, "x :axis :keep", axis=-1, keep=False)(apply)


_define_position("argmax")
_define_position("argmin")


def _define_test(name: str, op: str, documentation: str) -> None:
    def apply(session: Session, site: Site, x: Value, axis: Value, axes: Value, keep: Value) -> Value:
        tensor = need_tensor(session, site, x, 0)
        if tensor.dtype != DType.BOOL:
            raise wrong_kind(session, site, tensor, 0, "a tensor of booleans")
        number = cast(session, site, tensor, DType.INT32)
        return cast(session, site, reduce(session, site, op, number, axis, axes, keep), DType.BOOL)

    apply.__doc__ = documentation
    builtin(name, "x :axis :axes :keep", axis=-1, axes=None, keep=False)(apply)


_define_test("any", "max", "Whether any element along the axes is true.")
_define_test("every", "min", "Whether all elements along the axes are true.")

Reduction = Callable[[Session, Site, Value, Value, Value, Value], Value]
