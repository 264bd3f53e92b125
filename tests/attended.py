"""A step of attention by the definition of its operations, wherever its buffers lie, and a device that has the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from paren.ir.op import OPS, Array
from paren.plan.plan import Attention
from paren.runtime.reference import ReferenceDevice
from paren.runtime.task import Cell, Task

Elements = Callable[[int], Array]  # of a buffer, by its id: flat


class AttendingDevice(ReferenceDevice):
    """The definition as a device whose traits say that it attends."""

    def attend(self, step: Attention, cells: Mapping[int, Cell]) -> Task:
        return Task(lambda: attend(step, lambda id: cells[id].values.reshape(-1)))


def attend(step: Attention, elements: Elements) -> None:
    """Runs the step on the elements of its buffers."""
    attrs = {"causal": step.causal, "scale": step.scale}
    q, k, v, *others = (
        _part(elements(heads.buffer), heads.offset, heads.strides, step, number)
        for number, heads in enumerate(step.operands)
    )
    shape = (step.examples, step.groups, step.heads // step.groups, step.queries)
    statistics = None if step.statistics is None else elements(step.statistics).reshape(shape)
    if step.backward:
        assert statistics is not None
        result, g = others
        made = [
            OPS["attention_gradient"].evaluate([q, k, v, result, statistics, g], {**attrs, "of": of}) for of in range(3)
        ]
    else:
        made = [OPS["attention"].evaluate([q, k, v], attrs)]
        if statistics is not None:
            statistics[...] = OPS["attention_statistics"].evaluate([q, k], attrs)
    for number, (value, heads) in enumerate(zip(made, step.results, strict=True)):
        if heads is not None:
            _part(elements(heads.buffer), heads.offset, heads.strides, step, number)[...] = value


def _part(flat: Array, offset: int, strides: tuple[int, int, int], step: Attention, number: int) -> Array:
    """An operand as its operation takes it: with an axis of the heads of a group, unless it is k or v."""
    examples, positions, heads, width = step.size_of(number)
    example, position, head = strides
    repeat = step.heads // step.groups
    shape: tuple[int, ...] = (examples, positions, heads, width)
    steps: tuple[int, ...] = (example, position, head, 1)
    if number not in (1, 2):
        shape = (examples, positions, step.groups, repeat, width)
        steps = (example, position, repeat * head, head, 1)
    assert offset + sum((size - 1) * by for size, by in zip(shape, steps, strict=True)) < flat.size
    return np.lib.stride_tricks.as_strided(flat[offset:], shape, tuple(by * flat.itemsize for by in steps))
