"""Which products a library can compute together with the kernel after them: those whose kernel works on the result
element by element, so that it need not go through memory in between.

A device may run the two steps as they stand; then the product's result is rounded where it is stored, else not. Results
agree to rounding. Nothing that either step writes lies on what the other one reads (`paren.plan.memory`), so the two
may be run as one, and as often as one likes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import pairwise
from math import prod

from paren.ir.types import DType
from paren.plan.kernel import Access, Compute, Constant, Kernel, Load, Stage, Store
from paren.plan.plan import Buffer, Launch, Place, Plan, Product, Step

# Those that keep what is not finite: a library's maximum of NaN and 0 may be 0.
ARITHMETIC = frozenset({"add", "sub", "mul", "div", "neg", "abs", "exp", "log", "sqrt", "rsqrt"})
FUNCTIONS = frozenset({"tanh", "erf", "sin", "cos"})
COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
ALIGNED = 16  # bytes; libraries take operands as lying so
OPERATIONS = ARITHMETIC | FUNCTIONS | COMPARISONS | {"where", "cast"}


class Reach(Enum):
    """How a parameter lies along a result of m x n: an element for each of its own, one for each column (n), one for
    each row (m), or a single one."""

    MATRIX = "matrix"
    COLUMNS = "columns"
    ROWS = "rows"
    SCALAR = "scalar"


@dataclass(frozen=True)
class Epilogue:
    """A product and the launch after it. `reaches`: of the kernel's parameters. `keeps`: whether later steps read the
    product's result. `dtypes` are those of A, B and C."""

    product: Product
    launch: Launch
    reaches: tuple[Reach, ...]
    dtypes: tuple[DType, DType, DType]
    keeps: bool

    @cached_property
    def form(self) -> str:
        """Equal for those that one program of a library computes."""
        product = self.product
        layout = [(matrix.leading, matrix.transposed, matrix.offset) for matrix in (product.a, product.b)]
        content = (product.m, product.n, product.k, layout, self.dtypes, self.launch.kernel.digest, self.reaches)
        return hashlib.sha256(repr((content, self.result, self.keeps)).encode()).hexdigest()[:12]

    @property
    def buffers(self) -> tuple[int, ...]:
        """Ids of the buffers that it touches, each once."""
        product, launch = self.product, self.launch
        return tuple(dict.fromkeys((*product.reads, *product.writes, *launch.buffers)))

    @property
    def result(self) -> int:
        """The kernel's parameter that is the product's result."""
        return self.launch.buffers.index(self.product.c.buffer)

    @property
    def spared_bytes(self) -> int:
        """Bytes that are not moved where it is one step: the kernel does not read the product's result, which is not
        written either if nobody else wants it."""
        return self.result_bytes if self.keeps else 2 * self.result_bytes

    @property
    def result_bytes(self) -> int:
        """Bytes of the product's result."""
        return self.product.m * self.product.n * self.dtypes[2].bytes


def find_epilogues(steps: Sequence[Step], buffers: Mapping[int, Buffer]) -> tuple[int, ...]:
    """The numbers of the products that are followed by such a kernel; `buffers` by id."""
    found = []
    for number, (product, launch) in enumerate(pairwise(steps)):
        if isinstance(product, Product) and isinstance(launch, Launch) and _fits(product, launch, buffers):
            found.append(number)
    return tuple(found)


def epilogues_of(plan: Plan) -> dict[int, Epilogue]:
    """The epilogues of a placed plan by the numbers of their products."""
    buffers = {buffer.id: buffer for buffer in plan.buffers}
    found = {}
    for number in plan.epilogues:
        product, launch = plan.steps[number], plan.steps[number + 1]
        assert isinstance(product, Product)
        assert isinstance(launch, Launch)
        reaches = _reaches(launch.kernel, product.m, product.n)
        assert reaches is not None
        a, b, c = (buffers[matrix.buffer].type.dtype for matrix in (product.a, product.b, product.c))
        keeps = buffers[product.c.buffer].last > number + 1
        found[number] = Epilogue(product, launch, reaches, (a, b, c), keeps)
    return found


def _fits(product: Product, launch: Launch, buffers: Mapping[int, Buffer]) -> bool:
    a, b, c = (buffers[matrix.buffer] for matrix in (product.a, product.b, product.c))
    size = product.m * product.n
    if product.accumulate or prod(product.batch) != 1 or not (a.type.dtype is b.type.dtype and a.type.dtype.is_short):
        return False
    if any(matrix.offset * a.type.dtype.bytes % ALIGNED for matrix in (product.a, product.b)):
        return False
    whole = product.c.offset == 0 and product.c.leading == product.n and c.type.size == size
    if not whole or c.place is not Place.ARENA or launch.reads.count(c.id) != 1 or c.id in launch.writes:
        return False
    if any(buffers[id].place is not Place.ARENA or id in product.reads for id in launch.writes):
        return False
    reaches = _reaches(launch.kernel, product.m, product.n)
    return reaches is not None and reaches[launch.buffers.index(c.id)] is Reach.MATRIX


def _reaches(kernel: Kernel, rows: int, columns: int) -> tuple[Reach, ...] | None:
    """How each parameter lies, if the kernel computes every element of its results from those at the same place."""
    if len(kernel.stages) != 1:
        return None
    (stage,) = kernel.stages
    if not _is_elementwise(kernel, stage):
        return None
    axes = (*range(kernel.rows), *stage.axes)
    if prod(kernel.axes[axis] for axis in axes) != rows * columns:
        return None
    places = _places(kernel, axes, rows, columns)
    found: dict[int, Reach] = {}
    for statement in stage.body:
        if isinstance(statement, Load | Store):
            reach = places.get(_strides(kernel, statement.access))
            stored = isinstance(statement, Store)
            if reach is None or found.setdefault(statement.access.parameter, reach) is not reach:
                return None
            if statement.access.start or (stored and reach is not Reach.MATRIX):
                return None
    if any(parameter.reads and parameter.writes for parameter in kernel.parameters):
        return None
    return tuple(found[number] for number in range(len(kernel.parameters)))


Strides = tuple[tuple[int, int], ...]  # (axis, elements by which it moves an access), axes of one index left out


def _places(kernel: Kernel, axes: Sequence[int], rows: int, columns: int) -> dict[Strides, Reach]:
    """The strides of an access along the axes for each way to lie, of a result whose elements follow one another in the
    order of the axes; without the ways that an axis which runs over rows and columns rules out."""
    strides: dict[int, int] = {}
    stride = 1
    for axis in reversed(axes):
        if kernel.axes[axis] > 1:
            strides[axis] = stride
        stride *= kernel.axes[axis]
    down = {axis: stride // columns for axis, stride in strides.items() if stride % columns == 0}
    along = {axis: stride for axis, stride in strides.items() if kernel.axes[axis] * stride <= columns}
    found: dict[Strides, Reach] = {(): Reach.SCALAR}
    if down.keys() | along.keys() == strides.keys():
        found[tuple(sorted(down.items()))] = Reach.ROWS
        found[tuple(sorted(along.items()))] = Reach.COLUMNS
    return found | {tuple(sorted(strides.items())): Reach.MATRIX}


def _strides(kernel: Kernel, access: Access) -> Strides:
    return tuple(sorted((axis, step) for axis, step in access.steps.items() if kernel.axes[axis] > 1 and step))


def _is_elementwise(kernel: Kernel, stage: Stage) -> bool:
    """Whether the stage loads, computes what libraries compute, and stores, in floats."""
    constants: set[int] = set()
    types: dict[int, DType] = {}
    computed: set[int] = set()
    for statement in stage.body:
        match statement:
            case Constant(result, _, dtype):
                constants.add(result)
                types[result] = dtype
            case Load(result, access, dtype):
                if not (access.is_affine and dtype.is_float and kernel.parameters[access.parameter].reads):
                    return False
                types[result] = dtype
            case Compute(result, op, args, dtype):
                if not _is_known(op, args, dtype, types, constants):
                    return False
                types[result] = dtype
                computed.add(result)
            case Store(access, value):
                if not access.is_affine or value not in computed or not types[value].is_float:
                    return False
            case _:
                return False
    return all(dtype in (DType.FLOAT32, DType.BOOL) or dtype.is_short for dtype in types.values())


def _is_known(op: str, args: Sequence[int], dtype: DType, types: Mapping[int, DType], constants: set[int]) -> bool:
    """Whether an operation is one that libraries have. Values are compared with constants only: where they are equal
    to one another may depend on the rounding that is left out."""
    first, *others = args
    floats = others if op == "where" else args
    if not all(types[arg].is_float for arg in floats) or (op == "where" and first in constants):
        return False
    fixed = sum(arg in constants for arg in args)
    if op in COMPARISONS or op in ("maximum", "minimum"):
        return fixed == 1
    return fixed < len(args) and op in OPERATIONS and (op != "cast" or dtype.is_float)
