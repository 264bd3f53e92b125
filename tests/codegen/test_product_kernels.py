"""Compiled products: right for every shape, layout and tile, the same bits however they are divided, within bounds."""

from __future__ import annotations

import ctypes
import mmap
import re
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paren.codegen.division import Division, block_k, divide, touched_bytes, workspace_bytes
from paren.codegen.product import emit_product
from paren.codegen.product_table import Packing, Pointer, Word
from paren.codegen.tile import Shape
from paren.ir.op import Array
from paren.ir.types import DType
from paren.plan.plan import Matrix, Product
from paren.runtime.cache import KernelCache
from paren.runtime.cpu import KERNEL
from paren.runtime.memory import allocate
from paren.runtime.native import Compiler, choose_tile

TILES = {
    "avx512": Shape(512, 14, 2, fused=True),
    "avx2": Shape(256, 6, 2, fused=True),
    "neon": Shape(128, 6, 4, fused=True),
    "plain": Shape(128, 6, 2, fused=False),
}
SIZES = st.one_of(st.integers(1, 40), st.sampled_from([47, 64, 65, 96, 97, 128, 200, 239, 384, 385, 500]))
EPSILON = {DType.FLOAT32: 2.0**-24, DType.FLOAT64: 2.0**-52}  # of float64 numpy's own roundings count, too


@cache
def compiler() -> Compiler:
    return Compiler(KernelCache(None))


@cache
def function(tile: str, dtype: DType) -> int:
    return compiler().load({"product": emit_product(shape_of(tile), dtype, "product")}, "product", optimise=False)[
        "product"
    ]


def shape_of(tile: str) -> Shape:
    return replace(TILES["avx512"], pairs=True) if tile == "pairs" else TILES[tile]


def product_of(
    m: int, n: int, k: int, a: bool = False, b: bool = False, accumulate: bool = False, batch: tuple[int, ...] = ()
) -> Product:
    """Dense matrices one behind another; `a` and `b` say whether they are transposed."""
    strides = [tuple(size * int(np.prod(batch[i + 1 :])) for i in range(len(batch))) for size in (m * k, k * n, m * n)]
    left = Matrix(0, 0, m if a else k, a, strides[0])
    right = Matrix(1, 0, k if b else n, b, strides[1])
    return Product(left, right, Matrix(2, 0, n, False, strides[2]), m, n, k, batch, accumulate, (), ())


def run(
    tile: str, division: Division, dtype: DType, arrays: tuple[Array, Array, Array], edges: list[int] | None = None
) -> int:
    """All units of a product, in the ranges between `edges`, on arrays A, B and C. Gives the bytes of the workspace
    that are not 0 any more."""
    workspace = allocate(workspace_bytes(shape_of(tile)))
    first, second, third = arrays
    operands = (second, first, third) if division.swapped else arrays
    held = (*operands, division.table, division.offsets, workspace)
    pointers = np.array([array.__array_interface__["data"][0] for array in held], np.uint64)
    assert len(pointers) == len(Pointer)
    for begin, end in pairwise(edges or [0, division.units]):
        KERNEL(function(tile, dtype))(begin, end, pointers.ctypes.data)
    return int(np.count_nonzero(workspace))


def numbers(product: Product, dtype: DType, seed: int = 0) -> tuple[Array, Array, Array]:
    generator = np.random.default_rng(seed)
    count = int(np.prod(product.batch))
    shapes = ((product.m, product.k), (product.k, product.n), (product.m, product.n))
    a, b, c = (generator.normal(size=(count, *shape)).astype(dtype.numpy) for shape in shapes)
    left = np.ascontiguousarray(a.swapaxes(1, 2)) if product.a.transposed else a
    right = np.ascontiguousarray(b.swapaxes(1, 2)) if product.b.transposed else b
    return left, right, c


def check(
    product: Product, dtype: DType, arrays: tuple[Array, Array, Array], got: Array, rounding: float = 0.0
) -> None:
    """Within the bound of a sum of k products in blocks: each rounding counts for the sizes of what is added; the last
    one, of the result, for its size."""
    a, b, c = (array.astype(np.float64) for array in arrays)
    a = a.swapaxes(1, 2) if product.a.transposed else a
    b = b.swapaxes(1, 2) if product.b.transposed else b
    wanted, size = a @ b, np.abs(a) @ np.abs(b)
    if product.accumulate:
        wanted, size = wanted + c, size + np.abs(c)
    bound = (min(product.k, 800) + product.k // 200 + 2) * EPSILON[dtype] * size + rounding * np.abs(wanted)
    assert (np.abs(got - wanted) <= bound).all()


@settings(max_examples=150)
@given(
    st.sampled_from(list(TILES)), st.sampled_from([DType.FLOAT32, DType.FLOAT64]), SIZES, SIZES, SIZES,
    st.booleans(), st.booleans(), st.booleans(), st.sampled_from([(), (3,), (2, 2)]), st.integers(0, 9)
)  # fmt: skip
@example("avx512", DType.FLOAT32, 1, 1, 1, False, False, False, (), 0)
@example("avx512", DType.FLOAT32, 500, 600, 900, True, True, True, (), 0)
@example("avx2", DType.FLOAT32, 300, 500, 600, False, True, False, (), 0)
@example("avx512", DType.FLOAT64, 300, 300, 500, False, False, True, (), 0)
@example("avx512", DType.FLOAT64, 1, 47, 200, False, False, False, (), 0)
def test_products_are_right_and_their_bits_are_those_of_any_division(
    tile: str,
    dtype: DType,
    m: int,
    n: int,
    k: int,
    a: bool,
    b: bool,
    accumulate: bool,
    batch: tuple[int, ...],
    seed: int,
) -> None:
    product = product_of(m, n, k, a, b, accumulate, batch)
    arrays = numbers(product, dtype, seed)
    division = divide(product, (dtype,) * 3, TILES[tile], 1)
    whole = arrays[2].copy()
    touched = run(tile, division, dtype, (arrays[0], arrays[1], whole))
    assert touched <= touched_bytes([(product, (dtype,) * 3)], TILES[tile]) <= workspace_bytes(TILES[tile])
    check(product, dtype, arrays, whole)
    cuts = np.random.default_rng(seed).integers(0, division.units + 1, 3)
    for edges in ([0, *sorted(cuts.tolist()), division.units], list(range(division.units + 1))):
        parts = arrays[2].copy()
        run(tile, division, dtype, (arrays[0], arrays[1], parts), edges)
        assert parts.tobytes() == whole.tobytes()


HALF = DType.BFLOAT16


@st.composite
def types_of_rounded(draw: st.DrawFn) -> tuple[tuple[DType, DType, DType], bool]:
    """The element types of a product of rounded operands, and whether it adds to C."""
    a, b, c = (draw(st.sampled_from([DType.FLOAT32, HALF])) for _ in range(3))
    return (a, b, c), c is DType.FLOAT32 and draw(st.booleans())


@settings(max_examples=150)
@given(
    st.sampled_from(["pairs", *TILES]), types_of_rounded(), SIZES, SIZES, SIZES, st.booleans(), st.booleans(),
    st.sampled_from([(), (3,)]), st.integers(0, 9)
)  # fmt: skip
@example("pairs", ((HALF, HALF, HALF), False), 300, 300, 1600, False, True, (), 0)
@example("avx512", ((HALF, DType.FLOAT32, HALF), False), 300, 300, 900, True, False, (), 0)
@example("avx2", ((DType.FLOAT32, HALF, HALF), False), 300, 200, 600, True, True, (), 0)
def test_products_of_rounded_operands(
    tile: str, types: tuple[tuple[DType, DType, DType], bool], m: int, n: int, k: int, a: bool, b: bool,
    batch: tuple[int, ...], seed: int
) -> None:  # fmt: skip
    if tile == "pairs" and not compiler().tile.pairs:
        return
    dtypes, accumulate = types
    product = replace(product_of(m, n, k, a, b, accumulate, batch), rounded=True)
    exact = numbers(product, DType.FLOAT32, seed)
    left, right, before = (array.astype(dtype.numpy) for array, dtype in zip(exact, dtypes, strict=True))
    division = divide(product, dtypes, shape_of(tile), 1)
    whole = before.copy()
    touched = run(tile, division, HALF, (left, right, whole))
    assert touched <= touched_bytes([(product, dtypes)], shape_of(tile)) <= workspace_bytes(shape_of(tile))
    rounded = (left.astype(HALF.numpy), right.astype(HALF.numpy), before)
    check(product, DType.FLOAT32, rounded, whole.astype(np.float32), 2.0**-8 if dtypes[2] is HALF else 0.0)
    cuts = np.random.default_rng(seed).integers(0, division.units + 1, 3)
    parts = before.copy()
    run(tile, division, HALF, (left, right, parts), [0, *sorted(cuts.tolist()), division.units])
    assert parts.tobytes() == whole.tobytes()


@pytest.mark.parametrize("result", [DType.FLOAT32, HALF])
@pytest.mark.parametrize("tile", ["pairs", "avx512", "avx2"])
def test_rounding_is_to_the_nearest_and_keeps_what_is_not_finite(tile: str, result: DType) -> None:
    """A product with 1 rounds each element of the other operand, be it A or B, and nothing else shows."""
    if tile == "pairs" and not compiler().tile.pairs:
        pytest.skip("the processor does not multiply pairs of bfloat16")
    bits = np.random.default_rng(0).integers(0, 2**32, 4000, dtype=np.uint32)
    ties = (np.arange(0x3F80, 0x3F80 + 96, dtype=np.uint32) << 16) + 0x8000
    special = np.array([np.inf, -np.inf, np.nan, 3.4e38, -3.4e38, 0.0, 1.0], np.float32)
    values = np.concatenate([bits, ties]).view(np.float32)
    values = np.concatenate([values[~(np.abs(values) < 1e-37)], special])  # subnormals count as 0
    count, one = len(values), np.ones((1, 1, 1), HALF.numpy)
    with np.errstate(invalid="ignore"):
        wanted = values.astype(HALF.numpy).astype(np.float32)
    for m, n, a, b in ((count, 1, values, one), (1, count, one, values)):
        got = np.zeros((1, m, n), result.numpy)
        product = replace(product_of(m, n, 1), rounded=True)
        product = replace(product, c=replace(product.c, leading=n + 1 if m == 1 else 1))
        types = (DType.FLOAT32, HALF, result) if n == 1 else (HALF, DType.FLOAT32, result)
        run(tile, divide(product, types, shape_of(tile), 1), HALF, (a, b, got))
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(got.reshape(-1).astype(np.float32), wanted)


@pytest.mark.parametrize("tile", list(TILES))
@pytest.mark.parametrize("packing", [Packing.DIRECT, Packing.COPY, Packing.TRANSPOSE])
def test_packed_panels_give_the_bits_of_panels_in_place(tile: str, packing: Packing) -> None:
    product = product_of(50, 75, 300, b=packing is Packing.TRANSPOSE)
    arrays = numbers(product, DType.FLOAT32)
    plain = product_of(50, 75, 300)
    dense = (arrays[0], np.ascontiguousarray(arrays[1].swapaxes(1, 2)) if product.b.transposed else arrays[1], None)
    results = []
    for each, kind, right in ((product, packing, arrays[1]), (plain, Packing.DIRECT, dense[1])):
        division = divide(each, (DType.FLOAT32,) * 3, TILES[tile], 1)
        division.table[Word.B_PACKING] = kind
        result = np.zeros((1, 50, 75), np.float32)
        run(tile, division, DType.FLOAT32, (arrays[0], right, result))
        results.append(result)
    assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.parametrize(("m", "n", "k"), [(30, 50, 20), (1, 70, 33), (65, 1, 40), (15, 16, 500)])
def test_values_that_are_not_finite_stay_where_they_belong(m: int, n: int, k: int) -> None:
    """One infinity in A makes its row infinite, one NaN in B its column: nothing else, at edges neither."""
    product = product_of(m, n, k)
    a, b = np.ones((1, m, k), np.float32), np.ones((1, k, n), np.float32)
    a[0, m - 1, k - 1] = np.inf
    b[0, 0, n - 1] = np.nan
    result = np.zeros((1, m, n), np.float32)
    run("avx512", divide(product, (DType.FLOAT32,) * 3, TILES["avx512"], 1), DType.FLOAT32, (a, b, result))
    assert np.isnan(result[0, :, n - 1]).all()
    assert np.isposinf(result[0, m - 1, : n - 1]).all()
    assert (result[0, : m - 1, : n - 1] == k).all()


class Fenced:
    """Memory that ends where pages begin that may not be touched, or begins where such pages end."""

    def __init__(self, size: int, at_end: bool) -> None:
        page = mmap.PAGESIZE
        room = -(-size // page) * page
        self.pages = mmap.mmap(-1, room + 2 * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.pages))
        self.fences = (start, start + page + room)
        self.protect(0)
        offset = page + (room - size if at_end else 0)
        self.bytes = np.frombuffer(self.pages, np.uint8, size, offset)

    def protect(self, rights: int) -> None:
        library = ctypes.CDLL(None)
        for fence in self.fences:
            assert library.mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(mmap.PAGESIZE), rights) == 0


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("tile", list(TILES))
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (13, 5, 3), (29, 33, 17), (1, 100, 40), (100, 1, 40), (61, 47, 129)]
)
def test_nothing_outside_the_operands_is_touched(m: int, n: int, k: int, tile: str, at_end: bool) -> None:
    for a in (False, True):
        for b in (False, True):
            product = product_of(m, n, k, a, b, True)
            arrays = numbers(product, DType.FLOAT32)
            fenced = [Fenced(array.nbytes, at_end) for array in arrays]
            inside = [fence.bytes.view(np.float32).reshape(x.shape) for fence, x in zip(fenced, arrays, strict=True)]
            for target, array in zip(inside, arrays, strict=True):
                target[...] = array
            run(tile, divide(product, (DType.FLOAT32,) * 3, TILES[tile], 1), DType.FLOAT32, tuple(inside))
            check(product, DType.FLOAT32, arrays, inside[2])
            for fence in fenced:
                fence.protect(mmap.PROT_READ | mmap.PROT_WRITE)


def test_columns_of_a_wider_result_keep_their_neighbours() -> None:
    for n in (1, 5, 32, 40):
        product = product_of(20, n, 30)
        product = replace(product, c=replace(product.c, leading=n + 3))
        a, b, _ = numbers(product, DType.FLOAT32)
        wide = np.full((20, n + 3), 7.0, np.float32)
        run("avx512", divide(product, (DType.FLOAT32,) * 3, TILES["avx512"], 1), DType.FLOAT32, (a, b, wide))
        np.testing.assert_allclose(wide[:, :n], (a @ b)[0], atol=1e-4)
        assert (wide[:, n:] == 7).all()


@pytest.mark.parametrize("k", [1, 15, 16, 383, 384, 385, 768, 1000, 3072, 50_257])
def test_blocks_of_k_are_even_and_fit(k: int) -> None:
    for tile in TILES.values():
        for dtype in (DType.FLOAT32, DType.FLOAT64):
            size = block_k(k, dtype, tile)
            room = workspace_bytes(tile)
            assert size % 32 == 0
            assert size - 32 * -(-k // size) < -(-k // -(-k // size)) <= size
            division = divide(product_of(8, 8, k), (dtype,) * 3, tile, 1)
            panels = division.table[Word.BLOCK_N] // tile.columns(dtype)
            assert 64 + panels * size * tile.vectors * tile.bits // 8 <= room


def test_work_is_divided_into_enough_units() -> None:
    for m, n in ((1024, 768), (512, 128), (768, 50_257), (128, 64)):
        assert divide(product_of(m, n, 64), (DType.FLOAT32,) * 3, TILES["avx512"], 1).units >= 8


def test_a_processor_has_its_tile() -> None:
    assert choose_tile("x86_64", {"avx512f": True, "avx512vl": True, "avx2": True, "fma": True}) == TILES["avx512"]
    half = {"avx512f": True, "avx512vl": True, "avx512bf16": True}
    assert choose_tile("x86_64", half, "znver5").pairs
    assert not choose_tile("x86_64", half, "sapphirerapids").pairs
    assert choose_tile("x86_64", {"avx512f": False, "avx2": True, "fma": True}) == TILES["avx2"]
    assert choose_tile("x86_64", {"avx2": False, "fma": False}) == TILES["plain"]
    assert choose_tile("aarch64", {}) == TILES["neon"]


def test_accumulators_stay_in_registers() -> None:
    """The largest tile has its multiply-adds once, loads an element of A once, and puts no vector on the stack."""
    if replace(compiler().tile, pairs=False) != TILES["avx512"]:
        pytest.skip("the registers are those of AVX-512")
    assembly = compiler().assembly(emit_product(TILES["avx512"], DType.FLOAT32, "product"), optimise=False)
    body = assembly[assembly.index("tile.14.2:") :].split("\n.Lfunc_end")[0]
    assert body.count("vfmadd") == 28
    assert body.count("vbroadcastss") == 14
    assert not re.search(r"zmm\d+, -?\d*\(%rsp\)", body)
