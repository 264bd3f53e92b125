"""What a `defrun` may ask for besides, compiled: averages, frozen parameters, groups, first weights, clipping."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from compiled_training import Arrays, Trainer, program

from paren import api
from paren.run import open_program_data
from paren.train.experiment import SplitData
from paren.train.progress import Silent
from paren.train.read_run import read_metrics

TEXT = """
(defdata d (python "points.py" points :fields ((x float32 [4]) (y float32 []))
  :split ((train 0.8) (validation 0.2)) :rows 40))
(defmodel m ((x float32 [4])) (scope body (linear (tanh (linear x 6)) 1)))
(defrun :data d :loss (mean-squared-error (m x) y) :optimizer {optimizer} :batch 8 :steps {steps} :seed 2
  :log-every 1 {more})
"""
POINTS = """\
import numpy as np


def points(rows):
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, 4)).astype(np.float32)
    return {"x": x, "y": (30 * np.sin(x).sum(axis=1)).astype(np.float32)}
"""


def text(more: str = "", optimizer: str = "(sgd :rate 0.01)", steps: int = 6) -> str:
    return TEXT.format(more=more, optimizer=optimizer, steps=steps)


def trainer(more: str = "", optimizer: str = "(sgd :rate 0.01)") -> Trainer:
    return Trainer(program(text(more, optimizer)))


def batches(count: int) -> list[Arrays]:
    generator = np.random.default_rng(1)
    xs = generator.normal(size=(count, 8, 4)).astype(np.float32)
    return [{"x": x, "y": (30 * np.sin(x).sum(axis=1)).astype(np.float32)} for x in xs]


@pytest.mark.parametrize("clip", [0.01, 1.0, 1e6])
def test_clipping_scales_the_whole_gradient_and_logs_the_true_norm(clip: float) -> None:
    """The update is gradient x min(1, clip / norm), for every parameter by the same factor."""
    plain, clipped = trainer(), trainer(f":clip {clip}")
    before = plain.parameters
    (given,) = batches(1)
    wanted, record = plain.step(given), clipped.step(given)
    norm = float(np.sqrt(sum(np.sum(np.square(g, dtype=np.float64)) for g in plain.gradients.values())))
    assert norm > 1
    assert record["gradient-norm"] == wanted["gradient-norm"] == pytest.approx(norm, rel=1e-5)
    factor = min(1.0, clip / norm)
    for name, value in before.items():
        np.testing.assert_allclose(
            clipped.parameters[name], value - 0.01 * factor * plain.gradients[name], rtol=1e-5, atol=1e-7
        )


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.999])
@pytest.mark.parametrize("optimizer", ["(adamw :rate 0.03)", "(muon :rate 0.03)"])
def test_averages(decay: float, optimizer: str) -> None:
    """average' = decay average + (1 - decay) parameter, begun at the first parameters; evaluations use it."""
    made, plain = trainer(f":average {decay}", optimizer), trainer("", optimizer)
    wanted = {name: value.astype(np.float64) for name, value in made.parameters.items()}
    for given in batches(5):
        made.step(given)
        plain.step(given)
        for name, value in made.parameters.items():
            np.testing.assert_array_equal(value, plain.parameters[name])
            wanted[name] = decay * wanted[name] + (1 - decay) * value
    slots = made.engine.slots()
    for name, value in wanted.items():
        np.testing.assert_allclose(slots[f"{name}/average"], value, rtol=1e-5, atol=1e-6)
        assert made.engine.roles[f"{name}/average"] == "average"
    (microbatch,) = made.batch(batches(1)[0]).microbatches
    plain.set({name: slots[f"{name}/average"] for name in wanted})
    assert made.engine.evaluate(microbatch) == plain.engine.evaluate(microbatch)


def test_frozen_parameters_keep_their_bytes() -> None:
    """They take part in the loss, have no gradient, no moments and no part of the norm; the others train as before."""
    names = list(trainer().parameters)
    frozen = [name for name in names if name.startswith("body.linear.")]
    free = [name for name in names if name not in frozen]
    assert frozen
    assert free
    made, plain = trainer(':frozen ("body.linear.*")', "(adamw :rate 0.03)"), trainer("", "(adamw :rate 0.03)")
    before = made.parameters
    for number, given in enumerate(batches(4)):
        record, all_free = made.step(given), plain.step(given)
        if number == 0:
            assert record["loss"] == all_free["loss"]
            norm = np.sqrt(sum(np.sum(np.square(plain.gradients[name], dtype=np.float64)) for name in free))
            assert record["gradient-norm"] == pytest.approx(float(norm), rel=1e-5)
            for name in free:
                np.testing.assert_allclose(made.parameters[name], plain.parameters[name], rtol=1e-5, atol=1e-7)
    assert set(made.gradients) == set(free)
    for name, value in made.parameters.items():
        assert (value.tobytes() == before[name].tobytes()) == (name in frozen), name
    slots = made.engine.slots()
    assert {name for name in slots if "/" in name} == {f"{name}/{m}" for name in free for m in ("mean", "variance")}


def test_groups_have_their_own_keywords_and_optimizers() -> None:
    """Each parameter's update is that of a program whose one optimizer is its group's."""
    made = trainer(
        ':groups (("*.bias" :rate 0.3) ("*linear-1*" :optimizer (lion :rate 0.002)))',
        "(sgd :rate 0.01 :momentum 0.9 :weight-decay 0.2)",
    )
    others = {
        "bias": trainer("", "(sgd :rate 0.3 :momentum 0.9)"),
        "linear-1": trainer("", "(lion :rate 0.002)"),
        "rest": trainer("", "(sgd :rate 0.01 :momentum 0.9 :weight-decay 0.2)"),
    }
    generator = np.random.default_rng(3)
    for number in (1, 2, 3):
        gradients = {n: generator.normal(size=v.shape).astype(np.float32) for n, v in made.parameters.items()}
        for each in (made, *others.values()):
            each.update(gradients, number)
    for name, value in made.parameters.items():
        kind = "bias" if name.endswith("bias") else "linear-1" if "linear-1" in name else "rest"
        np.testing.assert_array_equal(value, others[kind].parameters[name], err_msg=name)


def write(folder: Path, source: str) -> Path:
    (folder / "points.py").write_text(POINTS)
    path = folder / "points.paren"
    path.write_text(source)
    return path


def final_weights(out: Path) -> Arrays:
    newest = max((out / "checkpoints").glob("[0-9]*"))
    found: Arrays = {}
    for path in newest.glob("*.safetensors"):
        found |= safetensors.numpy.load_file(path)
    return found


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAREN_CACHE", str(tmp_path / "cache"))


def test_training_from_existing_weights(tmp_path: Path) -> None:
    """The run begins with the file's tensors, also under other names; the rest is as in any run."""
    first = trainer()
    weights = {name: value + np.float32(0.25) for name, value in first.parameters.items()}
    renamed = {("old.bias" if name == "body.linear.bias" else name): value for name, value in weights.items()}
    safetensors.numpy.save_file(renamed, tmp_path / "w.safetensors")
    more = ':from "w.safetensors" :names (("old.bias" "body.linear.bias"))'
    experiment = api.load(write(tmp_path, text(more)))
    experiment.run(tmp_path / "out", threads=1)
    series = read_metrics(tmp_path / "out")

    made = trainer()
    made.set(weights)
    data = open_program_data(experiment.program, None, Silent())
    from_start = []
    with SplitData(experiment.program.run, 8, 8, data.splits["train"], None).batches(0, 6) as loader:
        for position in range(6):
            indices = loader.batch(position).indices
            from_start.append(made.step(data.splits["train"].read(indices))["loss"])
    assert series["loss"].tolist() == from_start
    slots = final_weights(tmp_path / "out")
    for name, value in made.parameters.items():
        assert slots[name].tobytes() == value.tobytes(), name
