"""How long a call of the training graph takes, or a part of it in two ways, tried before the run has any state: a trial
leaves nothing behind."""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np

from paren.data.loader import Microbatch
from paren.ir.op import Array
from paren.ir.types import holds_floats
from paren.plan.epilogue import Epilogue
from paren.plan.plan import Place, Plan
from paren.runtime.array import AnyArray
from paren.runtime.block import allocate_array
from paren.runtime.device import Device
from paren.runtime.executor import Executable, load_plans
from paren.runtime.memory import ALIGNMENT
from paren.runtime.task import Cell

ENOUGH = 1.0  # seconds of repetitions
REPETITIONS = 5


def time_call(device: Device, plan: Plan, microbatch: Microbatch) -> float:
    """Seconds of the fastest of some calls, after one that touches all memory first.

    The state is the trial's own: small random numbers, since time does not depend on values as long as they are
    ordinary. Needs the plan's arena and state for a moment, less than a run does.
    """
    executable = Executable(device, plan)
    state: dict[str, AnyArray] = {}
    inputs: dict[str, AnyArray] = {}
    given: dict[str, Array] = {**microbatch.fields, "$rows": microbatch.rows, "$valid": microbatch.valid}
    for buffer in plan.buffers:
        if buffer.place is Place.ARENA:
            continue
        array = allocate_array(device, buffer.type.dtype.numpy, buffer.type.shape)
        if buffer.place is Place.STATE:
            state[buffer.name] = array
            _fill_with_small_numbers(array)
        else:
            inputs[buffer.name] = array
            if buffer.name in given:
                array[...] = given[buffer.name]
    arena = device.allocate(max(ALIGNMENT, plan.arena_bytes))
    executable.run(state, inputs, arena)
    times: list[float] = []
    while len(times) < REPETITIONS and sum(times) < ENOUGH:
        begin = time.perf_counter()
        executable.run(state, inputs, arena)
        times.append(time.perf_counter() - begin)
    return min(times)


def time_epilogues(device: Device, plan: Plan, epilogues: Iterable[Epilogue]) -> dict[str, tuple[float, float]]:
    """For each epilogue of a plan that the device joins, by its form: the seconds of the two steps, and of the one.
    They run where the plan has them, on small random numbers. Needs the plan's arena for a moment."""
    load_plans(device, [plan])
    arena = device.allocate(max(ALIGNMENT, plan.arena_bytes))
    buffers = {buffer.id: buffer for buffer in plan.buffers}
    found = {}
    for epilogue in epilogues:
        cells = {}
        for id in epilogue.buffers:
            buffer = buffers[id]
            dtype, shape = buffer.type.dtype.numpy, buffer.type.shape
            if buffer.place is Place.ARENA:
                array = arena[buffer.offset : buffer.offset + buffer.type.bytes].view(dtype).reshape(shape)
            else:
                array = allocate_array(device, dtype, shape)
            cells[id] = Cell(array)
            _fill_with_small_numbers(array)
        found[epilogue.form] = device.compare_joined(epilogue, cells)
    return found


def _fill_with_small_numbers(array: AnyArray) -> None:
    if holds_floats(array):
        flat = array.reshape(-1)
        block = np.random.default_rng(0).normal(scale=0.02, size=min(flat.size, 1 << 16)).astype(array.dtype)
        for begin in range(0, flat.size, len(block) or 1):
            part = flat[begin : begin + len(block)]
            part[...] = block[: len(part)]
