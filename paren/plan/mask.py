"""Which columns of its rows a kernel needs: a causal mask makes all columns after the row's own irrelevant.

A kernel is evaluated over a small domain under the assumption that the column is greater than the row by more than
`reach`: constants, differences of row and column, values that are hugely negative (a score of -1e30 less anything), and
zero. Where every sum then adds 0, every maximum meets something hugely negative and every stored element is 0 or not
needed, columns beyond can be left out. What this assumes of other values: they are finite, and not below -1e29.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from paren.plan.kernel import AxisIndex, Compute, Constant, Kernel, Load, Reduce, Store

HUGE = -1e29


@dataclass(frozen=True)
class _Number:
    value: float | int | bool


@dataclass(frozen=True)
class _Position:
    """row x `row` + column x `column` + `constant`."""

    row: int
    column: int
    constant: int


@dataclass(frozen=True)
class _Low:
    """At most `HUGE`."""


_Value = _Number | _Position | _Low | None


@dataclass(frozen=True)
class Masked:
    """Columns greater than the row by more than `reach` do not matter; `zero` are the parameters that hold 0 there."""

    reach: int
    zero: frozenset[int]


def masked_columns(kernel: Kernel, columns: int, values: Collection[int], zero: Collection[int]) -> Masked | None:
    """What a mask removes from the kernel, or None. Rows are counted along its last row axis, columns along the axis of
    its stages. Parameters in `values` may stay unwritten in the columns that are left out, others may not; those in
    `zero` hold 0 there."""
    if kernel.rows == 0:
        return None
    axes = {axis for stage in kernel.stages for axis in stage.axes}
    if len(axes) != 1 or kernel.axes[min(axes)] != columns:
        return None
    row, column = kernel.rows - 1, min(axes)
    reaches = _reaches(kernel, row, column)
    return _evaluate(kernel, row, column, max(reaches), values, zero) if reaches else None


def cut_columns(kernel: Kernel, columns: int) -> Kernel:
    """The kernel with only the first columns, along the axis of its stages."""
    axis = next(axis for stage in kernel.stages for axis in stage.axes)
    return replace(kernel, axes=(*kernel.axes[:axis], columns, *kernel.axes[axis + 1 :]))


def _reaches(kernel: Kernel, row: int, column: int) -> list[int]:
    """The distances column - row at which comparisons of positions change."""
    found = []
    values: dict[int, _Value] = {}
    for stage in kernel.stages:
        for statement in stage.body:
            if isinstance(statement, AxisIndex | Constant | Compute):
                values[statement.result] = _value(statement, values, row, column, None)
            if isinstance(statement, Compute) and statement.op in ("le", "lt", "ge", "gt"):
                left, right = (values.get(arg) for arg in statement.args)
                difference = _difference(left, right)
                if difference is None or (difference.row, difference.column) not in ((-1, 1), (1, -1)):
                    continue
                # column - row + constant compared with 0, whichever way round it was written
                constant = difference.constant * difference.column
                inclusive = statement.op in ("le", "ge")
                found.append(-constant if inclusive else -constant - 1)
    return found


def _evaluate(
    kernel: Kernel, row: int, column: int, reach: int, values: Collection[int], zero_before: Collection[int]
) -> Masked | None:
    known: dict[int, _Value] = {}
    stored: dict[int, bool] = {}
    for stage in kernel.stages:
        for statement in stage.body:
            match statement:
                case Reduce(result, kind, value):
                    if stage.axes and not _neutral(kind, known.get(value)):
                        return None
                    known[result] = None
                case Store(access, value):
                    if not stage.axes:
                        continue
                    zero = known.get(value) == _Number(0)
                    if not zero and access.parameter not in values:
                        return None
                    stored[access.parameter] = stored.get(access.parameter, True) and zero
                case Load(result, access):
                    zero = access.parameter in zero_before or stored.get(access.parameter, False)
                    known[result] = _Number(0) if stage.axes and zero else None
                case AxisIndex() | Constant() | Compute():
                    known[statement.result] = _value(statement, known, row, column, reach)
                case _:
                    return None
    return Masked(reach, frozenset(parameter for parameter, zero in stored.items() if zero))


def _neutral(kind: str, value: _Value) -> bool:
    if kind == "sum":
        return value == _Number(0)
    return kind == "max" and isinstance(value, _Low)


def _value(
    statement: AxisIndex | Constant | Compute, known: dict[int, _Value], row: int, column: int, reach: int | None
) -> _Value:
    match statement:
        case AxisIndex(_, index):
            terms = dict(index.terms)
            if set(terms) <= {row, column} and index.value is None:
                return _Position(terms.get(row, 0), terms.get(column, 0), index.constant)
            return None
        case Constant(_, value):
            return _number(value)
        case Compute(_, op, args):
            return _compute(op, [known.get(arg) for arg in args], reach)


def _number(value: float | int | bool) -> _Value:
    if isinstance(value, float) and value <= HUGE:
        return _Low()
    return _Number(0 if value == 0 and not isinstance(value, bool) else value)


def _compute(op: str, args: list[_Value], reach: int | None) -> _Value:
    match op, args:
        case "sub", [left, right] if _difference(left, right) is not None:
            return _difference(left, right)
        case "add", [left, right] if _difference(left, right) is not None:
            return _difference(left, _difference(_Number(0), right))
        case (("le" | "lt" | "ge" | "gt"), [left, right]):
            return _compare(op, _difference(left, right), reach)
        case "not", [_Number(bool() as value)]:
            return _Number(not value)
        case "and", [left, right] if _Number(False) in (left, right):
            return _Number(False)
        case "or", [left, right] if _Number(True) in (left, right):
            return _Number(True)
        case "where", [_Number(bool() as condition), then, other]:
            return then if condition else other
        case "where", [_, then, other]:
            return then if then == other else None
        case "sub", [_, _Low()]:
            return None
        case (("add" | "sub"), [_Low(), _]):
            return _Low()
        case "add", [_, _Low()]:
            return _Low()
        case "mul", [_Low(), _Number(factor)] if factor >= 1:
            return _Low()
        case "mul", [_Number(factor), _Low()] if factor >= 1:
            return _Low()
        case "exp", [_Low()]:
            return _Number(0)
        case "mul", [left, right] if _Number(0) in (left, right):
            return _Number(0)
        case "div", [_Number(0), _]:
            return _Number(0)
        case (("neg" | "cast"), [_Number(0)]):
            return _Number(0)
        case "cast", [_Position() as position]:
            return position
    return None


def _position(value: _Value) -> _Position | None:
    if isinstance(value, _Position):
        return value
    if isinstance(value, _Number) and isinstance(value.value, int) and not isinstance(value.value, bool):
        return _Position(0, 0, value.value)
    return None


def _difference(left: _Value, right: _Value) -> _Position | None:
    a, b = _position(left), _position(right)
    if a is None or b is None:
        return None
    return _Position(a.row - b.row, a.column - b.column, a.constant - b.constant)


def _compare(op: str, difference: _Position | None, reach: int | None) -> _Value:
    """left - right compared with 0, where column - row is at least reach + 1."""
    if difference is None or reach is None:
        return None
    if (difference.row, difference.column) == (-1, 1):
        least = reach + 1 + difference.constant
        if least > 0 or (least == 0 and op in ("lt", "ge")):
            return _Number(op in ("ge", "gt"))
    if (difference.row, difference.column) == (1, -1):
        greatest = -(reach + 1) + difference.constant
        if greatest < 0 or (greatest == 0 and op in ("gt", "le")):
            return _Number(op in ("le", "lt"))
    return None
