"""The check of a placed plan passes the planner's own and says exactly what is wrong with one that was spoiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from kernel_samples import F32
from networks import SPAN

from paren.ir.types import DType, TensorType
from paren.plan.check import check_plan
from paren.plan.kernel import Access, Compute, Index, Kernel, Load, Parameter, Stage, Store
from paren.plan.plan import Buffer, Copy, Launch, Matrix, Place, Plan, Product, Step
from paren.text.errors import InternalError

X, W, A, B, C = range(5)
SQUARE = TensorType(F32, (4, 4))
PLACE = "at networks.paren:1:1"
NAMES = {X: "x", W: "w", A: "a", B: "b", C: "c"}


def text(number: int) -> str:
    return f"buffer {number} ({NAMES[number]} float32[4 4] {PLACE})"


def buffer(number: int, place: Place, offset: int = 0) -> Buffer:
    return Buffer(number, NAMES[number], SQUARE, place, 0, 0, offset, SPAN)


def product(a: int, b: int, c: int) -> Product:
    matrices = [Matrix(number, 0, 4, False, ()) for number in (a, b, c)]
    return Product(matrices[0], matrices[1], matrices[2], 4, 4, 4, (), False, (SPAN,), ("%0 contract",))


def exponential(source: int, targets: tuple[int, ...], turned: bool = False, sizes: int = 16) -> Launch:
    """Writes exp of one buffer to others; `turned` reads the element as far from the end as the written one is from the
    start."""
    there, here = Index(((0, -1),), 15) if turned else Index(((0, 1),)), Index(((0, 1),))
    load = Load(0, Access(0, (there,), (1,), (16,)), F32)
    stores = [Store(Access(1 + i, (here,), (1,), (16,)), 1) for i in range(len(targets))]
    parameters = (Parameter(F32, sizes, True, False), *[Parameter(F32, sizes, False, True) for _ in targets])
    kernel = Kernel("exp", (16,), 1, parameters, (Stage((), (load, Compute(1, "exp", (0,), F32), *stores)),))
    return Launch(kernel, (source, *targets), (SPAN,), ("%0 exp",))


def good() -> Plan:
    """a = x w; b = exp a; c = b w where a lay; w becomes c."""
    buffers = (buffer(X, Place.INPUT), buffer(W, Place.STATE), *(buffer(n, Place.ARENA) for n in (A, C)))
    steps = (product(X, W, A), exponential(A, (B,)), product(B, W, C), Copy(C, W, (SPAN,), ("update w",)))
    return Plan("good", (*buffers, buffer(B, Place.ARENA, 64)), steps, {"w": W, "y": B}, 128, ())


def moved(number: int, **fields: object) -> Plan:
    """The good plan with changes in one buffer."""
    plan = good()
    return replace(plan, buffers=tuple(replace(b, **fields) if b.id == number else b for b in plan.buffers))  # type: ignore[arg-type]


def stepped(*steps: Step, **fields: object) -> Plan:
    return replace(good(), steps=steps, **fields)  # type: ignore[arg-type]


def spoiled(first: int, step: Step) -> Plan:
    """The good plan with another step in place of one."""
    steps = list(good().steps)
    steps[first] = step
    return stepped(*steps)


def refused(plan: Plan, message: str) -> None:
    with pytest.raises(InternalError) as caught:
        check_plan(plan)
    assert str(caught.value) == f"internal error in plan: {message}"


def test_a_sound_plan_passes() -> None:
    check_plan(good())
    over = replace(moved(B, offset=0), steps=(A_STEP, B_STEP, Copy(B, W, (SPAN,), ("update w",))))
    check_plan(over)  # the exponential may write over what it reads


A_STEP, B_STEP, C_STEP, UPDATE = good().steps

FAULTS: dict[str, tuple[Callable[[], Plan], str]] = {
    "an offset that is not aligned": (
        lambda: moved(B, offset=48),
        f"{text(B)} is not aligned to 64 bytes",
    ),
    "an arena that is too small": (
        lambda: replace(good(), arena_bytes=64),
        f"{text(B)} lies outside the arena of 64 bytes",
    ),
    "an offset before the arena": (
        lambda: moved(B, offset=-64),
        f"{text(B)} lies outside the arena of 128 bytes",
    ),
    "a product over its operand": (
        lambda: moved(C, offset=64),
        f"step 2 writes {text(C)} over {text(B)}, which it reads",
    ),
    "a kernel over what it reads at other places": (
        lambda: replace(moved(B, offset=0), steps=(A_STEP, exponential(A, (B,), turned=True), C_STEP, UPDATE)),
        f"step 1 writes {text(B)} over {text(A)}, which it reads",
    ),
    "swapped steps": (
        lambda: stepped(B_STEP, A_STEP, C_STEP, UPDATE),
        f"step 0 reads {text(A)}, which is not yet written",
    ),
    "a missing step": (
        lambda: stepped(A_STEP, C_STEP, UPDATE),
        f"step 1 reads {text(B)}, which is not yet written",
    ),
    "a missing last step": (
        lambda: stepped(A_STEP, B_STEP, UPDATE),
        f"step 2 reads {text(C)}, which is not yet written",
    ),
    "a buffer that was overwritten": (
        lambda: spoiled(3, Copy(A, W, (SPAN,), ("update w",))),
        f"step 3 reads {text(A)}, which is overwritten",
    ),
    "a step that comes too late": (
        lambda: stepped(A_STEP, B_STEP, C_STEP, B_STEP, UPDATE),
        f"step 3 reads {text(A)}, which is overwritten",
    ),
    "a wrong operand": (
        lambda: spoiled(2, product(A, W, C)),
        f"step 2 writes {text(C)} over {text(A)}, which it reads",
    ),
    "an output that was overwritten": (
        lambda: replace(good(), outputs={"w": W, "y": A}),
        f"the output y is lost: {text(A)} was overwritten",
    ),
    "an output that nothing writes": (
        lambda: stepped(A_STEP, outputs={"y": B}),
        f"the output y is lost: {text(B)} was never written",
    ),
    "an input that is written": (
        lambda: spoiled(3, Copy(C, X, (SPAN,), ("update x",))),
        f"step 3 writes the input {text(X)}",
    ),
    "two results of a kernel in one place": (
        lambda: replace(
            moved(C, offset=64), steps=(A_STEP, exponential(A, (B, C)), Copy(B, W, (SPAN,), ("update w",)))
        ),
        f"step 1 writes {text(B)} and {text(C)} to the same bytes",
    ),
    "an accumulation into what is not written": (
        lambda: stepped(replace(product(X, W, A), accumulate=True), B_STEP, C_STEP, UPDATE),
        f"step 0 reads {text(A)}, which is not yet written",
    ),
    "a buffer that is not there": (
        lambda: spoiled(3, Copy(C, 9, (SPAN,), ("update w",))),
        "step 3 names buffer 9, which the plan does not have",
    ),
    "a buffer of another size for a kernel": (
        lambda: spoiled(1, exponential(A, (B,), sizes=20)),
        f"step 1 takes {text(A)} for float32 x 20",
    ),
    "a buffer of another type for a kernel": (
        lambda: moved(B, type=TensorType(DType.INT32, (4, 4))),
        f"step 1 takes buffer {B} (b int32[4 4] {PLACE}) for float32 x 16",
    ),
    "a product that leaves its buffer": (
        lambda: spoiled(2, replace(product(B, W, C), b=Matrix(W, 4, 4, False, ()))),
        f"step 2 touches element 19 of {text(W)}",
    ),
    "a product of two types": (
        lambda: moved(X, type=TensorType(DType.FLOAT64, (4, 4))),
        "%0 contract multiplies float64 by float32 into float32",
    ),
    "a product of integers": (
        lambda: replace(
            good(), buffers=tuple(replace(b, type=TensorType(DType.INT32, (4, 4))) for b in good().buffers)
        ),
        "%0 contract multiplies int32 by int32 into int32",
    ),
    "a rounded product of float64": (
        lambda: replace(
            moved(A, type=TensorType(DType.FLOAT64, (4, 4))),
            steps=(replace(product(X, W, A), rounded=True), *good().steps[1:]),
        ),
        "%0 contract multiplies float32 by float32 into float64",
    ),
    "a sum into bfloat16": (
        lambda: replace(
            moved(A, type=TensorType(DType.BFLOAT16, (4, 4))),
            steps=(replace(product(X, W, A), rounded=True, accumulate=True), *good().steps[1:]),
        ),
        "%0 contract multiplies float32 by float32 and adds to bfloat16",
    ),
    "a batch that leaves its buffer": (
        lambda: spoiled(
            0,
            Product(*(Matrix(n, 0, 4, True, (4,)) for n in (X, W, A)), 4, 4, 2, (3,), False, (SPAN,), ("%0 contract",)),
        ),
        f"step 0 touches element 21 of {text(W)}",
    ),
    "a copy to another size": (
        lambda: moved(W, type=TensorType(F32, (4, 8))),
        f"step 3 copies {text(C)} to buffer {W} (w float32[4 8] {PLACE}), which has another size",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named(fault: str) -> None:
    make, message = FAULTS[fault]
    refused(make(), message)
