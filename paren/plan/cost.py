"""What a step moves and computes: bytes and operations counted from the plan alone, for reports and for predictions.

A kernel reads an element of a buffer from memory once, however often its loops load it; what one of its stages wrote
and a later one loads again is not read. A gather counts the elements that it takes, not the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from paren.plan.kernel import Accumulate, Compute, Kernel, Load, Reduce, Stage, Statement, Store
from paren.plan.plan import Buffer, Copy, Launch, Matrix, Plan, Product, Step
from paren.plan.storage import COSTS


@dataclass(frozen=True)
class Cost:
    """`read` and `written` are bytes. `flops`: operations of products, two for each multiplication with its addition.
    `operations`: scalar operations of kernels, `instructions` the same weighted by what each takes (an `exp` is 12).
    """

    read: int = 0
    written: int = 0
    flops: int = 0
    operations: int = 0
    instructions: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.read + other.read,
            self.written + other.written,
            self.flops + other.flops,
            self.operations + other.operations,
            self.instructions + other.instructions,
        )

    def times(self, count: int) -> Cost:
        """The cost of `count` runs."""
        return Cost(
            count * self.read,
            count * self.written,
            count * self.flops,
            count * self.operations,
            count * self.instructions,
        )

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.read + self.written


def plan_cost(plan: Plan) -> Cost:
    """The sum over all steps of a plan."""
    buffers = {buffer.id: buffer for buffer in plan.buffers}
    return sum((step_cost(step, buffers) for step in plan.steps), Cost())


def step_cost(step: Step, buffers: Mapping[int, Buffer]) -> Cost:
    """What one step moves and computes; `buffers` are the plan's, by id."""
    match step:
        case Launch(kernel):
            return _kernel_cost(kernel)
        case Product(a, b, c):
            written = _matrix_bytes(c, step.m, step.n, step.batch, buffers)
            read = _matrix_bytes(a, step.m, step.k, step.batch, buffers)
            read += _matrix_bytes(b, step.k, step.n, step.batch, buffers)
            flops = 2 * step.m * step.n * step.k * prod(step.batch)
            return Cost(read + (written if step.accumulate else 0), written, flops)
        case Copy(_, target):
            size = buffers[target].type.bytes
            return Cost(size, size)


def _matrix_bytes(
    matrix: Matrix, rows: int, columns: int, batch: tuple[int, ...], buffers: Mapping[int, Buffer]
) -> int:
    """Bytes of the different matrices that an operand stands for: a batch stride of 0 repeats one."""
    count = prod(size for size, stride in zip(batch, matrix.batch_strides, strict=True) if stride)
    return count * rows * columns * buffers[matrix.buffer].type.dtype.bytes


def _kernel_cost(kernel: Kernel) -> Cost:
    loaded = [0] * len(kernel.parameters)
    stored = [0] * len(kernel.parameters)
    operations = instructions = 0
    for stage in kernel.stages:
        runs = _runs(kernel, stage)
        for statement in stage.body:
            match statement:
                case Load(access=access):
                    loaded[access.parameter] += runs
                case Store(access=access):
                    stored[access.parameter] += runs
                case Accumulate(access=access):
                    loaded[access.parameter] += runs
                    stored[access.parameter] += runs
                case _:
                    pass
            weight = _instructions(statement)
            operations += runs if weight else 0
            instructions += runs * weight
    read = written = 0
    for parameter, loads, stores in zip(kernel.parameters, loaded, stored, strict=True):
        if parameter.reads:
            read += min(parameter.size, loads) * parameter.dtype.bytes
        written += min(parameter.size, stores) * parameter.dtype.bytes
    return Cost(read, written, 0, operations, instructions)


def _runs(kernel: Kernel, stage: Stage) -> int:
    """How often a stage's statements run."""
    return prod(kernel.axes[: kernel.rows]) * prod(kernel.axes[axis] for axis in stage.axes)


def _instructions(statement: Statement) -> int:
    match statement:
        case Compute(op=op):
            return COSTS.get(op, 1)
        case Reduce() | Accumulate():
            return 1
        case _:
            return 0
