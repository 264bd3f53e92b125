"""Products with the kernels after them on a card: one step of cuDNN against two, in numbers and in time."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from paren.forecast.trial import time_epilogues
from paren.ir.graph import Builder, Graph
from paren.ir.op import Array
from paren.ir.types import DType
from paren.passes.gradient import differentiate
from paren.passes.precision import set_precision
from paren.pipeline import Planning, plan_graph
from paren.plan.epilogue import epilogues_of
from paren.plan.plan import Plan
from paren.plan.traits import CUDA
from paren.runtime.cuda.device import CudaDevice
from paren.runtime.executor import Executable
from scripts.gpu_graphs import SPAN, placed, tensor

WIDTH, HIDDEN = 768, 3072  # GPT-2's
FARTHEST = 0.02  # of the results' norm


def compare_joined(device: CudaDevice, rows: int, precision: str, said: list[str]) -> None:
    """A bias and gelu after a product, and gelu's gradient, by two steps and by one. Raises AssertionError where the
    results are further apart than roundings explain, or are not the same bits twice."""
    graph = _layer(rows, precision)
    plan = plan_graph(graph, planning=Planning(traits=CUDA))
    epilogues = list(epilogues_of(plan).values())
    assert len(epilogues) == 2, f"{len(epilogues)} products with epilogues"
    before = len(device.driver.notes)
    joined = [epilogue for epilogue in epilogues if device.joins(epilogue)]
    if joined != epilogues:
        said.append(f"not joined: {list(device.driver.notes[before:]) or 'the package of cuDNN is not installed'}")
        return
    generator = np.random.default_rng(0)
    values = {
        str(node.attrs["name"]): (0.4 * generator.normal(size=node.shape)).astype(np.float32) for node in graph.inputs
    }
    two = _run(device, plan, values)
    forms = [epilogue.form for epilogue in epilogues]
    one, again = (_run(device, plan, values, forms) for _ in range(2))
    for name, value in two.items():
        apart = np.linalg.norm(np.float64(one[name]) - np.float64(value)) / np.linalg.norm(np.float64(value))
        assert apart < FARTHEST, f"{name}: {apart:.3g} of its norm apart"
        assert np.array_equal(one[name], again[name]), f"{name} is not the same twice"
    for epilogue, (slow, fast) in zip(epilogues, time_epilogues(device, plan, epilogues).values(), strict=True):
        node = epilogue.launch.nodes[-1]
        said.append(f"{node} after {rows} x {WIDTH} x {HIDDEN}: {1e3 * slow:.3f} ms as two, {1e3 * fast:.3f} as one")


def _layer(rows: int, precision: str) -> Graph:
    """gelu(x w + b), and the gradients of a linear loss of it."""
    builder = Builder("layer")
    x, w, b = tensor(builder, "x", rows, WIDTH), tensor(builder, "w", WIDTH, HIDDEN), tensor(builder, "b", HIDDEN)
    product = builder.emit("contract", (x, w), {"batch": ((), ()), "contracting": ((1,), (0,))}, SPAN)
    inner = builder.apply("add", product, b, span=SPAN)
    power = builder.apply("add", builder.apply("erf", builder.apply("mul", inner, 0.7071068)), 1.0, span=SPAN)
    hidden = builder.apply("mul", builder.apply("mul", inner, 0.5, span=SPAN), power, span=SPAN)
    back = tensor(builder, "back", HIDDEN, WIDTH)
    result = builder.emit("contract", (hidden, back), {"batch": ((), ()), "contracting": ((1,), (0,))}, SPAN)
    weights = tensor(builder, "weights", rows, WIDTH)
    loss = builder.emit("sum", (builder.apply("mul", result, weights, span=SPAN),), {"axes": (0, 1)}, SPAN)
    states = [w, b, back]
    outputs = {"loss": loss}
    for node, gradient in zip(states, differentiate(builder, loss, states), strict=True):
        outputs[f"gradient of {node.attrs['name']}"] = gradient
    return set_precision(builder.graph(outputs), DType(precision).value, list(outputs)[1:])


def _run(device: CudaDevice, plan: Plan, values: Mapping[str, Array], joined: Collection[str] = ()) -> dict[str, Array]:
    state = {name: placed(device, value) for name, value in values.items()}
    executable = Executable(device, plan, joined)
    arena = device.allocate(plan.arena_bytes)
    return {name: np.array(array) for name, array in executable.run(state, state, arena).items()}
