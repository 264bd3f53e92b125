"""Sums over an axis of which one index alone counts become that one element.

The loss of a token is a sum over the vocabulary of what is 0 but at the target. A card would compute all of it, so the
sum is written as a choice instead: the same value, without a loop. The definition adds zeros to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from paren.ir.types import DType
from paren.plan.kernel import (
    Access,
    Accumulate,
    AxisIndex,
    Compute,
    Constant,
    Index,
    Kernel,
    Load,
    Reduce,
    Stage,
    Statement,
    Store,
)
from paren.plan.kernel_values import operands

Value = AxisIndex | Compute | Constant | Load | Reduce


def choose_elements(kernel: Kernel) -> Kernel:
    """The same kernel with such sums made choices."""
    stages: list[Stage] = []
    fresh = 1 + max((s.result for each in kernel.stages for s in each.body if not isinstance(s, Store | Accumulate)),
                    default=0)  # fmt: skip
    for stage in kernel.stages:
        own = [axis for axis in stage.axes if kernel.axes[axis] > 1]
        if len(own) != 1:
            stages.append(stage)
            continue
        chosen: list[Statement] = []
        left: list[Statement] = []
        for statement in stage.body:
            found = None
            if isinstance(statement, Reduce) and statement.kind == "sum" and statement.dtype.is_float:
                choice = _Choice(kernel, stages, stage, own[0], fresh)
                found = choice.of(statement)
                fresh = choice.fresh
            if found is None:
                left.append(statement)
            else:
                chosen += found
        if not chosen:
            stages.append(stage)
            continue
        stages.append(Stage((), tuple(chosen)))
        body = _used(left)
        if body:
            stages.append(Stage(stage.axes, tuple(body)))
    return replace(kernel, stages=tuple(stages))


class _CannotChoose(Exception):
    pass


class _Choice:
    """One sum over `axis` of a stage; `before` are the stages that precede it, values from `fresh` on are free."""

    def __init__(self, kernel: Kernel, before: Iterable[Stage], stage: Stage, axis: int, fresh: int) -> None:
        self.kernel, self.axis = kernel, axis
        self.within = {s.result: s for s in stage.body if not isinstance(s, Store | Accumulate)}
        self.written = {s.access.parameter for s in stage.body if isinstance(s, Store | Accumulate)}
        self.outside = {s.result: s for each in before for s in each.body if not isinstance(s, Store | Accumulate)}
        self.fresh = fresh
        self.written_values: dict[int, int] = {}
        self.lines: list[Statement] = []
        self.target = -1

    def of(self, reduce: Reduce) -> list[Statement] | None:
        """The statements that give the sum's value at the chosen index, or 0 where there is no such index."""
        try:
            self._sum(reduce)
        except _CannotChoose:
            return None
        return self.lines

    def _sum(self, reduce: Reduce) -> None:
        value = self._statement(reduce.value)
        negated = isinstance(value, Compute) and value.op == "neg"
        where = self._statement(value.args[0]) if negated and isinstance(value, Compute) else value
        if not (isinstance(where, Compute) and where.op == "where" and self._is_zero(where.args[2])):
            raise _CannotChoose
        self.target = self._target(where.args[0])
        dtype = self._statement(self.target).dtype
        size = self.kernel.axes[self.axis]
        low = self._add("ge", self.target, self._constant(0, dtype), dtype=DType.BOOL)
        high = self._add("lt", self.target, self._constant(size, dtype), dtype=DType.BOOL)
        inside = self._add("and", low, high, dtype=DType.BOOL)
        element = self._again(where.args[1])
        zero = self._constant(0.0, reduce.dtype)
        if negated:
            element = self._add("neg", element, dtype=reduce.dtype)
        element = self._add("where", inside, element, zero, dtype=reduce.dtype)
        # What is added to zeros is no negative zero.
        self.lines.append(Compute(reduce.result, "add", (element, zero), reduce.dtype))

    def _statement(self, value: int) -> Value:
        found = self.within.get(value) or self.outside.get(value)
        if found is None:
            raise _CannotChoose
        return found

    def _is_zero(self, value: int) -> bool:
        found = self._statement(value)
        return isinstance(found, Constant) and found.value == 0

    def _target(self, condition: int) -> int:
        """The value from before the stage that the index of the axis has to equal."""
        equal = self._statement(condition)
        if not (isinstance(equal, Compute) and equal.op == "eq"):
            raise _CannotChoose
        for index, target in (equal.args, equal.args[::-1]):
            found = self._statement(index)
            counts = isinstance(found, AxisIndex) and found.index == Index(((self.axis, 1),))
            if counts and target in self.outside and found.dtype in (DType.INT32, DType.INT64):
                return target
        raise _CannotChoose

    def _new(self) -> int:
        self.fresh += 1
        return self.fresh

    def _constant(self, value: float, dtype: DType) -> int:
        self.lines.append(Constant(self._new(), value, dtype))
        return self.fresh

    def _add(self, op: str, *args: int, dtype: DType) -> int:
        self.lines.append(Compute(self._new(), op, args, dtype))
        return self.fresh

    def _again(self, value: int) -> int:
        """A value at the chosen index."""
        if value not in self.within:
            return value
        if value in self.written_values:
            return self.written_values[value]
        statement = self.within[value]
        match statement:
            case Constant():
                again: Statement = replace(statement, result=self._new())
            case Compute(args=args):
                moved = tuple(self._again(arg) for arg in args)
                again = replace(statement, result=self._new(), args=moved)
            case Load(access=access) if access.parameter not in self.written:
                moved_access = self._moved(access)
                again = replace(statement, result=self._new(), access=moved_access)
            case AxisIndex(index=index, dtype=dtype):
                if index == Index(((self.axis, 1),)) and dtype is self._statement(self.target).dtype:
                    return self.target
                if any(axis == self.axis for axis, _ in index.terms):
                    raise _CannotChoose
                again = replace(statement, result=self._new())
            case _:
                raise _CannotChoose
        self.lines.append(again)
        self.written_values[value] = self.fresh
        return self.fresh

    def _moved(self, access: Access) -> Access:
        """An access at the chosen index, which is clamped into its dimension."""
        indices = []
        for index in access.indices:
            if index.value is not None:
                indices.append(replace(index, value=self._again(index.value)))
            elif all(axis != self.axis for axis, _ in index.terms):
                indices.append(index)
            elif index == Index(((self.axis, 1),)) and not access.guarded:
                indices.append(Index(value=self.target))
            else:
                raise _CannotChoose
        return replace(access, indices=tuple(indices))


def _used(body: list[Statement]) -> list[Statement]:
    """The statements of a stage with axes that its stores and reductions need."""
    needed: set[int] = set()
    found: list[Statement] = []
    for statement in reversed(body):
        if not isinstance(statement, Store | Accumulate | Reduce) and statement.result not in needed:
            continue
        found.append(statement)
        needed.update(operands(statement))
    return found[::-1]
