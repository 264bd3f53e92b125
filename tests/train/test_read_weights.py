"""Weights for those who use a trained model: the newest whole checkpoint, or the best one, verified."""

from __future__ import annotations

import json

import numpy as np
import pytest
from training_fakes import FaultyFiles, Trial, run_form

from paren.text.errors import ParenError
from paren.train.read_run import read_weights


@pytest.fixture
def trial(tmp_path) -> Trial:
    trial = Trial(tmp_path / "run")
    trial.start()
    return trial


def test_the_newest_weights_and_their_averages(trial):
    weights = read_weights(trial.out)
    assert weights.step == 12
    assert sorted(weights.parameters) == sorted(weights.averages) == ["linear.bias", "linear.weight"]
    np.testing.assert_array_equal(weights.parameters["linear.weight"], trial.engine.state["linear.weight"])
    np.testing.assert_array_equal(weights.averages["linear.weight"], trial.engine.state["linear.weight/average"])


def test_damage_leads_to_the_one_before(trial):
    path = trial.out / "checkpoints" / "000012" / "parameters.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert read_weights(trial.out).step == 8
    for folder in (trial.out / "checkpoints").glob("0*"):
        (folder / "parameters.safetensors").unlink()
    with pytest.raises(ParenError) as caught:
        read_weights(trial.out)
    assert (caught.value.code, caught.value.message) == (
        "E-CKPT-010",
        f"no checkpoint in {trial.out / 'checkpoints'} is whole",
    )


def test_the_best_weights(trial):
    manifest = json.loads((trial.out / "best" / "manifest.json").read_text())
    weights = read_weights(trial.out, best=True)
    assert weights.step == manifest["step"]
    assert sorted(weights.averages) == ["linear.bias", "linear.weight"]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("flip", "the bytes of {file} do not match their digest"),
        ("cut", "{file} is not readable"),
        ("gone", "{file} is not readable"),
        ("manifest", "manifest.json is not readable"),
    ],
)
def test_damaged_best_weights(trial, kind, reason):
    folder = trial.out / "best"
    file = json.loads((folder / "manifest.json").read_text())["file"]
    content = (folder / file).read_bytes()
    if kind == "flip":
        (folder / file).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif kind == "cut":
        (folder / file).write_bytes(content[:-1])
    elif kind == "gone":
        (folder / file).unlink()
    else:
        (folder / "manifest.json").write_text("{}")
    with pytest.raises(ParenError) as caught:
        read_weights(trial.out, best=True)
    assert caught.value.code == "E-CKPT-003"
    assert caught.value.message == f"the checkpoint {folder} is damaged: {reason.format(file=file)}"


def test_a_run_that_kept_no_best(tmp_path):
    trial = Trial(tmp_path / "run", run_form(keep_best=None))
    trial.start()
    with pytest.raises(ParenError) as caught:
        read_weights(trial.out, best=True)
    assert (caught.value.code, caught.value.message) == (
        "E-CKPT-001",
        f"{trial.out / 'best'} holds no best parameters",
    )


def test_a_disk_that_fails_at_the_best_parameters(tmp_path):
    trial = Trial(tmp_path / "run")
    names = []

    class Failing(FaultyFiles):
        def rename(self, source, target):
            names.append(target.name)
            if target.name.startswith("parameters-"):
                raise OSError(28, "No space left on device")
            super().rename(source, target)

    trial.files = Failing()
    with pytest.raises(ParenError) as caught:
        trial.start()
    path = trial.out / "best" / "parameters-000005.safetensors"
    assert caught.value.code == "E-CKPT-008"
    assert caught.value.message == f"the best parameters {path} could not be written (no space left on device)"
    assert not list((trial.out / "best").iterdir())
