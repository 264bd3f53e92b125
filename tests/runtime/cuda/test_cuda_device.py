"""The CUDA device on a fake card whose kernels run by their definition: what it starts, captures, guards and frees."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from defined_kernels import DefinedKernels, defined_device
from emulated_card import emulated_device
from fake_card import FakeCard
from fake_probes import FakeProbes
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_samples import gelu
from random_graphs import graphs, values_for

from paren.forecast.fit import describe_limit
from paren.ir.evaluate import evaluate
from paren.ir.graph import Builder, Graph
from paren.ir.op import Array
from paren.ir.types import DType, TensorType
from paren.pipeline import Planning, plan_graph
from paren.plan.plan import Attention, Heads, Matrix, Place, Plan, Product
from paren.plan.traits import CUDA
from paren.runtime.array import AnyArray, DeviceArray
from paren.runtime.cpu import CpuDevice
from paren.runtime.cuda import device as cuda_device
from paren.runtime.cuda.device import CudaDevice
from paren.runtime.cuda.driver import OutOfMemoryError
from paren.runtime.cuda.kernels import Emitter
from paren.runtime.cuda.probes import Occupancy
from paren.runtime.device import open_device
from paren.runtime.executor import Executable
from paren.runtime.task import Cell
from paren.text.errors import InternalError, ParenError
from paren.text.source import Source, Span

SPAN = Span(Source("test.paren", "x"), 0, 1)
F32 = DType.FLOAT32


def array(device: CudaDevice, shape: tuple[int, ...], dtype: DType) -> DeviceArray:
    type_ = TensorType(dtype, shape)
    return device.allocate(max(64, type_.bytes))[: type_.bytes].view(dtype.numpy).reshape(shape)


def filled(device: CudaDevice, values: Array) -> DeviceArray:
    made = device.allocate(max(64, values.nbytes))[: values.nbytes].view(values.dtype).reshape(values.shape)
    made[...] = values
    return made


def square(device: CudaDevice, size: int, *values: Array, lasting: bool = False) -> list[Cell]:
    cells = [Cell(filled(device, value)) for value in values]
    return [*cells, Cell(array(device, (size, size), F32), lasting=lasting)]


def product(size: int, accumulate: bool = False) -> Product:
    a, b, c = (Matrix(number, 0, size, False, ()) for number in range(3))
    return Product(a, b, c, size, size, size, (), accumulate, (), ())


# Sequences ----------------------------------------------------------------------------------------------------------


def counting(device: CudaDevice, state: dict[str, DeviceArray], limit: int) -> Executable:
    """Adds 1 to every element of `count`, and sets the flag where the first one is at `limit`."""
    builder = Builder("count")
    count = builder.input("count", TensorType(DType.INT32, (70,)), "state", SPAN)
    more = builder.apply("add", count, 1, span=SPAN)
    part = builder.emit("slice", (more,), {"start": (0,), "stop": (1,), "step": (1,)}, SPAN)
    first = builder.emit("reshape", (part,), {"shape": ()}, SPAN)
    flag = builder.emit("cast", (builder.apply("ge", first, limit, span=SPAN),), {"dtype": DType.INT32}, SPAN)
    plan = plan_graph(builder.graph({"count": more, "flag": flag}), ("flag",), Planning(traits=CUDA))
    executable = Executable(device, plan)
    executable.bind(state, {}, device.allocate(max(64, plan.arena_bytes)))
    return executable


@pytest.mark.parametrize(("limit", "times", "whole"), [(100, 1, 1), (100, 7, 7), (4, 7, 3), (1, 7, 0), (4, 0, 0)])
@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("make", [defined_device, emulated_device])
def test_a_flag_ends_a_sequence(
    make: Callable[[], tuple[CudaDevice, FakeCard]], limit: int, times: int, whole: int, calls: int
) -> None:
    """Also a sequence that is a graph already, with copies behind the flag."""
    device, card = make()
    state, after = (
        {"count": array(device, (70,), DType.INT32), "flag": array(device, (), DType.INT32)} for _ in range(2)
    )
    copied = array(device, (70,), DType.INT32)
    tasks = [*counting(device, state, limit).tasks, device.stop_if(Cell(state["flag"]))]
    tasks += counting(device, after, 1000).tasks
    run = device.sequence([*tasks, device.copy(Cell(after["count"]), Cell(copied), 280)])
    for _ in range(calls):
        for each in (state, after):
            each["count"][...] = 0
        copied[...] = 0
        assert run(times) == whole
        device.synchronise()
        assert (np.asarray(state["count"]) == min(times, limit)).all()
        assert (np.asarray(after["count"]) == whole).all()
        assert (np.asarray(copied) == whole).all()
    assert card.captures == (times * calls > 1)
    assert card.replays == max(0, times * calls - 1)


@pytest.mark.parametrize(("limit", "whole"), [(1000, 100), (40, 39)])
def test_many_repetitions_are_few_graphs(limit: int, whole: int) -> None:
    """One repetition call by call, three graphs of 32, three of one; a flag ends it in the middle of a graph too."""
    device, card = defined_device()
    state = {"count": array(device, (70,), DType.INT32), "flag": array(device, (), DType.INT32)}
    run = device.sequence([*counting(device, state, limit).tasks, device.stop_if(Cell(state["flag"]))])
    assert run(100) == whole
    assert (np.asarray(state["count"]) == min(100, limit)).all()
    assert (card.captures, card.replays) == (2, 6)
    state["count"][...] = 0
    assert run(64) == min(64, whole)
    assert (card.captures, card.replays) == (2, 8)


def test_a_task_that_asks_for_a_flag_runs_alone() -> None:
    device, card = defined_device()
    flag = array(device, (), DType.INT32)
    task = device.stop_if(Cell(flag))
    run = device.sequence([task])
    assert run(3) == 3
    flag[...] = 1
    assert run(3) == 0
    task.run()
    card.started.clear()
    task.run()
    assert card.started == []


def test_a_sequence_is_captured_when_it_runs_again() -> None:
    """A graph works on the arrays that it was captured with: other arrays need another one, and so does the return to
    the first."""
    device, card = defined_device()
    kernel = gelu(3, 5)
    device.load([kernel])
    x, y, z = Cell(), Cell(), Cell()
    with pytest.raises(LookupError, match="the buffer has no array yet"):
        device.launch(kernel, [x, y]).run()
    run = device.sequence([device.launch(kernel, [x, y]), device.launch(kernel, [y, z])])
    arrays = [[array(device, (15,), F32) for _ in range(3)] for _ in range(2)]
    for which, times, captures, replays in (
        (0, 1, 0, 0),
        (0, 1, 1, 1),
        (0, 4, 1, 5),
        (1, 1, 1, 5),
        (1, 2, 2, 7),
        (0, 2, 3, 8),
    ):
        for cell, made in zip((x, y, z), arrays[which], strict=True):
            cell.array = made
        arrays[which][0][...] = 1.0
        arrays[which][2][...] = 7.0
        assert run(times) == times
        np.testing.assert_allclose(np.asarray(arrays[which][2]), 0.673011, atol=1e-6)
        assert (card.captures, card.replays) == (captures, replays)


def test_the_cards_clock_times_what_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    device, card = defined_device()

    class Watch:
        regions_seen: tuple[tuple[float, float], ...] = ()
        clock = staticmethod(iter(range(10, 99, 10)).__next__)

        def wants(self) -> bool:
            return True

        def regions(self, times: list[tuple[float, float]]) -> None:
            self.regions_seen = tuple(times)

    def elapsed(run: Callable[[], object]) -> float:
        run()
        return 0.25

    monkeypatch.setattr(card, "elapsed", elapsed)
    state = {"count": array(device, (70,), DType.INT32), "flag": array(device, (), DType.INT32)}
    executable, watch = counting(device, state, 100), Watch()
    executable.run_alone(watch)
    assert watch.regions_seen[0] == (10, 10.25)
    assert len(watch.regions_seen) == len(executable.plan.steps)
    assert (np.asarray(state["count"]) == 1).all()


def test_what_runs_alone_is_no_graph() -> None:
    device, card = defined_device()
    kernel = gelu(3, 5)
    device.load([kernel])
    task = device.launch(kernel, [Cell(array(device, (15,), F32)), Cell(array(device, (15,), F32))])
    run = device.sequence([task])
    assert run(3) == 3
    task.run()
    assert (card.captures, card.started) == (0, ["launch"] * 4)
    assert device.sequence([])(2) == 2


def test_a_sequence_keeps_what_it_points_to() -> None:
    """Arrays are held by the call alone."""
    device, _ = defined_device()
    kernel = gelu(10, 10)
    device.load([kernel])
    result = array(device, (10, 10), F32)
    middle = Cell(array(device, (10, 10), F32))
    ones, eye = filled(device, np.ones((10, 10), np.float32)), filled(device, np.eye(10, dtype=np.float32))
    tasks = [
        device.launch(kernel, [Cell(ones), middle]),
        device.library(product(10), (F32,) * 3, middle, Cell(eye), Cell(result)),
    ]
    run = device.sequence(tasks)
    del tasks, middle, ones, eye
    gc.collect()
    garbage = [filled(device, np.full((10, 10), 7, np.float32)) for _ in range(20)]
    run(3)
    np.testing.assert_allclose(np.asarray(result), 0.8413447, atol=1e-6)
    assert garbage


@pytest.mark.parametrize("lasting", [False, True])
def test_products_that_write_what_lasts_stop_at_flags_too(lasting: bool) -> None:
    """They cannot look at the word on the card: then the processor looks at the flag."""
    device, card = defined_device()
    state = {"count": array(device, (70,), DType.INT32), "flag": array(device, (), DType.INT32)}
    ones = np.ones((3, 3), np.float32)
    a, b, c = square(device, 3, ones, ones, lasting=lasting)
    adding = device.library(product(3, accumulate=True), (F32,) * 3, a, b, c)
    run = device.sequence([*counting(device, state, 4).tasks, device.stop_if(Cell(state["flag"])), adding])
    assert run(7) == 3
    assert (np.asarray(c.array) == (9 if lasting else 21)).all()
    assert (np.asarray(state["count"]) == 4).all()
    assert card.captures == 1  # what comes before the flag, or all of it


def test_arrays_in_host_memory_are_a_fault_of_ours() -> None:
    device, _ = defined_device()
    kernel = gelu(3, 5)
    device.load([kernel])
    task = device.launch(kernel, [Cell(np.zeros(15, np.float32)), Cell(array(device, (15,), F32))])
    for run in (task.run, device.sequence([task, task])):
        with pytest.raises(InternalError) as caught:
            run()
        assert str(caught.value) == "internal error in cuda: an array of float32 lies in host memory"


def test_tasks_of_other_devices_are_a_fault_of_ours() -> None:
    device, _ = defined_device()
    other = CpuDevice(1)
    task = other.copy(Cell(np.zeros(4)), Cell(np.zeros(4)), 32)
    with pytest.raises(InternalError) as caught:
        device.sequence([task])
    assert str(caught.value) == "internal error in cuda: a sequence has tasks of another device"


# Steps --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 4, 1000])
def test_copies(size: int) -> None:
    device, _ = defined_device()
    values = np.arange(300, dtype=np.float32)
    source, target = filled(device, values), array(device, (300,), F32)
    task = device.copy(Cell(source), Cell(target), size)
    task.run()
    np.testing.assert_array_equal(np.asarray(target), np.where(np.arange(300) < size // 4, values, 0))


def test_work_without_elements_starts_nothing() -> None:
    device, card = defined_device()
    kernel = gelu(0, 5)
    device.load([kernel])
    cell = Cell(array(device, (1,), F32))
    empty = Product(*(Matrix(number, 0, 1, False, ()) for number in range(3)), 0, 1, 1, (), False, (), ())
    for task in (
        device.launch(kernel, [cell, cell]),
        device.library(empty, (F32,) * 3, cell, cell, cell),
        device.copy(cell, cell, 0),
    ):
        task.run()
    assert card.started == []


def run_plan(device: CudaDevice, plan: Plan, values: dict[str, Array], times: int) -> dict[str, Array]:
    """The outputs of the last of some runs from the same state, the later ones by a graph."""
    executable = Executable(device, plan)
    state: dict[str, AnyArray] = {}
    inputs: dict[str, AnyArray] = {}
    for buffer in plan.buffers:
        if buffer.place is not Place.ARENA:
            made = array(device, buffer.type.shape, buffer.type.dtype)
            (state if buffer.place is Place.STATE else inputs)[buffer.name] = made
    arena = device.allocate(max(64, plan.arena_bytes))
    outputs: dict[str, AnyArray] = {}
    for _ in range(times):
        arena[...] = 0xFF
        for name, made in (state | inputs).items():
            made[...] = values[name]
        outputs = executable.run(state, inputs, arena)
    return {name: np.array(output) for name, output in outputs.items()}


@settings(max_examples=60)
@given(graphs(), st.integers(0, 99), st.sampled_from([1, 3]))
def test_a_plan_has_the_value_of_its_graph(graph: Graph, seed: int, times: int) -> None:
    values = values_for(graph, seed)
    device, _ = defined_device()
    outputs = run_plan(device, plan_graph(graph, (), Planning(traits=CUDA)), values, times)
    for name, wanted in evaluate(graph, values).items():
        if wanted.dtype.kind == "f":
            scale = max(1.0, float(np.abs(wanted).max()))
            np.testing.assert_allclose(outputs[name], wanted, rtol=2e-4, atol=2e-5 * scale, err_msg=name)
        else:
            np.testing.assert_array_equal(outputs[name], wanted, err_msg=name)


# Memory and code ----------------------------------------------------------------------------------------------------


def test_memory_that_is_held_in_reserve_is_given_back_and_asked_for_again() -> None:
    device, card = defined_device(1 << 20)
    card.idle = 1 << 20
    assert device.allocate(1 << 10).shape == (1 << 10,)
    assert device.retried == [1 << 10]


def test_a_refused_allocation_has_a_code() -> None:
    device, _ = defined_device(1 << 20)
    with pytest.raises(ParenError) as caught:
        device.allocate(2 << 20)
    error = caught.value
    assert error.code == "E-MEM-002"
    assert error.message == "2 MiB could not be allocated, 1 MiB are free"
    assert [note.message for note in error.notes] == [
        "the card has 1 MiB",
        "the system said: CUDA out of memory. Tried to allocate 2097152 bytes.",
    ]
    assert error.fix == "make the model or the microbatch smaller, or end other programs"


def test_memory_that_a_library_does_not_get_has_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise OutOfMemoryError("CUDA out of memory.")

    device, card = defined_device(1 << 20)
    monkeypatch.setattr(card, "attend", refuse)
    heads = Heads(0, 0, (8, 8, 8))
    step = Attention(
        (heads,) * 3, (heads,), None, 1, 1, 1, 1, 1, 8, False, 1.0, DType.BFLOAT16, (SPAN,), ("%3 attention",)
    )
    task = device.attend(step, {0: Cell(array(device, (8,), DType.BFLOAT16))})
    for run in (task.run, device.sequence([task, task])):
        with pytest.raises(ParenError) as caught:
            run()
        assert caught.value.code == "E-MEM-002"
        wanted = f"what the library needs for the attention at {SPAN} could not be allocated, 1 MiB are free"
        assert caught.value.message == wanted
    monkeypatch.setattr(card, "joins", refuse)
    with pytest.raises(ParenError) as caught:
        device.joins(SimpleNamespace(product=SimpleNamespace(spans=(SPAN,))))  # type: ignore[arg-type]
    assert caught.value.code == "E-MEM-002"
    assert caught.value.message == (
        f"what the library needs for the product at {SPAN} could not be allocated, 1 MiB are free"
    )


def test_what_is_available_leaves_a_reserve() -> None:
    device, _ = defined_device(3 << 30)
    before = device.available()
    assert (before.total, before.limit) == (3 << 30, "free memory of the card, less 1 GiB for its libraries")
    kept = device.allocate(1 << 20)
    assert device.available().bytes == before.bytes - (1 << 20)
    assert before.bytes <= 2 << 30
    assert device.used_bytes() >= kept.nbytes
    assert defined_device(1 << 20)[0].available().bytes == 0


def test_others_on_the_card_are_named_at_the_start_and_where_a_run_does_not_fit() -> None:
    device, _ = defined_device(3 << 30)
    device.others = "other processes hold 2 GiB of Fake: 1234 (python)"
    assert list(device.notes) == [device.others]
    free = replace(device.available(), bytes=1 << 30)
    assert describe_limit(free) == (
        "the limit is the free memory of the card, less 1 GiB for its libraries: of 3 GiB in all, 2 GiB are in use; "
        "other processes hold 2 GiB of Fake: 1234 (python)"
    )


@pytest.mark.parametrize(
    ("name", "others", "wanted"),
    [
        ("cuda:0", 0, (0, True, "", "")),
        ("auto", 0, (0, True, "auto: NVIDIA H200", "")),
        ("cuda", 1 << 30, (0, True, "", "other processes hold 1 GiB of NVIDIA H200")),
    ],
)
def test_a_fit_card_is_opened(
    name: str, others: int, wanted: tuple[object, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened: list[tuple[object, ...]] = []
    device, _ = defined_device()

    def open_fake(index: int, cache: Path, *more: object) -> CudaDevice:
        assert cache == tmp_path
        opened.append((index, *more))
        return device

    monkeypatch.setattr(cuda_device, "open_cuda", open_fake)
    probes = FakeProbes(occupied=Occupancy(100 << 30, 140 << 30, others))
    assert open_device(name, None, tmp_path, True, probes) is device
    assert opened == [wanted]


def test_kernels_are_compiled_once_and_kept(tmp_path: Path) -> None:
    def load(card_of: str) -> tuple[CudaDevice, FakeCard]:
        device, card = defined_device(cache=tmp_path)
        card.architecture = card_of
        device.load([gelu(3, 5), gelu(3, 5), gelu(4, 5)], by_rows=[gelu(3, 5)])
        device.load([gelu(4, 5)])
        return device, card

    first, _ = load("sm_90")
    assert (first.compiled, first.reused) == (4, 0)  # with the module of what no plan holds
    second, _ = load("sm_90")
    assert (second.compiled, second.reused) == (0, 4)
    third, _ = load("sm_100")
    assert (third.compiled, third.reused) == (3, 1)
    assert (first.target, first.name, first.threads) == ("Fake sm_90 definition", "cuda", 1)


def test_rounding_to_tf32_is_part_of_what_decides_about_bits() -> None:
    kernels = DefinedKernels()
    device = CudaDevice(FakeCard(kernels.functions, 1 << 30), kernels, Emitter(kernels.emit, ""), tf32=True)
    assert device.target == "Fake sm_90 definition TF32"
