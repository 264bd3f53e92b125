"""The page that lists the stages from a graph to a plan. Nothing else runs them.

| stage | from -> to | verified by |
|---|---|---|
| simplify | graph -> graph: algebra, common subexpressions, dead nodes | `ir.verify` |
| widening | graph -> graph: products of a type that the device does not multiply | `ir.verify` |
| portions | graph -> graph: sums over the examples of a small graph in equal portions, for a CPU | `ir.verify` |
| contractions | graph -> graph: operands in an order that products take | `ir.verify` |
| concatenation | graph -> graph: gradients of attention side by side, where attention is a step | `ir.verify` |
| alignment | graph -> graph: odd dimensions of products padded, where the device asks for it | `ir.verify` |
| fused | graph -> groups of nodes that share a kernel, with reasons | |
| lower | groups -> kernels and products over buffers | `plan.verify_kernel` |
| reuse | kernels -> kernels that keep expensive values between their stages | `plan.verify_kernel` |
| partial sums | sums down few columns -> parts of them, then their sums | `plan.verify_kernel` |
| schedule | steps in an order in which operands can be given up early | |
| tile | steps around a large short-lived value -> a loop over its tiles | `plan.check_loop` |
| rematerialization | steps run again, so that their results need not be kept | |
| place | buffers -> lifetimes and offsets | `plan.check`, which does not look at lifetimes |
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from paren.ir.graph import Graph
from paren.ir.identity import graph_key
from paren.ir.verify import verify
from paren.passes.simplify import simplify
from paren.plan.alignment import align_products
from paren.plan.check import check_plan
from paren.plan.concatenation import concatenate_gradients
from paren.plan.contractions import normalise_contractions
from paren.plan.lower import lower
from paren.plan.memory import NOTHING_HELD, Held, kernels_of, place
from paren.plan.partial_sums import cut_column_sums
from paren.plan.plan import Plan
from paren.plan.portions import is_small, sum_in_portions
from paren.plan.rematerialization import drop_cheap, fit
from paren.plan.reuse import reuse_values
from paren.plan.schedule import schedule
from paren.plan.tile import tile
from paren.plan.traits import CPU, Traits
from paren.plan.verify_kernel import verify_kernel
from paren.plan.widening import widen_products
from paren.runtime.cache import PlanCache
from paren.runtime.stored_plans import plan_once


def prepare(graph: Graph, traits: Traits = CPU) -> Graph:
    """The graph as the planner takes it: simplified, contractions normalised, products aligned, verified after each
    stage that changed it."""
    verify(graph, "assemble")
    graph = _verified(simplify, graph, "simplify")
    if not traits.multiplies_float16:
        graph = _verified(widen_products, graph, "widening")
    if traits.portions:
        graph = _verified(sum_in_portions, graph, "portions")
    graph = _verified(normalise_contractions, graph, "contractions")
    if traits.attends:
        graph = _verified(concatenate_gradients, graph, "concatenation")
    return _verified(align_products, graph, "alignment") if traits.aligns else graph


def _verified(stage: Callable[[Graph], Graph], graph: Graph, name: str) -> Graph:
    after = stage(graph)
    if after is not graph:
        verify(after, name)
    return after


@dataclass(frozen=True)
class Planning:
    """How graphs are planned. `patterns`: whether large values are cut into tiles, cheap ones made again, and products
    may be one step with the kernel after them; results agree to rounding without. `budget`: bytes of an arena, beyond
    which values are computed again instead of kept as far as that helps. `traits`: of the device that they run on.
    `uploads`: whether checkpoints go to a bucket, which takes memory beside the graphs, and so do `threads` of a CPU,
    as many as a run takes if nobody says for None. They and `cache`, where plans are kept, change none."""

    patterns: bool = True
    budget: int | None = None
    traits: Traits = CPU
    uploads: bool = False
    threads: int | None = field(default=None, compare=False, repr=False)
    cache: PlanCache | None = field(default=None, compare=False, repr=False)

    @property
    def notes(self) -> tuple[str, ...]:
        """What went wrong where plans are kept, in words."""
        return () if self.cache is None else tuple(self.cache.notes)


PLAIN = Planning()
MOST_KEPT = 48  # plans, those asked for last; a program has about ten, of up to 2 MB

_kept: dict[tuple[object, ...], Plan] | None = None


@contextmanager
def keeping_plans() -> Iterator[None]:
    """Equal graphs are planned once inside: programs that differ in a constant or two share the plans of most of their
    graphs, and with them the code that a device has loaded. Places in the text count, as messages show them."""
    global _kept
    before, _kept = _kept, {} if _kept is None else _kept
    try:
        yield
    finally:
        _kept = before


def plan_graph(
    graph: Graph, written_slots: Collection[str] = (), planning: Planning = PLAIN, held: Held = NOTHING_HELD
) -> Plan:
    """The placed and checked plan of a graph. `written_slots`: outputs that fill state slots without reading them.
    `held`: outputs that lie at given places of the arena."""
    if _kept is None:
        return _find_plan(graph, written_slots, planning, held)
    key = (graph_key(graph), tuple(written_slots), planning, repr(held))
    plan = _kept.pop(key, None)
    if plan is None:
        plan = _find_plan(graph, written_slots, planning, held)
        if len(_kept) >= MOST_KEPT:
            del _kept[next(iter(_kept))]
    _kept[key] = plan
    return plan


def _find_plan(graph: Graph, written_slots: Collection[str], planning: Planning, held: Held) -> Plan:
    make = partial(_plan, graph, written_slots, planning, held)
    if planning.cache is None:
        return make()
    return plan_once(planning.cache, graph, (tuple(written_slots), planning, held), make)


def _plan(graph: Graph, written_slots: Collection[str], planning: Planning, held: Held) -> Plan:
    traits = planning.traits if planning.patterns else replace(planning.traits, epilogues=False)
    prepared = prepare(graph, traits)
    late = traits.portions and is_small(prepared)
    plan = reuse_values(schedule(lower(prepared, traits), late=late))
    if traits.fill:
        plan = cut_column_sums(plan, traits.fill)
    if planning.patterns:
        plan = tile(plan, traits.tiles, again=traits.makes_again)
    if planning.patterns and traits.makes_again:
        plan = drop_cheap(plan, written_slots, held)
    if planning.budget is not None:
        plan = fit(plan, planning.budget, written_slots, held, prices=traits.prices)
    for kernel in kernels_of(plan).values():
        verify_kernel(kernel)
    placed = place(plan, written_slots, held, traits.epilogues)
    if planning.budget is not None and placed.arena_bytes > planning.budget:
        placed = place(plan, written_slots, held)  # nothing is run again for epilogues, nor refused
    check_plan(placed)
    return placed
