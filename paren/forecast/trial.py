"""How long a call of the training graph takes, tried before the run has any state: the trial leaves nothing behind."""

from __future__ import annotations

import time

import numpy as np

from paren.data.loader import Microbatch
from paren.ir.op import Array
from paren.plan.plan import Place, Plan
from paren.runtime.array import AnyArray
from paren.runtime.block import allocate_array
from paren.runtime.device import Device
from paren.runtime.executor import Executable
from paren.runtime.memory import ALIGNMENT

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


def _fill_with_small_numbers(array: AnyArray) -> None:
    if array.dtype.kind == "f":
        flat = array.reshape(-1)
        block = np.random.default_rng(0).normal(scale=0.02, size=min(flat.size, 1 << 16)).astype(array.dtype)
        for begin in range(0, flat.size, len(block) or 1):
            part = flat[begin : begin + len(block)]
            part[...] = block[: len(part)]
