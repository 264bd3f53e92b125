"""Attention by cuDNN's own graphs. They read and write where the plan says, with the plan's strides, so that nothing is
copied, and the backward adds up in a fixed order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paren.ir.types import DType
from paren.plan.plan import Attention, Heads
from paren.runtime.cuda.cudnn import Cudnn, Ready

_STATISTICS = 100  # its number in a graph; operands are 0 .. 4, results 10 .. 12
_RESULTS = 10


class AttentionGraphs:
    """The graphs of steps of attention, by their forms."""

    def __init__(self, cudnn: Cudnn) -> None:
        self._cudnn = cudnn
        self._ready: dict[Attention, Ready] = {}

    def prepare(self, step: Attention) -> None:
        """Makes the graph of a step, at the first of its form, which must not be inside of a capture. Whatever it
        raises says that cuDNN does not compute it."""
        form = form_of(step)
        if form not in self._ready:
            self._ready[form] = self._cudnn.prepare(repr(form), lambda: self.graph(step))

    def run(self, step: Attention, addresses: Mapping[int, int]) -> None:
        """Starts a step that was prepared; its buffers lie at these addresses."""
        places = {number: _place(heads, addresses) for number, heads in enumerate(step.operands)}
        results = enumerate(step.results, start=_RESULTS)
        places |= {number: _place(heads, addresses) for number, heads in results if heads is not None}
        if step.statistics is not None:
            places[_STATISTICS] = addresses[step.statistics]
        self._cudnn.run(self._ready[form_of(step)], places)

    def graph(self, step: Attention) -> Any:
        """The graph of a step, not built yet."""
        short, single = self._cudnn.dtype(step.dtype), self._cudnn.dtype(DType.FLOAT32)
        graph = self._cudnn.begin("attention", step.dtype)

        def operand(number: int) -> Any:
            dim, stride = _lie(step, step.operands[number], number)
            return graph.tensor(uid=number, name=f"operand {number}", dim=dim, stride=stride, data_type=short)

        rows = step.heads * step.queries
        shape = {"dim": [step.examples, step.heads, step.queries, 1], "stride": [rows, step.queries, 1, 1]}
        common = {"attn_scale": step.scale, "use_causal_mask": step.causal, "name": "attention"}
        q, k, v = (operand(number) for number in range(3))
        if step.backward:
            kept = graph.tensor(uid=_STATISTICS, name="statistics", data_type=single, **shape)
            o, g = (operand(number) for number in (3, 4))
            made = graph.sdpa_backward(
                q=q, k=k, v=v, o=o, dO=g, stats=kept, use_deterministic_algorithm=True, **common
            )  # fmt: skip
        else:
            result, kept = graph.sdpa(q=q, k=k, v=v, is_inference=step.statistics is None, **common)
            made = (result,)
            if step.statistics is not None:
                kept.set_output(True).set_dim(shape["dim"]).set_stride(shape["stride"])
                kept.set_data_type(single).set_uid(_STATISTICS)
        for number, (tensor, heads) in enumerate(zip(made, step.results, strict=True)):
            if heads is None:
                raise ValueError("a gradient has no place")
            dim, stride = _lie(step, heads, number)
            tensor.set_output(True).set_dim(dim).set_stride(stride).set_data_type(short)
            tensor.set_uid(_RESULTS + number)
        return graph


def form_of(step: Attention) -> Attention:
    """The step without what differs between layers: equal for those that one graph computes."""

    def form(heads: Heads | None) -> Heads | None:
        return None if heads is None else replace(heads, buffer=0, offset=0)

    return replace(
        step,
        operands=tuple(replace(heads, buffer=0, offset=0) for heads in step.operands),
        results=tuple(map(form, step.results)),
        statistics=None if step.statistics is None else 0,
        spans=(),
        nodes=(),
    )


def _lie(step: Attention, heads: Heads, number: int) -> tuple[list[int], list[int]]:
    """Sizes and strides as cuDNN orders them: examples, heads, positions, width."""
    examples, positions, count, width = step.size_of(number)
    example, position, head = heads.strides
    return [examples, count, positions, width], [example, head, position, 1]


def _place(heads: Heads, addresses: Mapping[int, int]) -> int:
    return addresses[heads.buffer] + 2 * heads.offset
