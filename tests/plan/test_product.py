"""Contractions of any layout are products over views: values against numpy's einsum, and what is not copied."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import SPAN, emit
from plan_runs import cpu, run_plan
from unplaced import run_placed, unplaced

from paren.ir.graph import Builder, Graph, Node
from paren.ir.op import Array
from paren.ir.types import DType, TensorType
from paren.plan.check import check_plan
from paren.plan.memory import place
from paren.plan.plan import Launch, Plan, Product
from paren.plan.product import View, contiguous, reshape_view
from paren.runtime.reference import ReferenceDevice

SPECS = (
    "ij,jk->ik", "ij,kj->ik", "ji,jk->ik", "ji,kj->ik",
    "ij,jk->ki", "bij,bjk->bik", "bij,bkj->bik", "ibj,bjk->bik", "ijb,kbj->bik", "bhij,bhjk->bhik",
    "bhij,bjhk->bihk", "bihj,bkhj->bhik", "bij,jk->bik", "bij,bik->jk", "bij,bij->b", "ij,ij->", "i,j->ij", "i,i->",
    "b,b->b", "bi,b->bi", "ijk,kjl->il", "ikj,kjl->il", "ijkl,lkjm->im", "bijk,kjbm->bmi", "ijkl,jl->ik", "gj,abj->gab",
)  # fmt: skip
LAYOUTS = ("plain", "turned", "sliced", "stepped", "flat", "grown", "computed")


class Expression:
    """A contraction of two operands that lie in memory as `layouts` say, and its value by numpy."""

    def __init__(self, spec: str, sizes: Mapping[str, int], layouts: tuple[str, str], dtype: DType = DType.FLOAT32):
        self.builder, self.dtype = Builder("contraction"), dtype
        self.values: dict[str, Array] = {}
        terms, result = spec.split("->")
        left, right = terms.split(",")
        shapes = [tuple(sizes[letter] for letter in term) for term in (left, right)]
        a, b = (self.operand(shape, layout) for shape, layout in zip(shapes, layouts, strict=True))
        both = [letter for letter in left if letter in right]
        batch = [letter for letter in both if letter in result]
        inner = [letter for letter in both if letter not in result]
        pairs = {
            "batch": tuple(tuple(term.index(letter) for letter in batch) for term in (left, right)),
            "contracting": tuple(tuple(term.index(letter) for letter in inner) for term in (left, right)),
        }
        node = emit(self.builder, "contract", a[0], b[0], **pairs)
        order = [*batch, *(x for x in left if x not in both), *(x for x in right if x not in both)]
        if order != list(result):
            node = emit(self.builder, "transpose", node, axes=tuple(order.index(letter) for letter in result))
        self.graph: Graph = self.builder.graph({"y": node})
        self.wanted = np.einsum(spec, a[1].astype(np.float64), b[1].astype(np.float64))

    def input(self, shape: tuple[int, ...]) -> tuple[Node, Array]:
        name = f"x{len(self.values)}"
        self.values[name] = np.random.default_rng(len(self.values)).normal(size=shape).astype(self.dtype.numpy)
        return self.builder.input(name, TensorType(self.dtype, shape), "batch", SPAN), self.values[name]

    def operand(self, shape: tuple[int, ...], layout: str) -> tuple[Node, Array]:
        def do(name: str, node: Node, **attrs: object) -> Node:
            return emit(self.builder, name, node, **attrs)  # type: ignore[arg-type]

        if layout == "turned":
            axes = tuple(reversed(range(len(shape))))
            node, value = self.input(shape[::-1])
            return do("transpose", node, axes=axes), value.T
        if layout in ("sliced", "stepped"):
            step = 2 if layout == "stepped" else 1
            node, value = self.input(tuple(step * size + 2 for size in shape))
            stop = tuple(step * size + 1 for size in shape)
            sliced = do("slice", node, start=(1,) * len(shape), stop=stop, step=(step,) * len(shape))
            return sliced, value[tuple(slice(1, end, step) for end in stop)]
        if layout == "flat":
            node, value = self.input((int(np.prod(shape)),))
            return do("reshape", node, shape=shape), value.reshape(shape)
        if layout == "grown":
            node, value = self.input((1, *shape, 1))
            return do("reshape", node, shape=shape), value.reshape(shape)
        node, value = self.input(shape)
        if layout == "computed":
            return self.builder.apply("mul", node, 2.0), value * 2
        return node, value

    def plan(self) -> Plan:
        plan = place(unplaced(self.graph))
        check_plan(plan)
        return plan

    def close(self, found: Array) -> None:
        assert found.dtype == self.dtype.numpy
        assert found.shape == self.wanted.shape
        tolerance = 1e-5 if self.dtype is DType.FLOAT32 else 1e-12
        np.testing.assert_allclose(found, self.wanted, rtol=tolerance, atol=tolerance)


def by_definition(plan: Plan, values: Mapping[str, Array]) -> Array:
    return run_placed(plan, values)["y"]


def on_cpu(plan: Plan, values: Mapping[str, Array]) -> Array:
    return run_plan(cpu(), plan, values)["y"]


def on_reference(plan: Plan, values: Mapping[str, Array]) -> Array:
    return run_plan(ReferenceDevice(), plan, values)["y"]


RUNNERS = [by_definition, on_cpu, on_reference]
PLAIN = dict(zip("abghijklm", (2, 3, 2, 3, 4, 5, 3, 2, 6), strict=True))


@pytest.mark.parametrize("run", RUNNERS)
@pytest.mark.parametrize("spec", SPECS)
def test_every_form_has_einsums_value(spec: str, run: Callable[[Plan, Mapping[str, Array]], Array]) -> None:
    expression = Expression(spec, PLAIN, ("plain", "plain"))
    expression.close(run(expression.plan(), expression.values))


@settings(max_examples=250)
@given(
    st.sampled_from(SPECS),
    st.lists(st.sampled_from((1, 1, 2, 3, 5)), min_size=9, max_size=9),
    st.tuples(st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS)),
    st.sampled_from((DType.FLOAT32, DType.FLOAT64)),
)
def test_every_layout_has_einsums_value(spec: str, sizes: list[int], layouts: tuple[str, str], dtype: DType) -> None:
    expression = Expression(spec, dict(zip("abghijklm", sizes, strict=True)), layouts, dtype)
    expression.close(by_definition(expression.plan(), expression.values))


@settings(max_examples=60)
@given(
    st.sampled_from(SPECS),
    st.lists(st.sampled_from((1, 2, 7)), min_size=9, max_size=9),
    st.tuples(st.sampled_from(LAYOUTS[:-1]), st.sampled_from(LAYOUTS[:-1])),
    st.sampled_from((DType.FLOAT32, DType.FLOAT64)),
)
def test_the_library_takes_every_layout(spec: str, sizes: list[int], layouts: tuple[str, str], dtype: DType) -> None:
    expression = Expression(spec, dict(zip("abghijklm", sizes, strict=True)), layouts, dtype)
    expression.close(on_cpu(expression.plan(), expression.values))


@pytest.mark.parametrize(
    ("spec", "layouts"),
    [
        ("ij,jk->ik", ("plain", "plain")),
        ("ij,jk->ik", ("turned", "turned")),
        ("ij,jk->ki", ("turned", "plain")),
        ("ij,jk->ik", ("sliced", "sliced")),
        ("ji,kj->ik", ("sliced", "turned")),
        ("bhij,bhjk->bhik", ("sliced", "sliced")),
        ("bhij,bjhk->bihk", ("plain", "plain")),
        ("bihj,bkhj->bhik", ("sliced", "sliced")),
        ("ikj,kjl->il", ("flat", "grown")),
        ("bij,bik->jk", ("plain", "plain")),
        ("bij,jk->bik", ("grown", "turned")),
    ],
)
def test_operands_and_results_are_not_copied(spec: str, layouts: tuple[str, str]) -> None:
    plan = Expression(spec, PLAIN, layouts).plan()
    assert [type(step) for step in plan.steps] == [Product]


@pytest.mark.parametrize(
    ("spec", "layouts", "copies"),
    [
        ("ij,jk->ik", ("stepped", "plain"), 1),  # no stride of 1
        ("ij,jk->ik", ("stepped", "stepped"), 2),
        ("ijk,kjl->il", ("plain", "plain"), 1),  # the contracted axes lie in other orders
    ],
)
def test_what_no_product_takes_is_copied_once(spec: str, layouts: tuple[str, str], copies: int) -> None:
    plan = Expression(spec, PLAIN, layouts).plan()
    assert [type(step) for step in plan.steps] == [*[Launch] * copies, Product]


def test_axes_that_lie_behind_one_another_are_one() -> None:
    """[b i j] by [j k] is one product of b i rows; heads are loops."""
    (step,) = Expression("bij,jk->bik", PLAIN, ("plain", "plain")).plan().steps
    assert isinstance(step, Product)
    assert (step.m, step.n, step.k, step.batch) == (12, 3, 5, ())
    (step,) = Expression("bhij,bjhk->bihk", PLAIN, ("plain", "plain")).plan().steps
    assert isinstance(step, Product)
    assert (step.m, step.n, step.k, step.batch) == (4, 3, 5, (3, 3))


@settings(max_examples=300)
@given(st.integers(0, 10**9))
def test_views_of_reshapes_are_numpys(seed: int) -> None:
    """`reshape_view` finds the elements wherever it gives a view; it gives one for all contiguous arrays."""
    random = np.random.default_rng(seed)

    def cut(total: int) -> tuple[int, ...]:
        parts: list[int] = []
        while total > 1:
            divisors = [d for d in range(2, total + 1) if total % d == 0]
            parts += [1] * int(random.integers(0, 2)) + [int(random.choice(divisors))]
            total //= parts[-1]
        return tuple(parts) + (1,) * int(random.integers(0, 2))

    shape, target = cut(24), cut(24)
    order = tuple(int(i) for i in random.permutation(len(shape)))
    flat = np.arange(24)
    memory = flat.reshape(tuple(shape[i] for i in order)).transpose(np.argsort(order))  # has `shape`
    node = Builder("view").input("x", TensorType(DType.FLOAT32, (24,)), "batch", SPAN)
    strides = tuple(stride // flat.itemsize for stride in memory.strides)
    view = reshape_view(View(node, strides, 0), shape, target)
    if order == tuple(range(len(shape))):
        assert reshape_view(View(node, contiguous(shape), 0), shape, target) is not None
    if view is not None:
        seen = np.lib.stride_tricks.as_strided(flat, target, [stride * flat.itemsize for stride in view.strides])
        np.testing.assert_array_equal(seen, memory.reshape(target))
