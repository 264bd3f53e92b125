"""Products whose sums are cut into parts, and whose result is in short floats.

The parts add up in float32, and the whole is rounded once, as it is without parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paren.ir.types import DType, TensorType
from paren.plan.kernel import Access, Compute, Index, Kernel, Load, Parameter, Stage, Store
from paren.plan.plan import Buffer, Launch, Place, Plan, Product, Step


def sum_in_float32(plan: Plan, numbers: Sequence[int]) -> tuple[Plan, tuple[Launch, ...]]:
    """The plan in which the products among its steps that have these numbers sum into buffers of float32, and the
    launches that then round the sums into the results. Products whose result is in float32 stay."""
    buffers = {buffer.id: buffer for buffer in plan.buffers}
    steps: list[Step] = list(plan.steps)
    roundings: list[Launch] = []
    for number in numbers:
        step = steps[number]
        if not isinstance(step, Product) or not buffers[step.c.buffer].type.dtype.is_short:
            continue
        result = buffers[step.c.buffer]
        id = max(buffers) + 1
        type_ = TensorType(DType.FLOAT32, result.type.shape)
        buffers[id] = Buffer(id, f"{result.name} summed", type_, Place.ARENA, 0, 0, 0, result.span)
        steps[number] = replace(step, c=replace(step.c, buffer=id))
        roundings.append(Launch(_rounding(result.type), (id, result.id), step.spans, step.nodes))
    return replace(plan, buffers=tuple(buffers.values()), steps=tuple(steps)), tuple(roundings)


def _rounding(result: TensorType) -> Kernel:
    """Rounds as many elements to their type."""
    size, short = result.size, result.dtype
    there = [Access(parameter, (Index(((0, 1),)),), (1,), (size,)) for parameter in range(2)]
    body = (Load(0, there[0], DType.FLOAT32), Compute(1, "cast", (0,), short), Store(there[1], 1))
    parameters = (Parameter(DType.FLOAT32, size, True, False), Parameter(short, size, False, True))
    return Kernel("cast", (size,), 1, parameters, (Stage((), body),))
