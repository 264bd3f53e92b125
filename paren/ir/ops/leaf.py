"""Operations without operands: inputs, constants, and positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paren.ir.op import Array, Attrs, Op, Sample, register
from paren.ir.ops import operands as need
from paren.ir.types import DType, TensorType, TypeMismatch

ROLES = ("state", "batch", "scalar")


def _infer_input(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need.count(types, 0)
    if attrs.get("role") not in ROLES:
        raise TypeMismatch(f"the role of an input is {attrs.get('role')!r}, one of {', '.join(ROLES)} is needed")
    type_ = attrs.get("type")
    if not isinstance(type_, TensorType):
        raise TypeMismatch(f"the type of an input is {type_!r}, a tensor type is needed")
    need.sizes(type_.shape)
    return type_


def _evaluate_input(_arrays: Sequence[Array], attrs: Attrs) -> Array:
    raise LookupError(f"the value of input {attrs['name']} comes from outside the graph")


def _infer_constant(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need.count(types, 0)
    dtype = need.element_type(attrs)
    value = attrs.get("value")
    if dtype.is_integer:
        if type(value) is not int:
            raise TypeMismatch(f"the value {value!r} is not an integer, {dtype} is needed")
        limits = np.iinfo(dtype.value)
        if not limits.min <= value <= limits.max:
            raise TypeMismatch(f"the value {value} does not fit {dtype}")
    elif type(value) is not (bool if dtype is DType.BOOL else float):
        raise TypeMismatch(f"the value {value!r} is not a {dtype}")
    return TensorType(dtype, ())


def _evaluate_constant(_arrays: Sequence[Array], attrs: Attrs) -> Array:
    return np.asarray(attrs["value"]).astype(need.element_type(attrs).numpy)


def _infer_iota(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need.count(types, 0)
    result = TensorType(need.element_type(attrs), need.integers(attrs, "shape"))
    need.member(result, need.NUMBERS)
    need.sizes(result.shape)
    need.axis_of(result, need.integer(attrs, "axis"))
    return result


def _evaluate_iota(_arrays: Sequence[Array], attrs: Attrs) -> Array:
    shape, axis = need.integers(attrs, "shape"), need.integer(attrs, "axis")
    line = np.arange(shape[axis]).astype(need.element_type(attrs).numpy)
    along = [1] * len(shape)
    along[axis] = shape[axis]
    return np.broadcast_to(line.reshape(along), shape)


def _constant_samples(_generator: np.random.Generator) -> list[Sample]:
    values: list[tuple[float | int | bool, DType]] = [
        (0.5, DType.FLOAT64),
        (-0.0, DType.FLOAT32),
        (float("inf"), DType.FLOAT32),
        (-7, DType.INT32),
        (2**40, DType.INT64),
        (2**32 - 1, DType.UINT32),
        (255, DType.UINT8),
        (True, DType.BOOL),
    ]
    return [Sample((), {"value": value, "dtype": dtype}) for value, dtype in values]


def _iota_samples(_generator: np.random.Generator) -> list[Sample]:
    cases = [((5,), 0, DType.INT32), ((2, 3, 4), 1, DType.UINT32), ((3, 1), 0, DType.FLOAT64)]
    return [Sample((), {"shape": shape, "axis": axis, "dtype": dtype}) for shape, axis, dtype in cases]


INPUT = register(Op("input", "leaf", _infer_input, _evaluate_input, None, lambda _generator: []))
CONSTANT = register(Op("constant", "leaf", _infer_constant, _evaluate_constant, None, _constant_samples))
IOTA = register(Op("iota", "leaf", _infer_iota, _evaluate_iota, None, _iota_samples))
