"""Compiled initialisation gives every parameter the value of its definition, also where many share one value."""

from __future__ import annotations

import numpy as np
import pytest
from compiled_training import EXAMPLES, Trainer

from paren.ir.evaluate import evaluate
from paren.ir.graph import Builder
from paren.ir.types import DType, TensorType
from paren.lang.elaborate import elaborate
from paren.pipeline import plan_graph
from paren.runtime.device import open_device
from paren.runtime.executor import Executable
from paren.text.source import Source, Span

SPAN = Span(Source("test.paren", "x"), 0, 1)


@pytest.mark.parametrize("name", ["gpt", "digits", "regression"])
def test_first_parameters(name: str) -> None:
    made = elaborate(EXAMPLES / f"{name}.paren", variant="smoke")
    wanted = evaluate(made.initialize, {"$seed": np.uint32(made.run.seed).reshape(())})
    found = Trainer(made).parameters
    assert found.keys() == wanted.keys()
    for parameter, value in wanted.items():
        np.testing.assert_allclose(found[parameter], value, rtol=2e-6, atol=1e-7, err_msg=parameter)
        if parameter.endswith("norm.weight"):
            assert (found[parameter] == 1).all()


@pytest.mark.parametrize("written", [True, False])
def test_one_value_in_many_slots(written: bool) -> None:
    """Slots that the graph only fills, and slots whose old content it reads."""
    builder = Builder("test")
    type_ = TensorType(DType.FLOAT32, (5,))
    row = builder.input("row", type_, "batch", SPAN)
    value = builder.apply("mul", row, 2.0)
    names = ("a", "b", "c")
    outputs = dict.fromkeys(names, value)
    if not written:
        for name in names:
            builder.input(name, type_, "state", SPAN)
        outputs["d"] = builder.apply("add", value, builder.input("d", type_, "state", SPAN))
    device = open_device("reference")
    state = {name: device.allocate(64)[:20].view(np.float32) for name in (*names, "d")}
    for array in state.values():
        array[...] = 7
    plan = plan_graph(builder.graph(outputs), names if written else ())
    inputs = {"row": np.arange(5, dtype=np.float32)}
    Executable(device, plan).run(state, inputs, device.allocate(max(64, plan.arena_bytes)))
    for name in names:
        np.testing.assert_array_equal(state[name], 2 * inputs["row"])
    np.testing.assert_array_equal(state["d"], 7 if written else 2 * inputs["row"] + 7)
