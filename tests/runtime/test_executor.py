"""Plans written by hand, run on the CPU: binding, staging, outputs, and the search for the first non-finite value."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from kernel_samples import F32, Body, access, reads, writes

from paren.ir.op import Array
from paren.ir.types import TensorType
from paren.plan.kernel import Kernel, Parameter
from paren.plan.plan import Buffer, Copy, Launch, Matrix, Place, Plan, Product
from paren.runtime.cpu import CpuDevice
from paren.runtime.device import Device
from paren.runtime.executor import Executable
from paren.runtime.memory import allocate
from paren.runtime.reference import ReferenceDevice
from paren.text.errors import InternalError
from paren.text.source import Source, Span

TEXT = Source("test", "(exp x) (matmul y w) (set w z)")
SPANS = [Span(TEXT, 0, 7), Span(TEXT, 8, 20), Span(TEXT, 21, 30)]
SIZE = 16  # of a 4 x 4 matrix


def exponential() -> Kernel:
    body = Body()
    body.stage()
    body.store(access(1, (SIZE,), 0), body.compute("exp", body.load(access(0, (SIZE,), 0))))
    return body.kernel((SIZE,), 1, [reads(SIZE), writes(SIZE)], "exp")


def plan() -> Plan:
    """y = exp(x), z = y w, w becomes z; y and z lie in the arena, w is state, x an input."""

    def buffer(number: int, name: str, place: Place, offset: int = 0) -> Buffer:
        return Buffer(number, name, TensorType(F32, (4, 4)), place, 0, 2, offset, SPANS[0])

    buffers = (
        buffer(0, "x", Place.INPUT),
        buffer(1, "w", Place.STATE),
        buffer(2, "y", Place.ARENA, 64),
        buffer(3, "z", Place.ARENA, 128),
    )
    a, b, c = (Matrix(number, 0, 4, False, ()) for number in (2, 1, 3))
    steps = (
        Launch(exponential(), (0, 2), (SPANS[0],), ("%1 exp",)),
        Product(a, b, c, 4, 4, 4, (), False, (SPANS[1],), ("%2 contract",)),
        Copy(3, 1, (SPANS[2],), ("%3 copy",)),
    )
    return Plan("sample", buffers, steps, {"y": 2, "w": 1}, 192, ())


def aligned(array: Array) -> Array:
    memory = allocate(array.nbytes).view(array.dtype).reshape(array.shape)
    np.copyto(memory, array)
    return memory


def sample(seed: int = 0) -> tuple[dict[str, Array], dict[str, Array]]:
    generator = np.random.default_rng(seed)
    w, x = (generator.normal(size=(4, 4)).astype(np.float32) for _ in range(2))
    return {"w": aligned(w)}, {"x": aligned(x)}


def wanted(state: Mapping[str, Array], inputs: Mapping[str, Array]) -> tuple[Array, Array]:
    y = np.exp(inputs["x"])
    return y, y @ state["w"]


@pytest.mark.parametrize(
    "device",
    [CpuDevice(1), CpuDevice(2, openmp=False), ReferenceDevice()],
    ids=["native", "fallback", "reference"],
)
def test_runs_update_the_state(device: Device) -> None:
    executable = Executable(device, plan())
    state, inputs = sample()
    arena = allocate(192)
    for _ in range(3):
        y, w = wanted(state, inputs)
        outputs = executable.run(state, inputs, arena)
        assert set(outputs) == {"y", "w"}
        np.testing.assert_allclose(outputs["y"], y, rtol=1e-6)
        np.testing.assert_allclose(outputs["w"], w, rtol=1e-5)
        assert outputs["w"] is state["w"]
        assert np.shares_memory(outputs["y"], arena)
        inputs["x"][:] *= 0.5  # the same array with other content


def test_other_arrays_are_bound_again() -> None:
    executable = Executable(CpuDevice(1), plan())
    for seed in range(3):
        state, inputs = sample(seed)
        y, w = wanted(state, inputs)
        outputs = executable.run(state, inputs, allocate(256))
        np.testing.assert_allclose(outputs["y"], y, rtol=1e-6)
        np.testing.assert_allclose(outputs["w"], w, rtol=1e-5)


def test_inputs_are_read_where_they_lie() -> None:
    executable = Executable(CpuDevice(1), plan())
    state, inputs = sample()
    arena = allocate(192)
    memory = allocate(SIZE * 4 + 64)
    shifted = memory[4 : 4 + SIZE * 4].view(np.float32).reshape(4, 4)
    for value in (1.0, 2.0):
        shifted[:] = value
        outputs = executable.run(state, {"x": shifted}, arena)
        np.testing.assert_allclose(outputs["y"], np.exp(np.float32(value)), rtol=1e-6)
    np.testing.assert_allclose(executable.run(state, inputs, arena)["y"], np.exp(inputs["x"]), rtol=1e-6)
    np.testing.assert_allclose(executable.run(state, {"x": shifted}, arena)["y"], np.exp(np.float32(2)), rtol=1e-6)


def wrong(change: str) -> tuple[dict[str, Array], dict[str, Array], Array]:
    state, inputs = sample()
    arena = allocate(192)
    memory = allocate(256)
    match change:
        case "missing input":
            inputs = {}
        case "missing state":
            state = {}
        case "dtype":
            inputs = {"x": inputs["x"].astype(np.float64)}
        case "shape":
            inputs = {"x": inputs["x"].reshape(16)}
        case "order":
            inputs = {"x": inputs["x"].T}
        case "misaligned state":
            state = {"w": memory[4:68].view(np.float32).reshape(4, 4)}
        case "small arena":
            arena = arena[:100]
        case "misaligned arena":
            arena = memory[8:248]
    return state, inputs, arena


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing input", "no array for input x was given"),
        ("missing state", "no array for state w was given"),
        ("dtype", "input x is float64[4 4], the plan needs float32[4 4]"),
        ("shape", "input x is float32[16], the plan needs float32[4 4]"),
        ("order", "input x is not contiguous"),
        ("misaligned state", "state w does not lie on 64 bytes"),
        ("small arena", "the arena is 100 bytes, 192 are planned"),
        ("misaligned arena", "the arena does not lie on 64 bytes"),
    ],
)
def test_arrays_that_do_not_fit_are_a_fault_of_ours(change: str, message: str) -> None:
    state, inputs, arena = wrong(change)
    with pytest.raises(InternalError) as caught:
        Executable(CpuDevice(1), plan()).run(state, inputs, arena)
    assert str(caught.value) == f"internal error in runtime: {message}"


@pytest.mark.parametrize(
    ("x", "w", "step"), [(1000.0, 1.0, 0), (1.0, np.inf, 1), (1.0, np.nan, 1), (80.0, 3e38, 1), (1.0, 1.0, None)]
)
def test_the_first_step_with_a_non_finite_value_is_found(x: float, w: float, step: int | None) -> None:
    executable = Executable(CpuDevice(2), plan())
    state = {"w": aligned(np.full((4, 4), w, np.float32))}
    found = executable.first_nonfinite(state, {"x": aligned(np.full((4, 4), x, np.float32))}, allocate(192))
    if step is None:
        assert found is None
        return
    assert found is not None
    assert (found.step, found.spans, found.buffer) == (step, (SPANS[step],), "yz"[step])
    assert found.nodes == (("%1 exp",), ("%2 contract",))[step]


def test_a_state_that_is_updated_in_place() -> None:
    body = Body()
    body.stage()
    value = body.compute("cast", body.load(access(0, (SIZE,), 0)), dtype=F32)
    body.store(access(1, (SIZE,), 0), body.compute("add", value, body.load(access(1, (SIZE,), 0))))
    kernel = body.kernel((SIZE,), 1, [reads(SIZE), Parameter(F32, SIZE, True, True)])
    type_ = TensorType(F32, (SIZE,))
    buffers = (
        Buffer(0, "x", type_, Place.INPUT, 0, 0, 0, SPANS[0]),
        Buffer(1, "total", type_, Place.STATE, 0, 0, 0, SPANS[0]),
    )
    steps = (Launch(kernel, (0, 1), (SPANS[0],), ("%1 add",)),)
    executable = Executable(CpuDevice(1), Plan("total", buffers, steps, {"total": 1}, 0, ()))
    state = {"total": aligned(np.zeros(SIZE, np.float32))}
    for count in range(1, 4):
        outputs = executable.run(state, {"x": aligned(np.ones(SIZE, np.float32))}, allocate(0))
        assert outputs["total"].tolist() == [float(count)] * SIZE
