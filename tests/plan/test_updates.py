"""Sums added to a state slot in place, and what must not be; kernels that would wait for themselves; reasons."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from networks import SPAN, batch, emit, matmul, over_rows, reduce_last, state
from unplaced import run_placed, unplaced

from paren.ir.evaluate import evaluate
from paren.ir.graph import Builder, Graph, Node
from paren.ir.types import DType
from paren.plan import fuse
from paren.plan.check import check_plan
from paren.plan.memory import place
from paren.plan.plan import Launch, Place, Plan, Product


def checked(graph: Graph) -> Plan:
    """The placed plan, after its value was compared with the definition."""
    plan = place(unplaced(graph))
    check_plan(plan)
    generator = np.random.default_rng(3)
    values = {}
    for node in graph.inputs:
        drawn = generator.normal(size=node.shape) if node.dtype.is_float else generator.integers(0, 4, node.shape)
        values[str(node.attrs["name"])] = np.asarray(drawn).astype(node.dtype.numpy)
    found = run_placed(plan, values)
    for name, wanted in evaluate(graph, values).items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-5, err_msg=name)
    return plan


def in_place(plan: Plan) -> int:
    """Steps that add to a slot: products, and scatters."""
    slots = {buffer.id for buffer in plan.buffers if buffer.place is Place.STATE}
    products = [s for s in plan.steps if isinstance(s, Product) and s.accumulate and s.c.buffer in slots]
    scatters = [s for s in plan.steps if isinstance(s, Launch) and s.kernel.name == "scatter_add"]
    return len(products) + sum(any(id in slots for id in launch.writes) for launch in scatters)


class Slot:
    """A slot [6 4] with the things that are added to it."""

    def __init__(self) -> None:
        self.builder = Builder("slot")
        self.slot = state(self.builder, "slot", 6, 4)
        self.count = 0

    def product(self) -> Node:
        self.count += 1
        a, b = batch(self.builder, f"a{self.count}", 5, 6), batch(self.builder, f"b{self.count}", 5, 4)
        return emit(self.builder, "contract", a, b, batch=((), ()), contracting=((0,), (0,)))

    def scatter(self, base: Node) -> Node:
        self.count += 1
        ids = batch(self.builder, f"ids{self.count}", 7, dtype=DType.INT32)
        updates = batch(self.builder, f"u{self.count}", 7, 4)
        return emit(self.builder, "scatter_add", base, ids, updates)

    def zeros(self) -> Node:
        return self.builder.broadcast(self.builder.constant(0.0, DType.FLOAT32, SPAN), (6, 4))

    def add(self, *terms: Node) -> Node:
        result = terms[0]
        for term in terms[1:]:
            result = self.builder.apply("add", result, term)
        return result

    def plan(self, value: Node, **others: Node) -> Plan:
        return checked(self.builder.graph({"slot": value, **others}))


IN_PLACE: dict[str, tuple[Callable[[Slot], Node], int]] = {
    "a product": (lambda s: s.add(s.slot, s.product()), 1),
    "a product first": (lambda s: s.add(s.product(), s.slot), 1),
    "two products": (lambda s: s.add(s.slot, s.product(), s.product()), 2),
    "a sum of products": (lambda s: s.add(s.slot, s.add(s.product(), s.product())), 2),
    "a scatter into the slot": (lambda s: s.scatter(s.slot), 1),
    "a scatter into zeros": (lambda s: s.add(s.slot, s.scatter(s.zeros())), 1),
    "scatters into one another": (lambda s: s.scatter(s.scatter(s.slot)), 2),
    "a scatter into a product": (lambda s: s.add(s.slot, s.scatter(s.product())), 2),
    "a product into a scatter": (lambda s: s.add(s.scatter(s.slot), s.product()), 2),
    "a product turned": (
        lambda s: s.add(s.slot, emit(s.builder, "transpose", turned(s), axes=(1, 0))),
        1,
    ),
}


def turned(slot: Slot) -> Node:
    a, b = batch(slot.builder, "a", 5, 4), batch(slot.builder, "b", 5, 6)
    return emit(slot.builder, "contract", a, b, batch=((), ()), contracting=((0,), (0,)))


@pytest.mark.parametrize("form", IN_PLACE)
def test_contractions_and_scatters_are_added_to_the_slot_itself(form: str) -> None:
    slot = Slot()
    make, steps = IN_PLACE[form]
    plan = slot.plan(make(slot))
    assert in_place(plan) == len(plan.steps) == steps
    assert plan.arena_bytes == 0


BESIDE: dict[str, Callable[[Slot], tuple[Node, dict[str, Node]]]] = {
    "the product is an output": lambda s: (lambda p: (s.add(s.slot, p), {"p": p}))(s.product()),
    "the product is used twice": lambda s: (lambda p: (s.add(s.slot, p), {"q": s.builder.apply("exp", p)}))(
        s.product()
    ),
    "the product is added twice": lambda s: (lambda p: (s.add(s.slot, p, p), {}))(s.product()),
    "the sum is another output": lambda s: (lambda t: (t, {"t": t}))(s.add(s.slot, s.product())),
    "the sum is used": lambda s: (lambda t: (t, {"t": s.builder.apply("neg", t)}))(s.add(s.slot, s.product())),
    "an inner sum is an output": lambda s: (lambda t: (s.add(t, s.product()), {"t": t}))(s.add(s.slot, s.product())),
    "the slot is used": lambda s: (s.add(s.slot, s.product()), {"before": s.builder.apply("exp", s.slot)}),
    "the slot is an output": lambda s: (s.add(s.slot, s.product()), {"before": s.slot}),
    "the slot is added twice": lambda s: (s.add(s.slot, s.product(), s.slot), {}),
    "an elementwise value is added too": lambda s: (
        s.add(s.slot, s.product(), s.builder.apply("exp", batch(s.builder, "x", 6, 4))),
        {},
    ),
    "the slot is scaled": lambda s: (s.add(s.builder.apply("mul", s.slot, 0.5), s.product()), {}),
    "the product is scaled": lambda s: (s.add(s.slot, s.builder.apply("mul", s.product(), 0.5)), {}),
}


@pytest.mark.parametrize("form", BESIDE)
def test_other_sums_are_computed_beside_the_slot(form: str) -> None:
    slot = Slot()
    value, others = BESIDE[form](slot)
    assert in_place(slot.plan(value, **others)) == 0


def test_a_product_that_reads_the_slot_is_not_added_early() -> None:
    """slot + slot^T slot: the product needs the old content."""
    builder = Builder("self")
    slot = state(builder, "slot", 4, 4)
    product = emit(builder, "contract", slot, slot, batch=((), ()), contracting=((0,), (0,)))
    assert in_place(checked(builder.graph({"slot": builder.apply("add", slot, product)}))) == 0


def test_a_scatter_of_what_the_slot_gave_is_not_added_early() -> None:
    builder = Builder("self")
    slot, ids = state(builder, "slot", 6, 4), batch(builder, "ids", 7, dtype=DType.INT32)
    rows = emit(builder, "take", slot, ids)
    assert in_place(checked(builder.graph({"slot": emit(builder, "scatter_add", slot, ids, rows)}))) == 0


# Cycles -------------------------------------------------------------------------------------------------------------


def test_a_kernel_does_not_wait_for_a_product_of_its_own_result() -> None:
    """exp x and exp x + (exp x) w have one shape, and the second reads the first, but a product stands between."""
    builder = Builder("cycle")
    x, w = state(builder, "x", 8, 8), state(builder, "w", 8, 8)
    first = builder.apply("exp", x)
    plan = checked(builder.graph({"first": first, "y": builder.apply("add", first, matmul(builder, first, w))}))
    assert [type(step) for step in plan.steps] == [Launch, Product, Launch]
    assert [refusal.reason for refusal in plan.refusals] == [
        "a product is a step of its own",
        "another kernel stands between them",
    ]


def test_a_kernel_does_not_wait_for_a_chain_of_kernels() -> None:
    """The column sum of a map, spread over it again: the third value needs the second, which needs the first."""
    builder = Builder("cycle")
    x = state(builder, "x", 8, 6)
    first = builder.apply("exp", x)
    columns = builder.apply("sqrt", emit(builder, "sum", first, axes=(0,)))
    y = builder.apply("div", first, emit(builder, "broadcast", columns, shape=(8, 6), axes=(1,)))
    plan = checked(builder.graph({"first": first, "y": y}))
    assert len(plan.steps) == 3
    assert "another kernel stands between them" in {refusal.reason for refusal in plan.refusals}


# Reasons ------------------------------------------------------------------------------------------------------------


def reasons(graph: Graph) -> list[str]:
    return [refusal.reason for refusal in checked(graph).refusals]


def test_reasons() -> None:
    builder = Builder("reasons")
    x = state(builder, "x", 64, 32)
    e = builder.apply("exp", x)
    column = emit(builder, "sum", e, axes=(0,))
    assert reasons(builder.graph({"e": e, "c": column})) == ["one runs down the columns, the other along the rows"]
    moved = emit(builder, "reshape", e, shape=(32, 64))
    assert reasons(builder.graph({"e": e, "m": builder.apply("neg", moved)})) == ["shapes (64, 32) and (32, 64) differ"]
    row = reduce_last(builder, "sum", e)
    whole = emit(builder, "sum", builder.apply("mul", row, row), axes=(0,))
    assert reasons(builder.graph({"r": row, "w": whole})) == ["rows (64,) and () differ"]
    shifted = emit(builder, "slice", e, start=(1, 0), stop=(64, 32), step=(1, 1))
    fewer = builder.apply("add", shifted, over_rows(builder, part(builder, row), (63, 32)))
    assert reasons(builder.graph({"r": row, "s": fewer})) == ["rows (64,) are not the first axes of (63, 32)"]
    square = state(builder, "square", 8, 8)
    f = builder.apply("exp", square)
    turned_ = builder.apply("add", emit(builder, "transpose", f, axes=(1, 0)), f)
    assert reasons(builder.graph({"f": f, "t": turned_})) == ["it reads the value at other rows than its own"]
    product = matmul(builder, x, state(builder, "w", 32, 8))
    assert reasons(builder.graph({"y": builder.apply("exp", product)})) == ["a product is a step of its own"]
    long = state(builder, "long", 20_000)
    g = builder.apply("exp", long)
    assert reasons(builder.graph({"g": g, "s": emit(builder, "sum", g, axes=(0,))})) == [
        "a long reduction with few rows is cut into chunks"
    ]
    cube = state(builder, "cube", 4, 5, 6)
    one, two = emit(builder, "sum", cube, axes=(0,)), emit(builder, "sum", cube, axes=(1,))
    spread = emit(builder, "broadcast", one, shape=(7, 5, 6), axes=(1, 2))
    assert reasons(builder.graph({"1": one, "2": two, "3": emit(builder, "sum", spread, axes=(1,))})) == [
        "the reductions run over different axes"
    ]


def part(builder: Builder, row: Node) -> Node:
    return emit(builder, "slice", row, start=(1,), stop=(64,), step=(1,))


def test_a_kernel_has_a_largest_number_of_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuse, "MOST_MEMBERS", 2)
    builder = Builder("many")
    x = state(builder, "x", 8)
    y = builder.apply("exp", x)
    outputs = {"a": y, "b": builder.apply("sin", y), "c": builder.apply("cos", y)}
    plan = checked(builder.graph(outputs))
    assert len(plan.steps) == 2
    assert [refusal.reason for refusal in plan.refusals] == ["the kernel has 2 results already"]


def test_a_kernel_has_a_largest_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuse, "DEEPEST_KERNEL", 2)
    builder = Builder("deep")
    y = builder.apply("exp", builder.apply("sin", state(builder, "x", 8)))
    plan = checked(builder.graph({"a": y, "b": builder.apply("sin", y)}))
    assert [refusal.reason for refusal in plan.refusals] == ["the kernel's expressions would be nested deeper than 2"]
