"""Whole runs on a card that is not there, whose kernels run by their definition: what `paren run --device cuda` does,
from the plan to the restored model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from defined_kernels import defined_device
from resume_runs import metric_lines, newest, write_program

import paren
from paren import restored as restoring
from paren import run
from paren.engine import CompiledEngine
from paren.text.errors import ParenError
from paren.text.size import show_bytes
from paren.train import chunk
from paren.train.progress import Silent
from paren.train.read_run import read_annotations

SERIES = ("loss", "gradient-norm", "rate", "evaluation/loss", "scale", "spread")


@pytest.mark.parametrize(("name", "stacking"), [("gpt", 3), ("mlp", 4), ("mlp", 1)])
def test_a_run_on_a_card(name: str, stacking: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut, resumed, evaluated, saved; the numbers are the CPU's to rounding, and a CPU restores the model. Going on
    there is another matter."""
    monkeypatch.setattr(chunk, "SECONDS", 60.0)
    made: list[int] = []
    steps = CompiledEngine.steps
    monkeypatch.setattr(CompiledEngine, "steps", lambda self, *given: made.append(1) or steps(self, *given))
    experiment = paren.load(write_program(tmp_path, name))
    experiment.run(tmp_path / "plain", threads=1, stacking=stacking, steps=8)
    made.clear()
    device, card = defined_device()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "open_device", lambda *_: device)
        patch.setattr(restoring, "open_device", lambda *_: device)
        experiment.run(tmp_path / "card", device="cuda", stacking=stacking, steps=3)
        experiment.run(tmp_path / "card", device="cuda", stacking=stacking, steps=8, resume="latest")
        on_card = paren.restore(tmp_path / "card", "cuda")
    assert card.replays > 0
    assert bool(made) is (name == "gpt")
    lines = [[line for line in metric_lines(tmp_path / out) if "loss" in line] for out in ("plain", "card")]
    assert len(lines[0]) == len(lines[1]) > 2
    for wanted, found in zip(*lines, strict=True):
        assert wanted.keys() == found.keys()
        for series in wanted.keys() & set(SERIES):
            assert found[series] == pytest.approx(wanted[series], rel=1e-4), (series, found["step"])
    type_ = experiment.program.models[0].inputs[0].type
    batch = (np.arange(3 * type_.size).reshape(3, *type_.shape) % 11).astype(type_.dtype.numpy)
    restored = paren.restore(tmp_path / "card")
    np.testing.assert_allclose(on_card(batch), restored(batch), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(restored(batch), paren.restore(tmp_path / "plain")(batch), rtol=1e-3, atol=1e-4)
    with pytest.raises(ParenError) as caught:
        experiment.run(tmp_path / "card", threads=1, stacking=stacking, resume="latest")
    assert caught.value.code == "E-CKPT-007"
    assert f"{newest(tmp_path / 'card')} would not be bit-exact: device cuda there and cpu here" in str(caught.value)


def test_an_allocation_that_fails_once_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a line and by an annotation, where another program or library took the memory after the plan was made."""
    device, card = defined_device(1 << 32)
    made = CompiledEngine.__init__

    def fill(engine: CompiledEngine, *given: object) -> None:
        card.idle = (1 << 32) - card.used
        made(engine, *given)

    monkeypatch.setattr(CompiledEngine, "__init__", fill)
    monkeypatch.setattr(run, "open_device", lambda *_: device)
    told: list[str] = []

    class Told(Silent):
        def notice(self, text: str) -> None:
            told.append(text)

    paren.load(write_program(tmp_path, "mlp")).run(
        tmp_path / "out", device="cuda", stacking=4, steps=2, progress=Told()
    )
    (size,) = device.retried
    assert (
        f"memory: allocation failed ({show_bytes(size)}), and succeeded once memory in reserve was given back" in told
    )
    annotations = [line for line in read_annotations(tmp_path / "out") if line["annotation"] == "allocation-failed"]
    assert annotations == [{"step": 0, "annotation": "allocation-failed", "bytes": size}]
