"""Running a graph through the planner on the CPU device, for tests."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache

import numpy as np

from paren.ir.graph import Graph
from paren.ir.op import Array
from paren.plan.check import check_plan
from paren.plan.contractions import normalise_contractions
from paren.plan.lower import lower
from paren.plan.memory import place
from paren.plan.plan import Plan
from paren.plan.traits import CPU, Traits
from paren.runtime.array import AnyArray
from paren.runtime.cpu import CpuDevice
from paren.runtime.device import Device, open_device
from paren.runtime.executor import Executable


@lru_cache(maxsize=2)
def cpu(threads: int = 2) -> CpuDevice:
    device = open_device("cpu", threads)
    assert isinstance(device, CpuDevice)
    return device


def planned(graph: Graph, traits: Traits = CPU) -> Plan:
    """The placed and checked plan of a graph."""
    plan = place(lower(normalise_contractions(graph), traits))
    check_plan(plan)
    return plan


def run_on_cpu(graph: Graph, values: Mapping[str, Array], threads: int = 2) -> dict[str, Array]:
    """The outputs of a graph; state inputs are copied, so `values` stay as they are."""
    return run_plan(cpu(threads), planned(graph), values)


def run_plan(device: Device, plan: Plan, values: Mapping[str, Array], joined: Collection[str] = ()) -> dict[str, Array]:
    """The outputs of a placed plan on a device, in an arena of bytes 0xFF (NaN for floats). `joined` is as for
    `Executable`."""
    executable = Executable(device, plan, joined)
    state = {name: copied_to(device, array) for name, array in values.items()}
    arena = device.allocate(max(plan.arena_bytes, 64))
    arena[...] = 0xFF
    outputs = executable.run(state, state, arena)
    return {name: np.array(array) for name, array in outputs.items()}


def copied_to(device: Device, array: Array) -> AnyArray:
    """An array in the memory of a device."""
    copy = device.allocate(max(array.nbytes, 64))[: array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
