"""Random numbers: the generator's published answers, uniformity, moments, and independence of every coordinate."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from paren.ir.evaluate import evaluate
from paren.ir.graph import Builder, Node
from paren.ir.op import OPS, Array
from paren.ir.random import Site, random_bits, random_normal, random_uniform
from paren.ir.types import DType, TensorType, TypeMismatch
from paren.ir.verify import verify
from paren.text.source import Source, Span

SPAN = Span(Source("random.paren", "(x)"), 0, 3)
MAKERS = {"bits": random_bits, "uniform": random_uniform, "normal": random_normal}
WORD = TensorType(DType.UINT32, ())


def draw(
    kind: str,
    shape: tuple[int, ...],
    *,
    seed: int = 1,
    site: int = 0,
    step: int | None = None,
    rows: list[int] | None = None,
) -> Array:
    builder = Builder("random")
    values = {"seed": np.array(seed, np.uint32)}
    step_node: Node | None = None
    row_node: Node | None = None
    seed_node = builder.input("seed", WORD, "scalar", SPAN)
    if step is not None:
        step_node = builder.input("step", WORD, "scalar", SPAN)
        values["step"] = np.array(step, np.uint32)
    if rows is not None:
        row_node = builder.input("rows", TensorType(DType.UINT32, (len(rows),)), "batch", SPAN)
        values["rows"] = np.array(rows, np.uint32)
    node = MAKERS[kind](builder, Site(seed_node, site, step_node, row_node, SPAN), shape)
    graph = builder.graph({"y": node})
    verify(graph, "test")
    return evaluate(graph, values)["y"]


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_published_answers(
    key: tuple[int, int], counter: tuple[int, int], expected: tuple[int, int]
) -> None:
    args = [np.array(word, np.uint32) for word in (*key, *counter)]
    words = [int(OPS["threefry"].evaluate(args, {"word": word})) for word in (0, 1)]
    assert words == list(expected)


def test_bits_are_the_two_levels_written_out() -> None:
    def threefry(words: list[int], word: int) -> int:
        return int(OPS["threefry"].evaluate([np.array(w, np.uint32) for w in words], {"word": word}))

    found = draw("bits", (2, 3), seed=11, site=5, step=7, rows=[40, 2])
    key = [threefry([11, 5, 7, 0], word) for word in (0, 1)]
    expected = [[[threefry([*key, row, 3 * i + j], 0) for j in range(3)] for i in range(2)] for row in (40, 2)]
    assert found.tolist() == expected
    without = draw("bits", (2, 3), seed=11, site=5)
    key = [threefry([11, 5, 0, 0], word) for word in (0, 1)]
    assert without.ravel().tolist() == [threefry([*key, 0, i], 0) for i in range(6)]


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (5, 1, 2)])
@pytest.mark.parametrize("kind", list(MAKERS))
def test_shapes_and_types(kind: str, shape: tuple[int, ...]) -> None:
    dtype = np.uint32 if kind == "bits" else np.float32
    for rows, expected in ((None, shape), ([3], (1, *shape)), ([3, 9], (2, *shape))):
        value = draw(kind, shape, step=1, rows=rows)
        assert (value.shape, value.dtype) == (expected, dtype)


def test_a_row_is_the_same_in_any_batch() -> None:
    whole = draw("normal", (4, 5), step=3, rows=list(range(16)))
    part = draw("normal", (4, 5), step=3, rows=[6, 7, 15])
    np.testing.assert_array_equal(part, whole[[6, 7, 15]])


def test_uniform_numbers_fill_the_unit_interval_evenly() -> None:
    count = 200_000
    u = draw("uniform", (count,)).astype(np.float64)
    assert u.min() >= 0.0
    assert u.max() < 1.0
    np.testing.assert_array_equal(u * 2**24, np.floor(u * 2**24))
    histogram, _ = np.histogram(u, bins=100, range=(0, 1))
    chi_square = float(((histogram - count / 100) ** 2).sum() / (count / 100))
    assert 50 < chi_square < 160  # 99 degrees of freedom: mean 99, standard deviation 14
    assert abs(u.mean() - 0.5) < 4 * math.sqrt(1 / 12 / count)


def test_normal_numbers_have_the_moments_and_the_distribution() -> None:
    count = 200_000
    x = draw("normal", (count,)).astype(np.float64)
    assert abs(x.mean()) < 4 / math.sqrt(count)
    assert abs(x.var() - 1) < 4 * math.sqrt(2 / count)
    assert abs((x**3).mean()) < 4 * math.sqrt(15 / count)
    assert abs((x**4).mean() - 3) < 4 * math.sqrt(96 / count)
    normal = NormalDist()
    expected = np.array([normal.cdf(float(value)) for value in np.sort(x)[::500]])
    assert np.abs(expected - np.arange(0, count, 500) / count).max() < 2 / math.sqrt(count)


def test_normal_numbers_are_the_quantiles_of_the_uniform_ones() -> None:
    """To single precision, also in the tails."""
    k = draw("bits", (20_000,)) >> np.uint32(8)
    x = draw("normal", (20_000,))
    normal = NormalDist()
    expected = [normal.inv_cdf((int(bits) + 0.5) / 2**24) for bits in k]
    np.testing.assert_allclose(x, expected, rtol=3e-5, atol=3e-7)


def test_the_extreme_words_give_finite_normals() -> None:
    """The smallest and largest 24 bits, through the formula of the docstring."""
    for k in (0, 2**24 - 1, 2**23 - 1, 2**23):
        x = (2 * k + 1 - 2**24) * 2.0**-24
        assert np.float32(x) == x
        assert -1 < x < 1
        assert x != 0


@pytest.mark.parametrize("change", [{"seed": 2}, {"site": 1}, {"step": 4}, {"rows": [100, 101]}])
def test_every_coordinate_gives_independent_numbers(change: dict[str, object]) -> None:
    base: dict[str, object] = {"seed": 1, "site": 0, "step": 3, "rows": [0, 1]}
    count = 20_000
    a = draw("normal", (count // 2,), **base).ravel().astype(np.float64)  # type: ignore[arg-type]
    b = draw("normal", (count // 2,), **{**base, **change}).ravel().astype(np.float64)  # type: ignore[arg-type]
    for left, right in ((a, b), (a[1:], b[:-1]), (a**2 - 1, b**2 - 1)):
        spread = math.sqrt(float((left**2).mean() * (right**2).mean()))
        assert abs(float((left * right).mean())) < 4 * spread / math.sqrt(count)


def test_neighbours_within_a_draw_are_uncorrelated() -> None:
    u = draw("uniform", (50, 1000), rows=[0, 1]).astype(np.float64) - 0.5
    for left, right in ((u[:, :, 1:], u[:, :, :-1]), (u[:, 1:], u[:, :-1]), (u[1:], u[:-1])):
        assert abs(float((left * right).mean())) < 4 / 12 / math.sqrt(left.size)


def test_too_many_numbers_per_row_are_refused() -> None:
    builder = Builder("random")
    site = Site(builder.input("seed", WORD, "scalar", SPAN), 0, None, None, SPAN)
    with pytest.raises(TypeMismatch) as caught:
        random_bits(builder, site, (2**16, 2**16))
    assert str(caught.value) == "4294967296 random numbers per row are more than 4294967295"
