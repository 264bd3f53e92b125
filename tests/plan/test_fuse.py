"""What shares a kernel and what is stored, for the parts that networks are made of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from networks import (
    F32,
    SPAN,
    attention,
    batch,
    convolution,
    cross_entropy,
    dropout,
    emit,
    gelu,
    layer_norm,
    linear,
    matmul,
    over_rows,
    reduce_last,
    scalar,
    softmax,
    state,
    total,
)
from unplaced import run_unplaced, unplaced

from paren.ir.evaluate import evaluate
from paren.ir.graph import Builder, Graph, Node
from paren.ir.op import Array
from paren.ir.types import DType
from paren.passes.gradient import differentiate
from paren.passes.simplify import simplify
from paren.plan.memory import place
from paren.plan.plan import Launch, Place, Plan, Product


def values_for(graph: Graph) -> dict[str, Array]:
    """Normal floats and small integers, 0 to 2, which are ids of every table here."""
    generator = np.random.default_rng(1)
    values: dict[str, Array] = {}
    for node in graph.inputs:
        drawn = generator.normal(size=node.shape) if node.dtype.is_float else generator.integers(0, 3, node.shape)
        values[str(node.attrs["name"])] = np.asarray(drawn).astype(node.dtype.numpy)
    return values


def checked(graph: Graph) -> Plan:
    """The plan of the simplified graph, after its value was compared with the definition."""
    graph = simplify(graph)
    plan, values = unplaced(graph), values_for(graph)
    found = run_unplaced(plan, values)
    for name, wanted in evaluate(graph, values).items():
        largest = max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(found[name], wanted, rtol=3e-4, atol=3e-5 * largest, err_msg=name)
    return plan


def kernels(plan: Plan) -> list[str]:
    return [step.kernel.name for step in plan.steps if isinstance(step, Launch)]


def products(plan: Plan) -> list[Product]:
    return [step for step in plan.steps if isinstance(step, Product)]


def stored(plan: Plan) -> list[str]:
    """Operation and shape of every arena buffer."""
    return [
        f"{buffer.name.split()[-1]} {list(buffer.type.shape)}" for buffer in plan.buffers if buffer.place is Place.ARENA
    ]


def gradient(builder: Builder, loss: Node, *names: str) -> dict[str, Node]:
    """`d NAME` for state inputs, all of them if no name is given."""
    inputs = [n for n in builder.inputs if n.attrs["role"] == "state" and (not names or n.attrs["name"] in names)]
    return {f"d {n.attrs['name']}": g for n, g in zip(inputs, differentiate(builder, loss, inputs), strict=True)}


def test_softmax_is_one_kernel() -> None:
    builder = Builder("softmax")
    plan = checked(builder.graph({"y": softmax(builder, state(builder, "x", 5, 33))}))
    assert kernels(plan) == ["max_sum_div"]
    assert stored(plan) == ["div [5, 33]"]


def test_softmax_gradient_is_one_kernel() -> None:
    builder = Builder("softmax")
    y = softmax(builder, state(builder, "x", 5, 33))
    loss = total(builder, builder.apply("mul", y, batch(builder, "w", 5, 33)))
    plan = checked(builder.graph(gradient(builder, loss)))
    assert len(kernels(plan)) == 1
    assert stored(plan) == ["mul [5, 33]"]


def test_layer_norm_is_one_kernel() -> None:
    builder = Builder("norm")
    plan = checked(builder.graph({"y": layer_norm(builder, state(builder, "x", 4, 6, 24), "norm")}))
    assert kernels(plan) == ["sum_add"]
    assert stored(plan) == ["add [4, 6, 24]"]


def test_layer_norm_gradients_recompute_the_normal_value() -> None:
    """One kernel over rows, one over columns for gain and bias; between them only statistics of rows are stored."""
    builder = Builder("norm")
    x = state(builder, "x", 4, 6, 24)
    y = layer_norm(builder, x, "norm")
    loss = total(builder, builder.apply("mul", y, batch(builder, "w", 4, 6, 24)))
    plan = checked(builder.graph({"y": y, **gradient(builder, loss)}))
    assert len(kernels(plan)) == 2
    assert sorted(stored(plan)) == [
        "add [4, 6, 24]",  # y
        "add [4, 6, 24]",  # the gradient of x
        "rsqrt [4, 6]",
        "sum [24]",
        "sum [24]",
        "sum [4, 6]",
    ]


def test_cross_entropy_and_its_gradient_store_no_probabilities() -> None:
    builder = Builder("loss")
    logits, labels = state(builder, "logits", 6, 50), batch(builder, "labels", 6, dtype=DType.INT32)
    each = cross_entropy(builder, logits, labels)
    plan = checked(builder.graph({"loss": each}))
    assert len(kernels(plan)) == 1
    assert stored(plan) == ["neg [6]"]
    loss = total(builder, builder.apply("mul", each, batch(builder, "weight", 6)))
    plan = checked(builder.graph({"loss": each, **gradient(builder, loss)}))
    assert len(kernels(plan)) == 1
    assert sorted(stored(plan)) == ["add [6, 50]", "neg [6]"]


def adam(builder: Builder, size: int) -> Graph:
    def do(name: str, *operands: Node | float) -> Node:
        return builder.apply(name, *operands)

    p, m, v, g = (state(builder, name, size) for name in ("p", "m", "v", "g"))
    update = scalar(builder, "update")
    first = do("add", do("mul", m, 0.9), do("mul", g, 0.1))
    second = do("add", do("mul", v, 0.99), do("mul", do("mul", g, g), 0.01))
    one, low, high = (builder.constant(value, F32, SPAN) for value in (1.0, 0.9, 0.99))
    left = do("div", first, do("sub", one, do("pow", low, do("add", update, 1.0))))
    right = do("div", second, do("sub", one, do("pow", high, do("add", update, 1.0))))
    moved = do("sub", p, do("mul", do("div", left, do("add", do("sqrt", do("abs", right)), 1e-3)), 1e-2))
    return builder.graph({"p": moved, "m": first, "v": second})


def test_adam_is_one_kernel_with_three_stores_behind_one_for_its_scalars() -> None:
    plan = checked(adam(Builder("adam"), 1009))
    assert len(kernels(plan)) == 2
    scalars, vector = (step for step in plan.steps if isinstance(step, Launch))
    assert scalars.kernel.axes == (1,)
    assert sum(parameter.writes for parameter in vector.kernel.parameters) == 3


def test_attention_copies_no_head() -> None:
    """Queries, keys and values are read where the packed product lies, and heads are written side by side."""
    builder = Builder("attention")
    x = batch(builder, "x", 2, 5, 8)
    plan = checked(builder.graph({"y": attention(builder, x, "a", 2)}))
    packed, scores, mixed, out = products(plan)
    assert (packed.m, packed.n, packed.k, packed.batch) == (10, 24, 8, ())
    assert (scores.m, scores.n, scores.k, scores.batch) == (5, 5, 4, (2, 2))
    assert (scores.a.leading, scores.a.batch_strides, scores.b.offset) == (24, (120, 4), 8)
    assert (mixed.c.leading, mixed.c.batch_strides) == (8, (40, 4))
    assert (out.m, out.n, out.k, out.batch) == (10, 8, 8, ())
    assert kernels(plan) == ["add", "max_sum_div", "add"]


def test_training_attention_keeps_one_matrix_of_positions_a_layer() -> None:
    """The probabilities, which the product needs; not the scores. In the last kernel of a layer they meet two more."""
    builder = Builder("layers")
    x = batch(builder, "x", 2, 5, 8)
    for layer in range(3):
        x = builder.apply("add", x, attention(builder, x, f"a{layer}", 2))
    plan = place(checked(builder.graph(gradient(builder, total(builder, builder.apply("mul", x, x))))))
    wide = [buffer for buffer in plan.buffers if buffer.type.shape == (2, 2, 5, 5)]
    alive = [sum(buffer.first <= step <= buffer.last for buffer in wide) for step in range(len(plan.steps))]
    assert max(alive) == 5
    assert alive.index(5) > next(step for step, number in enumerate(alive) if number == 3)


def test_products_write_through_reshapes() -> None:
    """Heads that a contraction gives with an axis of size 1, and then side by side, are not copied."""
    builder = Builder("heads")
    weights, v = state(builder, "w", 2, 3, 1, 5, 5), state(builder, "v", 2, 3, 5, 4)
    mixed = emit(builder, "contract", weights, v, batch=((0, 1), (0, 1)), contracting=((4,), (2,)))
    heads = emit(builder, "reshape", mixed, shape=(2, 3, 5, 4))
    joined = emit(builder, "reshape", emit(builder, "transpose", heads, axes=(0, 2, 1, 3)), shape=(2, 5, 12))
    out = matmul(builder, joined, state(builder, "o", 12, 7))
    plan = checked(builder.graph({"y": out, "o": builder.apply("add", state(builder, "o2", 12, 7), 1.0)}))
    assert [type(step) for step in plan.steps if step.nodes[0].endswith("contract")] == [Product, Product]
    assert stored(plan) == ["transpose [2, 5, 3, 4]", "contract [2, 5, 7]", "add [12, 7]"]


def test_reshaped_gradients_accumulate_in_their_slot() -> None:
    builder = Builder("slot")
    x, g, slot = batch(builder, "x", 6, 4), batch(builder, "g", 6, 10), state(builder, "slot", 2, 5, 4)
    product = emit(builder, "contract", g, x, batch=((), ()), contracting=((0,), (0,)))
    plan = checked(
        builder.graph({"slot": builder.apply("add", slot, emit(builder, "reshape", product, shape=slot.shape))})
    )
    assert [product.accumulate for product in products(plan)] == [True]
    assert len(plan.steps) == 1


def test_dropout_masks_are_computed_again() -> None:
    builder = Builder("dropout")
    x = state(builder, "x", 4, 30)
    y = dropout(builder, linear(builder, x, "layer", 16), site=3)
    loss = total(builder, builder.apply("mul", y, batch(builder, "w", 4, 16)))
    plan = checked(builder.graph({"y": y, **gradient(builder, loss)}))
    assert not [text for text in stored(plan) if text.startswith(("threefry [4", "lt", "iota"))]


def test_gelu_is_computed_again_from_what_its_product_gave() -> None:
    builder = Builder("gelu")
    hidden = gelu(builder, linear(builder, batch(builder, "x", 6, 5), "first", 7))
    loss = total(builder, linear(builder, hidden, "second", 3))
    plan = checked(builder.graph({"loss": loss, **gradient(builder, loss)}))
    assert not [text for text in stored(plan) if text.startswith("tanh")]
    assert sum(text.endswith("[6, 7]") for text in stored(plan)) <= 4  # product, gelu, and the gradients of both


def test_sums_that_many_read_are_stored_once() -> None:
    builder = Builder("residual")
    x, y = state(builder, "x", 8, 16), state(builder, "y", 8, 16)
    both = builder.apply("add", x, y)
    outputs = {
        "normal": layer_norm(builder, both, "norm"),
        "product": linear(builder, both, "layer", 4),
        "columns": emit(builder, "sum", both, axes=(0,)),
    }
    plan = checked(builder.graph(outputs))
    assert stored(plan).count("add [8, 16]") == 2  # the sum and the normal value


def test_maps_of_one_shape_that_read_the_same_share_a_loop() -> None:
    builder = Builder("maps")
    x = state(builder, "x", 8, 16)
    plan = checked(builder.graph({name: builder.apply(name, x) for name in ("exp", "sin", "tanh")}))
    assert kernels(plan) == ["exp_sin_tanh"]


def test_bias_gradients_over_the_same_columns_share_a_kernel() -> None:
    builder = Builder("columns")
    x, y = batch(builder, "x", 9, 7), batch(builder, "y", 9, 7)
    sums = {
        "gain": emit(builder, "sum", builder.apply("mul", x, y), axes=(0,)),
        "bias": emit(builder, "sum", y, axes=(0,)),
    }
    plan = checked(builder.graph(sums))
    (launch,) = plan.steps
    assert isinstance(launch, Launch)
    assert launch.kernel.axes == (7, 9)
    assert launch.kernel.rows == 1


def test_a_long_sum_is_cut_into_chunks_by_its_shape() -> None:
    builder = Builder("long")
    x = batch(builder, "x", 20011)
    plan = checked(builder.graph({"square": emit(builder, "sum", builder.apply("mul", x, x), axes=(0,))}))
    assert kernels(plan) == ["chunks_sum", "total_sum"]
    assert stored(plan) == ["parts [5]", "sum []"]


def test_chunks_of_a_sum_over_a_matrix_lie_side_by_side() -> None:
    """Cut along its first axis: chunks of some columns of all rows would touch a line of memory for each row."""
    builder = Builder("long")
    x = batch(builder, "x", 212, 65536)
    plan = checked(builder.graph({"total": emit(builder, "sum", x, axes=(0, 1))}))
    assert stored(plan) == ["parts [212]", "sum []"]
    first = plan.steps[0]
    assert isinstance(first, Launch)
    assert first.kernel.axes == (212, 1, 65536) or first.kernel.axes == (212, 65536)


def test_gradients_accumulate_in_their_slot() -> None:
    """A tied table gets a product and a scatter, both straight into its slot."""
    builder = Builder("tied")
    table, slot = state(builder, "table", 11, 8), state(builder, "sum", 11, 8)
    ids = batch(builder, "ids", 3, 5, dtype=DType.INT32)
    logits = emit(
        builder, "contract", emit(builder, "take", table, ids), table, batch=((), ()), contracting=((2,), (1,))
    )
    each = cross_entropy(builder, emit(builder, "reshape", logits, shape=(15, 11)), batch_labels(builder, 15))
    (found,) = gradient(builder, total(builder, each), "table").values()
    plan = checked(builder.graph({"sum": builder.apply("add", slot, found)}))
    place = next(buffer.id for buffer in plan.buffers if buffer.name == "sum")
    assert plan.outputs == {"sum": place}
    assert [step.c.buffer for step in products(plan) if step.accumulate] == [place]
    scatters = [step for step in plan.steps if isinstance(step, Launch) and step.kernel.name == "scatter_add"]
    assert [place in step.buffers for step in scatters] == [True]


def batch_labels(builder: Builder, rows: int) -> Node:
    return batch(builder, "labels", rows, dtype=DType.INT32)


def test_a_sum_that_something_else_reads_is_not_hidden_in_its_slot() -> None:
    builder = Builder("shared")
    slot, x, w = state(builder, "sum", 4, 3), batch(builder, "x", 5, 4), batch(builder, "w", 5, 3)
    product = emit(builder, "contract", x, w, batch=((), ()), contracting=((0,), (0,)))
    plan = checked(builder.graph({"sum": builder.apply("add", slot, product), "product": product}))
    assert not [step for step in products(plan) if step.accumulate]


def small_network(builder: Builder) -> Node:
    image = batch(builder, "image", 3, 2, 6, 6)
    hidden = builder.apply("maximum", convolution(builder, image, "first", 4), 0.0)
    hidden = builder.apply("maximum", convolution(builder, hidden, "second", 5, stride=2), 0.0)
    features = emit(builder, "reshape", hidden, shape=(3, 45))
    return total(builder, cross_entropy(builder, linear(builder, features, "head", 3), batch_labels(builder, 3)))


def transformer(builder: Builder) -> Node:
    ids = batch(builder, "ids", 2, 5, dtype=DType.INT32)
    x = builder.apply("add", emit(builder, "take", state(builder, "tokens", 7, 8), ids), state(builder, "places", 5, 8))
    x = dropout(builder, x, 1)
    for layer in ("a", "b"):
        mixed = attention(builder, layer_norm(builder, x, f"{layer}.n"), f"{layer}.attention", 2)
        x = builder.apply("add", x, dropout(builder, mixed, 2))
        hidden = gelu(builder, linear(builder, layer_norm(builder, x, f"{layer}.m"), f"{layer}.up", 16))
        x = builder.apply("add", x, linear(builder, hidden, f"{layer}.down", 8))
    logits = emit(builder, "reshape", linear(builder, x, "head", 7), shape=(10, 7))
    return total(builder, cross_entropy(builder, logits, batch_labels(builder, 10)))


@pytest.mark.parametrize("network", [small_network, transformer])
@pytest.mark.parametrize("slots", [False, True])
def test_a_network_and_all_its_gradients_keep_their_value(network: Callable[[Builder], Node], slots: bool) -> None:
    builder = Builder("network")
    loss = network(builder)
    outputs = {"loss": loss}
    for name, found in gradient(builder, loss).items():
        outputs[name] = builder.apply("add", state(builder, name, *found.shape), found) if slots else found
    plan = checked(builder.graph(outputs))
    assert bool([step for step in products(plan) if step.accumulate]) is slots


def test_equal_layers_share_their_kernels() -> None:
    builder = Builder("layers")
    x = batch(builder, "x", 6, 8)
    for layer in range(4):
        x = builder.apply("add", x, gelu(builder, linear(builder, layer_norm(builder, x, f"n{layer}"), f"l{layer}", 8)))
    plan = checked(builder.graph({"y": x}))
    digests = [step.kernel.digest for step in plan.steps if isinstance(step, Launch)]
    assert len(digests) == 5
    assert len(set(digests)) == 3  # the first norm, three sums with the next layer's norm, the last sum


def test_a_refusal_says_why() -> None:
    builder = Builder("refusal")
    x = state(builder, "x", 64, 32)
    rows = builder.apply("sub", x, over_rows(builder, reduce_last(builder, "max", x), x.shape))
    plan = checked(builder.graph({"rows": rows, "columns": emit(builder, "sum", rows, axes=(0,))}))
    assert [(refusal.producer, refusal.consumer, refusal.reason) for refusal in plan.refusals] == [
        (
            "%3:sub:float32[64 32]",
            "%4:sum:float32[32]",
            "one runs down the columns, the other along the rows",
        )
    ]
