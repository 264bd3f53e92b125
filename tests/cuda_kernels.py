"""The kernels that a card has to compile: those of every graph of the examples' runs, and of every operation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from kernel_samples import elementwise

import paren
from paren.codegen.cuda.emit import CudaKernel, emit_kernel
from paren.data.resident import Source as Resident
from paren.forecast.feed import plan_feed
from paren.forecast.plans import make_plans
from paren.ir.graph import Builder
from paren.ir.op import OPS, Op, Sample
from paren.ir.types import DType, TensorType, TypeMismatch
from paren.passes.gradient import differentiate
from paren.pipeline import Planning, plan_graph
from paren.plan.memory import kernels_of, launches_of
from paren.plan.plan import Loop, Plan
from paren.plan.traits import CUDA
from paren.text.source import Source, Span

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PLANNING = Planning(traits=CUDA)
SPAN = Span(Source("kernels.paren", "(x)"), 0, 3)

# Files, their variants, and settings.
RUNS: tuple[tuple[str, str | None, tuple[str, ...]], ...] = (
    ("regression", None, ()),
    ("regression", "smoke", ()),
    ("digits", None, ()),
    ("digits", "smoke", ()),
    ("gpt", None, ()),
    ("gpt", "smoke", ('precision="bfloat16"',)),
    ("gpt", "gpt2", ('precision="bfloat16"',)),
    ("gpt", "gpt2", ('precision="float16"',)),
)


def emitted(plan: Plan) -> Iterator[CudaKernel]:
    """The kernels of a plan for a card; those in loops run ranges of their rows."""
    for kernel in kernels_of(plan).values():
        yield emit_kernel(kernel)
    for step in plan.steps:
        if isinstance(step, Loop):
            for launch in launches_of([step]):
                yield emit_kernel(launch.kernel, rows=True)


@cache
def kernels_of_examples() -> dict[str, CudaKernel]:
    """Every kernel of every graph of the examples' runs, by name."""
    return {name: kernel for run in RUNS for name, kernel in kernels_of_run(*run).items()}


def kernels_of_run(file: str, variant: str | None, settings: Sequence[str]) -> dict[str, CudaKernel]:
    """Every kernel of every graph of an example's run, by name, with the graphs that feed many steps in a call."""
    found: dict[str, CudaKernel] = {}
    program = paren.load(EXAMPLES / f"{file}.paren", variant=variant, set=settings).program
    plans = make_plans(program, PLANNING)
    for plan in plans.all.values():
        found |= {kernel.name: kernel for kernel in emitted(plan)}
    fields = program.data.fields
    sources = {field.name: Resident(np.zeros((64, *field.type.shape), field.type.dtype.numpy)) for field in fields}
    fed = plan_feed(program, sources, plans.accumulate, 16, PLANNING)
    return found | {kernel.name: kernel for plan in (fed.feed, fed.keep) for kernel in emitted(plan)}


@cache
def kernels_of_operations() -> dict[str, CudaKernel]:
    """Every operation on its samples with every float type that it takes, its gradient, and every elementwise one on
    every type."""
    generator = np.random.default_rng(0)
    kernels = [*_elementwise()]
    for op in OPS.values():
        for sample in op.samples(generator) if op.kind != "contract" else ():  # those are the library's
            for dtype in (DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16, DType.FLOAT16):
                kernels += _of_sample(op, sample, dtype)
    return {kernel.name: kernel for kernel in kernels}


def _of_sample(op: Op, sample: Sample, dtype: DType) -> Iterable[CudaKernel]:
    """The sample with its floats as `dtype`; nothing if the operation does not take them."""
    types = [_as_type(TensorType(DType(arg.dtype.name), arg.shape), dtype) for arg in sample.args]
    attrs = {name: dtype if value is DType.FLOAT64 else value for name, value in sample.attrs.items()}
    builder = Builder("sample")
    inputs = [builder.input(str(number), type_, "batch", SPAN) for number, type_ in enumerate(types)]
    try:
        node = builder.emit(op.name, inputs, attrs, SPAN)
    except TypeMismatch:
        return ()
    outputs = {"result": node}
    floats = [each for each in inputs if each.dtype in (DType.FLOAT32, DType.FLOAT64)]
    if op.vjp is not None and floats and node.dtype in (DType.FLOAT32, DType.FLOAT64):
        total = builder.emit("sum", (node,), {"axes": tuple(range(len(node.shape)))}, SPAN)
        outputs |= {f"gradient {i}": each for i, each in enumerate(differentiate(builder, total, floats))}
    return [*emitted(plan_graph(builder.graph(outputs), (), PLANNING))]


def _as_type(type_: TensorType, dtype: DType) -> TensorType:
    return TensorType(dtype, type_.shape) if type_.dtype is DType.FLOAT64 else type_


def _elementwise() -> Iterator[CudaKernel]:
    size = 203
    for name, op in OPS.items():
        if op.kind == "elementwise" and name not in ("where", "threefry", "cast"):
            for dtype in DType:
                for count in (1, 2):
                    result = _result(op, [TensorType(dtype, (size,))] * count)
                    if result is not None:
                        yield emit_kernel(elementwise(name, [dtype] * count, result, size))
    for dtype in DType:
        yield emit_kernel(elementwise("where", [DType.BOOL, dtype, dtype], dtype, size))
        for other in DType:
            yield emit_kernel(elementwise("cast", [dtype], other, size))


def _result(op: Op, types: Sequence[TensorType]) -> DType | None:
    try:
        return op.infer(types, {}).dtype
    except (TypeMismatch, ValueError):
        return None
