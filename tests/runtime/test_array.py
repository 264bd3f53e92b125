"""Arrays on a device behave like numpy's, as far as they go."""

from __future__ import annotations

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest
from hidden_memory import HiddenMemory

from paren.ir.op import Array
from paren.runtime import array as array_module
from paren.runtime.array import DeviceArray, fetch
from paren.runtime.task import Cell, address_of
from paren.text.errors import InternalError


def placed(values: Array, memory: HiddenMemory | None = None) -> DeviceArray:
    """A copy of an array on a device."""
    found = (memory or HiddenMemory()).allocate(values.nbytes).view(values.dtype).reshape(values.shape)
    found[...] = values
    return found


@pytest.mark.parametrize("dtype", [np.float64, np.float32, ml_dtypes.bfloat16, np.int64, np.int32, np.uint8, np.bool_])
def test_values_come_back(dtype: type) -> None:
    values = np.arange(24).reshape(2, 3, 4).astype(dtype)
    array = placed(values)
    assert (array.dtype, array.shape, array.size, array.ndim) == (values.dtype, (2, 3, 4), 24, 3)
    assert (array.nbytes, array.itemsize, len(array)) == (values.nbytes, values.itemsize, 2)
    read = np.asarray(array)
    assert read.dtype == values.dtype
    assert read.tobytes() == values.tobytes()
    assert np.asarray(array[...]).tobytes() == np.array(array).tobytes() == values.tobytes()


def test_a_range_of_the_first_axis_is_a_view() -> None:
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    array = placed(values)
    part = array[1:3]
    assert part.address == array.address + 12
    assert part.owner is array.owner
    for key in (slice(None), slice(1, 3), slice(-2, None), slice(2, 100), slice(3, 1), slice(0, 0)):
        assert np.array_equal(np.asarray(array[key]), values[key])
        assert array[key].shape == values[key].shape
    part[...] = [[1, 2, 3], [4, 5, 6]]
    values[1:3] = [[1, 2, 3], [4, 5, 6]]
    array[3:4] = np.full((1, 3), 7.9)
    values[3:4] = 7.9
    assert np.array_equal(np.asarray(array), values)


def test_views_and_shapes() -> None:
    values = np.arange(16, dtype=np.uint16)
    array = placed(values)
    assert np.array_equal(np.asarray(array.view(np.uint8)), values.view(np.uint8))
    assert np.array_equal(np.asarray(array.reshape(4, -1).view(np.uint32)), values.reshape(4, -1).view(np.uint32))
    assert array.reshape((2, 8)).shape == array.reshape(2, 8).shape == array.reshape(-1, 8).shape == (2, 8)
    assert array[:1].reshape(()).shape == array[:1].reshape(()).view(np.int16).shape == ()
    assert array[0:0].reshape(-1).shape == (0,)
    with pytest.raises(InternalError, match=r"uint16\[16\] on a device cannot be reshaped to \[3, -1\]"):
        array.reshape(3, -1)
    with pytest.raises(InternalError, match=r"uint16\[1 3\] on a device cannot be seen as uint32"):
        array[:3].reshape(1, 3).view(np.uint32)
    with pytest.raises(InternalError, match=r"uint16\[\] on a device cannot be seen as uint8"):
        array[:1].reshape(()).view(np.uint8)


@pytest.mark.parametrize("value", [0, 1.5, -1, np.float64(0.1), np.array(3)])
def test_a_single_value_fills(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_module, "PART", 16)
    memory = HiddenMemory()
    array = placed(np.ones(11, np.float32), memory)
    array[2:] = value
    expected = np.ones(11, np.float32)
    expected[2:] = value
    assert np.array_equal(np.asarray(array), expected)
    if value == 0:
        assert (memory.fills, memory.uploads) == ([36], [44])
    else:
        assert (memory.fills, memory.uploads) == ([], [44, 16, 16, 4])


def test_an_array_on_the_device_is_copied_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_module, "PART", 16)
    memory = HiddenMemory()
    values = np.arange(10, dtype=np.float32)
    source, target = placed(values, memory), placed(0 * values, memory)
    target[...] = source
    assert np.array_equal(np.asarray(target), values)
    assert memory.uploads[2:] == [16, 16, 8]
    with pytest.raises(InternalError, match=r"float32\[10\] on a device does not fit float32\[9\] on a device"):
        target[1:] = source


def test_values_are_fetched() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    for array in (values, placed(values)):
        target = np.zeros_like(values)
        fetch(array, target)
        assert np.array_equal(target, values)
    with pytest.raises(InternalError, match=r"float32\[2 3\] on a device does not fit float64\[2, 3\]"):
        fetch(placed(values), np.zeros((2, 3)))
    assert np.asarray(placed(values)[:0]).shape == (0, 3)


def test_numbers_are_read() -> None:
    array = placed(np.array(2.5))
    assert (float(array), int(array), bool(array)) == (2.5, 2, True)
    assert not placed(np.array(0, np.int32))
    with pytest.raises(ValueError, match="size 1"):
        float(placed(np.ones(2)))


def test_what_does_not_fit_is_refused() -> None:
    array = placed(np.ones((3, 2), np.float32))
    with pytest.raises(InternalError, match=r"values of shape \[2\] do not fit float32\[3 2\] on a device"):
        array[...] = [1, 2]
    for key in (slice(0, 3, 2), 1, (slice(None), 1)):
        with pytest.raises(InternalError, match=r"float32\[3 2\] on a device has no part"):
            array[key]
    with pytest.raises(InternalError, match=r"float32\[\] on a device has no part"):
        array.reshape(6)[:1].reshape(())[0:1]
    with pytest.raises(ValueError, match="cannot be read without a copy"):
        np.array(array, copy=False)


def test_elements_are_not_gone_over() -> None:
    array = placed(np.ones(3))
    with pytest.raises(TypeError):
        iter(array)  # type: ignore[call-overload]
    with pytest.raises(AttributeError):
        array.__array_interface__  # type: ignore[attr-defined] # noqa: B018


def test_views_keep_the_memory() -> None:
    array = placed(np.ones(4))
    owner = weakref.ref(array.owner)
    part = array[1:].view(np.int64)
    del array
    gc.collect()
    assert owner() is not None
    del part
    gc.collect()
    assert owner() is None


def test_a_cell_follows_its_address() -> None:
    memory = HiddenMemory()
    one, other = placed(np.ones(4), memory), placed(np.ones(4), memory)
    cell, table = Cell(one), np.zeros(1, np.uint64)
    cell.watch(table, 0, 8)
    assert table[0] == address_of(one) + 8 == one.address + 8
    cell.array = other
    assert table[0] == other.address + 8
    with pytest.raises(InternalError, match=r"float64\[4\] on a device is not in host memory"):
        cell.values  # noqa: B018
