"""A product with its epilogue by the definition of its operations: in float32, rounded only where it is stored."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from paren.ir.op import OPS, Array
from paren.ir.types import DType
from paren.plan.epilogue import Epilogue, Reach
from paren.plan.kernel import Compute, Constant, Load, Store
from paren.plan.plan import Matrix

Elements = Callable[[int, int, DType], Array]  # so many elements of a type of a buffer, by its id: flat


def join(epilogue: Epilogue, elements: Elements) -> None:
    """Runs it on the elements of its buffers."""
    product, launch, (a, b, c) = epilogue.product, epilogue.launch, epilogue.dtypes
    rows, columns = product.m, product.n
    left = _matrix(elements, product.a, rows, product.k, a)
    right = _matrix(elements, product.b, product.k, columns, b)
    with np.errstate(all="ignore"):
        sums = left.astype(np.float32) @ right.astype(np.float32)
    shapes = {
        Reach.MATRIX: (rows, columns),
        Reach.COLUMNS: (1, columns),
        Reach.ROWS: (rows, 1),
        Reach.SCALAR: (1, 1),
    }
    values: dict[int, Array] = {}
    results: list[tuple[Array, Array]] = []
    if epilogue.keeps:
        results.append((elements(product.c.buffer, sums.size, c).reshape(sums.shape), sums))

    def parameter(number: int) -> Array:
        shape = shapes[epilogue.reaches[number]]
        found = elements(launch.buffers[number], shape[0] * shape[1], launch.kernel.parameters[number].dtype)
        return found.reshape(shape)

    for statement in launch.kernel.stages[0].body:
        match statement:
            case Constant(result, value):
                values[result] = np.array(value, np.float32)
            case Load(result, access):
                is_sums = access.parameter == epilogue.result
                values[result] = sums if is_sums else parameter(access.parameter).astype(np.float32)
            case Compute(result, "cast", (arg,)):
                values[result] = values[arg]
            case Compute(result, op, args):
                operands = np.broadcast_arrays(*(values[arg] for arg in args))
                with np.errstate(all="ignore"):
                    values[result] = OPS[op].evaluate(list(operands), {})
            case Store(access, value):
                results.append((parameter(access.parameter), values[value]))
    for place, value in results:
        with np.errstate(all="ignore"):
            place[...] = value.astype(place.dtype)


def _matrix(elements: Elements, matrix: Matrix, rows: int, columns: int, dtype: DType) -> Array:
    if matrix.transposed:
        rows, columns = columns, rows
    whole = elements(matrix.buffer, matrix.offset + (rows - 1) * matrix.leading + columns, dtype)
    strides = (matrix.leading * dtype.bytes, dtype.bytes)
    found = np.lib.stride_tricks.as_strided(whole[matrix.offset :], (rows, columns), strides)
    return found.T if matrix.transposed else found
