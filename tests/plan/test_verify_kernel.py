"""Every rule of a kernel is checked, and its message says which statement breaks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from kernel_samples import F32, Body, access, axis, gather, gelu, reads, reduction, softmax, writes
from random_kernels import kernels

from paren.ir.types import DType
from paren.plan.kernel import Access, AxisIndex, Compute, Index, Kernel, Load, Parameter, Reduce
from paren.plan.verify_kernel import verify_kernel
from paren.text.errors import InternalError

I32 = DType.INT32
BOTH = Parameter(F32, 12, True, True)


def made(
    write: Callable[[Body], None],
    axes: Sequence[int] = (3, 4),
    rows: int = 1,
    parameters: Sequence[Parameter] = (reads(12), writes(12), BOTH, reads(4, I32)),
) -> Kernel:
    """A kernel whose parameter 0 is read, 1 written, 2 both (12 floats each), and 3 read (4 integers)."""
    body = Body()
    write(body)
    return body.kernel(axes, rows, parameters)


def broken(kernel: Kernel, message: str) -> None:
    with pytest.raises(InternalError) as caught:
        verify_kernel(kernel)
    assert str(caught.value) == f"internal error in kernel: sample{message}"


def wrong(message: str, axes: Sequence[int] = (3, 4), rows: int = 1) -> Callable[[Callable[[Body], None]], None]:
    """Runs the writer at once and expects the message."""

    def check(write: Callable[[Body], None]) -> None:
        broken(made(write, axes, rows), message)

    return check


@settings(max_examples=60)
@given(kernels())
def test_sound_kernels_pass(kernel: Kernel) -> None:
    verify_kernel(kernel)


@pytest.mark.parametrize("kernel", [softmax(3, 5), gelu(3, 5), reduction("argmax", 3, 5, "column")])
def test_hand_written_kernels_pass(kernel: Kernel) -> None:
    verify_kernel(kernel)


def test_axes() -> None:
    kernel = made(lambda body: body.stage(1))
    broken(replace(kernel, rows=3), ": 3 of 2 axes are rows")
    broken(replace(kernel, axes=(3, 0)), ": an axis of (3, 0) is empty")
    wrong(", stage 0: the axes (0,) are not distinct axes after the 1 rows")(lambda body: body.stage(0))
    wrong(", stage 0: the axes (1, 1) are not distinct axes after the 1 rows")(lambda body: body.stage(1, 1))


def test_values() -> None:
    @wrong(", stage 1, statement 0: value 0 is not visible here")
    def loop_value_after_its_loop(body: Body) -> None:
        body.stage(1)
        body.load(access(0, [3, 4], 0, 1))
        body.stage(1)
        body.store(access(1, [3, 4], 0, 1), 0)

    @wrong(", stage 0, statement 2: value 1 is not visible here")
    def reduction_in_its_loop(body: Body) -> None:
        body.stage(1)
        body.reduce("sum", body.load(access(0, [3, 4], 0, 1)))
        body.store(access(1, [3, 4], 0, 1), 1)

    @wrong(", stage 0, statement 0: value 7 is not assigned yet")
    def unknown(body: Body) -> None:
        body.stage(1)
        body.store(access(1, [3, 4], 0, 1), 7)

    @wrong(", stage 0, statement 1: value 0 is assigned twice")
    def twice(body: Body) -> None:
        body.stage(1)
        body.constant(1.0)
        body.stages[-1][1].append(Load(0, access(0, [3, 4], 0, 1), F32))


def test_types() -> None:
    @wrong(", stage 0, statement 2: add gives float32, not int32")
    def result(body: Body) -> None:
        body.stage()
        body.compute("add", body.constant(1.0), body.constant(2.0), dtype=I32)

    @wrong(", stage 0, statement 2: add: the element types of float32[] and int32[] differ")
    def operands(body: Body) -> None:
        body.stage()
        body.compute("add", body.constant(1.0), body.constant(2, I32))

    @wrong(", stage 0, statement 1: sum is not elementwise")
    def operation(body: Body) -> None:
        body.stage()
        body.compute("sum", body.constant(1.0))

    @wrong(", stage 0, statement 0: a load of int32 from parameter 0 of float32")
    def load(body: Body) -> None:
        body.stage(1)
        body.load(access(0, [3, 4], 0, 1), I32)

    @wrong(", stage 0, statement 1: a store of int32 to parameter 1 of float32")
    def store(body: Body) -> None:
        body.stage(1)
        body.store(access(1, [3, 4], 0, 1), body.constant(1, I32))

    @wrong(", stage 0, statement 1: argmax of value 0 gives int32, not float32")
    def position(body: Body) -> None:
        body.stage(1)
        body.stages[-1][1].append(Reduce(1, "argmax", body.constant(1.0), F32))

    @wrong(", stage 0, statement 1: mean is no kind of reduction")
    def kind(body: Body) -> None:
        body.stage(1)
        body.stages[-1][1].append(Reduce(1, "mean", body.constant(1.0), F32))


def test_parameters() -> None:
    @wrong(", stage 0, statement 0: parameter 1 is loaded, but does not read")
    def load(body: Body) -> None:
        body.stage(1)
        body.load(access(1, [3, 4], 0, 1))

    @wrong(", stage 0, statement 1: parameter 0 is written, but does not say so")
    def store(body: Body) -> None:
        body.stage(1)
        body.store(access(0, [3, 4], 0, 1), body.constant(1.0))

    @wrong(", stage 0, statement 0: there is no parameter 4")
    def missing(body: Body) -> None:
        body.stage(1)
        body.load(access(4, [3, 4], 0, 1))

    def own(body: Body) -> None:
        body.stage(1)
        body.store(access(0, [3, 4], 0, 1), body.constant(1.0))
        body.stage(1)
        body.load(access(0, [3, 4], 0, 1))

    verify_kernel(made(own, parameters=[writes(12)]))


def test_parameters_say_no_more_than_what_is_done() -> None:
    def copy(body: Body) -> None:
        body.stage(1)
        body.store(access(1, [3, 4], 0, 1), body.load(access(0, [3, 4], 0, 1)))

    verify_kernel(made(copy, parameters=[reads(12), writes(12)]))
    broken(made(copy, parameters=[reads(12), writes(12), reads(5)]), ": parameter 2 is not used")
    broken(made(copy, parameters=[reads(12), BOTH]), ": parameter 1 says that it reads, but is not loaded")
    broken(made(copy, parameters=[BOTH, writes(12)]), ": parameter 0 says that it writes, but is not stored")


def test_the_order_of_iterations_does_not_count() -> None:
    """A statement may run for all iterations before the next one starts."""

    @wrong(", stage 0: parameter 2 is added to, and touched by another statement")
    def two_additions(body: Body) -> None:
        body.stage(1)
        for _ in range(2):
            body.accumulate(access(2, [3, 4], 0, 1), body.constant(0.5))

    @wrong(", stage 0: parameter 2 is added to, and touched by another statement")
    def loaded_sum(body: Body) -> None:
        body.stage(1)
        body.accumulate(access(2, [3, 4], 0, 1), body.load(access(2, [3, 4], 0, 1)))

    @wrong(", stage 0: parameter 2 is added to, and touched by another statement")
    def stored_sum(body: Body) -> None:
        body.stage(1)
        body.store(access(2, [3, 4], 0, 1), body.constant(0.5))
        body.accumulate(access(2, [3, 4], 0, 1), body.constant(0.5))

    @wrong(", stage 0: parameter 2 is stored, and touched at another index")
    def loaded_backwards(body: Body) -> None:
        body.stage(1)
        body.store(access(2, [3, 4], 0, 1), body.load(access(2, [3, 4], 0, axis((1, -1), constant=3))))

    @wrong(", stage 0: parameter 2 is stored, and touched at another index")
    def loaded_beside(body: Body) -> None:
        body.stage(1)
        body.store(access(2, [3, 4], 0, 1), body.load(access(2, [3, 4], 0, axis((1, 1), constant=-1), guarded=True)))

    @wrong(", stage 0: parameter 1 is stored, and touched at another index")
    def two_stores(body: Body) -> None:
        body.stage(1)
        body.store(access(1, [3, 4], 0, 1), body.constant(0.5))
        body.store(access(1, [3, 4], 0, axis((1, -1), constant=3)), body.constant(1.5))

    @wrong(", stage 0: iterations are not shown to store different elements of parameter 1")
    def the_last_counts(body: Body) -> None:
        body.stage(1)
        body.store(access(1, [3], 0), body.load(access(0, [3, 4], 0, 1)))

    @wrong(", stage 0: iterations are not shown to store different elements of parameter 1", (3, 2, 3))
    def folded(body: Body) -> None:
        body.stage(1, 2)
        body.store(access(1, [3, 4], 0, axis((1, 1), (2, 1))), body.constant(1.0))

    @wrong(", stage 0: iterations are not shown to store different elements of parameter 1")
    def scattered(body: Body) -> None:
        body.stage(1)
        body.store(access(1, [3, 4], 0, gather(body.load(access(3, [4], 1), I32))), body.constant(1.0))

    def in_place(body: Body) -> None:
        body.stage(1)
        value = body.load(access(0, [3, 4], 0, 1))
        body.store(access(0, [3, 4], 0, 1), body.compute("neg", value))
        body.store(access(0, [12], axis((0, 4), (1, 1))), value)

    def in_order(body: Body) -> None:
        body.stage()
        body.store(access(0, [3, 4], 0, axis(constant=1)), body.load(access(0, [3, 4], 0, axis())))
        body.accumulate(access(0, [3, 4], 0, axis()), body.load(access(0, [3, 4], 0, axis(constant=1))))

    for write in (in_place, in_order):
        verify_kernel(made(write, parameters=[BOTH]))


def test_accesses() -> None:
    @wrong(", stage 0, statement 0: an index from 1 to 4 leaves a dimension of 4 of parameter 0 unguarded")
    def index(body: Body) -> None:
        body.stage(1)
        body.load(access(0, [3, 4], 0, axis((1, 1), constant=1)))

    @wrong(", stage 0, statement 0: elements 1 to 12 of parameter 0, which has 12")
    def offset(body: Body) -> None:
        body.stage(1)
        body.load(access(0, [3, 4], 0, 1, offset=1))

    @wrong(", stage 0, statement 0: elements 4 to 15 of parameter 0, which has 12")
    def guarded_view_larger_than_its_buffer(body: Body) -> None:
        body.stage(1)
        body.load(access(0, [4, 4], axis((0, 1), constant=1), 1, guarded=True))

    @wrong(", stage 0, statement 1: a store to parameter 1 is guarded")
    def store(body: Body) -> None:
        body.stage(1)
        body.store(access(1, [3, 4], 0, axis((1, 1)), guarded=True), body.constant(1.0))

    @wrong(", stage 0, statement 0: axis 1 does not run here")
    def axis_of_another_stage(body: Body) -> None:
        body.stage()
        body.load(access(0, [3, 4], 0, 1))

    @wrong(", stage 0, statement 0: an index of parameter 0 with a divisor is not guarded")
    def divisor(body: Body) -> None:
        body.stage(1)
        body.load(access(0, [3, 4], 0, axis((1, 1), divisor=2)))

    @wrong(", stage 0, statement 1: value 0 does not index parameter 0")
    def gathered_float(body: Body) -> None:
        body.stage(1)
        body.load(access(0, [12], gather(body.constant(1.0))))

    @wrong(", stage 0, statement 0: an axis index has a gathered value")
    def gathered_axis(body: Body) -> None:
        body.stage(1)
        body.stages[-1][1].append(AxisIndex(0, gather(0), I32))

    @wrong(", stage 0, statement 0: an axis index is divided by 2")
    def divided_axis(body: Body) -> None:
        body.stage(1)
        body.index(axis((1, 1), divisor=2))

    normal = Index(terms=((1, 0),))

    @wrong(f", stage 0, statement 0: {normal} is not in its normal form")
    def zero_coefficient(body: Body) -> None:
        body.stage(1)
        body.load(access(0, [3, 4], 0, normal))

    @wrong(", stage 0, statement 0: indices, strides and sizes of parameter 0 differ in number")
    def ragged(body: Body) -> None:
        body.stage(1)
        body.load(Access(0, (axis((0, 1)),), (4, 1), (3, 4)))


def test_rows_are_independent() -> None:
    @wrong(": rows along axis 0 store the same elements of parameter 1")
    def one_place(body: Body) -> None:
        body.stage(1)
        body.store(access(1, [4], 1), body.constant(1.0))

    @wrong(": the rows of parameter 1 are not shown to be apart")
    def overlapping(body: Body) -> None:
        body.stage(1)
        body.store(access(1, [12], axis((0, 2), (1, 1))), body.constant(1.0))

    @wrong(": rows step through parameter 2 in different ways")
    def reading_another_row(body: Body) -> None:
        body.stage(1)
        body.load(access(2, [3, 4], axis((0, -1), constant=2), 1))
        body.stage(1)
        body.store(access(2, [3, 4], 0, 1), body.constant(1.0))

    @wrong(": the rows of parameter 2 are not shown to be apart")
    def reading_the_next_row(body: Body) -> None:
        body.stage(1)
        body.load(access(2, [12], axis((0, 4), (1, 1), constant=4), guarded=True))
        body.stage(1)
        body.store(access(2, [3, 4], 0, 1), body.constant(1.0))

    @wrong(": rows along axis 0 store the same elements of parameter 2")
    def scattering_into_other_rows(body: Body) -> None:
        body.stage(1)
        place = body.load(access(3, [4], 1), I32)
        body.accumulate(access(2, [12], gather(place)), body.load(access(0, [3, 4], 0, 1)))

    def scattering_within_columns(body: Body) -> None:
        body.stage(1)
        place = body.load(access(1, [4], 1), I32)
        body.accumulate(access(2, [4, 3], gather(place), 0), body.load(access(0, [3, 4], 0, 1)))

    verify_kernel(made(scattering_within_columns, parameters=[reads(12), reads(4, I32), BOTH]))


def test_reading_beside_its_own_row_with_a_guard_passes() -> None:
    """A shift within the row: what is outside the row's dimension is not touched."""

    def shifted(body: Body) -> None:
        body.stage(1)
        body.store(access(1, [3, 4], 0, 1), body.load(access(0, [3, 4], 0, 1)))
        body.stage(1)
        body.reduce("sum", body.load(access(1, [3, 4], 0, axis((1, 1), constant=-1), guarded=True)))

    verify_kernel(made(shifted, parameters=[reads(12), writes(12)]))


def test_messages_name_the_kernel() -> None:
    kernel = Kernel("tanh_sum", (2,), 1, (writes(2),), ())
    with pytest.raises(InternalError, match="internal error in kernel: tanh_sum: 2 of 1 axes are rows"):
        verify_kernel(replace(kernel, rows=2))


def test_statements_are_those_of_the_table() -> None:
    statement = Compute(0, "relu", (), F32)
    kernel = Kernel("sample", (), 0, (), (replace(made(lambda body: body.stage()).stages[0], body=(statement,)),))
    broken(kernel, ", stage 0, statement 0: relu is not elementwise")
