"""Random graphs, lowered and planned, run as machine code and by definition with the values of their definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs, values_for

from paren.ir.evaluate import evaluate
from paren.ir.graph import Graph
from paren.ir.op import Array
from paren.plan.contractions import normalise_contractions
from paren.plan.lower import lower
from paren.plan.memory import place
from paren.plan.plan import Place, Plan
from paren.runtime import cpu, native_call
from paren.runtime.cpu import CpuDevice
from paren.runtime.device import Device
from paren.runtime.executor import Executable
from paren.runtime.memory import allocate
from paren.runtime.reference import ReferenceDevice

DEVICES: list[Device] = [
    CpuDevice(1),
    CpuDevice(2),
    CpuDevice(2, openmp=False),
    ReferenceDevice(),
]


def run(device: Device, plan: Plan, values: dict[str, Array]) -> dict[str, Array]:
    state: dict[str, Array] = {}
    inputs: dict[str, Array] = {}
    for buffer in plan.buffers:
        if buffer.place is not Place.ARENA:
            array = allocate(buffer.type.bytes).view(buffer.type.dtype.numpy).reshape(buffer.type.shape)
            array[...] = values[buffer.name]
            (state if buffer.place is Place.STATE else inputs)[buffer.name] = array
    outputs = Executable(device, plan).run(state, inputs, allocate(plan.arena_bytes))
    return {name: output.copy() for name, output in outputs.items()}


def close(got: Array, wanted: Array, name: str) -> None:
    if wanted.dtype.kind == "f":
        scale = max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-5 * scale, err_msg=name)
    else:
        np.testing.assert_array_equal(got, wanted, err_msg=name)


@settings(max_examples=150)
@given(graphs(), st.integers(0, 99), st.sampled_from(range(len(DEVICES))))
def test_a_plan_has_the_value_of_its_graph(graph: Graph, seed: int, device: int) -> None:
    values = values_for(graph, seed)
    outputs = run(DEVICES[device], place(lower(normalise_contractions(graph))), values)
    for name, wanted in evaluate(graph, values).items():
        close(outputs[name], wanted, name)


def test_bits_do_not_depend_on_threads() -> None:
    """With every kernel and product on a team, however small."""
    teams = [CpuDevice(2), CpuDevice(3)]

    @settings(max_examples=60)
    @given(graphs(), st.integers(0, 99))
    def check(graph: Graph, seed: int) -> None:
        plan, values = place(lower(normalise_contractions(graph))), values_for(graph, seed)
        alone = run(DEVICES[0], plan, values)
        for device in teams:
            for name, output in run(device, plan, values).items():
                np.testing.assert_array_equal(output, alone[name], err_msg=name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "LEAST_PART", 1)
        patch.setattr(native_call, "TEAM_WORK", 0)
        patch.setattr(native_call, "SHORT_WORK", 0)
        check()


@settings(max_examples=40)
@given(graphs(), st.integers(0, 99))
def test_two_runs_of_a_plan_have_the_same_bits(graph: Graph, seed: int) -> None:
    plan, values = place(lower(normalise_contractions(graph))), values_for(graph, seed)
    first, second = run(DEVICES[1], plan, values), run(DEVICES[1], plan, values)
    for name, output in first.items():
        np.testing.assert_array_equal(output, second[name], err_msg=name)
