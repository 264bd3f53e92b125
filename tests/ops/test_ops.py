"""Every operation, from one table: types, values against torch, gradients against torch and central differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest
import torch
from torch_table import TORCH, WITHOUT_VALUE, array_of, tensor_of

from paren.ir.evaluate import evaluate
from paren.ir.graph import Builder, Node
from paren.ir.op import KINDS, OPS, Array, Op, Sample
from paren.ir.types import DType, TensorType
from paren.passes.gradient import differentiate
from paren.text.source import Source, Span

SPAN = Span(Source("ops.paren", "(x)"), 0, 3)
FLOAT = np.float64


def types_of(arrays: Sequence[Array]) -> list[TensorType]:
    return [TensorType(DType(array.dtype.name), array.shape) for array in arrays]


def cases() -> Iterator[tuple[str, Op, Sample]]:
    generator = np.random.default_rng(20261129)
    for name, op in OPS.items():
        for number, sample in enumerate(op.samples(generator)):
            yield f"{name}-{number}", op, sample


CASES = list(cases())
each_sample = pytest.mark.parametrize(("op", "sample"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])


def flows(op: Op, sample: Sample) -> bool:
    """Whether a gradient goes from the sample's result to one of its operands."""
    result = op.infer(types_of(sample.args), sample.attrs)
    return op.vjp is not None and result.dtype.is_float and any(arg.dtype == FLOAT for arg in sample.args)


differentiable = [case for case in CASES if flows(*case[1:])]
each_gradient = pytest.mark.parametrize(
    ("op", "sample"), [case[1:] for case in differentiable], ids=[case[0] for case in differentiable]
)


def as_type(sample: Sample, dtype: DType) -> tuple[list[Array], Mapping[str, object]]:
    """The sample with its floats, and a dtype attribute of float64, turned into `dtype`."""
    args = [arg.astype(dtype.numpy) if arg.dtype == FLOAT else arg for arg in sample.args]
    attrs = {k: dtype if v is DType.FLOAT64 else v for k, v in sample.attrs.items()}
    return args, attrs


def node_of(builder: Builder, op: Op, sample: Sample) -> tuple[list[Node], Node]:
    """Input nodes for the operands, named by position, and the operation on them."""
    types = types_of(sample.args)
    inputs = [builder.input(str(i), type_, "batch", SPAN) for i, type_ in enumerate(types)]
    return inputs, builder.emit(op.name, inputs, sample.attrs, SPAN)


def weighted_sum(builder: Builder, node: Node) -> Node:
    """A scalar with a gradient of its own for every element."""
    weights = builder.input("weights", node.type, "batch", SPAN)
    product = builder.apply("mul", node, weights)
    return builder.emit("sum", (product,), {"axes": tuple(range(len(node.shape)))}, SPAN)


def gradients(op: Op, sample: Sample, weights: Array) -> list[Array]:
    """Reverse mode's gradient of the weighted sum, for each float operand."""
    builder = Builder("gradient")
    inputs, node = node_of(builder, op, sample)
    floats = [node for node in inputs if node.dtype.is_float]
    result = differentiate(builder, weighted_sum(builder, node), floats)
    graph = builder.graph({str(i): node for i, node in enumerate(result)})
    values = {str(i): arg for i, arg in enumerate(sample.args)}
    outputs = evaluate(graph, {**values, "weights": weights})
    return [outputs[str(i)] for i in range(len(floats))]


def weights_for(op: Op, sample: Sample) -> Array:
    value = op.evaluate(sample.args, sample.attrs)
    return np.random.default_rng(5).normal(size=value.shape)


def test_every_operation_has_all_its_columns() -> None:
    assert set(TORCH) | set(WITHOUT_VALUE) == set(OPS)
    generator = np.random.default_rng(0)
    for name, op in OPS.items():
        assert op.name == name
        assert op.kind in KINDS
        assert name in WITHOUT_VALUE or op.samples(generator), f"{name} has no samples"
        if op.vjp is not None:
            assert any(case[1] is op for case in differentiable), f"{name} has a gradient but no float samples"


@each_sample
@pytest.mark.parametrize("dtype", [DType.FLOAT64, DType.FLOAT32])
def test_values_agree_with_torch_and_with_the_inferred_type(op: Op, sample: Sample, dtype: DType) -> None:
    args, attrs = as_type(sample, dtype)
    value = op.evaluate(args, attrs)
    inferred = op.infer(types_of(args), attrs)
    assert TensorType(DType(value.dtype.name), value.shape) == inferred
    expected = array_of(TORCH[op.name](tuple(tensor_of(arg) for arg in args), attrs))
    assert expected.dtype == value.dtype
    tolerance = 1e-12 if value.dtype == FLOAT else 2e-6
    np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance)


@each_gradient
def test_gradients_agree_with_central_differences(op: Op, sample: Sample) -> None:
    """In float64, along random directions of all operands at once."""
    weights = weights_for(op, sample)
    found = gradients(op, sample, weights)
    generator = np.random.default_rng(9)
    for _ in range(3):
        direction = [generator.normal(size=a.shape) if a.dtype == FLOAT else None for a in sample.args]
        values = []
        for side in (1e-6, -1e-6):
            moved = [a if d is None else a + side * d for a, d in zip(sample.args, direction, strict=True)]
            values.append(float(np.sum(op.evaluate(moved, sample.attrs) * weights)))
        slope = (values[0] - values[1]) / 2e-6
        expected = sum(
            float(np.sum(g * d)) for g, d in zip(found, [d for d in direction if d is not None], strict=True)
        )
        assert slope == pytest.approx(expected, rel=1e-6, abs=1e-7)


@each_gradient
def test_gradients_agree_with_torch(op: Op, sample: Sample) -> None:
    weights = weights_for(op, sample)
    tensors = tuple(torch.tensor(arg, requires_grad=arg.dtype == FLOAT) for arg in sample.args)
    (TORCH[op.name](tensors, sample.attrs) * torch.from_numpy(weights)).sum().backward()  # type: ignore[no-untyped-call]
    expected = [tensor.grad for tensor in tensors if tensor.requires_grad]
    for ours, theirs in zip(gradients(op, sample, weights), expected, strict=True):
        np.testing.assert_allclose(ours, np.zeros_like(ours) if theirs is None else theirs, rtol=1e-10, atol=1e-12)


def test_integers_get_no_gradient() -> None:
    for _, op, sample in CASES:
        builder = Builder("integers")
        _, node = node_of(builder, op, sample)
        if op.vjp is None or not node.dtype.is_float:
            continue
        one = builder.constant(1.0, node.type.gradient.dtype, SPAN)
        parts = op.vjp(builder, node, builder.broadcast(one, node.shape))
        assert len(parts) == len(node.args)
        for arg, part in zip(node.args, parts, strict=True):
            assert part is None or part.type == arg.type.gradient
            assert arg.dtype.is_float or part is None
