"""Steps of attention as calls of torch's libraries: what they are given, and where the results go.

The functions of the libraries are not there without a card: their stand-ins compute in host memory, and torch's own
rules for shapes check the calls.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from attended import attend
from fake_cudnn import Package, host_tensor
from fake_cudnn import attend as attend_by_formula
from torch import Tensor

from paren.ir.op import Array
from paren.ir.types import DType
from paren.plan.plan import Attention, Heads
from paren.runtime.cache import GraphCache
from paren.runtime.cuda.attention import Attentions, CardMemory
from paren.runtime.cuda.attention_graphs import AttentionGraphs
from paren.runtime.cuda.cudnn import Cudnn
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
        out, lse = attend_by_formula(q, k, v, causal, scale)
        return out, lse.unsqueeze(-1)  # as some versions give it

    def flash(
        self, q: Tensor, k: Tensor, v: Tensor, dropout: float, causal: bool, debug: bool, *, scale: float
    ) -> tuple[Tensor, ...]:
        self.called.append("flash")
        return attend_by_formula(q, k, v, causal, scale)

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
            made, _ = attend_by_formula(*leaves, causal, scale)
        np.testing.assert_allclose(out.float().numpy(), made.detach().numpy(), rtol=1e-2, atol=1e-2)
        return tuple(x.bfloat16() for x in torch.autograd.grad(made, leaves, g.float()))


CASES = [(7, 6, 2, True), (5, 3, 3, False), (1, 2, 1, True)]


@pytest.mark.parametrize(("queries", "heads", "groups", "causal"), CASES)
def test_results_go_where_the_plan_wants_them(
    queries: int, heads: int, groups: int, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = Libraries(monkeypatch)
    ours, theirs = buffers_of(queries, heads, groups), buffers_of(queries, heads, groups)
    addresses = {id: int(array.ctypes.data) for id, array in enumerate(ours)}
    attentions = Attentions(torch.device("cpu"), host_tensor)
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
    attentions = Attentions(torch.device("cpu"), host_tensor)
    forward, _ = steps(7, 6, 2, causal=True)
    for _ in range(2):
        attentions.attend(forward, addresses)
    assert libraries.called == ["cudnn", "flash", "flash"]
    assert attentions.notes == [
        "cuDNN does not compute the attention at attention.paren:1:1: cuDNN Frontend error: no engine"
    ]


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


def graphs_of(package: Package) -> AttentionGraphs:
    return AttentionGraphs(Cudnn(package, 7, lambda size: 4096, GraphCache(None), ""))  # type: ignore[arg-type]


@pytest.mark.parametrize(("queries", "heads", "groups", "causal"), CASES)
def test_graphs_of_cudnn_write_where_the_plan_wants_it(
    queries: int, heads: int, groups: int, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without copies, and one graph for all steps of a form."""
    libraries, package = Libraries(monkeypatch), Package()
    graphs = graphs_of(package)
    attentions = Attentions(torch.device("cpu"), host_tensor, lambda: graphs)
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
    graphs = graphs_of(package)
    attentions = Attentions(torch.device("cpu"), host_tensor, lambda: graphs)
    arrays = buffers_of(7, 6, 2)
    addresses = {id: int(array.ctypes.data) for id, array in enumerate(arrays)}
    forward, _ = steps(7, 6, 2, causal=True)
    for _ in range(2):
        attentions.attend(forward, addresses)
    assert libraries.called == ["cudnn", "cudnn"]
    assert len(package.made) == 1
    assert attentions.notes == ["cuDNN does not compute the attention at attention.paren:1:1: no engine"]


def test_graphs_are_those_of_the_package() -> None:
    """Where it is installed: it finds them valid, without a card."""
    package = pytest.importorskip("cudnn")
    whole = SimpleNamespace(**vars(package))
    whole.create_handle, whole.set_stream = lambda: None, lambda **given: None
    graphs = AttentionGraphs(Cudnn(whole, 0, lambda size: 0, GraphCache(None), ""))  # type: ignore[arg-type]
    for step in steps(64, 6, 2, causal=True):
        graphs.graph(step).validate()
