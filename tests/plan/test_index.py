"""Index maps against numpy, axes that reshapes split, and long reductions that are cut into chunks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import SPAN, emit, state
from plan_runs import cpu, run_plan
from unplaced import run_placed, unplaced

from paren.ir.evaluate import evaluate
from paren.ir.graph import Builder, Graph, Node
from paren.ir.types import DType, TensorType
from paren.plan.check import check_plan
from paren.plan.index import ZERO, CannotIndex, NeedsSplit, add, affine, interval, matching_runs, reshape
from paren.plan.kernel import Index, Kernel
from paren.plan.memory import place
from paren.plan.plan import Launch, Plan


def placed(graph: Graph) -> Plan:
    plan = place(unplaced(graph))
    check_plan(plan)
    return plan


def keeps_its_value(plan: Plan, graph: Graph, scale: float = 1.0) -> None:
    """By the definition and on the CPU."""
    generator = np.random.default_rng(0)
    values = {}
    for node in graph.inputs:
        drawn = generator.normal(size=node.shape) * scale
        values[str(node.attrs["name"])] = np.asarray(drawn).astype(node.dtype.numpy)
    wanted = evaluate(graph, values)
    for found in (run_placed(plan, values), run_plan(cpu(), plan, values)):
        for name, array in wanted.items():
            assert found[name].dtype == array.dtype
            tolerance = 1e-4 if array.dtype == np.float32 else 1e-11
            np.testing.assert_allclose(found[name], array, rtol=tolerance, atol=tolerance, err_msg=name)


# Index maps ---------------------------------------------------------------------------------------------------------

SIZES = (2, 3, 4)
indices = st.builds(
    lambda coefficients, constant: Index(tuple((i, c) for i, c in enumerate(coefficients) if c), constant),
    st.lists(st.integers(-3, 3), min_size=3, max_size=3),
    st.integers(-5, 5),
)


def values_of(index: Index, sizes: Sequence[int] = SIZES) -> np.ndarray:
    """The index at every point of the axes."""
    points = np.indices(sizes).reshape(len(sizes), -1)
    return np.asarray(index.constant + sum((c * points[axis] for axis, c in index.terms), np.zeros(prod(sizes), int)))


@given(indices, indices, st.integers(-3, 3), st.integers(-5, 5))
def test_arithmetic_of_indices(a: Index, b: Index, factor: int, constant: int) -> None:
    np.testing.assert_array_equal(values_of(add(a, b)), values_of(a) + values_of(b))
    np.testing.assert_array_equal(values_of(affine(a, factor, constant)), factor * values_of(a) + constant)
    reach = interval(a, SIZES)
    assert (reach.low, reach.high) == (values_of(a).min(), values_of(a).max())


@given(indices, indices)
def test_sums_are_normal(a: Index, b: Index) -> None:
    """Equal maps are equal values: axes ascend, no coefficient is 0."""
    total = add(a, b)
    assert total == add(b, a)
    assert [axis for axis, _ in total.terms] == sorted({axis for axis, c in total.terms if c})


@pytest.mark.parametrize("index", [Index(value=3), Index(((0, 1),), 0, 2)])
def test_gathered_and_divided_indices_only_pass_through(index: Index) -> None:
    assert affine(index, 1, 0) is index
    assert add(index, ZERO) is index
    assert add(ZERO, index) is index
    for refused in (lambda: affine(index, 2, 0), lambda: affine(index, 1, 1), lambda: add(index, Index(((1, 1),)))):
        with pytest.raises(CannotIndex):
            refused()


def factors(total: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes with `total` elements, with some sizes 1."""

    def cut(seed: int) -> tuple[int, ...]:
        random, parts, left = np.random.default_rng(seed), [], total
        while left > 1:
            parts += [1] * int(random.integers(0, 2))
            parts.append(int(random.choice([d for d in range(2, left + 1) if left % d == 0])))
            left //= parts[-1]
        return (*parts, *[1] * int(random.integers(0, 2)))

    return st.integers(0, 10**6).map(cut)


@given(factors(48), factors(48))
def test_matching_runs_cover_both_shapes_with_equal_products(shape: tuple[int, ...], target: tuple[int, ...]) -> None:
    runs = matching_runs(shape, target)
    assert [i for (a, b), _ in runs for i in range(a, b)] == list(range(len(shape)))
    assert [j for _, (a, b) in runs for j in range(a, b)] == list(range(len(target)))
    for (i, i_end), (j, j_end) in runs:
        assert prod(shape[i:i_end]) == prod(target[j:j_end])


@settings(max_examples=300)
@given(factors(48), factors(48))
def test_reshapes_find_the_element_after_splits(shape: tuple[int, ...], target: tuple[int, ...]) -> None:
    """With one axis a dimension at first; an axis is split as often as `reshape` asks for it."""
    parts = [[size] for size in shape]
    while True:
        sizes = [size for dimension in parts for size in dimension]
        source, axis = [], 0
        for dimension in parts:
            terms, step = [], 1
            for offset in reversed(range(len(dimension))):
                terms.append((axis + offset, step))
                step *= dimension[offset]
            source.append(Index(tuple(sorted(terms))))
            axis += len(dimension)
        try:
            found = reshape(source, shape, target, sizes)
            break
        except NeedsSplit as need:
            cut_in_two(parts, need)
        except CannotIndex:
            # No chain of splits: a border of `target` lies within a factor of `shape`, as 6 = 2 x 3 against 4.
            assert not _refinable(shape, target)
            return
    flat = sum(
        values_of(index, sizes) * stride
        for index, stride in zip(found, np.cumprod((1, *target[:0:-1]))[::-1] if target else (), strict=True)
    )
    np.testing.assert_array_equal(flat + np.zeros(48, int), np.arange(48))


def cut_in_two(parts: list[list[int]], need: NeedsSplit) -> None:
    """Splits an axis as asked; the split is a proper one."""
    owner, place_ = [(d, i) for d, dimension in enumerate(parts) for i in range(len(dimension))][need.axis]
    size = parts[owner][place_]
    assert 1 < need.inner < size
    assert size % need.inner == 0
    parts[owner][place_ : place_ + 1] = [size // need.inner, need.inner]


def _refinable(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether some cut of both shapes into factors is common: of any two borders one divides the other."""
    inner = [set(np.cumprod((1, *sizes[::-1])).tolist()) for sizes in (shape, target)]
    borders = sorted(inner[0] | inner[1])
    return all(b % a == 0 for a, b in pairwise(borders))


# Reshapes in kernels ------------------------------------------------------------------------------------------------


def kernel(plan: Plan) -> Kernel:
    (step,) = plan.steps
    assert isinstance(step, Launch)
    return step.kernel


def test_a_reshape_splits_the_axis_that_it_crosses() -> None:
    builder = Builder("split")
    x, y = state(builder, "x", 24), state(builder, "y", 4, 6)
    plan = placed(builder.graph({"z": builder.apply("add", emit(builder, "reshape", y, shape=(24,)), x)}))
    assert kernel(plan).axes == (24,)  # a view of y: nothing is split
    turned = emit(builder, "reshape", emit(builder, "transpose", y, axes=(1, 0)), shape=(24,))
    graph = builder.graph({"z": builder.apply("add", turned, x)})
    plan = placed(graph)
    assert kernel(plan).axes == (6, 4)
    keeps_its_value(plan, graph)


def test_a_stage_is_split_too() -> None:
    """The sum over 24 elements of a row that are 6 x 4 turned around."""
    builder = Builder("split")
    y, w = state(builder, "y", 3, 4, 6), state(builder, "w", 24)
    turned = emit(builder, "reshape", emit(builder, "transpose", y, axes=(0, 2, 1)), shape=(3, 24))
    graph = builder.graph({"z": emit(builder, "sum", builder.apply("mul", turned, w), axes=(1,))})
    plan = placed(graph)
    assert kernel(plan).axes == (3, 6, 4)
    keeps_its_value(plan, graph)


def test_two_reshapes_split_one_axis_twice() -> None:
    builder = Builder("split")
    a, b = state(builder, "a", 2, 12), state(builder, "b", 8, 3)
    flat = [emit(builder, "reshape", emit(builder, "transpose", n, axes=(1, 0)), shape=(24,)) for n in (a, b)]
    graph = builder.graph({"z": builder.apply("add", *flat)})
    plan = placed(graph)
    keeps_its_value(plan, graph)
    assert len(plan.steps) == 1
    assert kernel(plan).axes == (3, 4, 2)


def test_what_no_split_reaches_is_stored() -> None:
    """6 = 2 x 3 against 4: neither border divides the other."""
    builder = Builder("stored")
    a, b = state(builder, "a", 6, 4), state(builder, "b", 4, 6)
    flat = [emit(builder, "reshape", emit(builder, "transpose", n, axes=(1, 0)), shape=(24,)) for n in (a, b)]
    graph = builder.graph({"z": builder.apply("add", *flat)})
    plan = placed(graph)
    keeps_its_value(plan, graph)
    assert len(plan.steps) == 2


# Chunks -------------------------------------------------------------------------------------------------------------


def reduced(name: str, x: Node, builder: Builder, axes: tuple[int, ...]) -> Node:
    return emit(builder, name, x, **({"axis": axes[0]} if name.startswith("arg") else {"axes": axes}))


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64])
@pytest.mark.parametrize("size", [1, 4095, 16383, 16384, 16385, 100_003])
@pytest.mark.parametrize("name", ["sum", "max", "min", "argmax", "argmin"])
def test_reductions_of_a_vector(name: str, size: int, dtype: DType) -> None:
    """100,003 is prime: the last chunk is shorter. No row axis is left."""
    builder = Builder("vector")
    x = builder.input("x", TensorType(dtype, (size,)), "state", SPAN)
    graph = builder.graph({"y": reduced(name, builder.apply("mul", x, -2.0), builder, (0,))})
    plan = placed(graph)
    assert len(plan.steps) == (2 if size >= 16384 and not name.startswith("arg") else 1)
    keeps_its_value(plan, graph, scale=0.01 if name == "sum" else 1.0)


@pytest.mark.parametrize("name", ["sum", "max", "min"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((3, 20_011), (1,)),
        ((20_011, 3), (0,)),
        ((200, 5, 101), (0, 2)),
        ((129, 131), (0, 1)),
        ((2, 1, 16_400), (1, 2)),
        ((1, 16_400, 1), (0, 1)),
    ],
)
def test_reductions_of_few_rows(name: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    builder = Builder("rows")
    x = state(builder, "x", *shape)
    graph = builder.graph({"y": reduced(name, builder.apply("add", x, 0.5), builder, axes)})
    plan = placed(graph)
    assert len(plan.steps) == 2
    keeps_its_value(plan, graph, scale=0.1)


def test_integers_in_chunks_start_from_their_limits() -> None:
    builder = Builder("integers")
    x = builder.input("x", TensorType(DType.INT32, (20_011,)), "state", SPAN)
    graph = builder.graph({name: emit(builder, name, x, axes=(0,)) for name in ("sum", "max", "min")})
    plan = placed(graph)
    for values in (np.arange(20_011) - 30_000, np.arange(20_011) + 7):
        inputs = {"x": values.astype(np.int32)}
        wanted = evaluate(graph, inputs)
        for found in (run_placed(plan, inputs), run_plan(cpu(), plan, inputs)):
            assert {name: int(array) for name, array in found.items()} == {n: int(a) for n, a in wanted.items()}


@pytest.mark.parametrize("name", ["max", "min"])
def test_a_nan_in_any_chunk_is_the_result(name: str) -> None:
    builder = Builder("nan")
    graph = builder.graph({"y": emit(builder, name, state(builder, "x", 20_011), axes=(0,))})
    plan = placed(graph)
    for position in (0, 4096, 20_010):
        values = np.zeros(20_011, np.float32)
        values[position] = np.nan
        assert np.isnan(run_plan(cpu(), plan, {"x": values})["y"])
        assert np.isnan(run_placed(plan, {"x": values})["y"])


def test_the_largest_of_minus_infinities_is_one() -> None:
    builder = Builder("infinite")
    graph = builder.graph({"y": emit(builder, "max", state(builder, "x", 20_011), axes=(0,))})
    plan = placed(graph)
    assert run_plan(cpu(), plan, {"x": np.full(20_011, -np.inf, np.float32)})["y"] == -np.inf
