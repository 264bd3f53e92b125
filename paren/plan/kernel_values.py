"""Which values of a kernel are equal, and which are needed for what it stores."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from paren.plan.kernel import (
    Access,
    Accumulate,
    AxisIndex,
    Compute,
    Constant,
    Kernel,
    Load,
    Reduce,
    Statement,
    Store,
)


def equal_values(kernel: Kernel) -> dict[int, int]:
    """For each value a number that equal expressions share. Loads of what the kernel stores are equal to nothing."""
    numbers: dict[tuple[object, ...], int] = {}
    classes: dict[int, int] = {}
    for stage in kernel.stages:
        for s in stage.body:
            match s:
                case Constant(result, value, dtype):
                    key: tuple[object, ...] = ("constant", repr(value), dtype)
                case AxisIndex(result, index, dtype):
                    key = ("axis", index, dtype)
                case Load(result, access, dtype, fill) if not kernel.parameters[access.parameter].writes:
                    key = ("load", access, dtype, repr(fill))
                case Compute(result, op, args, dtype, attrs):
                    key = (op, tuple(classes[arg] for arg in args), dtype, attrs)
                case Load(result) | Reduce(result):
                    key = ("only", result)
                case _:
                    continue
            classes[result] = numbers.setdefault(key, len(numbers))
    return classes


def is_needed(statement: Statement, stored: Collection[int], needed: Collection[int]) -> bool:
    """Whether a statement stores to one of the parameters, or gives one of the values."""
    if isinstance(statement, Store | Accumulate):
        return statement.access.parameter in stored
    return statement.result in needed


def needed_values(kernel: Kernel, stored: Collection[int]) -> set[int]:
    """The values that the stores to these parameters need, found backwards."""
    needed: set[int] = set()
    for stage in reversed(kernel.stages):
        for statement in reversed(stage.body):
            if is_needed(statement, stored, needed):
                needed.update(operands(statement))
    return needed


def operands(statement: Statement) -> Sequence[int]:
    """The values that a statement uses."""
    match statement:
        case Compute(args=args):
            return args
        case Reduce(value=value):
            return (value,)
        case Store(access, value) | Accumulate(access, value):
            return (value, *_gathered(access))
        case Load(access=access):
            return _gathered(access)
        case _:
            return ()


def _gathered(access: Access) -> tuple[int, ...]:
    """The values that are indices of an access."""
    return tuple(index.value for index in access.indices if index.value is not None)
