"""Simplifying keeps values, comes to rest, and does what each structural simplification says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import graphs, values_for

from paren.ir.evaluate import evaluate
from paren.ir.graph import Builder, Graph, Node
from paren.ir.types import DType, TensorType
from paren.ir.verify import verify
from paren.passes.simplify import simpler, simplify
from paren.passes.structure import STRUCTURAL
from paren.text.source import Source, Span

SPAN = Span(Source("simplify.paren", "(x)"), 0, 3)


@settings(max_examples=150)
@given(graphs(most=16), st.integers(0, 99))
def test_values_stay_and_no_work_is_added(graph: Graph, seed: int) -> None:
    simple = simplify(graph)
    verify(simple, "simplify")
    assert [node.attrs for node in simple.inputs] == [node.attrs for node in graph.inputs]
    values = values_for(graph, seed)
    expected = evaluate(graph, values)
    for name, value in evaluate(simple, values).items():
        np.testing.assert_allclose(value, expected[name], rtol=2e-5, atol=2e-5)
    # A sum over repeated elements becomes a product with their number.
    sums = sum(node.type.size for node in graph.nodes if node.op.name == "sum")
    assert work(simple) <= work(graph) + sums


@settings(max_examples=60)
@given(graphs(most=16))
def test_simplifying_twice_changes_nothing(graph: Graph) -> None:
    once = simplify(graph)
    assert show_shape(simplify(once)) == show_shape(once)


def work(graph: Graph) -> int:
    """Elements computed, those that only move aside."""
    return sum(node.type.size for node in graph.nodes if node.op.kind in ("elementwise", "contract", "index"))


def show_shape(graph: Graph) -> str:
    """The graph's text with nodes numbered by their order in it."""
    numbers = {node: position for position, node in enumerate(graph.nodes)}
    lines = [
        f"{node.op.name} {[numbers[arg] for arg in node.args]} {sorted(node.attrs.items(), key=lambda item: item[0])}"
        for node in graph.nodes
    ]
    return "\n".join(lines) + str([numbers[node] for node in graph.outputs.values()])


class Pair:
    """One expression made by a builder without rules and by one with all of them."""

    def __init__(self) -> None:
        self.builders = (Builder("plain"), Builder("simple", simpler))

    def input(self, *shape: int, dtype: DType = DType.FLOAT32) -> tuple[Node, Node]:
        name = f"x{len(self.builders[0].inputs)}"
        plain, simple = (builder.input(name, TensorType(dtype, shape), "batch", SPAN) for builder in self.builders)
        return plain, simple

    def constant(self, value: float | int | bool, dtype: DType, *shape: int) -> tuple[Node, Node]:
        plain, simple = (b.broadcast(b.constant(value, dtype, SPAN), shape) for b in self.builders)
        return plain, simple

    def emit(self, name: str, *args: tuple[Node, Node], **attrs: object) -> tuple[Node, Node]:
        plain, simple = (
            builder.emit(name, [arg[i] for arg in args], attrs, SPAN)  # type: ignore[arg-type]
            for i, builder in enumerate(self.builders)
        )
        return plain, simple

    def operations(self, result: tuple[Node, Node]) -> list[str]:
        """The operations that the simplified expression keeps, after a check that both have one value."""
        plain, simple = (self.builders[i].graph({"y": node}) for i, node in enumerate(result))
        verify(simple, "test")
        values = values_for(plain, 1)
        found, expected = evaluate(simple, values)["y"], evaluate(plain, values)["y"]
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
        return [node.op.name for node in simple.nodes if node.op.kind != "leaf"]


def contract_axes(a: tuple[int, ...], b: tuple[int, ...]) -> dict[str, object]:
    return {"batch": ((), ()), "contracting": (a, b)}


def test_constants_fold_through_broadcasts() -> None:
    pair = Pair()
    two, three = pair.constant(2.0, DType.FLOAT32, 4), pair.constant(3.0, DType.FLOAT32, 4)
    assert pair.operations(pair.emit("sub", pair.emit("mul", two, three), two)) == ["broadcast"]
    assert pair.operations(pair.emit("cast", pair.constant(2.7, DType.FLOAT32), dtype=DType.INT32)) == []


def test_a_constant_expression_that_is_nan_stays_at_its_place() -> None:
    builder = Builder("nan", simpler)
    assert builder.apply("log", builder.constant(-1.0, DType.FLOAT32, SPAN)).op.name == "log"


def test_elementwise_work_moves_before_a_broadcast() -> None:
    pair = Pair()
    wide = pair.emit("broadcast", pair.input(3), shape=(3, 5), axes=(0,))
    half = pair.constant(0.5, DType.FLOAT32, 3, 5)
    result = pair.emit("mul", pair.emit("exp", wide), half)
    assert pair.operations(result) == ["exp", "broadcast", "mul", "broadcast"]
    assert result[1].args[0].shape == (3,)


def test_operands_that_commute_make_one_node() -> None:
    pair = Pair()
    a, b = pair.input(3), pair.input(3)
    assert pair.operations(pair.emit("sub", pair.emit("add", a, b), pair.emit("add", b, a))) == ["add", "sub"]


def test_a_sum_with_a_scattered_gradient_is_scattered_into() -> None:
    pair = Pair()
    ids, updates, table = pair.input(5, dtype=DType.INT32), pair.input(5, 2), pair.input(4, 2)
    scattered = pair.emit("scatter_add", pair.constant(0.0, DType.FLOAT32, 4, 2), ids, updates)
    assert pair.operations(pair.emit("add", table, scattered)) == ["scatter_add"]
    assert pair.operations(pair.emit("add", scattered, table)) == ["scatter_add"]
    based = pair.emit("scatter_add", table, ids, updates)
    assert pair.operations(pair.emit("add", table, based)) == ["scatter_add", "add"]


@pytest.mark.parametrize(
    ("source", "middle", "target", "kept"),
    [
        (DType.FLOAT32, DType.FLOAT64, DType.FLOAT32, []),
        (DType.FLOAT64, DType.FLOAT32, DType.FLOAT64, ["cast", "cast"]),
        (DType.INT32, DType.INT64, DType.FLOAT32, ["cast"]),
        (DType.INT32, DType.FLOAT64, DType.UINT8, ["cast", "cast"]),
        (DType.INT32, DType.FLOAT64, DType.INT32, []),
        (DType.INT32, DType.FLOAT32, DType.INT32, ["cast", "cast"]),
        (DType.BOOL, DType.INT32, DType.FLOAT32, ["cast"]),
        (DType.INT32, DType.UINT8, DType.INT32, ["cast", "cast"]),
    ],
)
def test_only_exact_casts_vanish(source: DType, middle: DType, target: DType, kept: list[str]) -> None:
    pair = Pair()
    inner = pair.emit("cast", pair.input(6, dtype=source), dtype=middle)
    assert pair.operations(pair.emit("cast", inner, dtype=target)) == kept


def test_shapes_fold() -> None:
    pair = Pair()
    x = pair.input(2, 3)
    back = pair.emit("reshape", pair.emit("reshape", x, shape=(6,)), shape=(2, 3))
    assert pair.operations(back) == []
    assert pair.operations(pair.emit("transpose", pair.emit("transpose", x, axes=(1, 0)), axes=(1, 0))) == []
    spread = pair.emit(
        "broadcast", pair.emit("broadcast", x, shape=(2, 3, 1), axes=(0, 1)), shape=(4, 2, 3, 1), axes=(1, 2, 3)
    )
    assert pair.operations(spread) == ["broadcast"]
    inserted = pair.emit("broadcast", pair.emit("reshape", x, shape=(2, 1, 3)), shape=(2, 1, 3, 4), axes=(0, 1, 2))
    assert pair.operations(inserted) == ["broadcast"]
    turned = pair.emit("transpose", pair.emit("broadcast", x, shape=(4, 2, 3), axes=(1, 2)), axes=(1, 0, 2))
    assert pair.operations(turned) == ["broadcast"]
    one = pair.emit("reshape", pair.constant(1.5, DType.FLOAT32, 2, 3), shape=(6, 1))
    assert pair.operations(one) == ["broadcast"]


def test_slices_and_padding_fold() -> None:
    pair = Pair()
    x = pair.input(9)
    inner = pair.emit("slice", x, start=(1,), stop=(9,), step=(2,))
    assert pair.operations(pair.emit("slice", inner, start=(1,), stop=(4,), step=(2,))) == ["slice"]
    padded = pair.emit("pad", x, low=(2,), high=(3,), value=0.0)
    assert pair.operations(pair.emit("slice", padded, start=(2,), stop=(11,), step=(1,))) == []
    assert pair.operations(pair.emit("slice", padded, start=(1,), stop=(11,), step=(1,))) == ["pad", "slice"]
    assert pair.operations(pair.emit("pad", padded, low=(1,), high=(0,), value=0.0)) == ["pad"]
    assert pair.operations(pair.emit("pad", padded, low=(1,), high=(0,), value=1.0)) == ["pad", "pad"]
    assert pair.operations(pair.emit("pad", x, low=(0,), high=(0,), value=0.0)) == []
    assert pair.operations(
        pair.emit("slice", pair.constant(2.0, DType.FLOAT32, 4), start=(1,), stop=(3,), step=(1,))
    ) == ["broadcast"]
    assert pair.operations(pair.emit("concat", x, axis=0)) == []


@pytest.mark.parametrize("name", ["sum", "max", "min"])
def test_reductions_fold(name: str) -> None:
    pair = Pair()
    x = pair.input(2, 3, 4)
    assert pair.operations(pair.emit(name, x, axes=())) == []
    assert pair.operations(pair.emit(name, pair.emit(name, x, axes=(1,)), axes=(0, 1))) == [name]
    wide = pair.emit("broadcast", pair.input(3), shape=(2, 3, 4), axes=(1,))
    product = ["broadcast", "mul"] if name == "sum" else []
    assert pair.operations(pair.emit(name, wide, axes=(0, 2))) == product
    assert pair.operations(pair.emit(name, wide, axes=(0, 1, 2))) == (["sum", "mul"] if name == "sum" else [name])


def test_products_take_in_transpositions() -> None:
    pair = Pair()
    a, b = pair.input(3, 4), pair.input(2, 4)
    plain = pair.emit("contract", a, pair.emit("transpose", b, axes=(1, 0)), **contract_axes((1,), (0,)))
    assert pair.operations(plain) == ["contract"]
    product = pair.emit("contract", a, b, **contract_axes((1,), (1,)))
    assert pair.operations(pair.emit("transpose", product, axes=(1, 0))) == ["contract"]
    c = pair.input(2, 3, 4)
    turned = pair.emit("contract", pair.emit("transpose", c, axes=(1, 0, 2)), a, **contract_axes((2,), (1,)))
    assert pair.operations(turned) == ["transpose", "contract"]


@pytest.mark.parametrize("turned", [False, True])
def test_the_gradient_of_a_softmax_is_written_with_its_result(turned: bool) -> None:
    """p (g + r s) for e (g / s + r): the exponential is needed for the softmax itself only."""
    pair = Pair()

    def wide(row: tuple[Node, Node]) -> tuple[Node, Node]:
        return pair.emit("broadcast", row, shape=(3, 4), axes=(0,))

    power = pair.emit("exp", pair.input(3, 4))
    total, g, rest = wide(pair.emit("sum", power, axes=(1,))), pair.input(3, 4), wide(pair.input(3))
    share = pair.emit("div", g, total)
    factor = pair.emit("add", rest, share) if turned else pair.emit("add", share, rest)
    result = pair.emit("mul", factor, power) if turned else pair.emit("mul", power, factor)
    both = pair.emit("add", pair.emit("div", power, total), result)
    assert sorted(pair.operations(both)) == ["add", "add", "broadcast", "broadcast", "div", "exp", "mul", "mul", "sum"]
    other = wide(pair.emit("sum", pair.emit("exp", g), axes=(1,)))
    apart = pair.emit("mul", power, pair.emit("add", pair.emit("div", g, other), rest))
    assert apart[1].args[0] is power[1]


def test_of_two_ways_the_written_one_is_taken() -> None:
    pair = Pair()
    assert pair.operations(pair.emit("either", pair.emit("exp", pair.input(3)), pair.emit("neg", pair.input(3)))) == [
        "neg"
    ]


def test_every_structural_simplification_is_met_by_a_test() -> None:
    """The tests above are found to reach each function, so that none is dead."""
    reached: set[str] = set()
    original = {name: list(rules) for name, rules in STRUCTURAL.items()}
    try:
        for name, rules in original.items():
            STRUCTURAL[name] = [_recording(rule, reached) for rule in rules]
        test_operands_that_commute_make_one_node()
        test_a_sum_with_a_scattered_gradient_is_scattered_into()
        test_only_exact_casts_vanish(DType.INT32, DType.INT64, DType.FLOAT32, ["cast"])
        test_only_exact_casts_vanish(DType.INT32, DType.FLOAT64, DType.INT32, [])
        test_shapes_fold()
        test_slices_and_padding_fold()
        test_reductions_fold("sum")
        test_products_take_in_transpositions()
        test_the_gradient_of_a_softmax_is_written_with_its_result(False)
        test_of_two_ways_the_written_one_is_taken()
    finally:
        STRUCTURAL.update(original)
    known = {rule.__name__ for rules in original.values() for rule in rules}  # type: ignore[attr-defined]
    assert reached | {"broadcast_to_same"} == known


def _recording(rule, reached):  # type: ignore[no-untyped-def]
    def run(*arguments):  # type: ignore[no-untyped-def]
        result = rule(*arguments)
        if result is not None:
            reached.add(rule.__name__)
        return result

    return run
