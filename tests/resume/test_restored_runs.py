"""`paren.restore` gives the numbers of the training, from the run's folder alone, wherever it is."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from resume_runs import STEPS, Trial, metric_lines
from safetensors.numpy import load_file

import paren
from paren.data.loader import evaluation_batches
from paren.data.open import open_data
from paren.ir.graph import Graph
from paren.pipeline import plan_graph
from paren.restored import MOST_ROWS, RestoredModel
from paren.text.errors import ParenError


@pytest.fixture(scope="module", params=["gpt", "mlp"])
def trial(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    return Trial.make(tmp_path_factory.mktemp(request.param), request.param)


def validation(trial: Trial) -> dict[str, np.ndarray]:
    """The evaluated examples as one batch."""
    form, seed = trial.experiment.program.data, trial.experiment.program.run.seed
    data = open_data(form, root=trial.file.parent, cache=trial.file.parent / "cache", seed=seed)
    split = data.splits["validation"]
    limit = form.options.get("evaluation-count")
    count = limit if isinstance(limit, int) else split.count
    (batch,) = evaluation_batches(split, count, count)
    return dict(batch.fields)


def inputs(trial: Trial) -> np.ndarray:
    return validation(trial)["tokens" if trial.file.stem == "gpt" else "x"]


def loss(trial: Trial, model: RestoredModel) -> float:
    fields = validation(trial)
    if trial.file.stem == "mlp":
        prediction = model(fields["x"]).astype(np.float64).reshape(-1)
        return float(np.mean((prediction - fields["y"]) ** 2))
    logits = model(fields["tokens"]).astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    chosen = np.take_along_axis(logits, fields["targets"][..., None].astype(np.int64), axis=-1)[..., 0]
    return float(np.mean(np.log(np.exp(logits).sum(axis=-1)) - chosen))


def test_the_numbers_of_the_evaluation(trial: Trial) -> None:
    """The averages, with dropout off, as in the evaluation; and again for the best parameters."""
    recorded = [line["evaluation/loss"] for line in metric_lines(trial.whole) if "evaluation/loss" in line]
    model = paren.restore(trial.whole)
    assert model.step == STEPS
    assert loss(trial, model) == pytest.approx(recorded[-1], rel=1e-6)
    assert loss(trial, paren.restore(trial.whole, best=True)) == pytest.approx(min(recorded), rel=1e-6)


def test_the_best_parameters_are_not_the_last(trial: Trial, tmp_path: Path) -> None:
    """`best=True` takes the step of the best evaluation, which a cut run has earlier than its end."""
    trial.run(tmp_path / "run", steps=8)
    last, best = paren.restore(tmp_path / "run"), paren.restore(tmp_path / "run", best=True)
    assert (last.step, best.step) == (8, 5 if trial.file.stem == "gpt" else 6)
    assert any((last.weights[name] != best.weights[name]).any() for name in last.weights)


def test_any_number_of_rows_gives_the_same_rows(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, whether they go through in one chunk or in many; and few plans are made for all numbers."""
    model, batch = paren.restore(trial.whole), inputs(trial)
    whole = model(batch)
    assert whole.shape[0] == len(batch)
    planned: list[int] = []

    def counted(graph: Graph, *arguments: object, **more: object) -> object:
        planned.append(graph.outputs["result"].shape[0])
        return plan_graph(graph, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("paren.restored.plan_graph", counted)
    model = replace(model, _executables={}, _most_rows=8)
    for rows in range(1, len(batch) + 1):
        assert np.array_equal(model(batch[:rows]), whole[:rows])
    many = np.concatenate([batch] * 3)
    assert np.array_equal(model(many), np.concatenate([whole] * 3))
    assert sorted(planned) == [1, 2, 4, 8]


def test_a_call_stays_within_the_bytes_it_may_take(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = paren.restore(trial.whole), np.concatenate([inputs(trial)] * 4)
    whole = model(batch)
    _, _, rows = model._executable(len(batch))
    monkeypatch.setattr("paren.restored._THREAD_BYTES", len(model._arena) // model.device.threads // 3)
    smaller = replace(model, _executables={}, _arena=np.zeros(0, np.uint8))
    assert np.array_equal(smaller(batch), whole)
    assert len(smaller._arena) <= len(model._arena) // 3
    assert smaller._executable(len(batch))[2] < rows


def test_numpy_and_torch(trial: Trial) -> None:
    model, batch = paren.restore(trial.whole), inputs(trial)
    expected = model(batch)
    given = torch.from_numpy(batch.copy())
    result = model(given)
    assert isinstance(expected, np.ndarray)
    assert isinstance(result, torch.Tensor)
    assert np.array_equal(result.numpy(), expected)
    assert np.array_equal(model(given.T.contiguous().T).numpy(), expected)
    wider = batch.astype(np.int64 if batch.dtype == np.int32 else np.float64)
    assert np.array_equal(model(wider), expected)


def test_results_are_not_overwritten_by_the_next_call(trial: Trial) -> None:
    model, batch = paren.restore(trial.whole), inputs(trial)
    first = model(batch)
    before = first.copy()
    model(batch[::-1].copy())
    assert np.array_equal(first, before)


def test_wrong_inputs_are_refused(trial: Trial) -> None:
    model, batch = paren.restore(trial.whole), inputs(trial)
    name = model.model.inputs[0].name
    for wrong in (batch[0], batch[:, :-1], batch[:0], batch[None]):
        with pytest.raises(paren.ParenError) as caught:
            model(wrong)
        assert (caught.value.code, caught.value.message) == (
            "E-DATA-023",
            f"input {name} has shape {list(wrong.shape)}, the model takes [n {batch.shape[1]}]",
        )
    unknown = "NumPy has no type for this tensor: Got unsupported ScalarType BFloat16"
    for given, message in (
        ((batch, batch), f"model {model.model.name} takes 1 input, got more"),
        ((), f"the model takes equally many examples of {name}, got no input"),
        ((torch.zeros(2, 3, dtype=torch.bfloat16),), unknown),
    ):
        with pytest.raises(paren.ParenError) as caught:
            model(*given)
        assert (caught.value.code, caught.value.message) == ("E-DATA-023", message)
        assert caught.value.fix is not None


@pytest.mark.parametrize(("value", "shown"), [(np.nan, "nan"), (-np.inf, "-inf"), (1e300, "inf")])
def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, value: float, shown: str) -> None:
    trial = Trial.make(tmp_path, "mlp")
    model, batch = paren.restore(trial.whole), inputs(trial).astype(np.float64)
    batch[1, 2] = value
    for rows in (MOST_ROWS, 1):  # in one chunk, in many
        with pytest.raises(paren.ParenError) as caught:
            replace(model, _executables={}, _most_rows=rows)(batch)
        assert (caught.value.code, caught.value.message) == (
            "E-DATA-023",
            f"input x holds {shown} in example 1, the model takes finite numbers",
        )
        assert caught.value.fix == "leave the example out, or replace the value"


def test_save_parameters_and_metrics(trial: Trial, tmp_path: Path) -> None:
    model = paren.restore(trial.whole)
    model.save(tmp_path / "weights.safetensors")
    saved, parameters = load_file(tmp_path / "weights.safetensors"), model.parameters()
    assert saved.keys() == parameters.keys() == {slot.name for slot in trial.experiment.program.parameters}
    assert all(np.array_equal(saved[name], parameters[name]) for name in saved)
    next(iter(parameters.values()))[...] = 0
    assert loss(trial, model) == loss(trial, paren.restore(trial.whole))
    columns = model.metrics()
    assert columns["step"][-1] == STEPS
    recorded = [line["evaluation/loss"] for line in metric_lines(trial.whole) if "evaluation/loss" in line]
    assert columns["evaluation/loss"][~np.isnan(columns["evaluation/loss"])].tolist() == recorded


def test_a_moved_run_whose_file_is_gone_in_a_process_elsewhere(trial: Trial, tmp_path: Path) -> None:
    """The run's own copy counts: nothing of the folder it was trained from is left, or all of it was edited."""
    here = tmp_path / "first" / trial.file.name
    shutil.copytree(trial.file.parent, here.parent)
    experiment = paren.load(here)
    experiment.run(out=tmp_path / "out", threads=trial.threads, steps=9)
    expected = paren.restore(tmp_path / "out")(inputs(trial))
    here.write_text("(def nothing 1)")
    assert np.array_equal(paren.restore(tmp_path / "out")(inputs(trial)), expected)
    shutil.rmtree(here.parent)
    shutil.move(tmp_path / "out", tmp_path / "moved" / "away")
    np.save(tmp_path / "inputs.npy", inputs(trial))
    (tmp_path / "elsewhere").mkdir()
    program = (
        "import numpy, paren\n"
        "model = paren.restore('../moved/away')\n"
        "numpy.save('result.npy', model(numpy.load('../inputs.npy')))\n"
        "print(model.step, *model.settings)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path / "elsewhere", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"9 {' '.join(setting.name for setting in trial.experiment.program.settings)}\n"
    assert np.array_equal(np.load(tmp_path / "elsewhere" / "result.npy"), expected)


def test_a_variant_and_settings_of_the_run_count(tmp_path: Path, trial: Trial) -> None:
    experiment = paren.load(trial.file, set={"steps": 5, "dropped": 0.5})
    model = experiment.run(out=tmp_path / "run", threads=trial.threads).restore()
    assert (model.settings["steps"], model.settings["dropped"], model.step) == (5, 0.5, 5)


@pytest.mark.parametrize(
    "change",
    [{"sources": 5}, {"sources": {"a": 5}}, {"settings": None}, {"settings": []}],
    ids=["texts", "a text", "no settings", "a list"],
)
def test_a_run_whose_record_is_damaged(trial: Trial, tmp_path: Path, change: dict[str, object]) -> None:
    out = copy_record(trial, tmp_path, lambda record: record | change)
    with pytest.raises(ParenError) as caught:
        paren.restore(out)
    assert (caught.value.code, caught.value.message) == ("E-RUN-010", f"{out / 'run.json'} is damaged")


def test_a_record_of_another_model_than_the_weights(trial: Trial, tmp_path: Path) -> None:
    name, first = ("width", "embedding") if trial.file.stem == "gpt" else ("hidden", "linear.weight")

    def change(record: dict[str, Any]) -> dict[str, object]:
        return record | {"settings": record["settings"] | {name: 2 * record["settings"][name]}}

    out = copy_record(trial, tmp_path, change)
    with pytest.raises(ParenError) as caught:
        paren.restore(out)
    message = f"{out / 'run.json'} tells of another model than the weights in {out} are of: {first}"
    assert (caught.value.code, caught.value.message) == ("E-RUN-010", message)


def copy_record(trial: Trial, folder: Path, change: Callable[[dict[str, Any]], dict[str, object]]) -> Path:
    """A copy of the run with another run.json."""
    out = shutil.copytree(trial.whole, folder / "run")
    record = json.loads((out / "run.json").read_bytes())
    (out / "run.json").write_text(json.dumps(change(record)))
    return out
