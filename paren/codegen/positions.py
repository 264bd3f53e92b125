"""argmax and argmin as two reductions that vectorise: the extreme, then the least position that holds it."""

from __future__ import annotations

from dataclasses import replace

from paren.ir.types import DType
from paren.plan.kernel import (
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

LAST = 2**31 - 1  # the position of what is not the extreme


def split_positions(kernel: Kernel) -> Kernel:
    """The same kernel with each stage that finds positions, and stores nothing, split in two.

    A stage that stores is left as it is: its inputs may lie under its outputs, so they can not be read again.
    """
    fresh = 1 + max((_result(statement) for stage in kernel.stages for statement in stage.body), default=0)
    types = {
        statement.result: statement.dtype
        for stage in kernel.stages
        for statement in stage.body
        if not isinstance(statement, Store | Accumulate)
    }
    stages: list[Stage] = []
    for stage in kernel.stages:
        if not stage.axes or not any(map(_is_position, stage.body)) or any(map(_stores, stage.body)):
            stages.append(stage)
            continue
        first, second, fresh = _split(kernel, stage, types, fresh)
        stages += [first, second]
    return replace(kernel, stages=tuple(stages))


def _is_position(statement: Statement) -> bool:
    return isinstance(statement, Reduce) and statement.kind in ("argmax", "argmin")


def _stores(statement: Statement) -> bool:
    return isinstance(statement, Store | Accumulate)


def _result(statement: Statement) -> int:
    return -1 if isinstance(statement, Store | Accumulate) else statement.result


def _split(kernel: Kernel, stage: Stage, types: dict[int, DType], fresh: int) -> tuple[Stage, Stage, int]:
    """The stage with extremes in place of positions, and a stage that computes the values again and looks for them."""
    extremes: list[Statement] = []
    again: list[Statement] = []
    names: dict[int, int] = {}

    def new() -> int:
        nonlocal fresh
        fresh += 1
        return fresh - 1

    for statement in stage.body:
        if isinstance(statement, Reduce):
            continue
        names[_result(statement)] = new()
        again.append(_renamed(statement, names))
    position, last = new(), new()
    again += [AxisIndex(position, position_index(kernel, stage), DType.INT32), Constant(last, LAST, DType.INT32)]
    for statement in stage.body:
        if not isinstance(statement, Reduce) or not _is_position(statement):
            extremes.append(statement)
        else:
            dtype = types[statement.value]
            value = names.get(statement.value, statement.value)
            extreme, hit, here = new(), new(), new()
            kind = "max" if statement.kind == "argmax" else "min"
            extremes.append(Reduce(extreme, kind, statement.value, dtype))
            again.append(Compute(hit, "eq", (value, extreme), DType.BOOL))
            if dtype.is_float:  # the extreme is not a number if any value is not: then the first of those is sought
                missing, either = new(), new()
                again.append(Compute(missing, "ne", (value, value), DType.BOOL))
                again.append(Compute(either, "or", (hit, missing), DType.BOOL))
                hit = either
            again.append(Compute(here, "where", (hit, position, last), DType.INT32))
            again.append(Reduce(statement.result, "min", here, DType.INT32))
    return Stage(stage.axes, tuple(extremes)), Stage(stage.axes, tuple(again)), fresh


def position_index(kernel: Kernel, stage: Stage) -> Index:
    """The number of the iteration over the stage's axes."""
    terms, step = [], 1
    for axis in reversed(stage.axes):
        terms.append((axis, step))
        step *= kernel.axes[axis]
    return Index(tuple(sorted(terms)))


def _renamed(statement: Statement, names: dict[int, int]) -> Statement:
    match statement:
        case Load(result, access):
            indices = tuple(
                index if index.value is None else replace(index, value=names.get(index.value, index.value))
                for index in access.indices
            )
            return replace(statement, result=names[result], access=replace(access, indices=indices))
        case Compute(result, _, args):
            return replace(statement, result=names[result], args=tuple(names.get(arg, arg) for arg in args))
        case Constant(result) | AxisIndex(result):
            return replace(statement, result=names[result])
        case _:
            return statement
