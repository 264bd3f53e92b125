"""Whole training steps on a card that is not there: plans for CUDA, run through the CUDA device on a fake card."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from compiled_training import EXAMPLES, Trainer, assert_gradients_agree, examples
from defined_kernels import defined_device

from paren.ir.program import Program
from paren.lang.elaborate import elaborate

# Kernels that run by their definition take long.
SMALL = {
    "gpt": ["layers=1", "heads=2", "width=16", "seq=12", "vocab=256", "batch=4", "warmup=2", "steps=20"],
    "digits": ["channels=[2 3]", "hidden=8", "batch=6"],
    "regression": [],
}


def smoke(name: str, *more: str) -> Program:
    return elaborate(EXAMPLES / f"{name}.paren", variant="smoke", overrides=[*SMALL[name], *more])


@pytest.mark.parametrize(
    ("name", "more", "tolerance"),
    [
        ("regression", (), 1e-5),
        ("digits", (), 1e-5),
        ("gpt", ("microbatches=1",), 1e-5),
        ("gpt", ("microbatches=2",), 1e-5),
        ("gpt", ("microbatches=1", 'precision="bfloat16"'), 2e-2),
    ],
)
def test_steps_agree_with_the_cpu(name: str, more: tuple[str, ...], tolerance: float, tmp_path: Path) -> None:
    """Losses, norms, gradients and parameters of three steps (the first is started call by call, the others are
    graphs), then an evaluation."""
    made = smoke(name, *more)
    device, card = defined_device()
    wanted, found = Trainer(made), Trainer(made, device)
    for slot, value in wanted.parameters.items():
        np.testing.assert_allclose(found.parameters[slot], value, rtol=2e-6, atol=1e-7, err_msg=slot)
    given = examples(made, tmp_path, 3)
    for fields in given:
        found.set(wanted.parameters)
        record, other = found.step(fields), wanted.step(fields)
        assert record["loss"] == pytest.approx(other["loss"], rel=tolerance)
        assert record["gradient-norm"] == pytest.approx(other["gradient-norm"], rel=10 * tolerance)
        assert_gradients_agree(found.gradients, wanted.gradients, 10 * tolerance)
    assert card.captures > 0
    assert card.replays > 0
    found.set(wanted.parameters)
    for microbatch in wanted.batch(given[0]).microbatches:
        sums, others = found.engine.evaluate(microbatch), wanted.engine.evaluate(microbatch)
        assert sums["loss"] == pytest.approx(others["loss"], rel=tolerance)
