"""Loops over scalars: what a fused group of nodes becomes before any device is known.

A kernel has loop axes with fixed sizes. Its first `rows` axes are independent: every combination of their indices (a
row) may run at any time, on any thread. Within a row the stages run one after another. A stage loops over its own
further axes in lexicographic order and executes its statements in order for each combination; a stage without axes
executes them once. Values are in single assignment and numbered over the whole kernel. A value computed in a stage
with axes is visible in that stage only; the results of its reductions, and the values of a stage without axes, are
visible in all later stages of the row. A buffer that one stage stores may be loaded by later stages of the same row, at
indices of that row only.

The iterations of a stage may be interleaved statement by statement, so within a stage with axes nothing may depend on
their order: a parameter that is stored is not loaded or stored at another index, and the index is another element in
each iteration; a parameter that is added to has one `Accumulate` and nothing else. `paren.plan.verify_kernel` refuses
the rest.

The meaning is `paren.codegen.python`; `paren.codegen.llvm` and a CUDA emitter must agree with it. The only freedom of
an emitter is the order in which a `Reduce` of kind `sum` adds, which must depend on the kernel and the target alone,
never on the number of threads.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from paren.ir.types import DType


@dataclass(frozen=True)
class Index:
    """One index of an access: (constant + sum of coefficient x axis) / divisor, or the value of an instruction.

    With a divisor greater than 1 the access is out of range where the sum is not a multiple of it.
    With `value` set (a gather), `terms` is empty, and the index is that integer value clamped into the dimension.
    """

    terms: tuple[tuple[int, int], ...] = ()  # (axis, coefficient), axes ascending, coefficients not 0
    constant: int = 0
    divisor: int = 1
    value: int | None = None


@dataclass(frozen=True)
class Access:
    """Which element of a parameter a load or store touches: the sum of index x stride over the dimensions.

    `guarded` says that an index may fall outside 0 <= index < size; a guarded load then gives its `fill` and does not
    touch memory. Stores are never guarded. Strides count elements. `offset` is added to the sum, in elements.
    """

    parameter: int
    indices: tuple[Index, ...]
    strides: tuple[int, ...]
    sizes: tuple[int, ...]
    guarded: bool = False
    offset: int = 0

    @property
    def is_affine(self) -> bool:
        """Whether it always touches element `start` + the sum of `steps` x axis: no guard, no gather, no divisor."""
        return not self.guarded and all(index.value is None and index.divisor == 1 for index in self.indices)

    @property
    def start(self) -> int:
        """The element at index 0 of all axes, gathers left out."""
        constants = (index.constant * stride for index, stride in zip(self.indices, self.strides, strict=True))
        return self.offset + sum(constants)

    @property
    def steps(self) -> dict[int, int]:
        """Elements by which each axis moves it, divisors and gathers left out."""
        steps: dict[int, int] = {}
        for index, stride in zip(self.indices, self.strides, strict=True):
            for axis, coefficient in index.terms:
                steps[axis] = steps.get(axis, 0) + coefficient * stride
        return steps


@dataclass(frozen=True)
class Constant:
    """A literal scalar."""

    result: int
    value: float | int | bool
    dtype: DType


@dataclass(frozen=True)
class AxisIndex:
    """An affine expression of the loop axes as an integer value (from `iota`, and for random counters)."""

    result: int
    index: Index  # without `value`, and with divisor 1: whole numbers only
    dtype: DType


@dataclass(frozen=True)
class Load:
    result: int
    access: Access
    dtype: DType
    fill: float | int | bool = 0


@dataclass(frozen=True)
class Compute:
    """A scalar operation: the name of an elementwise operation of `paren.ir.ops` applied to earlier values.

    `dtype` is the result's. `attrs` are the operation's (`word` of threefry).
    """

    result: int
    op: str
    args: tuple[int, ...]
    dtype: DType
    attrs: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Reduce:
    """Combines `value` over all iterations of its stage. `kind`: sum, max, min, argmax, argmin.

    argmax and argmin give, as int32, the position (counted over the stage's iterations) of the first extreme value.
    max and min give NaN if any value is NaN; argmax and argmin then give the position of the first NaN.
    """

    result: int
    kind: str
    value: int
    dtype: DType


@dataclass(frozen=True)
class Store:
    access: Access
    value: int


@dataclass(frozen=True)
class Accumulate:
    """Adds `value` to an element (scatter-add). Within a row the additions happen in loop order; rows never collide."""

    access: Access
    value: int


Statement = Constant | AxisIndex | Load | Compute | Reduce | Store | Accumulate


@dataclass(frozen=True)
class Stage:
    """A loop over `axes` (numbers of kernel axes, none of them a row axis) around statements."""

    axes: tuple[int, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class Parameter:
    """A buffer that the kernel touches: element type, number of elements, whether it reads what lies there before the
    launch (loading what an earlier stage stored is no reading), and whether it writes it. A flag that no statement
    needs is a mistake: it would keep buffers alive or apart for nothing."""

    dtype: DType
    size: int
    reads: bool
    writes: bool


@dataclass(frozen=True)
class Kernel:
    """`name` says what was fused (for people); it is not part of the content, so equal loops share one compilation."""

    name: str
    axes: tuple[int, ...]  # sizes
    rows: int  # how many of the first axes are row axes
    parameters: tuple[Parameter, ...]
    stages: tuple[Stage, ...]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over everything but the name."""
        content = repr((self.axes, self.rows, self.parameters, self.stages))
        return hashlib.sha256(content.encode()).hexdigest()
