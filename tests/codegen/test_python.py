"""The definition of a kernel does what `paren.plan.kernel` says, on kernels small enough to check by hand."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from kernel_samples import F32, Body, access, axis, gather, gelu, reads, reduction, softmax, writes

from paren.codegen.python import run_kernel
from paren.ir.op import Array
from paren.ir.types import DType
from paren.plan.kernel import Access, Index, Kernel, Parameter
from paren.text.errors import InternalError

I32 = DType.INT32


def floats(*values: float) -> Array:
    return np.array(values, np.float32)


def test_a_row_kernel_loads_what_an_earlier_stage_stored() -> None:
    x = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    out = np.zeros(15, np.float32)
    run_kernel(softmax(3, 5), [x.reshape(-1), out])
    powers = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(out.reshape(3, 5), powers / powers.sum(1, keepdims=True), rtol=1e-6)


def loaded(index: Index, size: int, count: int, *, guarded: bool, fill: float = 0) -> Array:
    """What a kernel over `count` rows loads at `index` of 10, 11, 12, ..."""
    body = Body()
    body.stage()
    value = body.load(access(0, [size], index, guarded=guarded), fill=fill)
    body.store(access(1, [count], 0), value)
    out = np.zeros(count, np.float32)
    run_kernel(body.kernel([count], 1, [reads(size), writes(count)]), [floats(*range(10, 10 + size)), out])
    return out


def test_a_guarded_load_gives_its_fill_outside() -> None:
    found = loaded(axis((0, 1), constant=-2), 3, 7, guarded=True, fill=-1)
    assert found.tolist() == [-1, -1, 10, 11, 12, -1, -1]


def test_a_divided_index_is_outside_where_it_is_no_multiple() -> None:
    found = loaded(axis((0, 1), constant=-3, divisor=3), 2, 9, guarded=True, fill=-1)
    assert found.tolist() == [-1, -1, -1, 10, -1, -1, 11, -1, -1]


def test_indices_may_run_backwards() -> None:
    assert loaded(axis((0, -1), constant=3), 4, 4, guarded=False).tolist() == [13, 12, 11, 10]


def test_an_access_outside_its_buffer_is_refused() -> None:
    with pytest.raises(InternalError) as caught:
        loaded(axis((0, 1), constant=-2), 3, 4, guarded=False)
    assert str(caught.value) == (
        "internal error in kernel: sample touches elements -2 to 1 of parameter 0, which has 3"
    )


def test_gathers_clamp_into_their_dimension() -> None:
    body = Body()
    body.stage()
    place = body.load(access(0, [4], 0), I32)
    body.store(access(2, [4], 0), body.load(access(1, [3], gather(place))))
    out = np.zeros(4, np.float32)
    kernel = body.kernel([4], 1, [reads(4, I32), reads(3), writes(4)])
    run_kernel(kernel, [np.array([-5, 1, 2, 9], np.int32), floats(10, 11, 12), out])
    assert out.tolist() == [10, 11, 12, 12]


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("sum", [9, np.nan, 8]),
        ("max", [4, np.nan, 2]),
        ("min", [1, np.nan, 2]),
        ("argmax", [1, 2, 0]),
        ("argmin", [0, 2, 0]),
    ],
)
def test_reductions_follow_nan_and_take_the_first_extreme(kind: str, wanted: list[float]) -> None:
    rows = np.array([[1, 4, 1, 3], [1, 5, np.nan, np.nan], [2, 2, 2, 2]], np.float32)
    dtype = I32 if kind.startswith("arg") else F32
    body = Body()
    body.stage(1)
    found = body.reduce(kind, body.load(access(0, [3, 4], 0, 1)))
    body.stage()
    body.store(access(1, [3], 0), found)
    out = np.zeros(3, dtype.numpy)
    run_kernel(body.kernel([3, 4], 1, [reads(12), writes(3, dtype)]), [rows.reshape(-1), out])
    np.testing.assert_array_equal(out, wanted)


def test_positions_count_over_all_axes_of_the_stage_in_its_order() -> None:
    body = Body()
    body.stage(2, 1)
    found = body.reduce("argmax", body.load(access(0, [3, 4], 1, 2)))
    body.stage()
    body.store(access(1, [1], 0), found)
    x = np.zeros((3, 4), np.float32)
    x[1, 2] = 1
    out = np.zeros(1, np.int32)
    run_kernel(body.kernel([1, 3, 4], 1, [reads(12), writes(1, I32)]), [x.reshape(-1), out])
    assert out.tolist() == [2 * 3 + 1]


def test_a_value_of_a_row_is_reduced_once_for_each_iteration() -> None:
    body = Body()
    body.stage()
    value = body.load(access(0, [2], 0))
    body.stage(1)
    found = body.reduce("sum", value)
    body.stage()
    body.store(access(1, [2], 0), found)
    out = np.zeros(2, np.float32)
    run_kernel(body.kernel([2, 5], 1, [reads(2), writes(2)]), [floats(1, 2), out])
    assert out.tolist() == [5, 10]


def test_float_sums_are_added_in_float64() -> None:
    body = Body()
    body.stage(1)
    found = body.reduce("sum", body.load(access(0, [1, 3], 0, 1)))
    body.stage()
    body.store(access(1, [1], 0), found)
    out = np.zeros(1, np.float32)
    run_kernel(body.kernel([1, 3], 1, [reads(3), writes(1)]), [floats(2**24, 1, 1), out])
    assert out.tolist() == [2**24 + 2]


def test_additions_to_one_element_all_count() -> None:
    body = Body()
    body.stage(1)
    place = body.load(access(0, [4], 1), I32)
    body.accumulate(access(2, [3, 2], gather(place), 0), body.load(access(1, [4, 2], 1, 0)))
    kernel = body.kernel([2, 4], 1, [reads(4, I32), reads(8), Parameter(F32, 6, True, True)])
    out = np.ones(6, np.float32)
    run_kernel(kernel, [np.array([2, 0, 2, 2], np.int32), np.arange(8, dtype=np.float32), out])
    assert out.reshape(3, 2).tolist() == [[3, 4], [1, 1], [11, 14]]


def test_axis_indices_have_their_element_type() -> None:
    body = Body()
    body.stage()
    index = body.index(axis((0, 2), (1, -1), constant=3), DType.UINT32)
    body.store(access(0, [2, 3], 0, 1), index)
    out = np.zeros(6, np.uint32)
    run_kernel(body.kernel([2, 3], 2, [writes(6, DType.UINT32)]), [out])
    assert out.tolist() == [3, 2, 1, 5, 4, 3]


def test_attributes_reach_the_operation() -> None:
    """The word of threefry, and the type of a cast."""
    body = Body()
    body.stage()
    keys = [body.constant(value, DType.UINT32) for value in (1, 2, 3, 4)]
    words = [body.compute("threefry", *keys, dtype=DType.UINT32, word=word) for word in (0, 1)]
    for parameter, word in enumerate(words):
        body.store(access(parameter, [1], axis()), word)
    body.store(access(2, [1], axis()), body.compute("cast", body.constant(-1.75), dtype=I32))
    out: list[Array] = [np.zeros(1, np.uint32), np.zeros(1, np.uint32), np.zeros(1, np.int32)]
    run_kernel(body.kernel([], 0, [writes(1, DType.UINT32), writes(1, DType.UINT32), writes(1, I32)]), out)
    assert out[0][0] != out[1][0]
    assert out[2].tolist() == [-1]


def test_an_operation_of_another_type_is_refused() -> None:
    body = Body()
    body.stage()
    body.store(access(0, [1], axis()), body.compute("lt", body.constant(1.0), body.constant(2.0), dtype=F32))
    with pytest.raises(InternalError) as caught:
        run_kernel(body.kernel([], 0, [writes(1)]), [np.zeros(1, np.float32)])
    assert str(caught.value) == "internal error in kernel: lt in sample gives bool, not float32"


def test_offsets_and_strides_count_elements() -> None:
    body = Body()
    body.stage()
    column = Access(0, (axis((0, 1)),), (3,), (2,), False, 1)
    body.store(access(1, [2], 0), body.load(column))
    kernel: Kernel = body.kernel([2], 1, [reads(6), writes(2)])
    out = np.zeros(2, np.float32)
    run_kernel(kernel, [floats(0, 1, 2, 3, 4, 5), out])
    assert out.tolist() == [1, 4]


@pytest.mark.parametrize(("rows", "columns"), [(2**18, 1), (1, 2**18), (3, 87_001)])
def test_rows_run_in_blocks_of_bounded_memory(rows: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, these rows would take twelve times as much."""
    monkeypatch.setattr("paren.codegen.python.BLOCK_BYTES", 2**20)
    x = np.linspace(-4, 4, rows * columns, dtype=np.float32)
    out = np.zeros(x.size, np.float32)
    tracemalloc.start()
    run_kernel(gelu(rows, columns), [x, out])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * 2**20
    assert np.count_nonzero(out) == np.count_nonzero(x)


@pytest.mark.parametrize("limit", [1, 3_000, 20_000])
def test_blocks_change_nothing(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows one by one, some, and pieces of an axis that do not divide it."""
    generator = np.random.default_rng(1)
    for kernel in (softmax(13, 7), gelu(5, 11), reduction("sum", 13, 9, "column")):
        buffers = [generator.normal(size=parameter.size).astype(np.float32) for parameter in kernel.parameters]
        whole, blocks = [buffer.copy() for buffer in buffers], [buffer.copy() for buffer in buffers]
        run_kernel(kernel, whole)
        with monkeypatch.context() as smaller:
            smaller.setattr("paren.codegen.python.BLOCK_BYTES", limit)
            run_kernel(kernel, blocks)
        for one, other in zip(whole, blocks, strict=True):
            np.testing.assert_array_equal(one, other)
