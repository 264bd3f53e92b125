"""Training on a card that is not there: plans for CUDA, run as CUDA C through the CUDA device on a fake card."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from compiled_training import EXAMPLES, Trainer, assert_gradients_agree, examples
from emulated_card import emulated_device
from emulation.checks import checked

import paren
from paren import run
from paren.forecast.plans import make_plans
from paren.ir.program import Program
from paren.lang.elaborate import elaborate
from paren.pipeline import Planning
from paren.plan.epilogue import epilogues_of
from paren.plan.traits import CUDA

# The emulation takes long.
SMALL = {
    "gpt": ["layers=1", "heads=2", "width=16", "seq=12", "vocab=256", "batch=4", "warmup=2", "steps=20"],
    "digits": ["channels=[2 3]", "hidden=8", "batch=6"],
    "regression": [],
}


def smoke(name: str, *more: str) -> Program:
    given = {setting.partition("=")[0] for setting in more}
    small = [setting for setting in SMALL[name] if setting.partition("=")[0] not in given]
    return elaborate(EXAMPLES / f"{name}.paren", variant="smoke", overrides=[*small, *more])


@pytest.mark.parametrize(
    ("name", "more", "tolerance"),
    [
        ("regression", (), 1e-5),
        ("digits", (), 1e-5),
        ("gpt", ("microbatches=1",), 1e-5),
        ("gpt", ("microbatches=2",), 1e-5),
        ("gpt", ("microbatches=1", 'precision="bfloat16"'), 2e-2),
        ("gpt", ("microbatches=1", 'precision="float16"'), 5e-3),
    ],
)
def test_steps_agree_with_the_cpu(name: str, more: tuple[str, ...], tolerance: float, tmp_path: Path) -> None:
    """Losses, norms, gradients and parameters of three steps (the first is started call by call, the others are
    graphs), then an evaluation."""
    made = smoke(name, *more)
    device, card = emulated_device()
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
    assert ("attend" in card.started) == (name == "gpt" and tolerance > 1e-3)  # in short floats
    assert card.captures > 0
    assert card.replays > 0
    found.set(wanted.parameters)
    for microbatch in wanted.batch(given[0]).microbatches:
        sums, others = found.engine.evaluate(microbatch), wanted.engine.evaluate(microbatch)
        assert sums["loss"] == pytest.approx(others["loss"], rel=tolerance)


LARGER = ("layers=1", "heads=12", "width=96", "seq=24", "vocab=1003", "batch=2", "microbatches=2")  # GPT-2's form


@pytest.mark.parametrize(
    ("name", "more", "tolerance"),
    [
        ("gpt", ("microbatches=2", 'precision="bfloat16"'), 2e-2),
        pytest.param("regression", (), 1e-5, marks=pytest.mark.long),
        pytest.param("digits", (), 1e-5, marks=pytest.mark.long),
        *(
            pytest.param("gpt", (*LARGER, f'precision="{name}"'), most, marks=pytest.mark.long)
            for name, most in (("off", 1e-5), ("bfloat16", 2e-2), ("float16", 2e-2))
        ),
    ],
)
def test_steps_hold_the_checks_of_the_emulation(
    name: str, more: tuple[str, ...], tolerance: float, tmp_path: Path
) -> None:
    """Where buffers lie on one another as planned, no kernel touches what is not its own, and no threads race."""
    with checked():
        test_steps_agree_with_the_cpu(name, more, tolerance, tmp_path)


def test_steps_with_joined_products_agree_with_the_cpu(tmp_path: Path) -> None:
    """Products that the library computes together with the kernels after them, forward and backward."""
    made = smoke("gpt", "microbatches=1", 'precision="bfloat16"')
    device, card = emulated_device()
    card.able = None
    epilogues = epilogues_of(make_plans(made, Planning(traits=CUDA)).accumulate)
    assert len(epilogues) == 3  # of queries, keys and values, of gelu, and of its gradient
    joined = frozenset(epilogue.form for epilogue in epilogues.values())
    wanted, found = Trainer(made), Trainer(made, device, joined=joined)
    for fields in examples(made, tmp_path, 3):
        found.set(wanted.parameters)
        record, other = found.step(fields), wanted.step(fields)
        assert record["loss"] == pytest.approx(other["loss"], rel=2e-2)
        assert_gradients_agree(found.gradients, wanted.gradients, 0.2)
    assert card.started.count("join") == 3
    assert card.replays > 0


def test_a_run_agrees_with_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many steps in one call, evaluations and checkpoints, from which the run goes on."""
    device, card = emulated_device()
    real = run.open_device
    monkeypatch.setattr(run, "open_device", lambda name, *given: device if name == "cuda" else real(name, *given))
    loaded = paren.load(EXAMPLES / "regression.paren", variant="smoke")
    records = {}
    for name in ("cuda", "cpu"):
        out = tmp_path / name
        assert loaded.run(out, name, steps=150, threads=1).step == 150
        assert loaded.run(out, name, steps=230, threads=1, resume="latest").step == 230
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        records[name] = [line for line in lines if "loss" in line or "evaluation/loss" in line]
    assert len(records["cuda"]) == len(records["cpu"]) > 200
    for found, wanted in zip(records["cuda"], records["cpu"], strict=True):
        for key in ("step", "loss", "gradient-norm", "rate", "evaluation/loss"):
            if key in wanted:
                assert found[key] == pytest.approx(wanted[key], rel=1e-3), (wanted["step"], key)
    assert card.replays > 200
