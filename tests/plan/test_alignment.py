"""Padding of products: the same numbers, rows that begin on 16 bytes, and nothing changed where they do already."""

from __future__ import annotations

import numpy as np
import pytest
from networks import F32, batch, emit, matmul, reduce_last, softmax, state, total
from plan_runs import cpu, run_on_cpu, run_plan

from paren.ir.evaluate import evaluate
from paren.ir.graph import Builder, Graph
from paren.ir.op import Array
from paren.passes.gradient import differentiate
from paren.passes.precision import set_precision
from paren.pipeline import prepare
from paren.plan.alignment import ELEMENTS, align_products, aligned
from paren.plan.check import check_plan
from paren.plan.lower import lower
from paren.plan.memory import place
from paren.plan.plan import Loop, Product
from paren.plan.tile import tile
from paren.plan.traits import TileSizes


def head(vocabulary: int, rows: int = 6, width: int = 8, turned: bool = False) -> Graph:
    """Logits of a tied or of a turned table, what a softmax makes of them, and all gradients, in bfloat16."""
    builder = Builder("head")
    table = state(builder, "table", *((width, vocabulary) if turned else (vocabulary, width)))
    x = batch(builder, "x", 2, rows, width)
    logits = matmul(builder, x, table if turned else emit(builder, "transpose", table, axes=(1, 0)))
    shares = softmax(builder, logits)
    loss = total(builder, builder.apply("log", reduce_last(builder, "sum", builder.apply("mul", shares, shares))))
    to_table, to_x = differentiate(builder, loss, [table, x])
    slot = state(builder, "gradient", *table.shape)
    outputs = {"loss": loss, "gradient": builder.apply("add", slot, to_table), "to x": to_x}
    return prepare(set_precision(builder.graph(outputs), "bfloat16", ["gradient"]))


def values_of(graph: Graph) -> dict[str, Array]:
    generator = np.random.default_rng(0)
    return {str(node.attrs["name"]): generator.normal(size=node.shape).astype(np.float32) for node in graph.inputs}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("vocabulary", [257, 300, 4099])
def test_padded_products_mean_the_same(vocabulary: int, turned: bool) -> None:
    graph = head(vocabulary, turned=turned)
    padded = align_products(graph)
    values = values_of(graph)
    wanted = evaluate(graph, values)
    for found in (evaluate(padded, values), run_on_cpu(padded, values)):
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("vocabulary", [257, 300, 4099])
def test_every_matrix_of_a_padded_plan_begins_its_rows_on_sixteen_bytes(vocabulary: int, turned: bool) -> None:
    def products(graph: Graph) -> list[Product]:
        return [step for step in lower(graph).steps if isinstance(step, Product)]

    def leading(product: Product) -> list[int]:
        return [matrix.leading for matrix in (product.a, product.b, product.c)]

    graph = head(vocabulary, turned=turned)
    assert any(size % ELEMENTS for product in products(graph) for size in leading(product))
    padded = products(align_products(graph))
    assert len(padded) == len(products(graph)) == 3
    for product in padded[:2]:
        assert all(size % ELEMENTS == 0 for size in leading(product))
    assert all(product.k % ELEMENTS == 0 or product.k < 32 * ELEMENTS for product in padded)


def test_a_table_is_padded_once_for_all_its_products() -> None:
    padded = align_products(head(4099))
    assert sum(node.op.name == "pad" and node.shape == (4160, 8) for node in padded.nodes) == 1


def test_a_padded_head_is_cut_into_chunks_of_rows_all_the_same() -> None:
    graph = align_products(head(300, rows=64))
    whole = lower(graph)
    cut = tile(whole, TileSizes(smallest=1 << 12, sequential=1 << 14, least_rows=8, lanes=0))
    loops = [step for step in cut.steps if isinstance(step, Loop)]
    assert len(loops) == 1
    assert len(loops[0].body) > len(loops[0].steps)
    values = values_of(graph)
    plans = [place(plan) for plan in (whole, cut)]
    for plan in plans:
        check_plan(plan)
    wanted, found = (run_plan(cpu(), plan, values) for plan in plans)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("size", [1, 7, 255, 256, 768, 4096, 50304])
def test_a_size_that_is_small_or_even_stays(size: int) -> None:
    assert aligned(size) == size


def test_sizes_grow_to_whole_vectors_and_large_ones_to_whole_lines() -> None:
    assert [aligned(size) for size in (257, 1001, 4095, 4097, 50257)] == [264, 1008, 4096, 4160, 50304]


def test_graphs_with_nothing_to_pad_stay_as_they_are() -> None:
    graph = head(512)
    assert [(node.op.name, node.shape) for node in align_products(graph).nodes] == [
        (node.op.name, node.shape) for node in graph.nodes
    ]
    builder = Builder("float32")
    product = matmul(builder, batch(builder, "x", 4, 300), state(builder, "w", 300, 301, dtype=F32))
    whole = builder.graph({"y": product})
    assert [node.shape for node in align_products(whole).nodes] == [node.shape for node in whole.nodes]
