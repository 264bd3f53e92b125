"""Attention by cuDNN's own graphs, where its package for Python is installed (nvidia-cudnn-frontend).

A graph is made once for each form of a step. It reads and writes where the plan says, with the plan's strides, so that
nothing is copied, and its backward adds up in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from paren.ir.types import DType
from paren.plan.plan import Attention, Heads

Allocate = Callable[[int], int]  # the address of so many bytes, which stay
_STATISTICS = 100  # its number in a graph; operands are 0 .. 4, results 10 .. 12
_RESULTS = 10


@dataclass(frozen=True)
class Plan:
    """A graph that is ready to run, with its workspace."""

    graph: Any  # of the package, which has no types
    workspace: int


class AttentionGraphs:
    """cuDNN's attention on one stream; `cudnn` is its package."""

    def __init__(self, cudnn: ModuleType, stream: int, allocate: Allocate) -> None:
        self._cudnn = cudnn
        self._handle = cudnn.create_handle()
        cudnn.set_stream(handle=self._handle, stream=stream)
        self._allocate = allocate
        self._plans: dict[Attention, Plan] = {}
        self._workspace, self._workspace_bytes = 0, 0

    def prepare(self, step: Attention) -> Plan:
        """The plan of a step, made at the first of its form, which must not be inside of a capture. Whatever the
        package raises says that cuDNN does not compute it."""
        form = form_of(step)
        if form not in self._plans:
            graph = self._graph(step)
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([self._cudnn.heur_mode.A])
            graph.check_support()
            graph.build_plans()
            size = int(graph.get_workspace_size())
            if size > self._workspace_bytes:  # graphs that were captured go on with the one before
                self._workspace, self._workspace_bytes = self._allocate(size), size
            self._plans[form] = Plan(graph, self._workspace)
        return self._plans[form]

    def run(self, step: Attention, addresses: Mapping[int, int]) -> None:
        """Starts a step that was prepared; its buffers lie at these addresses."""
        plan = self.prepare(step)
        places = {number: _place(heads, addresses) for number, heads in enumerate(step.operands)}
        results = enumerate(step.results, start=_RESULTS)
        places |= {number: _place(heads, addresses) for number, heads in results if heads is not None}
        if step.statistics is not None:
            places[_STATISTICS] = addresses[step.statistics]
        plan.graph.execute(places, plan.workspace, handle=self._handle)

    def _graph(self, step: Attention) -> Any:
        types = self._cudnn.data_type
        short = types.HALF if step.dtype is DType.FLOAT16 else types.BFLOAT16
        graph = self._cudnn.pygraph(
            name="attention",
            io_data_type=short,
            intermediate_data_type=types.FLOAT,
            compute_data_type=types.FLOAT,
            handle=self._handle,
        )

        def operand(number: int) -> Any:
            dim, stride = _lie(step, step.operands[number], number)
            return graph.tensor(uid=number, name=f"operand {number}", dim=dim, stride=stride, data_type=short)

        rows = step.heads * step.queries
        shape = {"dim": [step.examples, step.heads, step.queries, 1], "stride": [rows, step.queries, 1, 1]}
        common = {"attn_scale": step.scale, "use_causal_mask": step.causal, "name": "attention"}
        q, k, v = (operand(number) for number in range(3))
        if step.backward:
            kept = graph.tensor(uid=_STATISTICS, name="statistics", data_type=types.FLOAT, **shape)
            o, g = (operand(number) for number in (3, 4))
            made = graph.sdpa_backward(
                q=q, k=k, v=v, o=o, dO=g, stats=kept, use_deterministic_algorithm=True, **common
            )  # fmt: skip
        else:
            result, kept = graph.sdpa(q=q, k=k, v=v, is_inference=step.statistics is None, **common)
            made = (result,)
            if step.statistics is not None:
                kept.set_output(True).set_dim(shape["dim"]).set_stride(shape["stride"])
                kept.set_data_type(types.FLOAT).set_uid(_STATISTICS)
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
