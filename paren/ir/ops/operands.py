"""What operations ask of their operands and attributes, in one set of words."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import cast

from paren.ir.op import Attrs
from paren.ir.types import DType, TensorType, TypeMismatch

FLOATS = (DType.FLOAT64, DType.FLOAT32)
SHORT = (DType.BFLOAT16, DType.FLOAT16)
FACTORS = (*FLOATS, *SHORT)
INTEGERS = (DType.INT64, DType.INT32, DType.UINT32, DType.UINT8)
NUMBERS = FLOATS + INTEGERS
MOVED = (*NUMBERS, *SHORT)  # numbers that are moved, not computed with
EVERY = (*MOVED, DType.BOOL)
LOGICAL = (DType.BOOL, *INTEGERS)


def count(types: Sequence[TensorType], number: int) -> None:
    """There are `number` operands."""
    if len(types) != number:
        raise TypeMismatch(f"{number} operand{'s are' if number > 1 else ' is'} needed, {len(types)} given")


def member(type_: TensorType, allowed: Sequence[DType]) -> None:
    """The element type is one of `allowed`."""
    if type_.dtype in allowed:
        return
    if type_.dtype.is_short:
        raise TypeMismatch(f"the operand is {type_}, and {type_.dtype} is for storage and products: cast it to float32")
    words = {
        (DType.BOOL,): "booleans",
        (DType.UINT32,): "uint32 numbers",
        FLOATS: "floats",
        FACTORS: "floats",
        INTEGERS: "integers",
        NUMBERS: "numbers",
        MOVED: "numbers",
        LOGICAL: "booleans or integers",
    }
    wanted = words.get(tuple(allowed)) or " or ".join(map(str, allowed))
    raise TypeMismatch(f"the operand is {type_}, {wanted} are needed")


def same(first: TensorType, second: TensorType) -> None:
    """Element types and shapes are equal."""
    same_dtype(first, second)
    same_shape(first, second)


def same_dtype(first: TensorType, second: TensorType) -> None:
    if first.dtype is not second.dtype:
        raise TypeMismatch(f"the element types of {first} and {second} differ")


def same_shape(first: TensorType, second: TensorType) -> None:
    if first.shape != second.shape:
        raise TypeMismatch(f"the shapes {first} and {second} differ")


def rank(type_: TensorType, wanted: int) -> None:
    if type_.rank != wanted:
        raise TypeMismatch(f"the operand is {type_}, rank {wanted} is needed")


def per_dimension(name: str, values: Sequence[object], type_: TensorType) -> None:
    """There is one value for each dimension."""
    if len(values) != type_.rank:
        raise TypeMismatch(f"{name} has {len(values)} entries for {type_}, which has {type_.rank} dimensions")


def axis_of(type_: TensorType, axis: int) -> None:
    if not 0 <= axis < type_.rank:
        raise TypeMismatch(f"axis {axis} does not exist in {type_}")


def ascending_axes(type_: TensorType, axes: tuple[int, ...]) -> None:
    for axis in axes:
        axis_of(type_, axis)
    if any(low >= high for low, high in itertools.pairwise(axes)):
        raise TypeMismatch(f"the axes {words(axes)} are not ascending")


def sizes(shape: tuple[int, ...]) -> None:
    """Every size of a result is at least 1."""
    if any(size < 1 for size in shape):
        raise TypeMismatch(f"the shape {words(shape)} has a size below 1")


def words(values: Sequence[int]) -> str:
    return f"[{' '.join(map(str, values))}]"


def integer(attrs: Attrs, name: str) -> int:
    value = attrs.get(name)
    if type(value) is not int:
        raise TypeMismatch(f"{name} is {value!r}, an integer is needed")
    return value


def integers(attrs: Attrs, name: str) -> tuple[int, ...]:
    value = attrs.get(name)
    if not isinstance(value, tuple) or not all(type(item) is int for item in value):
        raise TypeMismatch(f"{name} is {value!r}, a tuple of integers is needed")
    return cast("tuple[int, ...]", value)


def pairs(attrs: Attrs, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """An attribute that is two tuples of integers."""
    value = attrs.get(name)
    if not isinstance(value, tuple) or len(value) != 2:
        raise TypeMismatch(f"{name} is {value!r}, two tuples of integers are needed")
    return integers({name: value[0]}, name), integers({name: value[1]}, name)


def element_type(attrs: Attrs) -> DType:
    value = attrs.get("dtype")
    if not isinstance(value, DType):
        raise TypeMismatch(f"dtype is {value!r}, an element type is needed")
    return value
