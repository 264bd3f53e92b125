"""A fused graph becomes an unplaced plan: buffers, kernels, products, in an order in which they can run."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import cast

from paren.ir.graph import Graph, Node
from paren.ir.types import TensorType
from paren.plan.accumulation import accumulation_decisions
from paren.plan.attention import AttentionCall, layout_of
from paren.plan.body import Body, Uncomputable
from paren.plan.fuse import Fusion, Group, fuse
from paren.plan.kernel import Kernel
from paren.plan.loops import chunked_kernels, cut, group_kernel, scatter_kernel, value_kernel
from paren.plan.plan import Attention, Buffer, Heads, Launch, Matrix, Place, Plan, Product, Step
from paren.plan.product import Operand, View
from paren.plan.traits import CPU, Traits
from paren.text.errors import InternalError
from paren.text.source import Span


def lower(graph: Graph, traits: Traits = CPU) -> Plan:
    """The unplaced plan of a graph: arena offsets, lifetimes and arena size are 0 until `paren.plan.memory.place`.

    Contractions must have gone through `paren.plan.contractions.normalise_contractions`.
    """
    return fuse_and_lower(graph, traits)[1]


def fuse_and_lower(graph: Graph, traits: Traits = CPU) -> tuple[Fusion, Plan]:
    """The kernels that could be written as fused, and their unplaced plan. Values that a first attempt could not
    compute inside their users are stored in the next."""
    forced: set[int] = set()
    while True:
        lowering = _Lowering(fuse(graph, forced, traits))
        plan = lowering.run()
        if not lowering.uncomputable:
            return lowering.fusion, plan
        if lowering.uncomputable <= forced:
            raise InternalError("lower", f"graph {graph.name} needs values stored without end")
        forced |= lowering.uncomputable


class _Lowering:
    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion
        self.storage = fusion.storage
        self.buffers: list[Buffer] = []
        self.of_node: dict[int, int] = {}
        self.steps: list[Step] = []
        self.uncomputable: set[int] = set()  # numbers of nodes that must be stored before the plan is whole
        for node in fusion.graph.inputs:
            place = Place.STATE if node.attrs["role"] == "state" else Place.INPUT
            self.of_node[node.number] = self._buffer(str(node.attrs["name"]), node.type, place, node.span)

    def run(self) -> Plan:
        graph = self.fusion.graph
        for group in self.fusion.groups:
            try:
                self._group(group)
            except Uncomputable as failure:
                self.uncomputable.add(failure.node.number)
        outputs = {}
        for name, node in graph.outputs.items():
            alias = self.storage.aliases.get(name)
            outputs[name] = self.of_node[alias.number if alias is not None else node.number]
        decisions = tuple(accumulation_decisions(self.storage))
        return Plan(graph.name, tuple(self.buffers), tuple(self.steps), outputs, 0, self.fusion.refusals, decisions)

    def _group(self, group: Group) -> None:
        if group.kind == "product":
            self._product(group.members[0])
        elif group.kind == "scatter":
            self._scatter(group.members[0])
        elif group.kind == "attention":
            self._attention(self.storage.attentions[group.members[0].number])
        else:
            self._kernels(group)

    # Buffers --------------------------------------------------------------------------------------------------------

    def _buffer(self, name: str, type_: TensorType, place: Place, span: Span) -> int:
        number = len(self.buffers)
        self.buffers.append(Buffer(number, name, type_, place, 0, 0, 0, span))
        return number

    def _node_buffer(self, node: Node) -> int:
        """The buffer of a stored node, made when it is first written."""
        if node.number not in self.of_node:
            name = f"%{node.number} {node.op.name}"
            self.of_node[node.number] = self._buffer(name, node.type, Place.ARENA, node.span)
        return self.of_node[node.number]

    def _load_from(self, node: Node) -> int | None:
        if node.op.name == "input" or node.number in self.fusion.kept:
            if node.number not in self.of_node:
                raise InternalError("lower", f"{node!r} at {node.span} is read before it is written")
            return self.of_node[node.number]
        return None

    # Steps ----------------------------------------------------------------------------------------------------------

    def _launch(self, body: Body, kernel: Kernel, nodes: Sequence[Node]) -> None:
        spans = tuple(dict.fromkeys(node.span for node in nodes))
        names = tuple(f"%{node.number} {node.op.name}" for node in nodes)
        self.steps.append(Launch(kernel, tuple(body.buffers), spans, names))

    def _kernels(self, group: Group) -> None:
        if group.kind == "chunked":
            node = group.members[0]
            type_ = TensorType(node.dtype, (*node.shape, cut(node).chunks))
            partial = self._buffer(f"%{node.number} parts", type_, Place.ARENA, node.span)
            for body, kernel in chunked_kernels(node, partial, self._node_buffer(node), self._load_from):
                self._launch(body, kernel, [node])
            return
        own = {member.number for member in group.members}

        def load_from(node: Node) -> int | None:
            return None if node.number in own else self._load_from(node)

        targets = {m.number: self._node_buffer(m) for m in group.members if m.number in self.fusion.kept}
        body, kernel = group_kernel(group, targets, load_from)
        self._launch(body, kernel, group.members)

    def _scatter(self, node: Node) -> None:
        call = self.storage.scatters.get(node.number)
        base = node.args[0]
        if call is not None and call.slot is not None:
            target = self.of_node[call.slot.number]
        elif self._ends_in(base, node):
            target = self.of_node[node.number] = self.of_node[base.number]
        else:
            target = self._node_buffer(node)
            body, kernel = value_kernel(node.args[0], node, target, self._load_from)
            self._launch(body, kernel, [node])
        body, kernel = scatter_kernel(node, target, self._load_from)
        self._launch(body, kernel, [node])

    def _ends_in(self, base: Node, node: Node) -> bool:
        """Whether `base` lies in the arena for `node` alone, which may then change it."""
        mine = base.number in self.of_node and base.op.name != "input"
        alone = self.storage.users[base.number] == [node] and base not in self.fusion.graph.outputs.values()
        return mine and alone

    def _product(self, node: Node) -> None:
        call = self.storage.products[node.number]
        if call.slot is not None:
            target = self.of_node[call.slot.number]
        else:
            target = self._node_buffer(call.result)
        shape = call.shape
        self.steps.append(
            Product(
                self._matrix(call.a, shape.a),
                self._matrix(call.b, shape.b),
                _matrix(target, shape.c),
                shape.m,
                shape.n,
                shape.k,
                shape.batch,
                call.slot is not None,
                (node.span,),
                (f"%{node.number} contract",),
                node.args[0].dtype.is_short,
            )
        )

    def _attention(self, call: AttentionCall) -> None:
        first, statistics = call.members[0], call.statistics
        *batch, queries, groups, repeat, width = call.operands[0].shape
        views = [self.storage.views[node.number] for node in call.operands]
        shapes = [node.shape for node in call.operands]
        operands = [self._heads(*each) for each in zip(views, shapes, range(len(shapes)), strict=True)]
        results = [self._result(node, number) for number, node in enumerate(call.results)]
        self.steps.append(
            Attention(
                operands=tuple(operands),
                results=tuple(results),
                statistics=None if statistics is None else self._node_buffer(statistics),
                examples=prod(batch),
                queries=queries,
                keys=call.operands[1].shape[-3],
                heads=groups * repeat,
                groups=groups,
                width=width,
                causal=first.attrs["causal"] is True,
                scale=cast(float, first.attrs["scale"]),
                dtype=call.operands[0].dtype,
                spans=tuple(dict.fromkeys(node.span for node in call.members)),
                nodes=tuple(f"%{node.number} {node.op.name}" for node in call.members),
            )
        )

    def _result(self, node: Node | None, number: int) -> Heads | None:
        if node is None:
            return None
        view = self.storage.views[node.number]
        self._node_buffer(view.base)
        return self._heads(view, node.shape, number)

    def _heads(self, view: View, shape: Sequence[int], number: int) -> Heads:
        layout = layout_of(view, shape, number)
        if layout is None:
            raise InternalError("lower", f"{view.base!r} at {view.base.span} does not lie as attention takes it")
        return Heads(self.of_node[view.base.number], layout.offset, layout.strides)

    def _matrix(self, view: View, operand: Operand) -> Matrix:
        return _matrix(self.of_node[view.base.number], operand)


def _matrix(buffer: int, operand: Operand) -> Matrix:
    return Matrix(buffer, operand.offset, operand.leading, operand.transposed, operand.batch_strides)
