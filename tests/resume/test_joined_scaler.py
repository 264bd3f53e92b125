"""float16 where products are one step with the kernels after them: what leaves the range inside of such a step is seen
as it is with two steps. And several trainings, one after another, on one card."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from pathlib import Path

import fake_card
import numpy as np
import pytest
from defined_kernels import defined_device
from fake_card import FakeCard
from joined import Elements
from resume_runs import metric_lines
from safetensors.numpy import load_file

import paren
from paren import run
from paren.plan.epilogue import Epilogue
from paren.runtime.array import DeviceArray
from paren.runtime.cuda.device import CudaDevice
from paren.text.json import Json

ROWS = """
import numpy as np


def rows(count):
    random = np.random.default_rng(0)
    x = random.standard_normal((count, 16)).astype(np.float32)
    return {"train": {"x": x, "y": np.tanh(x)}}
"""
PROGRAM = """
(def width 32)
(def large 6.0)
(def precision "float16")
(defdata points (python "rows.py" rows :fields ((x float32 [16]) (y float32 [16])) :count 96))
(defmodel network ((x float32 [16]))
  (matmul (gelu (linear x width)) (param out [width 16] :init (normal large))))
(defrun
  :data             points
  :loss             (mean-squared-error (network x) y)
  :optimizer        (adamw :rate 1e-3)
  :clip             1.0
  :batch            24
  :steps            10
  :checkpoint-every 1
  :keep-checkpoints 10
  :log-every        1
  :seed             2
  :precision        precision)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAREN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "rows.py").write_text(ROWS)
    (tmp_path / "network.paren").write_text(PROGRAM)
    return tmp_path / "network.paren"


def train(file: Path, name: str, device: CudaDevice, joins: bool = True, **settings: object) -> Path:
    """A run on a device whose library joins all products, or none."""
    out = file.parent / name
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CudaDevice, "compare_joined", lambda *_: (2.0, 1.0) if joins else (1.0, 2.0))
        patch.setattr(run, "open_device", lambda *_: device)
        paren.load(file, set=dict(settings)).run(out, device="cuda")
    return out


def opened() -> tuple[CudaDevice, FakeCard]:
    device, card = defined_device()
    card.able = None
    return device, card


def forget(file: Path) -> None:
    """What was measured."""
    (file.parent / "cache" / "choices.json").unlink(missing_ok=True)


def lowered(out: Path) -> list[tuple[Json, Json]]:
    return [(line["step"], line["scale"]) for line in metric_lines(out) if line.get("annotation") == "loss-scale"]


def lines(out: Path) -> Mapping[str, list[float]]:
    found = [line for line in metric_lines(out) if "loss" in line]
    return {name: [float(line[name]) for line in found if name in line] for name in ("loss", "gradient-norm")}


def parameters(out: Path, step: int = 10) -> dict[str, bytes]:
    found = load_file(out / "checkpoints" / f"{step:06d}" / "parameters.safetensors")
    return {key: value.tobytes() for key, value in found.items()}


def test_the_scaler_sees_what_leaves_the_range_in_one_step(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum is beyond float16, the operands are not: the step stores an infinity, which goes through the gradient's
    sum, norm and check, and the update is left out as it is with two steps."""
    infinite: list[bool] = []
    join = fake_card.join

    def watched(epilogue: Epilogue, elements: Elements) -> None:
        join(epilogue, elements)
        product, launch = epilogue.product, epilogue.launch
        sizes = {product.a.buffer: product.m * product.k, product.b.buffer: product.k * product.n}
        read = [elements(id, size, epilogue.dtypes[0]) for id, size in sizes.items()]
        number = launch.buffers.index(launch.writes[0])
        written = elements(launch.writes[0], product.m * product.n, launch.kernel.parameters[number].dtype)
        infinite.append(all(np.isfinite(each).all() for each in read) and not np.isfinite(written).all())

    monkeypatch.setattr(fake_card, "join", watched)
    one = train(file, "one", opened()[0])
    assert any(infinite)
    forget(file)
    monkeypatch.setattr(fake_card, "join", None)  # is not called
    two = train(file, "two", opened()[0], joins=False)
    assert lowered(one) == lowered(two) == [(1, 512.0), (2, 256.0), (3, 128.0)]
    for name, values in lines(one).items():
        np.testing.assert_allclose(values, lines(two)[name], rtol=1e-2, err_msg=name)
    for out in (one, two):  # three steps consumed their batches and changed nothing
        first, third, fourth = (parameters(out, step) for step in (1, 3, 4))
        assert first == third != fourth


def test_the_card_has_its_memory_back_when_a_training_ends(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, as the next one is planned by what is free: no search for cycles is needed."""
    device, _ = opened()
    allocate = CudaDevice.allocate
    held: list[int] = []

    def watched(self: CudaDevice, size: int) -> DeviceArray:
        array = allocate(self, size)
        weakref.finalize(array.owner, held.remove, size)
        held.append(size)
        return array

    monkeypatch.setattr(CudaDevice, "allocate", watched)
    gc.disable()
    try:
        train(file, "out", device)
        assert held == []
    finally:
        gc.enable()


def test_trainings_one_after_another_on_one_card_are_those_on_cards_of_their_own(file: Path) -> None:
    """Of other sizes and precisions, with forms that some share, and with what one measured and made for all."""
    jobs: dict[str, dict[str, object]] = {
        "half": {},
        "wide": {"width": 64},
        "brain": {"precision": "bfloat16"},
        "again": {"large": 0.5},
        "single": {"precision": "off"},
    }
    device, card = opened()
    together, made, joined = {}, {}, {}
    for name, settings in jobs.items():
        together[name] = train(file, f"together-{name}", device, **settings)
        made[name], joined[name] = len(card.made), card.started.count("join")
        card.started.clear()
    assert (made["half"], made["wide"], made["brain"]) == (2, 4, 6)  # a forward and a backward each
    assert made["again"] == made["single"] == made["brain"]
    assert joined["single"] == 0 < min(joined[name] for name in ("half", "wide", "brain", "again"))
    for name, settings in jobs.items():
        forget(file)
        alone = train(file, f"alone-{name}", opened()[0], **settings)
        assert parameters(alone) == parameters(together[name]), name
        assert lines(alone)["loss"] == lines(together[name])["loss"]
