"""Products as calls of cuBLAS, run by the library's rules and compared with numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fake_card import run_gemm
from hypothesis import given, settings
from hypothesis import strategies as st

from paren.ir.op import Array
from paren.ir.types import DType
from paren.plan.plan import Matrix, Product
from paren.runtime.cuda.products import gemm_calls
from paren.runtime.matrices import multiply
from paren.text.errors import InternalError

F32, F64, BF16 = DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16
SIZES = (1, 2, 3, 5, 8)


@st.composite
def products(draw: st.DrawFn) -> Product:
    """Matrices anywhere in their buffers, in batches that one stride describes and others."""
    m, n, k = (draw(st.sampled_from(SIZES)) for _ in range(3))
    batch = tuple(draw(st.lists(st.sampled_from((1, 2, 3)), max_size=3)))

    def matrix(buffer: int, rows: int, columns: int, result: bool = False) -> Matrix:
        transposed = not result and draw(st.booleans())
        stored = (columns, rows) if transposed else (rows, columns)
        leading = stored[1] + draw(st.integers(0, 3))
        if stored[0] == 1:
            leading = draw(st.sampled_from([leading, stored[1]]))
        step = stored[0] * leading + draw(st.integers(0, 2))
        strides = []
        for size in reversed(batch):
            strides.insert(0, 0 if not result and draw(st.integers(0, 4)) == 0 else step)
            step *= size
        return Matrix(buffer, draw(st.integers(0, 4)), leading, transposed, tuple(strides))

    a, b, c = matrix(0, m, k), matrix(1, k, n), matrix(2, m, n, result=True)
    return Product(a, b, c, m, n, k, batch, draw(st.booleans()), (), ())


def room(matrix: Matrix, rows: int, columns: int, batch: tuple[int, ...]) -> int:
    inner = (1, matrix.leading) if matrix.transposed else (matrix.leading, 1)
    strides = (*matrix.batch_strides, *inner)
    return matrix.offset + sum((size - 1) * s for size, s in zip((*batch, rows, columns), strides, strict=True)) + 3


def address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def compute(product: Product, dtypes: tuple[DType, DType, DType]) -> tuple[Array, Array]:
    """C after the calls, and after numpy."""
    m, n, k = product.m, product.n, product.k
    shapes = [(product.a, m, k), (product.b, k, n), (product.c, m, n)]
    generator = np.random.default_rng(0)
    a, b, c = (
        generator.integers(-4, 5, room(matrix, rows, columns, product.batch)).astype(dtype.numpy)
        for (matrix, rows, columns), dtype in zip(shapes, dtypes, strict=True)
    )
    wanted = c.copy()
    multiply(replace(product, rounded=dtypes[0] is BF16), a, b, wanted)
    for gemm in gemm_calls(product, dtypes):
        left, right = address(b) + gemm.left.offset, address(a) + gemm.right.offset
        run_gemm(gemm, left, right, address(c) + gemm.result.offset)
    return c, wanted


@settings(max_examples=300)
@given(products(), st.sampled_from([(F32,) * 3, (F64,) * 3, (BF16, BF16, F32), (BF16,) * 3]))
def test_the_calls_compute_the_product(product: Product, dtypes: tuple[DType, DType, DType]) -> None:
    """Elements outside of C keep their value: all of its buffer is compared."""
    product = replace(product, accumulate=product.accumulate and dtypes[2] is not BF16)
    got, wanted = compute(product, dtypes)
    np.testing.assert_array_equal(got, wanted)


def heads(batch: int, length: int, heads: int, width: int) -> Product:
    """Scores of attention: queries and keys of each head lie in one array [batch length 3 heads width]."""
    packed = 3 * heads * width
    strides = (length * packed, width)
    scores = Matrix(2, 0, length, False, (heads * length * length, length * length))
    q = Matrix(0, 0, packed, False, strides)
    k = Matrix(1, heads * width, packed, True, strides)
    return Product(q, k, scores, length, length, width, (batch, heads), False, (), ())


def contiguous(*batch: int) -> Product:
    strides = [(np.prod(batch[i + 1 :], dtype=int).item()) for i in range(len(batch))]
    a, b, c = (Matrix(number, 0, 4, False, tuple(16 * stride for stride in strides)) for number in range(3))
    return Product(a, b, c, 4, 4, 4, batch, False, (), ())


@pytest.mark.parametrize(
    ("product", "calls", "count"),
    [
        (contiguous(), 1, 1),
        (contiguous(7), 1, 7),
        (contiguous(3, 5), 1, 15),
        (contiguous(3, 1, 5, 2), 1, 30),
        (heads(5, 4, 3, 2), 3, 5),
        (heads(2, 4, 3, 2), 2, 3),
        (replace(contiguous(3), b=Matrix(1, 0, 4, False, (0,))), 1, 3),
    ],
)
def test_batches_become_few_calls(product: Product, calls: int, count: int) -> None:
    found = gemm_calls(product, (F32,) * 3)
    assert (len(found), {gemm.count for gemm in found}) == (calls, {count})
    got, wanted = compute(product, (F32,) * 3)
    np.testing.assert_array_equal(got, wanted)


def test_a_product_without_elements_needs_no_call() -> None:
    for change in ({"m": 0}, {"n": 0}):
        assert gemm_calls(replace(contiguous(), **change), (F32,) * 3) == []


def test_a_product_of_nothing_is_zero() -> None:
    empty = replace(contiguous(2), k=0)
    c = np.full(32, 7, np.float32)
    for gemm in gemm_calls(empty, (F32,) * 3):
        run_gemm(gemm, address(c), address(c), address(c))
    assert not c.any()


def test_what_the_library_cannot_do_is_a_fault_of_ours() -> None:
    product = contiguous()
    for dtypes, message in (
        ((F32, BF16, F32), "a product of float32 and bfloat16 has no call of cuBLAS"),
        ((F32, F32, F64), "a product of float32 with its result in float64 has no call of cuBLAS"),
        ((DType.INT32,) * 3, "a product of int32 and int32 has no call of cuBLAS"),
    ):
        with pytest.raises(InternalError) as caught:
            gemm_calls(product, dtypes)
        assert str(caught.value) == f"internal error in cuda: {message}"
    with pytest.raises(InternalError, match="the result of a product is transposed"):
        gemm_calls(replace(product, c=replace(product.c, transposed=True)), (F32,) * 3)
