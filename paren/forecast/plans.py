"""The plans of all graphs that a run calls, and where its state lies. Needs no device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from paren.collection import uncollected
from paren.ir.graph import Graph
from paren.ir.op import Array
from paren.ir.program import Program, Slot
from paren.ir.types import DType
from paren.passes.alternatives import against
from paren.passes.assemble import (
    RATE,
    ROW,
    accumulation,
    diagnosis,
    evaluation,
    finish_graph,
    gradient_slot,
    resize_flat,
    update_graph,
)
from paren.pipeline import PLAIN, Planning, plan_graph
from paren.plan.decision import Decision, Pattern
from paren.plan.memory import NOTHING_HELD, Held
from paren.plan.plan import Plan
from paren.plan.traits import CPU, Traits
from paren.runtime.array import AnyArray, on_host

ALIGNED = 16  # elements of float32 between the beginnings of two slots: 64 bytes
MANY_ROWS = 16 * ROW  # trained elements from which they are padded to whole rows of the sum of squares


@dataclass(frozen=True)
class Layout:
    """Where each parameter lies in the flat vectors: offset and size in elements. Trained parameters come first, in the
    order of their groups; a gap after each keeps the next on 64 bytes. `groups`: number -> (begin, end)."""

    offsets: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]
    groups: Mapping[int, tuple[int, int]]
    trained: int
    total: int

    @property
    def trained_names(self) -> list[str]:
        """The trained parameters, in their order."""
        return [name for name, offset in self.offsets.items() if offset < self.trained]

    def trained_views(self, vector: Array) -> dict[str, Array]:
        """The trained parameters' parts of a vector like that of the gradients, in host memory."""
        return {name: on_host(self.view(vector, name)) for name in self.trained_names}

    def view(self, vector: AnyArray, name: str, begin: int = 0) -> AnyArray:
        """The parameter's part of a vector that starts at element `begin` of the layout, in its shape."""
        shape = self.shapes[name]
        offset = self.offsets[name] - begin
        return vector[offset : offset + prod(shape)].reshape(shape)


def lay_out(program: Program) -> Layout:
    """The layout of a program's parameters."""
    slots = {slot.name: slot for slot in program.parameters}
    offsets: dict[str, int] = {}
    groups: dict[int, tuple[int, int]] = {}
    end = 0

    def add(slot: Slot) -> None:
        nonlocal end
        offsets[slot.name] = end
        end += -(-slot.type.size // ALIGNED) * ALIGNED

    for group in program.updates:
        begin = end
        for name in group.parameters:
            add(slots[name])
        groups[group.number] = (begin, end)
    trained = end = end if end < MANY_ROWS else -(-end // ROW) * ROW
    for slot in program.parameters:
        if slot.name not in offsets:
            add(slot)
    return Layout(offsets, {name: slot.type.shape for name, slot in slots.items()}, groups, trained, end)


@dataclass(frozen=True)
class Plans:
    """The plans of all graphs that a run calls. `updates`: (group number, key) -> plan of the update. `decisions` are
    about the whole run; each plan has its own. `planning` is how they were made.
    `copies_state`: checkpoints are written from a copy of the state, for which the run has the memory. `data_bytes`:
    of the training data that a device with memory of its own holds, where it gathers batches from them. `joined`: forms
    of epilogues (`paren.plan.epilogue`) that are one step with their products, in all graphs."""

    initialize: Plan
    accumulate: Plan
    finish: Plan
    evaluate: Plan
    updates: Mapping[tuple[int, str], Plan]
    diagnostics: Mapping[str, Plan]
    decisions: tuple[Decision, ...] = ()
    planning: Planning = PLAIN
    copies_state: bool = False
    data_bytes: int = 0
    joined: frozenset[str] = frozenset()

    @property
    def all(self) -> dict[str, Plan]:
        """Every plan by the name that reports show."""
        named = {
            "initialize": self.initialize,
            "accumulate": self.accumulate,
            "finish": self.finish,
            "evaluate": self.evaluate,
        }
        named |= {update_name(number, key): plan for (number, key), plan in self.updates.items()}
        return named | {diagnosis_name(name): plan for name, plan in self.diagnostics.items()}


@dataclass(frozen=True, eq=False)
class RunGraph:
    """A graph that a run calls, not yet simplified. `written`: outputs that fill states without reading them. `held`:
    outputs that lie at given places of the arena."""

    graph: Graph
    written: tuple[str, ...] = ()
    held: Held = NOTHING_HELD


def run_graphs(program: Program, traits: Traits = CPU) -> dict[str, RunGraph]:
    """Every graph of a run by the name that reports show, at the sizes that it runs with, as a device with these traits
    computes it. Parameters of equal shape share the graph of their update: they have the same `RunGraph`."""
    attends = traits.attends
    layout = lay_out(program)
    span = program.loss.outputs["loss"].span
    graphs = {
        "initialize": RunGraph(program.initialize, tuple(slot.name for slot in program.parameters)),
        "accumulate": _accumulate(program, layout, attends),
        "finish": _filling(finish_graph(layout.trained, program.run.clip, span, program.scales_loss)),
        "evaluate": RunGraph(evaluation(program, attends)),
    }
    shared: dict[int, RunGraph] = {}
    for group in program.updates:
        for key, source in group.graphs.items():
            if id(source) not in shared:
                graph = update_graph(group, key, program.run.average)
                if group.flat:
                    begin, end = layout.groups[group.number]
                    graph = resize_flat(graph, end - begin)
                shared[id(source)] = RunGraph(graph, (RATE,))
            graphs[update_name(group.number, key)] = shared[id(source)]
    diagnoses = {name: RunGraph(diagnosis(program, name, attends)) for name in program.diagnostics}
    return graphs | {diagnosis_name(name): graph for name, graph in diagnoses.items()}


@uncollected()
def make_plans(program: Program, planning: Planning = PLAIN) -> Plans:
    """Plans everything; needs no device. The budget of `planning` holds for each graph's arena."""
    graphs = run_graphs(program, planning.traits)
    distinct = {
        id(each): plan_graph(each.graph, each.written, planning, each.held) for each in dict.fromkeys(graphs.values())
    }
    plans = {name: distinct[id(each)] for name, each in graphs.items()}
    return Plans(
        plans["initialize"],
        plans["accumulate"],
        plans["finish"],
        plans["evaluate"],
        {
            (group.number, key): plans[update_name(group.number, key)]
            for group in program.updates
            for key in group.graphs
        },
        {name: plans[diagnosis_name(name)] for name in program.diagnostics},
        (_update_decision(program), _call_decision(program), *_attention_decisions(program, planning.traits)),
        planning,
    )


def shrink_plans(program: Program, plans: Plans, budget: int) -> Plans:
    """The plans with those made again that take more than `budget` bytes beside the gradients, with values computed
    again as far as that helps. What is left may still be larger."""
    planning = replace(plans.planning, budget=budget)
    graphs = run_graphs(program, planning.traits)

    def shrunk(name: str, plan: Plan) -> Plan:
        each = graphs[name]
        least = budget + each.held.bytes
        if plan.arena_bytes <= least:
            return plan
        return plan_graph(each.graph, each.written, replace(planning, budget=least), each.held)

    return replace(
        plans,
        accumulate=shrunk("accumulate", plans.accumulate),
        evaluate=shrunk("evaluate", plans.evaluate),
        diagnostics={name: shrunk(diagnosis_name(name), plan) for name, plan in plans.diagnostics.items()},
        planning=planning,
    )


def _update_decision(program: Program) -> Decision:
    """The update waits for the whole gradient: what that is for, and the gradient's bytes."""
    run = program.run
    if program.calls > 1:
        reason, option = f"the gradient is the sum of {run.microbatches} microbatches", "microbatches"
    elif run.clip is not None:
        reason, option = ":clip needs the norm of the whole gradient", "clip"
    else:
        reason, option = "the whole gradient is checked to be finite first", "optimizer"
    return Decision(Pattern.UPDATE, False, reason, run.spans.get(option), 4 * lay_out(program).trained)


def _call_decision(program: Program) -> Decision:
    """Whether a step is one native call."""
    if adds(program):
        reason = "one call for each microbatch, and one that ends the step"
        return Decision(Pattern.CALL, False, reason, program.run.spans.get("microbatches"))
    return Decision(Pattern.CALL, True, "gradients, norm, check and all updates", program.run.spans.get("batch"))


def _attention_decisions(program: Program, traits: Traits) -> Iterator[Decision]:
    """For each attention of the training graph, on a device with one step for it: whether that computes it."""
    for node in program.loss.nodes if traits.attends else ():
        if node.op.name == "attention":
            scores = node.type.size // node.shape[-1] * node.args[1].shape[-3]
            reason = against(node, program.run.precision)
            text = "by the library, without scores in memory" if reason is None else reason
            yield Decision(Pattern.STEP, reason is None, text, node.span, DType.BFLOAT16.bytes * scores)


def update_name(number: int, key: str) -> str:
    """The name of the graph that updates a parameter of a group, or (key "") all of it."""
    return f"update {number} {key}".strip()


def diagnosis_name(name: str) -> str:
    """The name of the graph of a diagnostic."""
    return f"diagnose {name}"


def adds(program: Program) -> bool:
    """Whether a step makes several calls of `accumulate`, which add to its sums; the only one would fill them."""
    return program.calls > 1


def _accumulate(program: Program, layout: Layout, attends: bool) -> RunGraph:
    """The training graph. The gradients of a step's only call lie at the beginning of its arena, where the activations
    that a gradient is made from may have been before it."""
    if adds(program):
        return _filling(accumulation(program, adding=True, attends=attends))
    graph = accumulation(program, adding=False, attends=attends)
    names = {gradient_slot(name): 4 * offset for name, offset in layout.offsets.items() if offset < layout.trained}
    held = {name: names[name] for name in graph.outputs if name in names}
    written = tuple(name for name in graph.outputs if name not in held)
    return RunGraph(graph, written, Held(held, held_bytes(program, layout)))


def held_bytes(program: Program, layout: Layout) -> int:
    """Bytes of the gradients that lie at the beginning of the arena: all, if a step makes one call, else none."""
    return 0 if adds(program) else 4 * layout.trained


def _filling(graph: Graph) -> RunGraph:
    """A graph all of whose outputs are states."""
    return RunGraph(graph, tuple(graph.outputs))
