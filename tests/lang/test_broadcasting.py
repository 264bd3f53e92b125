"""Operations on one example are numpy's on each example of the batch: broadcasting, products, axes."""

from __future__ import annotations

import string

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_programs import expression, expression_or_refusal

from paren.text.errors import ParenError

ROWS = 3
generator = np.random.default_rng(11)
shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)


def values(shape: tuple[int, ...], batched: bool = True) -> np.ndarray:
    return generator.normal(size=(ROWS, *shape) if batched else shape).astype(np.float32)


def words(shape: tuple[int, ...]) -> str:
    return f"[{' '.join(map(str, shape))}]"


def by_example(function, *arrays: np.ndarray) -> np.ndarray:  # type: ignore[no-untyped-def]
    return np.stack([function(*parts) for parts in zip(*arrays, strict=True)])


def grows_by_accident(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    """Whether both of two shapes of different rank would be repeated."""
    if not first or not second or len(first) == len(second):
        return False
    return np.broadcast_shapes(first, second) not in (first, second)


@settings(max_examples=60)
@given(shapes, shapes)
def test_elementwise_operands_broadcast_as_examples(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    """Either numpy's result on each example, or a coded refusal: E-TYPE-001 where numpy refuses, E-TYPE-002 where both
    operands of different rank would be repeated."""
    a, b = values(first), values(second)
    found = expression_or_refusal("(- a b)", {"a": a, "b": b})
    if isinstance(found, ParenError):
        fits = all(x == y or 1 in (x, y) for x, y in zip(first[::-1], second[::-1], strict=False))
        assert found.code == ("E-TYPE-002" if fits else "E-TYPE-001")
        assert len(found.notes) == 2
        assert not fits or grows_by_accident(first, second)
        return
    assert not grows_by_accident(first, second)
    np.testing.assert_array_equal(found, by_example(np.subtract, a, b))


@settings(max_examples=40)
@given(shapes, shapes)
def test_a_tensor_without_batch_meets_one_with(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    """`iota` has no batch axis; it is the same for every example."""
    if not second:
        return
    a = values(first)
    plain = np.arange(np.prod(second), dtype=np.float32).reshape(second)
    text = f"(+ a (reshape (iota {int(np.prod(second))} :dtype float32) {words(second)}))"
    found = expression_or_refusal(text, {"a": a})
    if isinstance(found, ParenError):
        assert found.code in ("E-TYPE-001", "E-TYPE-002")
        return
    np.testing.assert_array_equal(found, by_example(lambda x: x + plain, a))


@st.composite
def factors(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes that numpy's matmul takes: common leading axes with ones here and there, and vectors."""
    m, k, n = (draw(st.integers(1, 4)) for _ in range(3))
    lead = draw(st.lists(st.integers(1, 3), max_size=2))

    def leading() -> tuple[int, ...]:
        kept = lead[draw(st.integers(0, len(lead))) :]
        return tuple(1 if draw(st.booleans()) else size for size in kept)

    first = (k,) if draw(st.booleans()) and draw(st.booleans()) else (*leading(), m, k)
    second = (k,) if draw(st.booleans()) and draw(st.booleans()) else (*leading(), k, n)
    return first, second


@settings(max_examples=60)
@given(factors(), st.sampled_from(["both", "first", "second"]))
def test_matmul_is_numpys(shapes: tuple[tuple[int, ...], tuple[int, ...]], batched: str) -> None:
    first, second = shapes
    a, b = values(first), values(second)
    fixed_a, fixed_b = (np.arange(np.prod(s), dtype=np.float32).reshape(s) / 7 for s in shapes)
    text = {"both": "(matmul a b)", "first": f"(matmul a {fixed(second)})", "second": f"(matmul {fixed(first)} b)"}
    found = expression(text[batched], {"a": a, "b": b})
    one = {
        "both": lambda x, y: x @ y,
        "first": lambda x, y: x @ fixed_b,
        "second": lambda x, y: fixed_a @ y,
    }[batched]
    np.testing.assert_allclose(found, by_example(one, a, b), rtol=1e-4, atol=1e-5)


def fixed(shape: tuple[int, ...]) -> str:
    return f"(reshape (/ (iota {int(np.prod(shape))} :dtype float32) 7) {words(shape)})"


@st.composite
def specifications(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]]]:
    sizes = {letter: draw(st.integers(1, 3)) for letter in string.ascii_lowercase[:5]}
    parts = [
        "".join(draw(st.lists(st.sampled_from(sorted(sizes)), min_size=1, max_size=4, unique=True)))
        for _ in range(draw(st.integers(1, 3)))
    ]
    used = sorted(set("".join(parts)))
    result = "".join(draw(st.permutations(draw(st.lists(st.sampled_from(used), unique=True)))))
    return f"{','.join(parts)}->{result}", [tuple(sizes[letter] for letter in part) for part in parts]


@settings(max_examples=60)
@given(specifications(), st.booleans())
def test_einsum_is_numpys(case: tuple[str, list[tuple[int, ...]]], last_fixed: bool) -> None:
    specification, shapes = case
    arrays = {f"x{i}": values(shape) for i, shape in enumerate(shapes)}
    names = list(arrays)
    constant = np.arange(np.prod(shapes[-1]), dtype=np.float32).reshape(shapes[-1]) / 7
    fixed_one = last_fixed and len(names) > 1
    texts = [*names[:-1], fixed(shapes[-1])] if fixed_one else names
    found = expression(f'(einsum "{specification}" {" ".join(texts)})', arrays)

    def one(*parts: np.ndarray) -> np.ndarray:
        return np.einsum(specification, *parts[:-1], constant if fixed_one else parts[-1])

    np.testing.assert_allclose(found, by_example(one, *arrays.values()), rtol=1e-4, atol=1e-4)


REDUCTIONS = {"sum": np.sum, "max": np.max, "min": np.min, "mean": np.mean}


@settings(max_examples=60)
@given(st.data())
def test_reductions_count_axes_of_one_example(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple))
    name = data.draw(st.sampled_from(sorted(REDUCTIONS)))
    axes = data.draw(st.lists(st.integers(-len(shape), len(shape) - 1), min_size=1, max_size=3))
    keep = data.draw(st.booleans())
    x = values(shape)
    text = f"({name} x :axes {words(tuple(axes))} :keep {str(keep).lower()})"
    different = len({axis % len(shape) for axis in axes}) == len(axes)
    if not different:
        with pytest.raises(ParenError, match="not all different"):
            expression(text, {"x": x})
        return
    found = expression(text, {"x": x})
    wanted = by_example(lambda part: REDUCTIONS[name](part, axis=tuple(axes), keepdims=keep), x)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["sum", "mean", "max", "argmax", "softmax"])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_the_batch_axis_is_out_of_reach(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ParenError) as caught:
        expression(f"({name} x :axis {-len(shape) - 1})", {"x": values(shape)})
    assert caught.value.code == "E-TYPE-004"
