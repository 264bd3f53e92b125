"""Steps of attention as calls of torch's libraries: what they are given, and where the results go.

The functions of the libraries are not there without a card: their stand-ins compute in host memory, and torch's own
rules for shapes check the calls.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from attended import attend
from torch import Tensor

from paren.ir.op import Array
from paren.ir.types import DType
from paren.plan.plan import Attention, Heads
from paren.runtime.cuda.attention import Attentions, CardMemory
from paren.runtime.cuda.cudnn import AttentionGraphs
from paren.text.source import Source, Span

SPAN = Span(Source("attention.paren", "(x)"), 0, 3)
EXAMPLES, WIDTH = 2, 8
QKV, RESULT, STATISTICS, G, GRADIENTS = range(5)


def steps(queries: int, heads: int, groups: int, causal: bool) -> tuple[Attention, Attention]:
    """Forward and backward with q, k and v side by side in one buffer, and their gradients in another."""
    row = (heads + 2 * groups) * WIDTH
    offsets = (0, heads * WIDTH, (heads + groups) * WIDTH)
    parts = [Heads(QKV, offset, (queries * row, row, WIDTH)) for offset in offsets]
    alone = (queries * heads * WIDTH, heads * WIDTH, WIDTH)
    result = Heads(RESULT, 0, alone)
    forward = Attention(
        operands=tuple(parts),
        results=(result,),
        statistics=STATISTICS,
        examples=EXAMPLES,
        queries=queries,
        keys=queries,
        heads=heads,
        groups=groups,
        width=WIDTH,
        causal=causal,
        scale=0.4,
        dtype=DType.BFLOAT16,
        spans=(SPAN,),
        nodes=("%1 attention",),
    )
    gradients = tuple(replace(part, buffer=GRADIENTS) for part in parts)
    operands = (*parts, result, Heads(G, 0, alone))
    return forward, replace(forward, operands=operands, results=gradients, nodes=("%2 attention_gradient",))


def buffers_of(queries: int, heads: int, groups: int) -> list[Array]:
    """Flat elements of each buffer: operands at random, the rest NaN."""
    generator = np.random.default_rng(0)
    wide, alone = (EXAMPLES * queries * count * WIDTH for count in (heads + 2 * groups, heads))
    sizes = (wide, alone, EXAMPLES * heads * queries, alone, wide)
    found = []
    for number, size in enumerate(sizes):
        values = generator.normal(size=size) if number in (QKV, G) else np.full(size, np.nan)
        found.append(values.astype(np.float32 if number == STATISTICS else DType.BFLOAT16.numpy))
    return found


class HostMemory:
    """Tensors on host memory; torch takes what lies there by its bits."""

    def __call__(self, address: int, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
        count = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
        return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides)


class Libraries:
    """Stand-ins of the functions, and the names of those that were called."""

    def __init__(self, patch: pytest.MonkeyPatch, refuses: bool = False) -> None:
        self.called: list[str] = []
        self.refuses = refuses
        names = ("cudnn_attention", "flash_attention", "flash_attention_backward")
        for name, function in zip(names, (self.cudnn, self.flash, self.backward), strict=True):
            patch.setattr(torch.ops.aten, f"_scaled_dot_product_{name}", function)

    def cudnn(
        self, q: Tensor, k: Tensor, v: Tensor, bias: None, statistics: bool, dropout: float, causal: bool,
        debug: bool, *, scale: float,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        self.called.append("cudnn")
        if self.refuses:
            raise RuntimeError("cuDNN Frontend error: no engine\nmore words")
        out, lse = _attend(q, k, v, causal, scale)
        return out, lse.unsqueeze(-1)  # as some versions give it

    def flash(
        self, q: Tensor, k: Tensor, v: Tensor, dropout: float, causal: bool, debug: bool, *, scale: float
    ) -> tuple[Tensor, ...]:
        self.called.append("flash")
        return _attend(q, k, v, causal, scale)

    def backward(
        self, g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, cum_q: None, cum_k: None,
        max_q: int, max_k: int, dropout: float, causal: bool, seed: Tensor, offset: Tensor, *, scale: float,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        self.called.append("backward")
        assert torch.are_deterministic_algorithms_enabled()
        assert lse.is_contiguous()
        assert (max_q, max_k) == (q.shape[2], k.shape[2])
        leaves = [x.float().requires_grad_() for x in (q, k, v)]
        with torch.enable_grad():
            made, _ = _attend(*leaves, causal, scale)
        np.testing.assert_allclose(out.float().numpy(), made.detach().numpy(), rtol=1e-2, atol=1e-2)
        return tuple(x.bfloat16() for x in torch.autograd.grad(made, leaves, g.float()))


def _attend(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    repeat = q.shape[1] // k.shape[1]
    scores = scale * q.float() @ k.float().repeat_interleave(repeat, 1).transpose(-1, -2)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    out = scores.softmax(-1) @ v.float().repeat_interleave(repeat, 1)
    return out.to(q.dtype), scores.logsumexp(-1)


CASES = [(7, 6, 2, True), (5, 3, 3, False), (1, 2, 1, True)]


@pytest.mark.parametrize(("queries", "heads", "groups", "causal"), CASES)
def test_results_go_where_the_plan_wants_them(
    queries: int, heads: int, groups: int, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = Libraries(monkeypatch)
    ours, theirs = buffers_of(queries, heads, groups), buffers_of(queries, heads, groups)
    addresses = {id: int(array.ctypes.data) for id, array in enumerate(ours)}
    attentions = Attentions(torch.device("cpu"), HostMemory())
    for step in steps(queries, heads, groups, causal):
        attentions.attend(step, addresses)
        attend(step, lambda id: theirs[id])
    for found, wanted in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(found.astype(np.float32), wanted.astype(np.float32), rtol=2e-2, atol=2e-2)
    assert libraries.called == ["flash" if queries == 1 else "cudnn", "backward"]
    assert not torch.are_deterministic_algorithms_enabled()
    assert attentions.notes == []


def test_what_cudnn_refuses_is_computed_by_flash_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked once for a shape, and the device says so."""
    libraries = Libraries(monkeypatch, refuses=True)
    arrays = buffers_of(7, 6, 2)
    addresses = {id: int(array.ctypes.data) for id, array in enumerate(arrays)}
    attentions = Attentions(torch.device("cpu"), HostMemory())
    forward, _ = steps(7, 6, 2, causal=True)
    for _ in range(2):
        attentions.attend(forward, addresses)
    assert libraries.called == ["cudnn", "flash", "flash"]
    assert attentions.notes == ["cuDNN does not compute %1 attention: cuDNN Frontend error: no engine"]


class NoMemory:
    def __call__(self, address: int, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


@pytest.mark.parametrize(("queries", "heads", "groups", "causal"), CASES)
def test_calls_fit_the_functions_of_torch(queries: int, heads: int, groups: int, causal: bool) -> None:
    attentions = Attentions(torch.device("meta"), NoMemory())
    for step in steps(queries, heads, groups, causal):
        attentions.attend(step, dict.fromkeys(range(5), 0))
    assert attentions.notes == []


def test_memory_of_a_card_is_described_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[dict[str, object]] = []

    def as_tensor(place: object, device: torch.device) -> Tensor:
        described.append(place.__cuda_array_interface__)  # type: ignore[attr-defined]
        return torch.zeros(3, 4, dtype=torch.int16)

    monkeypatch.setattr(torch, "as_tensor", as_tensor)
    memory = CardMemory(torch.device("cuda", 0))
    found = memory(4096, torch.bfloat16, (3, 4), (10, 1))
    assert found.dtype is torch.bfloat16
    assert memory(4096, torch.bfloat16, (3, 4), (10, 1)) is found
    assert described == [
        {"data": (4096, False), "typestr": "<i2", "shape": (3, 4), "strides": (20, 2), "version": 2},
    ]


class Symbol:
    """A tensor of a stand-in graph: whatever is set of it by `set_NAME` is its NAME."""

    def __init__(self, **known: object) -> None:
        self.known = known

    def __getattr__(self, name: str) -> Callable[[object], Symbol]:
        def put(value: object) -> Symbol:
            self.known[name.removeprefix("set_")] = value
            return self

        return put


class Graph:
    """A stand-in of cuDNN's graph that runs in host memory, by the sizes and strides that its tensors were given."""

    def __init__(self, package: Package) -> None:
        self.package = package
        self.symbols: list[Symbol] = []
        self.options: dict[str, Any] = {}
        self.stages: list[str] = []

    def tensor(self, **known: object) -> Symbol:
        self.symbols.append(Symbol(**known))
        return self.symbols[-1]

    def sdpa(self, **options: object) -> tuple[Symbol, ...]:
        return self._operation(2, options)

    def sdpa_backward(self, **options: object) -> tuple[Symbol, ...]:
        assert options["use_deterministic_algorithm"] is True
        return self._operation(3, options)

    def _operation(self, results: int, options: dict[str, Any]) -> tuple[Symbol, ...]:
        self.options = options
        made = tuple(Symbol() for _ in range(results))
        self.symbols += made
        return made

    def __getattr__(self, name: str) -> Callable[..., object]:
        def stage(*given: object) -> object:
            self.stages.append(name)
            if name == "check_support" and self.package.refuses:
                raise self.package.Refusal("no engine\nmore words")
            return 96 if name == "get_workspace_size" else None

        return stage

    def execute(self, places: dict[int, int], workspace: int, handle: object) -> None:
        assert self.stages[-1] == "get_workspace_size"
        assert workspace == 4096
        assert handle is self.package
        types = {"half": torch.bfloat16, "single": torch.float32}
        known = {symbol.known["uid"]: symbol.known for symbol in self.symbols if "uid" in symbol.known}
        assert places.keys() == known.keys()
        found = {
            uid: HostMemory()(places[uid], types[k["data_type"]], tuple(k["dim"]), tuple(k["stride"]))  # type: ignore[index, arg-type]
            for uid, k in known.items()
        }
        causal, scale = self.options["use_causal_mask"], self.options["attn_scale"]
        if len(found) < 9:
            made, lse = _attend(found[0], found[1], found[2], causal, scale)
            assert self.options["is_inference"] is (100 not in found)
            found[10].copy_(made)
            found[100].copy_(lse.unsqueeze(-1))
            return
        leaves = [found[number].float().requires_grad_() for number in range(3)]
        made, _ = _attend(*leaves, causal, scale)
        for number, value in enumerate(torch.autograd.grad(made, leaves, found[4].float())):
            found[10 + number].copy_(value)


class Package:
    """A stand-in of the module `cudnn`."""

    class Refusal(Exception):
        pass

    data_type = SimpleNamespace(BFLOAT16="half", FLOAT="single")
    heur_mode = SimpleNamespace(A="a")

    def __init__(self, refuses: bool = False) -> None:
        self.refuses = refuses
        self.made: list[Graph] = []
        self.streams: list[int] = []

    def create_handle(self) -> Package:
        return self

    def set_stream(self, handle: object, stream: int) -> None:
        self.streams.append(stream)

    def pygraph(self, **known: object) -> Graph:
        self.made.append(Graph(self))
        return self.made[-1]


def graphs_of(package: Package) -> AttentionGraphs:
    return AttentionGraphs(package, 7, lambda size: 4096)  # type: ignore[arg-type]


@pytest.mark.parametrize(("queries", "heads", "groups", "causal"), CASES)
def test_graphs_of_cudnn_write_where_the_plan_wants_it(
    queries: int, heads: int, groups: int, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without copies, and one graph for all steps of a form."""
    libraries, package = Libraries(monkeypatch), Package()
    attentions = Attentions(torch.device("cpu"), HostMemory(), lambda: graphs_of(package))
    for _ in range(2):
        ours, theirs = buffers_of(queries, heads, groups), buffers_of(queries, heads, groups)
        addresses = {id: int(array.ctypes.data) for id, array in enumerate(ours)}
        for step in steps(queries, heads, groups, causal):
            attentions.attend(step, addresses)
            attend(step, lambda id, theirs=theirs: theirs[id])  # type: ignore[misc]
        for found, wanted in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(found.astype(np.float32), wanted.astype(np.float32), rtol=2e-2, atol=2e-2)
    assert len(package.made) == 2
    assert package.streams == [7]
    assert libraries.called == []
    assert attentions.notes == []


def test_what_a_graph_of_cudnn_refuses_is_computed_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    libraries, package = Libraries(monkeypatch), Package(refuses=True)
    attentions = Attentions(torch.device("cpu"), HostMemory(), lambda: graphs_of(package))
    arrays = buffers_of(7, 6, 2)
    addresses = {id: int(array.ctypes.data) for id, array in enumerate(arrays)}
    forward, _ = steps(7, 6, 2, causal=True)
    for _ in range(2):
        attentions.attend(forward, addresses)
    assert libraries.called == ["cudnn", "cudnn"]
    assert len(package.made) == 1
    assert attentions.notes == ["cuDNN does not compute %1 attention: no engine"]


def test_a_package_that_does_not_work_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = Libraries(monkeypatch)

    def broken() -> AttentionGraphs:
        raise RuntimeError("libcudnn.so.9 is missing")

    attentions = Attentions(torch.device("cpu"), HostMemory(), broken)
    arrays = buffers_of(7, 6, 2)
    addresses = {id: int(array.ctypes.data) for id, array in enumerate(arrays)}
    attentions.attend(steps(7, 6, 2, causal=True)[0], addresses)
    assert libraries.called == ["cudnn"]
    assert attentions.notes == ["cuDNN's package cannot be used: libcudnn.so.9 is missing"]


def test_graphs_are_those_of_the_package() -> None:
    """Where it is installed: it finds them valid, without a card."""
    package = pytest.importorskip("cudnn")
    whole = SimpleNamespace(**vars(package))
    whole.create_handle, whole.set_stream = lambda: None, lambda **given: None
    graphs = AttentionGraphs(whole, 0, lambda size: 0)  # type: ignore[arg-type]
    for step in steps(64, 6, 2, causal=True):
        graphs._graph(step).validate()
