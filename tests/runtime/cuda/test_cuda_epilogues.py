"""Products with their epilogues as graphs of cuDNN: what they compute, and how the device runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import cast

import numpy as np
import pytest
from activated import (
    HIDDEN,
    ROWS,
    WIDTH,
    Activation,
    distance,
    gelu,
    network,
    on_cards,
    relu,
    silu,
    tanh,
    values_of,
)
from emulated_card import emulated_device
from fake_card import FakeCard
from fake_cudnn import Graph, Package
from joined import join
from networks import batch, matmul, state
from plan_runs import copied_to, run_plan

from paren.ir.graph import Builder, Node
from paren.ir.op import Array
from paren.ir.types import DType
from paren.passes.precision import set_precision
from paren.pipeline import prepare
from paren.plan.epilogue import Epilogue, epilogues_of
from paren.plan.plan import Place, Plan
from paren.plan.traits import CUDA
from paren.runtime.cache import GraphCache
from paren.runtime.cuda import cudnn
from paren.runtime.cuda.cudnn import Cudnn, cudnn_version, open_cudnn
from paren.runtime.cuda.device import CudaDevice
from paren.runtime.cuda.epilogue_graphs import EpilogueGraphs
from paren.runtime.executor import Executable, load_plans
from paren.runtime.task import Cell
from paren.text.errors import InternalError


def cudnn_of(package: Package) -> Cudnn:
    return Cudnn(cast(ModuleType, package), 7, lambda size: package.workspace, GraphCache(None), "")


def buffers_of(plan: Plan, epilogue: Epilogue) -> dict[int, Array]:
    """Flat elements of what it touches: what is read at random, the rest NaN."""
    generator = np.random.default_rng(0)
    read = {*epilogue.product.reads, *epilogue.launch.reads} - {epilogue.product.c.buffer}
    found = {}
    for buffer in plan.buffers:
        if buffer.id in epilogue.buffers:
            size, dtype = buffer.type.size, buffer.type.dtype.numpy
            values = generator.normal(size=size) if buffer.id in read else np.full(size, np.nan)
            found[buffer.id] = values.astype(dtype)
    return found


@pytest.mark.parametrize("activation", [gelu, relu, silu, tanh])
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_graphs_mean_what_the_kernels_do(activation: Activation, precision: str) -> None:
    """Each is made once for a form, and is run where the plan has its buffers."""
    plan = on_cards(network(activation, precision=precision))
    package = Package()
    graphs = EpilogueGraphs(cudnn_of(package))
    for epilogue in epilogues_of(plan).values():
        ours, theirs = buffers_of(plan, epilogue), buffers_of(plan, epilogue)
        for _ in range(2):
            graphs.prepare(epilogue)
            graphs.run(epilogue, {id: int(array.ctypes.data) for id, array in ours.items()})
        join(epilogue, lambda id, size, dtype, theirs=theirs: theirs[id][:size])  # type: ignore[misc]
        for id, wanted in theirs.items():
            np.testing.assert_allclose(np.float32(ours[id]), np.float32(wanted), rtol=1e-2, atol=1e-3)
        kept = np.isfinite(np.float32(ours[epilogue.product.c.buffer])).all()
        assert kept == epilogue.keeps
        assert np.isfinite(np.float32(ours[epilogue.launch.writes[0]])).all()
    assert len(package.made) == len(plan.epilogues) == 2
    assert package.executed == 4
    assert package.streams == [7]


def test_a_graph_stores_an_infinity_where_a_sum_leaves_the_range_of_float16() -> None:
    """Where the scaler of the loss looks for it: the sum itself is in range, in float32."""
    plan = on_cards(network(gelu, precision="float16"))
    graphs = EpilogueGraphs(cudnn_of(Package()))
    epilogue = epilogues_of(plan)[plan.epilogues[0]]
    ours, theirs = buffers_of(plan, epilogue), buffers_of(plan, epilogue)
    for buffers in (ours, theirs):
        for matrix in (epilogue.product.a, epilogue.product.b):
            buffers[matrix.buffer] *= 100
    graphs.prepare(epilogue)
    graphs.run(epilogue, {id: int(array.ctypes.data) for id, array in ours.items()})
    join(epilogue, lambda id, size, dtype: theirs[id][:size])
    result, wanted = (np.float32(buffers[epilogue.launch.writes[0]]) for buffers in (ours, theirs))
    np.testing.assert_allclose(result, wanted, rtol=1e-2, atol=1e-3)
    assert np.isposinf(result).any()
    assert np.isfinite(result).any()


def test_what_is_not_finite_stays_in_a_maximum() -> None:
    plan = on_cards(network(relu))
    graphs = EpilogueGraphs(cudnn_of(Package()))
    forward = epilogues_of(plan)[plan.epilogues[0]]
    buffers = buffers_of(plan, forward)
    buffers[forward.product.a.buffer][5] = np.nan
    graphs.prepare(forward)
    graphs.run(forward, {id: int(array.ctypes.data) for id, array in buffers.items()})
    result = np.float32(buffers[forward.launch.writes[0]]).reshape(-1, forward.product.n)
    assert np.isnan(result[0]).all()
    assert np.isfinite(result[1:]).all()


def test_a_package_that_does_not_work_is_done_without() -> None:
    """One that is not there is no news, one of whose parts is missing is."""
    notes: list[str] = []

    class Broken(Package):
        def create_handle(self) -> Package:
            raise RuntimeError("libcudnn.so.9 is missing\nmore words")

    def missing(name: str) -> Callable[[], Cudnn]:
        def load() -> Cudnn:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

        return load

    assert open_cudnn(missing("cudnn"), notes.append) is None
    assert notes == []
    assert open_cudnn(lambda: cudnn_of(Broken()), notes.append) is None
    assert open_cudnn(missing("cutlass"), notes.append) is None
    assert notes == [
        "cuDNN's package cannot be used: libcudnn.so.9 is missing",
        "cuDNN's package cannot be used: No module named 'cutlass'",
    ]
    assert open_cudnn(lambda: cudnn_of(Package()), notes.append) is not None


def test_graphs_are_compiled_once_for_a_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of another process; another target has its own, one that is damaged is built again, and nothing is
    kept where files of paren's own changed."""
    monkeypatch.setattr(cudnn, "own_digest", lambda *parts: "own")
    plan = on_cards(network(gelu))
    epilogue = epilogues_of(plan)[plan.epilogues[0]]

    def started(target: str) -> tuple[Package, dict[int, Array]]:
        package = Package()
        library = Cudnn(cast(ModuleType, package), 7, lambda size: package.workspace, GraphCache(tmp_path), target)
        graphs = EpilogueGraphs(library)
        buffers = buffers_of(plan, epilogue)
        graphs.prepare(epilogue)
        graphs.run(epilogue, {id: int(array.ctypes.data) for id, array in buffers.items()})
        return package, buffers

    def compiled(package: Package) -> int:
        return sum(bool(graph.operations) for graph in package.made)

    first, wanted = started("H200 9.28")
    assert (compiled(first), len(first.made)) == (1, 1)
    again, found = started("H200 9.28")
    assert (compiled(again), len(again.made)) == (0, 1)
    for id, value in wanted.items():
        np.testing.assert_array_equal(found[id], value)
    other, _ = started("H200 9.29")
    assert compiled(other) == 1
    (kept, *_) = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    content = kept.read_bytes()
    assert {path.parent.parent.name for path in tmp_path.rglob("*") if path.is_file()} == {"graphs"}
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.write_bytes(content[:-1])
    damaged, found = started("H200 9.28")
    assert compiled(damaged) == 1
    for id, value in wanted.items():
        np.testing.assert_array_equal(found[id], value)
    monkeypatch.setattr(cudnn, "own_digest", lambda *parts: None)
    for _ in range(2):
        assert compiled(started("H200 9.28")[0]) == 1


def test_what_the_package_no_longer_reads_or_does_not_write_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cudnn, "own_digest", lambda *parts: "own")
    plan = on_cards(network(gelu))
    epilogue = epilogues_of(plan)[plan.epilogues[0]]

    def refuse(*given: object) -> None:
        raise Package.Refusal("another format")

    for part in ("serialize", "deserialize"):
        with monkeypatch.context() as patch:
            patch.setattr(Graph, part, refuse)
            for _ in range(2):
                package = Package()
                cache = GraphCache(tmp_path / part)
                EpilogueGraphs(Cudnn(cast(ModuleType, package), 7, lambda size: 4096, cache, "H200")).prepare(epilogue)
                assert any(graph.operations for graph in package.made)


def test_the_version_belongs_to_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise cudnn.PackageNotFoundError(name)

    monkeypatch.setattr(cudnn, "version", missing)
    assert cudnn_version(92801) == ""
    monkeypatch.setattr(cudnn, "version", lambda name: "1.32.0")
    assert cudnn_version(92801) == "cuDNN 92801 by nvidia-cudnn-frontend 1.32.0"
    device, card = emulated_device()
    before = device.target
    card.libraries = cudnn_version(92801)
    assert device.target == f"{before} cuDNN 92801 by nvidia-cudnn-frontend 1.32.0"


def joining() -> tuple[CudaDevice, FakeCard]:
    """A device whose library joins everything."""
    device, card = emulated_device()
    card.able = None
    return device, card


def forms_of(plan: Plan) -> list[str]:
    return [epilogue.form for epilogue in epilogues_of(plan).values()]


def test_the_device_joins_the_forms_that_it_is_told() -> None:
    """Otherwise it runs the two steps, to the same bits as if the plan had no epilogues."""
    graph = network(gelu)
    plan = on_cards(graph)
    forms = forms_of(plan)
    values = values_of(graph)
    outcomes = []
    for told in ([], forms, forms[:1]):
        device, card = joining()
        outcomes.append(run_plan(device, plan, values, told))
        assert card.started.count("join") == len(told)
    two, one, half = outcomes
    plain = run_plan(emulated_device()[0], replace(plan, epilogues=()), values)
    for name, value in two.items():
        np.testing.assert_array_equal(plain[name], value)
        assert distance(one[name], value) < 0.02
    assert not all(np.array_equal(one[name], value) for name, value in two.items())
    assert not all(np.array_equal(half[name], one[name]) for name in one)


def left_range(builder: Builder, x: Node) -> Node:
    """Finite where x is not rounded to float16: 1 at infinity as at large numbers."""
    return builder.apply("tanh", builder.apply("mul", x, 1e-5))


def broken_later(builder: Builder, x: Node) -> Node:
    return builder.apply("log", builder.apply("sub", left_range(builder, x), 7.0))


@pytest.mark.parametrize(
    ("activation", "joined", "kept", "operation"),
    [
        (left_range, False, False, "contract"),
        (left_range, True, False, None),
        (left_range, True, True, "contract"),
        (broken_later, True, False, "log"),
        (gelu, True, False, "contract"),
    ],
)
def test_the_search_for_what_is_not_finite_sees_what_the_run_computed(
    activation: Activation, joined: bool, kept: bool, operation: str | None
) -> None:
    """Products that leave the range of float16 are not at fault where they are never rounded to it."""
    builder = Builder("network")
    product = matmul(builder, batch(builder, "x", ROWS, WIDTH), state(builder, "w", WIDTH, HIDDEN))
    last = state(builder, "last", HIDDEN, WIDTH)
    outputs = {"y": matmul(builder, activation(builder, product), last)}
    if kept:
        outputs["z"] = matmul(builder, product, last)
    graph = set_precision(builder.graph(outputs), "float16")
    plan = on_cards(graph)
    device, _ = joining()
    values = {name: copied_to(device, np.full_like(value, 200)) for name, value in values_of(graph).items()}
    found = Executable(device, plan, forms_of(plan) if joined else ()).first_nonfinite(
        values, values, device.allocate(plan.arena_bytes), prepare(graph, CUDA)
    )
    assert (None if found is None else found.operation) == operation


def test_later_runs_are_captured_and_join_too() -> None:
    graph = network(gelu)
    plan = on_cards(graph)
    device, card = joining()
    first = run_plan(device, plan, values_of(graph), forms_of(plan))
    assert card.captures == 0
    executable = Executable(device, plan, forms_of(plan))
    arrays = {name: copied_to(device, value) for name, value in values_of(graph).items()}
    arena = device.allocate(plan.arena_bytes)
    for _ in range(3):
        found = executable.run(arrays, arrays, arena)
        for name, value in first.items():
            np.testing.assert_array_equal(np.asarray(found[name]), value)
    assert card.captures == 1
    assert card.replays == 2


def test_a_comparison_times_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = on_cards(network(gelu))
    epilogue = epilogues_of(plan)[plan.epilogues[0]]
    device, card = joining()
    load_plans(device, [plan])
    arena = device.allocate(plan.arena_bytes)
    cells = {}
    for buffer in plan.buffers:
        size = buffer.type.bytes
        memory = arena[buffer.offset : buffer.offset + size] if buffer.place is Place.ARENA else device.allocate(size)
        cells[buffer.id] = Cell(memory[:size].view(buffer.type.dtype.numpy).reshape(buffer.type.shape))
    seconds = iter([3.0, 2.0, 5.0, 1.0, 4.0, 1.5, 3.5, 2.5, 9.0, 9.0])
    monkeypatch.setattr(card, "elapsed", lambda run: (run(), next(seconds))[1])
    assert device.compare_joined(epilogue, cells) == (3.0, 1.0)
    assert card.started == ["multiply", "launch", "join"]
    assert (card.captures, card.replays) == (2, 12)


def test_what_the_library_does_not_join_is_not_run_as_if_it_did() -> None:
    plan = on_cards(network(gelu))
    device, card = joining()
    card.able = ()
    with pytest.raises(InternalError) as caught:
        Executable(device, plan, forms_of(plan))
    node = plan.steps[plan.epilogues[0]].nodes[0]
    assert str(caught.value) == f"internal error in cuda: {node} is to be joined, which the library does not do"


def test_types_are_those_of_the_package() -> None:
    types = cudnn_of(Package())
    found = [types.dtype(dtype) for dtype in (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32)]
    assert found == ["bfloat", "half", "single"]
