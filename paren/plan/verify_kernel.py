"""Proof that a kernel keeps the rules of `paren.plan.kernel`: assignment, visibility, types, bounds, independent rows,
stages in which the order of iterations does not count, parameters that are what they say.

Does not decide whether the kernel computes what its nodes mean: tests compare it with the definition of the graph.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from paren.ir.op import OPS, Attrs
from paren.ir.types import DType, TensorType, TypeMismatch
from paren.plan.index import Interval, interval
from paren.plan.kernel import (
    Access,
    Accumulate,
    AxisIndex,
    Compute,
    Constant,
    Index,
    Kernel,
    Load,
    Reduce,
    Stage,
    Store,
)
from paren.text.errors import InternalError

KINDS = ("sum", "max", "min", "argmax", "argmin")
POSITIONS = ("argmax", "argmin")


def verify_kernel(kernel: Kernel) -> None:
    """Raises `InternalError` that names the statement which breaks a rule."""
    _Verifier(kernel).run()


@dataclass(frozen=True)
class _Reach:
    """What an access of a stored parameter touches: its first element, the steps of the row axes, and the other steps
    (elements, count) that stage axes and gathers move it by; all steps are positive."""

    start: int
    rows: dict[int, int]
    others: tuple[tuple[int, int], ...]


@dataclass
class _Verifier:
    kernel: Kernel
    types: dict[int, DType] = field(default_factory=dict)  # of all values so far
    visible: set[int] = field(default_factory=set)
    filled: set[int] = field(default_factory=set)  # parameters that earlier stages stored
    loads: dict[int, list[Access]] = field(default_factory=dict)
    stores: dict[int, list[Access]] = field(default_factory=dict)
    place: str = ""

    def run(self) -> None:
        kernel = self.kernel
        if not 0 <= kernel.rows <= len(kernel.axes):
            self._fail(f"{kernel.rows} of {len(kernel.axes)} axes are rows")
        if min(kernel.axes, default=1) < 1:
            self._fail(f"an axis of {kernel.axes} is empty")
        for number, stage in enumerate(kernel.stages):
            self._stage(number, stage)
        self.place = ""
        for parameter, stored in self.stores.items():
            self._independent(parameter, [self._reach(a) for a in stored + self.loads.get(parameter, [])])
        self._parameters()

    def _fail(self, message: str) -> NoReturn:
        raise InternalError("kernel", f"{self.kernel.name}{self.place}: {message}")

    def _parameters(self) -> None:
        """Every parameter is used, and says no more than what is done with it."""
        added = {
            statement.access.parameter
            for stage in self.kernel.stages
            for statement in stage.body
            if isinstance(statement, Accumulate)
        }
        for number, parameter in enumerate(self.kernel.parameters):
            if number not in self.loads and number not in self.stores:
                self._fail(f"parameter {number} is not used")
            if parameter.reads and number not in self.loads and number not in added:
                self._fail(f"parameter {number} says that it reads, but is not loaded")
            if parameter.writes and number not in self.stores:
                self._fail(f"parameter {number} says that it writes, but is not stored")

    # Stages and values ----------------------------------------------------------------------------------------------

    def _stage(self, number: int, stage: Stage) -> None:
        self.place = f", stage {number}"
        wrong = [a for a in stage.axes if not self.kernel.rows <= a < len(self.kernel.axes)]
        if wrong or len(set(stage.axes)) != len(stage.axes):
            self._fail(f"the axes {stage.axes} are not distinct axes after the {self.kernel.rows} rows")
        before = set(self.visible)
        results: set[int] = set()
        for position, statement in enumerate(stage.body):
            self.place = f", stage {number}, statement {position}"
            if isinstance(statement, Store | Accumulate):
                self._write(stage, statement)
                continue
            dtype = self._dtype(stage, statement)
            if statement.result in self.types:
                self._fail(f"value {statement.result} is assigned twice")
            self.types[statement.result] = dtype
            if isinstance(statement, Reduce):
                results.add(statement.result)
            else:
                self.visible.add(statement.result)
        self.place = f", stage {number}"
        if stage.axes:
            self._unordered(stage)
        self.filled |= self.stores.keys()
        self.visible = results | (before if stage.axes else self.visible)

    def _dtype(self, stage: Stage, statement: Constant | AxisIndex | Load | Compute | Reduce) -> DType:
        match statement:
            case Constant():
                return statement.dtype
            case AxisIndex(_, index, dtype):
                if index.value is not None:
                    self._fail("an axis index has a gathered value")
                if index.divisor != 1:
                    self._fail(f"an axis index is divided by {index.divisor}")
                self._index(stage, index)
                return dtype
            case Load(_, access, dtype, _):
                self._access(stage, access)
                self.loads.setdefault(access.parameter, []).append(access)
                parameter = self.kernel.parameters[access.parameter]
                if not parameter.reads and access.parameter not in self.filled:
                    self._fail(f"parameter {access.parameter} is loaded, but does not read")
                if parameter.dtype is not dtype:
                    self._fail(f"a load of {dtype} from parameter {access.parameter} of {parameter.dtype}")
                return dtype
            case Compute():
                return self._compute(statement)
            case Reduce():
                return self._reduce(statement)

    def _reduce(self, statement: Reduce) -> DType:
        if statement.kind not in KINDS:
            self._fail(f"{statement.kind} is no kind of reduction")
        operand = self._use(statement.value)
        found = DType.INT32 if statement.kind in POSITIONS else operand
        if found is not statement.dtype:
            self._fail(f"{statement.kind} of value {statement.value} gives {found}, not {statement.dtype}")
        return found

    def _use(self, value: int) -> DType:
        if value not in self.visible:
            self._fail(f"value {value} is " + ("not visible here" if value in self.types else "not assigned yet"))
        return self.types[value]

    def _compute(self, statement: Compute) -> DType:
        op = OPS.get(statement.op)
        if op is None or op.kind != "elementwise":
            self._fail(f"{statement.op} is not elementwise")
        types = [TensorType(self._use(arg), ()) for arg in statement.args]
        attrs: Attrs = {"dtype": statement.dtype} if statement.op == "cast" else dict(statement.attrs)
        try:
            found = op.infer(types, attrs).dtype
        except TypeMismatch as mismatch:
            self._fail(f"{statement.op}: {mismatch}")
        if found is not statement.dtype:
            self._fail(f"{statement.op} gives {found}, not {statement.dtype}")
        return found

    def _write(self, stage: Stage, statement: Store | Accumulate) -> None:
        access = statement.access
        self._access(stage, access)
        parameter = self.kernel.parameters[access.parameter]
        if access.guarded:
            self._fail(f"a store to parameter {access.parameter} is guarded")
        if not parameter.writes or (isinstance(statement, Accumulate) and not parameter.reads):
            self._fail(f"parameter {access.parameter} is written, but does not say so")
        if self._use(statement.value) is not parameter.dtype:
            self._fail(f"a store of {self.types[statement.value]} to parameter {access.parameter} of {parameter.dtype}")
        self.stores.setdefault(access.parameter, []).append(access)

    # Accesses -------------------------------------------------------------------------------------------------------

    def _index(self, stage: Stage, index: Index) -> None:
        axes = [axis for axis, _ in index.terms]
        if axes != sorted(set(axes)) or any(coefficient == 0 for _, coefficient in index.terms) or index.divisor < 1:
            self._fail(f"{index} is not in its normal form")
        for axis in axes:
            if not 0 <= axis < self.kernel.rows and axis not in stage.axes:
                self._fail(f"axis {axis} does not run here")

    def _access(self, stage: Stage, access: Access) -> None:
        """Every index in range unless guarded or gathered, and the whole view within its parameter."""
        if not 0 <= access.parameter < len(self.kernel.parameters):
            self._fail(f"there is no parameter {access.parameter}")
        if not len(access.indices) == len(access.strides) == len(access.sizes):
            self._fail(f"indices, strides and sizes of parameter {access.parameter} differ in number")
        low = high = access.offset
        for index, stride, size in zip(access.indices, access.strides, access.sizes, strict=True):
            if index.value is not None:
                if index.terms or not self._use(index.value).is_integer:
                    self._fail(f"value {index.value} does not index parameter {access.parameter}")
            else:
                self._index(stage, index)
            touched = self._touched(access, index, size)
            if touched.low < 0 or touched.high >= size:
                self._fail(
                    f"an index from {touched.low} to {touched.high} leaves a dimension of {size} of parameter "
                    f"{access.parameter} unguarded"
                )
            low += min(touched.low * stride, touched.high * stride)
            high += max(touched.low * stride, touched.high * stride)
        end = self.kernel.parameters[access.parameter].size
        if low < 0 or high >= end:
            self._fail(f"elements {low} to {high} of parameter {access.parameter}, which has {end}")

    def _touched(self, access: Access, index: Index, size: int) -> Interval:
        """The smallest and largest position of one dimension that memory is touched at."""
        if index.value is not None:
            return Interval(0, size - 1)
        reach = interval(index, self.kernel.axes)
        if index.divisor != 1 and not access.guarded:
            self._fail(f"an index of parameter {access.parameter} with a divisor is not guarded")
        found = Interval(reach.low // index.divisor, reach.high // index.divisor)
        if not access.guarded:
            return found
        return Interval(min(max(found.low, 0), size - 1), min(max(found.high, 0), size - 1))

    # Unordered iterations -------------------------------------------------------------------------------------------

    def _unordered(self, stage: Stage) -> None:
        """No element that one iteration of a stage writes is touched by another one, but for what is added."""
        loads: dict[int, list[Access]] = {}
        stores: dict[int, list[Access]] = {}
        adds: dict[int, list[Access]] = {}
        for statement in stage.body:
            if isinstance(statement, Load | Store | Accumulate):
                kind = loads if isinstance(statement, Load) else stores if isinstance(statement, Store) else adds
                kind.setdefault(statement.access.parameter, []).append(statement.access)
        for parameter, added in adds.items():
            if len(added) > 1 or parameter in loads or parameter in stores:
                self._fail(f"parameter {parameter} is added to, and touched by another statement")
        for parameter, stored in stores.items():
            if len({self._place(access) for access in stored + loads.get(parameter, [])}) > 1:
                self._fail(f"parameter {parameter} is stored, and touched at another index")
            if not self._moves(stage, stored[0]):
                self._fail(f"iterations are not shown to store different elements of parameter {parameter}")

    def _steps(self, access: Access) -> dict[int, int]:
        """By how many elements each axis that runs moves an access."""
        return {axis: step for axis, step in access.steps.items() if step and self.kernel.axes[axis] > 1}

    def _place(self, access: Access) -> tuple[object, ...]:
        """Equal for accesses that touch the same element in every iteration."""
        if access.guarded or any(index.value is not None for index in access.indices):
            return (access,)
        return (access.start, tuple(sorted(self._steps(access).items())))

    def _moves(self, stage: Stage, access: Access) -> bool:
        """Whether each iteration of the stage stores another element."""
        axes = [axis for axis in stage.axes if self.kernel.axes[axis] > 1]
        if axes and any(index.value is not None for index in access.indices):
            return False
        steps = self._steps(access)
        return _tells_apart([(abs(steps.get(axis, 0)), self.kernel.axes[axis]) for axis in axes])

    # Independent rows -----------------------------------------------------------------------------------------------

    def _reach(self, access: Access) -> _Reach:
        start = access.offset
        steps: dict[int, int] = {}
        others: list[tuple[int, int]] = []
        for index, stride, size in zip(access.indices, access.strides, access.sizes, strict=True):
            within = all(axis >= self.kernel.rows for axis, _ in index.terms)
            if index.value is not None or index.divisor != 1 or (access.guarded and within):
                touched = self._touched(access, index, size)
                start += stride * (touched.low if stride > 0 else touched.high)
                others.append((abs(stride), touched.high - touched.low + 1))
                continue
            start += index.constant * stride
            for axis, coefficient in index.terms:
                steps[axis] = steps.get(axis, 0) + coefficient * stride
        rows: dict[int, int] = {}
        for axis, step in steps.items():
            size = self.kernel.axes[axis]
            start += min(0, step * (size - 1))
            if axis < self.kernel.rows and size > 1 and step:
                rows[axis] = step
            else:
                others.append((abs(step), size))
        return _Reach(start, rows, _joined(others))

    def _independent(self, parameter: int, accesses: list[_Reach]) -> None:
        """No element that one row stores is touched by another row: all accesses step alike from row to row, and the
        steps tell rows apart whatever the other steps are."""
        rows = accesses[0].rows
        if any(reach.rows != rows for reach in accesses):
            self._fail(f"rows step through parameter {parameter} in different ways")
        missing = [axis for axis in range(self.kernel.rows) if self.kernel.axes[axis] > 1 and axis not in rows]
        if missing:
            self._fail(f"rows along axis {missing[0]} store the same elements of parameter {parameter}")
        steps = [(abs(step), self.kernel.axes[axis]) for axis, step in rows.items()]
        exact: dict[int, int] = {}
        for reach in accesses:
            for step, count in reach.others:
                exact[step] = max(exact.get(step, 1), count)
        first = min(reach.start for reach in accesses)
        last = max(reach.start + sum(step * (count - 1) for step, count in reach.others) for reach in accesses)
        alike = all(reach.start == first for reach in accesses) and _tells_apart([*steps, *exact.items()])
        if not alike and not _tells_apart([*steps, (1, last - first + 1)]):
            self._fail(f"the rows of parameter {parameter} are not shown to be apart")


def _joined(steps: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The steps without those that do not move, those that follow one another as one."""
    result: list[tuple[int, int]] = []
    for step, count in sorted(steps):
        if step == 0 or count == 1:
            continue
        if result and result[-1][0] * result[-1][1] == step:
            result[-1] = (result[-1][0], result[-1][1] * count)
        else:
            result.append((step, count))
    return tuple(result)


def _tells_apart(steps: list[tuple[int, int]]) -> bool:
    """Whether different counts of the steps make different sums: each step exceeds what all smaller ones reach."""
    reach = 0
    for step, count in sorted(steps):
        if count == 1:
            continue
        if step <= reach:
            return False
        reach += step * (count - 1)
    return True
