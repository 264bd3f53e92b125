"""Where numerics are delicate: near zero, at infinity, at ties and poles, in both element types."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch_table import TORCH

from paren.ir.evaluate import evaluate
from paren.ir.graph import Builder, Node
from paren.ir.op import OPS, Array
from paren.ir.types import DType, TensorType, TypeMismatch
from paren.passes.gradient import differentiate
from paren.text.source import Source, Span

SPAN = Span(Source("edges.paren", "(x)"), 0, 3)
NAN, INF = float("nan"), float("inf")


def gradients(name: str, args: Sequence[Array], wrt: Sequence[int]) -> list[Array]:
    """The gradient of the sum of an operation without attributes."""
    builder = Builder("edges")
    nodes = [
        builder.input(str(i), TensorType(DType(arg.dtype.name), arg.shape), "batch", SPAN) for i, arg in enumerate(args)
    ]
    node = builder.emit(name, nodes, {}, SPAN)
    total = builder.emit("sum", (node,), {"axes": tuple(range(len(node.shape)))}, SPAN)
    result = differentiate(builder, total, [nodes[i] for i in wrt])
    graph = builder.graph({str(i): node for i, node in enumerate(result)})
    outputs = evaluate(graph, {str(i): arg for i, arg in enumerate(args)})
    return [outputs[str(i)] for i in range(len(wrt))]


def torch_gradients(name: str, args: Sequence[Array], wrt: Sequence[int]) -> list[Array]:
    tensors = tuple(torch.tensor(arg, requires_grad=i in wrt) for i, arg in enumerate(args))
    TORCH[name](tensors, {}).sum().backward()  # type: ignore[no-untyped-call]
    return [tensors[i].grad.numpy() for i in wrt]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["log1p", "expm1", "erf", "tanh", "sin"])
def test_functions_that_vanish_at_zero_keep_their_digits_there(name: str) -> None:
    x = np.array([1e-30, -1e-20, 1e-10, 1e-5, -1e-3], np.float64)
    slope = {"erf": 2 / np.sqrt(np.pi)}.get(name, 1.0)
    np.testing.assert_allclose(OPS[name].evaluate([x[:3]], {}), slope * x[:3], rtol=1e-9)
    for dtype in (np.float32, np.float64):
        small = x.astype(dtype)
        expected = TORCH[name]((torch.tensor(small),), {}).numpy()
        np.testing.assert_allclose(
            OPS[name].evaluate([small], {}), expected, rtol=2e-7 if dtype == np.float32 else 1e-14
        )


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_saturation_is_exact_and_its_gradient_vanishes(name: str) -> None:
    x = np.array([-INF, -100.0, -30.0, 30.0, 100.0, INF], np.float32)
    np.testing.assert_array_equal(OPS[name].evaluate([x], {}), np.sign(x))
    np.testing.assert_array_equal(gradients(name, [x], [0])[0], np.zeros_like(x))


def test_powers_at_zero_and_of_negative_numbers_have_torch_gradients() -> None:
    x = np.array([0.0, 0.0, 0.0, -2.0, -2.0, -1.5, 3.0, 0.0, 2.0])
    y = np.array([0.0, 1.0, 2.0, 2.0, 3.0, 0.0, 0.0, 0.5, -1.0])
    np.testing.assert_allclose(OPS["pow"].evaluate([x, y], {}), torch.pow(torch.tensor(x), torch.tensor(y)))
    np.testing.assert_allclose(gradients("pow", [x, y], [0])[0], torch_gradients("pow", [x, y], [0])[0])
    safe = x >= 0
    np.testing.assert_allclose(
        gradients("pow", [x[safe], y[safe]], [1])[0], torch_gradients("pow", [x[safe], y[safe]], [1])[0]
    )


@pytest.mark.parametrize("name", ["sqrt", "rsqrt", "log", "log1p", "abs"])
def test_values_and_gradients_at_poles_are_those_of_torch(name: str) -> None:
    x = np.array([0.0, 1.0, INF, 1e-30, -1.0])
    np.testing.assert_allclose(OPS[name].evaluate([x], {}), TORCH[name]((torch.tensor(x),), {}).numpy())
    np.testing.assert_allclose(gradients(name, [x], [0])[0], torch_gradients(name, [x], [0])[0])


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_ties_share_the_gradient_and_nan_passes_through(name: str) -> None:
    a, b = np.array([1.0, 2.0, 0.0, NAN, 1.0]), np.array([1.0, 1.0, -0.0, 1.0, NAN])
    np.testing.assert_array_equal(np.isnan(OPS[name].evaluate([a, b], {})), [False, False, False, True, True])
    ours, theirs = gradients(name, [a[:3], b[:3]], [0, 1]), torch_gradients(name, [a[:3], b[:3]], [0, 1])
    np.testing.assert_allclose(ours[0], theirs[0])
    np.testing.assert_allclose(ours[1], theirs[1])


@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_share_their_gradient_among_equal_elements(name: str) -> None:
    x = np.array([[1.0, 1.0, 0.5, 1.0], [0.0, 0.0, 0.0, 0.0], [2.0, 1.0, 0.0, 2.0]])
    builder = Builder("ties")
    node = builder.input("x", TensorType(DType.FLOAT64, x.shape), "batch", SPAN)
    extreme = builder.emit(name, (node,), {"axes": (1,)}, SPAN)
    (gradient,) = differentiate(builder, builder.emit("sum", (extreme,), {"axes": (0,)}, SPAN), [node])
    found = evaluate(builder.graph({"g": gradient}), {"x": x})["g"]
    tensor = torch.tensor(x, requires_grad=True)
    TORCH[name]((tensor,), {"axes": (1,)}).sum().backward()  # type: ignore[no-untyped-call]
    np.testing.assert_allclose(found, tensor.grad)


def test_extremes_of_nan_are_nan_at_its_first_position() -> None:
    x = np.array([[1.0, NAN, 3.0, NAN]], np.float32)
    for name in ("max", "min"):
        assert np.isnan(OPS[name].evaluate([x], {"axes": (1,)})).all()
    for name in ("argmax", "argmin"):
        assert OPS[name].evaluate([x], {"axis": 1}).tolist() == [1]


def test_the_untaken_branch_gets_an_exact_zero() -> None:
    condition, a, b = np.array([True, False]), np.array([1.0, NAN]), np.array([INF, 2.0])
    to_a, to_b = gradients("where", [condition, a, b], [1, 2])
    assert to_a.tolist() == [1.0, 0.0]
    assert to_b.tolist() == [0.0, 1.0]


def test_ids_out_of_range_are_clamped() -> None:
    table, ids = np.arange(6.0).reshape(3, 2), np.array([-5, 1, 99], np.int32)
    assert OPS["take"].evaluate([table, ids], {}).tolist() == [[0, 1], [2, 3], [4, 5]]
    added = OPS["scatter_add"].evaluate([np.zeros((3, 2)), ids, np.ones((3, 2))], {})
    assert added.tolist() == [[1, 1], [1, 1], [1, 1]]


def test_float_to_integer_saturates_and_nan_becomes_zero() -> None:
    x = np.array([NAN, INF, -INF, 2.0**40, -(2.0**40), 2.7, -2.7, 2.0**70])
    for dtype in (DType.INT64, DType.INT32, DType.UINT32, DType.UINT8):
        limits = np.iinfo(dtype.value)
        expected = [0, limits.max, limits.min, *(min(max(int(v), limits.min), limits.max) for v in x[3:])]
        assert OPS["cast"].evaluate([x], {"dtype": dtype}).tolist() == expected


def test_integer_division_by_zero_is_zero_and_the_smallest_by_minus_one_wraps() -> None:
    a, b = np.array([5, -5, -(2**31)], np.int32), np.array([0, 0, -1], np.int32)
    assert OPS["floor_divide"].evaluate([a, b], {}).tolist() == [0, 0, -(2**31)]
    assert OPS["remainder"].evaluate([a, b], {}).tolist() == [0, 0, 0]


def test_results_of_scalars_are_arrays_of_the_same_type() -> None:
    for name in ("add", "mul", "maximum"):
        value = OPS[name].evaluate([np.array(1.5, np.float32), np.array(2.5, np.float32)], {})
        assert isinstance(value, np.ndarray)
        assert value.dtype == np.float32


def f32(*shape: int) -> TensorType:
    return TensorType(DType.FLOAT32, shape)


def i32(*shape: int) -> TensorType:
    return TensorType(DType.INT32, shape)


MISMATCHES: list[tuple[str, list[TensorType], dict[str, object], str]] = [
    ("add", [f32(4, 3), f32(3)], {}, "the shapes float32[4 3] and float32[3] differ"),
    ("add", [f32(3), i32(3)], {}, "the element types of float32[3] and int32[3] differ"),
    ("add", [f32(3)], {}, "2 operands are needed, 1 given"),
    ("exp", [i32(3)], {}, "the operand is int32[3], floats are needed"),
    ("not", [i32(3)], {}, "the operand is int32[3], booleans are needed"),
    ("and", [f32(), f32()], {}, "the operand is float32[], booleans or integers are needed"),
    ("sum", [TensorType(DType.BOOL, (2,))], {"axes": (0,)}, "the operand is bool[2], numbers are needed"),
    ("sum", [f32(2)], {"axes": (1,)}, "axis 1 does not exist in float32[2]"),
    ("sum", [f32(2, 3)], {"axes": (1, 0)}, "the axes [1 0] are not ascending"),
    ("sum", [f32(2, 3)], {"axes": [0]}, "axes is [0], a tuple of integers is needed"),
    ("argmax", [f32(2)], {"axis": None}, "axis is None, an integer is needed"),
    ("reshape", [f32(2, 3)], {"shape": (4,)}, "float32[2 3] has 6 elements, the shape [4] has 4"),
    ("reshape", [f32(2)], {"shape": (-1, -2)}, "the shape [-1 -2] has a size below 1"),
    ("transpose", [f32(2, 3)], {"axes": (0, 0)}, "the axes [0 0] are not an order of the axes of float32[2 3]"),
    (
        "broadcast",
        [f32(3)],
        {"shape": (3, 4), "axes": (1,)},
        "float32[3] does not fit the axes [1] of float32[3 4]",
    ),
    (
        "slice",
        [f32(3)],
        {"start": (0,), "stop": (4,), "step": (1,)},
        "the slice from 0 to 4 by 1 is not within float32[3]",
    ),
    (
        "slice",
        [f32(3)],
        {"start": (), "stop": (), "step": ()},
        "start has 0 entries for float32[3], which has 1 dimensions",
    ),
    ("pad", [f32(3)], {"low": (-1,), "high": (0,), "value": 0.0}, "the padding [-1] [0] has a negative entry"),
    ("pad", [f32(3)], {"low": (1,), "high": (0,), "value": 0}, "the padding value 0 is not a float32"),
    ("concat", [f32(2, 3), f32(3, 2)], {"axis": 0}, "the shapes float32[2 3] and float32[3 2] differ besides axis 0"),
    ("concat", [], {"axis": 0}, "concat needs at least one operand"),
    ("take", [f32(), i32(2)], {}, "the table is float32[], at least one dimension is needed"),
    ("take", [f32(4), f32(2)], {}, "the operand is float32[2], integers are needed"),
    (
        "scatter_add",
        [f32(4, 2), i32(3), f32(3)],
        {},
        "the updates are float32[3], float32[3 2] are needed for ids int32[3] into float32[4 2]",
    ),
    (
        "contract",
        [f32(3, 4), f32(5, 2)],
        {"batch": ((), ()), "contracting": ((1,), (0,))},
        "axis 1 of float32[3 4] has size 4, axis 0 of float32[5 2] has size 5",
    ),
    (
        "contract",
        [f32(3, 4), f32(4)],
        {"batch": ((1,), (0,)), "contracting": ((1,), (0,))},
        "the axes [1 1] of float32[3 4] are not all different",
    ),
    (
        "patches",
        [f32(1, 1, 2, 2)],
        {"kernel": (3, 3), "stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1)},
        "a kernel of [3 3] does not fit an image of [2 2]",
    ),
    (
        "attention",
        [f32(3, 1, 2, 4), f32(3, 2, 5), f32(3, 2, 5)],
        {"causal": False, "scale": 1.0},
        "the keys are float32[3 2 5] for the queries float32[3 1 2 4]",
    ),
    (
        "attention",
        [f32(3, 2, 1, 4), f32(3, 2, 4), f32(5, 2, 4)],
        {"causal": False, "scale": 1.0},
        "the values are float32[5 2 4] for the keys float32[3 2 4]",
    ),
    (
        "attention",
        [f32(3, 2, 1, 4), f32(2, 2, 4), f32(2, 2, 4)],
        {"causal": True, "scale": 1.0},
        "the first of 3 causal queries would see none of 2 keys",
    ),
    (
        "attention_statistics",
        [f32(3, 2, 1, 4), f32(3, 2, 4)],
        {"causal": None, "scale": 1.0},
        "causal is None, true or false is needed",
    ),
    (
        "attention_statistics",
        [f32(3, 2, 1, 4), f32(3, 2, 4)],
        {"causal": True, "scale": 1},
        "scale is 1, a float is needed",
    ),
    (
        "attention_gradient",
        [f32(3, 2, 1, 4), f32(3, 2, 4), f32(3, 2, 4), f32(3, 2, 1, 4), f32(2, 1, 3), f32(3, 2, 1, 4)],
        {"causal": True, "scale": 1.0, "of": 3},
        "of is 3, 0, 1 or 2 is needed",
    ),
    ("either", [f32(3), f32(4)], {}, "the shapes float32[3] and float32[4] differ"),
    ("constant", [], {"value": 300, "dtype": DType.UINT8}, "the value 300 does not fit uint8"),
    ("constant", [], {"value": 1.5, "dtype": DType.INT32}, "the value 1.5 is not an integer, int32 is needed"),
]


@pytest.mark.parametrize(("name", "types", "attrs", "message"), MISMATCHES)
def test_what_does_not_fit_is_said_in_words(
    name: str, types: list[TensorType], attrs: dict[str, object], message: str
) -> None:
    with pytest.raises(TypeMismatch) as caught:
        OPS[name].infer(types, attrs)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_apply_broadcasts_and_says_what_does_not_fit() -> None:
    builder = Builder("apply")

    def made(name: str, *shape: int) -> Node:
        return builder.input(name, f32(*shape), "batch", SPAN)

    assert builder.apply("add", made("a", 4, 1), made("b", 3)).shape == (4, 3)
    assert builder.apply("where", builder.apply("gt", made("b", 3), 0.0), 1.0, made("c", 2, 3)).shape == (2, 3)
    with pytest.raises(TypeMismatch, match=r"^the shapes float32\[4\] and float32\[3\] differ$"):
        builder.apply("add", made("d", 4), made("b", 3))
    assert builder.constant(0.1, DType.FLOAT32, SPAN).attrs["value"] == float(np.float32(0.1))
    assert builder.constant(0, DType.FLOAT32, SPAN) is builder.constant(0.0, DType.FLOAT32, SPAN)
    assert builder.constant(-0.0, DType.FLOAT32, SPAN) is not builder.constant(0.0, DType.FLOAT32, SPAN)
