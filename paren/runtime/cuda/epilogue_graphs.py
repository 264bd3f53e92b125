"""Products together with the kernel after them by cuDNN's own graphs: the kernel's scalars become the graph's pointwise
operations on the product's sums, which stay in float32 and go through no memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from paren.ir.op import Array
from paren.ir.types import DType
from paren.plan.epilogue import ARITHMETIC, FUNCTIONS, Epilogue, Reach
from paren.plan.kernel import Compute, Constant, Kernel, Load, Store
from paren.plan.plan import Matrix
from paren.runtime.cuda.cudnn import Cudnn, Ready

_A, _B, _C = 0, 1, 2  # numbers of tensors in a graph; those of the kernel's parameters begin behind, then constants
_PARAMETERS, _CONSTANTS = 10, 1000
_COMPARED = {"lt": "cmp_lt", "le": "cmp_le", "gt": "cmp_gt", "ge": "cmp_ge", "eq": "cmp_eq", "ne": "cmp_neq"}


class EpilogueGraphs:
    """The graphs of products with epilogues, by their forms."""

    def __init__(self, cudnn: Cudnn) -> None:
        self._cudnn = cudnn
        self._ready: dict[str, tuple[Ready, Array]] = {}

    def prepare(self, epilogue: Epilogue) -> None:
        """Makes the graph of an epilogue, at the first of its form, which must not be inside of a capture. Whatever it
        raises says that cuDNN does not compute it."""
        if epilogue.form not in self._ready:
            constants = _constants(epilogue.launch.kernel)
            ready = self._cudnn.prepare(epilogue.form, lambda: self.graph(epilogue))
            self._ready[epilogue.form] = ready, np.array([each.value for each in constants], np.float32)

    def run(self, epilogue: Epilogue, addresses: Mapping[int, int]) -> None:
        """Starts an epilogue that was prepared; its buffers lie at these addresses."""
        ready, constants = self._ready[epilogue.form]
        product, launch, (a, b, _) = epilogue.product, epilogue.launch, epilogue.dtypes
        places = {
            _A: addresses[product.a.buffer] + a.bytes * product.a.offset,
            _B: addresses[product.b.buffer] + b.bytes * product.b.offset,
        }
        for number, id in enumerate(launch.buffers):
            if number != epilogue.result:
                places[_PARAMETERS + number] = addresses[id]
        if epilogue.keeps:
            places[_C] = addresses[product.c.buffer]
        begin = int(constants.ctypes.data)
        places |= {_CONSTANTS + number: begin + 4 * number for number in range(len(constants))}
        self._cudnn.run(ready, places)

    def graph(self, epilogue: Epilogue) -> Any:
        """The graph of an epilogue, not built yet."""
        return _Drawing(self._cudnn, epilogue).graph


class _Drawing:
    """The graph of one epilogue while it is drawn, and its tensors by the numbers of the kernel's values."""

    def __init__(self, cudnn: Cudnn, epilogue: Epilogue) -> None:
        self._cudnn = cudnn
        self._epilogue = epilogue
        self._rows, self._columns = epilogue.product.m, epilogue.product.n
        self._written: set[int] = set()  # identities of tensors that are results already
        self.graph = cudnn.begin("product", epilogue.dtypes[0])
        self._product = self._multiplied()
        self._parameters = self._inputs()
        self._values: dict[int, Any] = {}
        self._draw()

    def _multiplied(self) -> Any:
        product, (a, b, c) = self._epilogue.product, self._epilogue.dtypes
        left = self._matrix(_A, "a", product.a, product.m, product.k, a)
        right = self._matrix(_B, "b", product.b, product.k, product.n, b)
        made = self.graph.matmul(left, right, name="product")
        made.set_data_type(self._cudnn.dtype(DType.FLOAT32))
        if self._epilogue.keeps:
            self._end(made, _C, c)
        return made

    def _matrix(self, number: int, name: str, matrix: Matrix, rows: int, columns: int, dtype: DType) -> Any:
        strides = [1, matrix.leading] if matrix.transposed else [matrix.leading, 1]
        whole = matrix.leading * (columns if matrix.transposed else rows)
        return self.graph.tensor(
            uid=number,
            name=name,
            dim=[1, rows, columns],
            stride=[whole, *strides],
            data_type=self._cudnn.dtype(dtype),
        )

    def _inputs(self) -> dict[int, Any]:
        """Tensors of the parameters that the kernel reads."""
        shapes = {
            Reach.MATRIX: (self._rows, self._columns),
            Reach.COLUMNS: (1, self._columns),
            Reach.ROWS: (self._rows, 1),
            Reach.SCALAR: (1, 1),
        }
        found: dict[int, Any] = {}
        kernel = self._epilogue.launch.kernel
        for number, (parameter, reach) in enumerate(zip(kernel.parameters, self._epilogue.reaches, strict=True)):
            if number == self._epilogue.result:
                found[number] = self._product
            elif parameter.reads:
                rows, columns = shapes[reach]
                found[number] = self.graph.tensor(
                    uid=_PARAMETERS + number,
                    name=f"parameter {number}",
                    dim=[1, rows, columns],
                    stride=[rows * columns, columns, 1],
                    data_type=self._cudnn.dtype(parameter.dtype),
                )
        return found

    def _draw(self) -> None:
        kernel = self._epilogue.launch.kernel
        single = self._cudnn.dtype(DType.FLOAT32)
        constants = iter(range(len(_constants(kernel))))
        values = self._values
        for statement in kernel.stages[0].body:
            match statement:
                case Constant(result):
                    number = _CONSTANTS + next(constants)
                    values[result] = self.graph.tensor(
                        uid=number,
                        name=f"constant {number}",
                        dim=[1, 1, 1],
                        stride=[1, 1, 1],
                        data_type=single,
                        is_pass_by_value=True,
                    )
                case Load(result, access):
                    values[result] = self._parameters[access.parameter]
                case Compute(result, op, args):
                    values[result] = self._computed(op, args)
                case Store(access, value):
                    parameter = kernel.parameters[access.parameter]
                    self._store(values[value], _PARAMETERS + access.parameter, parameter.dtype)

    def _computed(self, op: str, args: tuple[int, ...]) -> Any:
        """An operation. Roundings in between are left out, so a `cast` is its operand."""
        operands = [self._values[arg] for arg in args]
        if op == "cast":
            return operands[0]
        if op in ARITHMETIC | FUNCTIONS:  # by the same names
            return getattr(self.graph, op)(*operands)
        if op in _COMPARED:
            return self._compared(_COMPARED[op], *operands)
        if op == "where":
            condition, then, otherwise = operands
            return self.graph.binary_select(then, otherwise, condition)
        # What is not finite stays: `maximum` and `minimum` take the constant only where it is the one.
        other, constant = reversed(operands) if self._is_constant(args[0]) else operands
        compared = self._compared("cmp_lt" if op == "maximum" else "cmp_gt", other, constant)
        return self.graph.binary_select(constant, other, compared)

    def _compared(self, name: str, left: Any, right: Any) -> Any:
        made = getattr(self.graph, name)(left, right)
        made.set_data_type(self._cudnn.package.data_type.BOOLEAN)
        return made

    def _is_constant(self, value: int) -> bool:
        return any(constant.result == value for constant in _constants(self._epilogue.launch.kernel))

    def _store(self, value: Any, number: int, dtype: DType) -> None:
        inputs = (self._product, *self._parameters.values())
        if id(value) in self._written or any(value is each for each in inputs):
            value = self.graph.identity(value)
        self._end(value, number, dtype)

    def _end(self, tensor: Any, number: int, dtype: DType) -> None:
        """Makes a tensor a result of the graph."""
        size = self._rows * self._columns
        tensor.set_output(True).set_dim([1, self._rows, self._columns]).set_stride([size, self._columns, 1])
        tensor.set_data_type(self._cudnn.dtype(dtype)).set_uid(number)
        self._written.add(id(tensor))


def _constants(kernel: Kernel) -> list[Constant]:
    return [statement for statement in kernel.stages[0].body if isinstance(statement, Constant)]
