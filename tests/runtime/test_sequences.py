"""Sequences of steps that run many times and end at a flag, on every kind of device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from paren.ir.graph import Builder
from paren.ir.types import DType, TensorType
from paren.pipeline import plan_graph
from paren.runtime.cpu import CpuDevice
from paren.runtime.device import Device
from paren.runtime.executor import Executable
from paren.runtime.memory import allocate
from paren.runtime.reference import ReferenceDevice
from paren.runtime.task import Cell
from paren.text.source import Source, Span

SPAN = Span(Source("test.paren", "x"), 0, 1)
SIZE = 70_000  # enough work for a team of threads
DEVICES = [lambda: CpuDevice(1), lambda: CpuDevice(2), lambda: CpuDevice(2, openmp=False), ReferenceDevice]


def array(shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    type_ = TensorType(dtype, shape)
    return allocate(max(64, type_.bytes))[: type_.bytes].view(dtype.numpy).reshape(shape)


def counting(device: Device, state: dict[str, np.ndarray], limit: int) -> Executable:
    """Adds 1 to every element of `count`, and sets the flag where the first one is at `limit`."""
    builder = Builder("count")
    count = builder.input("count", TensorType(DType.INT32, (SIZE,)), "state", SPAN)
    more = builder.apply("add", count, 1, span=SPAN)
    part = builder.emit("slice", (more,), {"start": (0,), "stop": (1,), "step": (1,)}, SPAN)
    first = builder.emit("reshape", (part,), {"shape": ()}, SPAN)
    flag = builder.emit("cast", (builder.apply("ge", first, limit, span=SPAN),), {"dtype": DType.INT32}, SPAN)
    plan = plan_graph(builder.graph({"count": more, "flag": flag}), ("flag",))
    executable = Executable(device, plan)
    executable.bind(state, {}, allocate(max(64, plan.arena_bytes)))
    return executable


@pytest.mark.parametrize("make", DEVICES)
@pytest.mark.parametrize(("limit", "times", "whole"), [(100, 1, 1), (100, 7, 7), (4, 7, 3), (1, 7, 0), (4, 0, 0)])
def test_a_flag_ends_a_sequence(make: Callable[[], Device], limit: int, times: int, whole: int) -> None:
    device = make()
    state = {"count": array((SIZE,), DType.INT32), "flag": array((), DType.INT32)}
    after = {"count": array((SIZE,), DType.INT32), "flag": array((), DType.INT32)}
    tasks = [*counting(device, state, limit).tasks, device.stop_if(Cell(state["flag"]))]
    run = device.sequence([*tasks, *counting(device, after, 1000).tasks])
    assert run(times) == whole
    device.synchronise()
    assert (state["count"] == min(times, limit)).all()
    assert (after["count"] == whole).all()


def test_a_task_that_asks_for_a_flag_runs_alone() -> None:
    flag = array((), DType.INT32)
    for make in DEVICES:
        run = make().sequence([make().stop_if(Cell(flag))])
        flag[...] = 0
        assert run(3) == 3
        flag[...] = 1
        assert run(3) == 0
