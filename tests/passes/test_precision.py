"""What `:precision bfloat16` rounds, and what it leaves alone; what the new graph gives is its definition in numpy."""

from __future__ import annotations

import numpy as np
import pytest
from networks import F32, SPAN, batch, emit, layer_norm, linear, matmul, softmax, state, total

from paren.ir.evaluate import evaluate
from paren.ir.graph import Builder, Graph, Node
from paren.ir.op import Array
from paren.ir.types import DType
from paren.ir.verify import verify
from paren.passes.gradient import differentiate
from paren.passes.precision import set_precision
from paren.passes.simplify import simplify

HALF = DType.BFLOAT16


def r(values: Array) -> Array:
    """Rounded to bfloat16, in float32."""
    return values.astype(HALF.numpy).astype(np.float32)


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def training(builder: Builder, loss: Node) -> Graph:
    """Loss and gradients added to their states, as a run accumulates them."""
    parameters = [node for node in builder.inputs if node.attrs["role"] == "state"]
    outputs = {"loss": loss}
    for node, gradient in zip(parameters, differentiate(builder, loss, parameters), strict=True):
        slot = state(builder, f"gradient:{node.attrs['name']}", *node.shape)
        outputs[str(slot.attrs["name"])] = builder.emit("add", (slot, gradient), {}, SPAN)
    return builder.graph(outputs)


def rounded(graph: Graph) -> Graph:
    made = set_precision(graph, "bfloat16", [name for name in graph.outputs if name.startswith("gradient:")])
    verify(made, "precision")
    return made


def products(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op.name == "contract"]


def test_off_changes_nothing() -> None:
    builder = Builder("net")
    graph = builder.graph({"y": matmul(builder, batch(builder, "x", 2, 3), state(builder, "w", 3, 4))})
    assert set_precision(graph, "off") is graph


def test_operands_and_results_of_products_are_rounded() -> None:
    builder = Builder("net")
    graph = rounded(builder.graph({"y": linear(builder, batch(builder, "x", 2, 3), "l", 4)}))
    (product,) = products(graph)
    assert [arg.dtype for arg in product.args] == [HALF, HALF]
    assert product.dtype is F32
    values = {"x": normal(0, 2, 3), "l.weight": normal(1, 3, 4), "l.bias": normal(2, 4)}
    found = evaluate(graph, values)["y"]
    np.testing.assert_array_equal(found, r(r(values["x"]) @ r(values["l.weight"])) + values["l.bias"])


def test_gradients_of_parameters_are_sums_in_float32() -> None:
    """Of a linear layer, of a table that a product shares, of a slice, and of a parameter that is repeated."""
    builder = Builder("net")
    x, table = batch(builder, "x", 4, 6), state(builder, "table", 8, 6)
    w, row = state(builder, "w", 6, 6), state(builder, "row", 6)
    ids = batch(builder, "ids", 4, dtype=DType.INT32)
    h = builder.apply("add", matmul(builder, x, w), emit(builder, "take", table, ids))
    part = emit(builder, "slice", w, start=(0, 0), stop=(6, 3), step=(1, 1))
    h = builder.apply("add", h, emit(builder, "sum", matmul(builder, h, part), axes=(0, 1)))
    repeated = emit(builder, "broadcast", row, shape=(4, 6), axes=(1,))
    scores = emit(builder, "contract", h, repeated, batch=((0,), (0,)), contracting=((1,), (1,)))
    logits = emit(builder, "contract", h, table, batch=((), ()), contracting=((1,), (1,)))
    loss = builder.apply(
        "add", total(builder, softmax(builder, logits)), total(builder, builder.apply("mul", scores, scores))
    )
    graph = rounded(training(builder, loss))
    exact = {node for node in products(graph) if not any(u.dtype is HALF for u in users(graph, node))}
    assert len(exact) == 4  # of w twice, of the table, of the row, whose gradients are summed over the rows
    for node in exact:
        assert all(
            user.op.name in ("add", "sum", "pad", "scatter_add", "transpose", "reshape") for user in users(graph, node)
        )


def users(graph: Graph, node: Node) -> list[Node]:
    return [other for other in graph.nodes if node in other.args]


def test_a_value_that_a_product_takes_is_rounded_for_its_other_uses() -> None:
    """The gradient of tanh, and the sum that is a bias's gradient, see what the products see."""
    builder = Builder("net")
    x = batch(builder, "x", 5, 3)
    h = builder.apply("tanh", linear(builder, x, "l", 4))
    loss = total(builder, matmul(builder, h, state(builder, "v", 4, 1)))
    graph = rounded(training(builder, loss))
    names = {"x": (5, 3), "l.weight": (3, 4), "l.bias": (4,), "v": (4, 1)}
    values = {name: normal(i, *shape) for i, (name, shape) in enumerate(names.items())}
    values |= {f"gradient:{name}": normal(9, *shape) for name, shape in names.items() if name != "x"}
    found = evaluate(graph, values)
    x16, w16, v16 = r(values["x"]), r(values["l.weight"]), r(values["v"])
    h16 = r(np.tanh(r(x16 @ w16) + values["l.bias"]))
    ones = np.ones((5, 1), np.float32)
    g16 = r(r(ones @ v16.T) * (1 - h16 * h16))
    np.testing.assert_allclose(found["loss"], np.sum(r(h16 @ v16)), rtol=1e-6)
    np.testing.assert_allclose(found["gradient:v"] - values["gradient:v"], h16.T @ ones, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        found["gradient:l.weight"] - values["gradient:l.weight"], x16.T @ g16, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(found["gradient:l.bias"] - values["gradient:l.bias"], g16.sum(0), rtol=1e-5, atol=1e-6)


def test_a_stream_of_sums_stays_in_float32() -> None:
    """x + f(x) where f is a product: the product takes the rounded stream, the sum the exact one."""
    builder = Builder("net")
    x = builder.apply("exp", batch(builder, "x", 5, 4))
    y = builder.apply("add", x, matmul(builder, x, state(builder, "w", 4, 4)))
    graph = rounded(builder.graph({"y": y}))
    values = {"x": normal(0, 5, 4), "w": normal(1, 4, 4)}
    exact = np.exp(values["x"])
    np.testing.assert_array_equal(evaluate(graph, values)["y"], exact + r(r(exact) @ r(values["w"])))


def test_comparisons_see_exact_values() -> None:
    """The gradient of a maximum finds it, although it is rounded for the product that takes it."""
    builder = Builder("net")
    x = builder.apply("exp", batch(builder, "x", 5, 4, 3))
    pooled = emit(builder, "max", x, axes=(2,))
    loss = total(builder, matmul(builder, pooled, state(builder, "w", 4, 2)))
    (gradient,) = differentiate(builder, loss, [x])
    graph = rounded(builder.graph({"gradient": gradient}))
    values = {"x": normal(0, 5, 4, 3), "w": normal(1, 4, 2)}
    found = evaluate(graph, values)["gradient"]
    highest = values["x"] == values["x"].max(2, keepdims=True)
    weights = r(np.ones((5, 2), np.float32) @ r(values["w"]).T)
    np.testing.assert_array_equal(found, np.where(highest, weights[:, :, None], 0))


def test_parameters_and_data_are_rounded_for_products_only() -> None:
    builder = Builder("net")
    x, w = batch(builder, "x", 4), state(builder, "w", 4)
    dot = emit(builder, "contract", x, w, batch=((), ()), contracting=((0,), (0,)))
    graph = rounded(builder.graph({"y": builder.apply("mul", builder.apply("mul", x, w), dot)}))
    values = {"x": normal(0, 4), "w": normal(1, 4)}
    wanted = values["x"] * values["w"] * r(np.asarray(r(values["x"]) @ r(values["w"])))
    np.testing.assert_array_equal(evaluate(graph, values)["y"], wanted)


def test_norms_and_softmax_compute_in_float32() -> None:
    builder = Builder("net")
    x = batch(builder, "x", 6, 8)
    y = softmax(builder, layer_norm(builder, x, "norm"))
    graph = builder.graph({"y": y})
    assert not any(node.dtype is HALF for node in rounded(graph).nodes)


def test_casts_go_before_views_and_widenings_after_them() -> None:
    """Heads of attention: the rounded projection is what transposes and slices are views of."""
    builder = Builder("net")
    x, w = batch(builder, "x", 6, 8), state(builder, "w", 8, 16)
    projected = matmul(builder, x, w)
    halves = [emit(builder, "slice", projected, start=(0, i), stop=(6, i + 8), step=(1, 1)) for i in (0, 8)]
    heads = [emit(builder, "transpose", emit(builder, "reshape", h, shape=(6, 2, 4)), axes=(1, 0, 2)) for h in halves]
    scores = emit(builder, "contract", *heads, batch=((0,), (0,)), contracting=((2,), (2,)))
    graph = rounded(builder.graph({"y": scores}))
    for node in graph.nodes:
        if node.op.name in ("slice", "transpose", "reshape"):
            assert node.dtype is HALF, node
    assert sum(node.op.name == "cast" and node.dtype is HALF for node in graph.nodes) == 4


def test_products_of_float64_and_products_the_program_rounds_itself_stay() -> None:
    builder = Builder("net")
    a, b = (batch(builder, name, 3, 3, dtype=DType.FLOAT64) for name in "ab")
    c, d = (emit(builder, "cast", batch(builder, name, 3, 3), dtype=HALF) for name in "cd")
    graph = builder.graph({"wide": matmul(builder, a, b), "own": matmul(builder, c, d)})
    values = {"a": normal(0, 3, 3).astype(np.float64), "b": normal(1, 3, 3).astype(np.float64)}
    values |= {"c": normal(2, 3, 3), "d": normal(3, 3, 3)}
    found = evaluate(rounded(graph), values)
    np.testing.assert_array_equal(found["wide"], values["a"] @ values["b"])
    np.testing.assert_array_equal(found["own"], r(values["c"]) @ r(values["d"]))


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e3, 1e30])
def test_extreme_values_round_like_others(scale: float) -> None:
    """The exponents of bfloat16 are float32's: nothing overflows that does not in float32."""
    builder = Builder("net")
    graph = rounded(builder.graph({"y": matmul(builder, batch(builder, "x", 4, 4), state(builder, "w", 4, 4))}))
    values = {"x": normal(0, 4, 4) * np.float32(scale), "w": normal(1, 4, 4)}
    found, wanted = evaluate(graph, values)["y"], values["x"].astype(np.float64) @ values["w"]
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, wanted, atol=0.03 * scale)


def test_the_pass_simplifies() -> None:
    """It may be given a graph as `assemble` makes it, `stop_gradient` included, and makes no double roundings."""
    builder = Builder("net")
    x, w = batch(builder, "x", 4, 4), state(builder, "w", 4, 4)
    h = emit(builder, "stop_gradient", matmul(builder, x, w))
    graph = rounded(builder.graph({"y": matmul(builder, matmul(builder, h, w), w)}))
    assert {node.op.name for node in graph.nodes} == {"input", "cast", "contract"}
    assert len(simplify(graph).nodes) == len(graph.nodes)
    assert sum(node.op.name == "cast" for node in graph.nodes) == 2 + 3 + 1
