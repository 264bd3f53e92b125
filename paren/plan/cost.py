"""What a step moves and computes: bytes and operations counted from the plan alone, for reports and for predictions.

A kernel reads an element of a buffer from memory once, however often its loops load it; what one of its stages wrote
and a later one loads again is not read. A gather counts the elements that it takes, not the table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

from paren.ir.types import DType
from paren.plan.kernel import Accumulate, Compute, Kernel, Load, Reduce, Statement, Store
from paren.plan.plan import Attention, Buffer, Copy, Launch, Loop, Matrix, Product, Step
from paren.plan.storage import COSTS

MULTIPROCESSORS = 160  # no card has more


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


def step_cost(step: Step, buffers: Mapping[int, Buffer]) -> Cost:
    """What one step moves and computes; `buffers` are the plan's, by id."""
    match step:
        case Launch(kernel):
            return _kernel_cost(kernel, prod(kernel.axes[: kernel.rows]))
        case Product(a, b, c):
            written = _matrix_bytes(c, step.m, step.n, step.batch, buffers)
            read = _matrix_bytes(a, step.m, step.k, step.batch, buffers)
            read += _matrix_bytes(b, step.k, step.n, step.batch, buffers)
            flops = 2 * step.m * step.n * step.k * prod(step.batch)
            return Cost(read + (written if step.accumulate else 0), written, flops)
        case Attention():
            return _attention_cost(step)
        case Copy(_, target):
            size = buffers[target].type.bytes
            return Cost(size, size)
        case Loop():
            return _loop_cost(step)


def _attention_cost(step: Attention) -> Cost:
    """Two products of scores with values forward, five backward; a mask that is causal spares half of them."""
    half = DType.BFLOAT16.bytes
    read = sum(half * prod(step.size_of(number)) for number in range(len(step.operands)))
    results = [number for number, heads in enumerate(step.results) if heads is not None]
    written = sum(half * prod(step.size_of(number)) for number in results)
    statistics = 4 * step.examples * step.heads * step.queries if step.statistics is not None else 0
    flops = 2 * step.examples * step.heads * step.queries * step.keys * step.width * (5 if step.backward else 2)
    kept, made = (statistics, 0) if step.backward else (0, statistics)
    return Cost(read + kept, written + made, flops // 2 if step.causal else flops)


def library_bytes(step: Attention) -> int:
    """Bytes that libraries allocate for a step while it runs: the results, before they are where the plan wants them,
    and for gradients (FlashAttention 2) sums in float32 of those of q, one for each part of the keys that run side by
    side where examples and heads are few; row sums; and those of k and v of every head, if heads share them."""
    like_q, like_k = (prod(step.size_of(number)) for number in (0, 1))
    rows = step.examples * step.heads
    if not step.backward:
        return DType.BFLOAT16.bytes * like_q + 4 * rows * step.queries
    positions, width = _rounded(step.queries, 128), _rounded(step.width, 32 if step.width <= 128 else 64)
    sums = 4 * rows * positions * (1 + -(-MULTIPROCESSORS // rows) * width)
    spread = 2 * rows * step.keys * step.width if step.groups < step.heads else 0
    return sums + DType.BFLOAT16.bytes * (like_q + 2 * like_k + spread)


def _rounded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _loop_cost(loop: Loop) -> Cost:
    """The pieces' work; bytes of the scratch, which stays in the cache, do not count, others once for each piece."""
    total = Cost()
    for piece in loop.body:
        step = piece.step
        if isinstance(step, Product):
            sides = ((step.a, step.m, step.k), (step.b, step.k, step.n))
            read = sum(
                rows * columns * dtype.bytes
                for (matrix, rows, columns), dtype in zip(sides, piece.dtypes, strict=False)
                if matrix.buffer != loop.scratch
            )
            written = step.m * step.n * piece.dtypes[2].bytes if step.c.buffer != loop.scratch else 0
            total += Cost(read + (written if step.accumulate else 0), written, 2 * step.m * step.n * step.k)
        else:
            inside = {i for i, id in enumerate(step.buffers) if id == loop.scratch}
            total += _kernel_cost(step.kernel, piece.rows, inside)
    return total.times(loop.iterations)


def _matrix_bytes(
    matrix: Matrix, rows: int, columns: int, batch: tuple[int, ...], buffers: Mapping[int, Buffer]
) -> int:
    """Bytes of the different matrices that an operand stands for: a batch stride of 0 repeats one."""
    count = prod(size for size, stride in zip(batch, matrix.batch_strides, strict=True) if stride)
    return count * rows * columns * buffers[matrix.buffer].type.dtype.bytes


def _kernel_cost(kernel: Kernel, rows: int, inside: Collection[int] = ()) -> Cost:
    """The cost of so many rows; parameters `inside` stay in the cache."""
    loaded = [0] * len(kernel.parameters)
    stored = [0] * len(kernel.parameters)
    operations = instructions = 0
    for stage in kernel.stages:
        runs = rows * prod(kernel.axes[axis] for axis in stage.axes)
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
    for number, (parameter, loads, stores) in enumerate(zip(kernel.parameters, loaded, stored, strict=True)):
        if number in inside:
            continue
        if parameter.reads:
            read += min(parameter.size, loads) * parameter.dtype.bytes
        written += min(parameter.size, stores) * parameter.dtype.bytes
    return Cost(read, written, 0, operations, instructions)


def _instructions(statement: Statement) -> int:
    match statement:
        case Compute(op=op):
            return COSTS.get(op, 1)
        case Reduce() | Accumulate():
            return 1
        case _:
            return 0
