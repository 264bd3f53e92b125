"""A run in bfloat16 is resumed with the same bits and restored with the same numbers; its state is in float32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from resume_runs import PROGRAMS, STEPS, Trial, assert_equal_runs, metric_lines, newest, write_program
from safetensors.numpy import load_file
from test_restored_runs import loss

import paren


def in_bfloat16(name: str) -> str:
    text = PROGRAMS[name]
    assert text.count("(defrun\n") == 1
    return text.replace("(defrun\n", "(defrun\n  :precision bfloat16\n")


@pytest.fixture(scope="module", params=["gpt", "mlp"])
def trial(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    folder = tmp_path_factory.mktemp(request.param)
    file = write_program(folder, request.param, in_bfloat16(request.param))
    trial = Trial(file, paren.load(file), folder / "whole")
    assert trial.experiment.program.run.precision == "bfloat16"
    assert trial.run(trial.whole).ended == "complete"
    return trial


@pytest.mark.parametrize("cut", [1, 5, 7, 12])
def test_a_cut_run_ends_with_the_same_bits(trial: Trial, tmp_path: Path, cut: int) -> None:
    trial.run(tmp_path / "run", steps=cut)
    trial.run(tmp_path / "run", resume="latest")
    assert_equal_runs(tmp_path / "run", trial.whole)


def test_the_state_is_in_float32(trial: Trial) -> None:
    tensors = [tensor for path in newest(trial.whole).glob("*.safetensors") for tensor in load_file(path).values()]
    assert tensors
    assert {tensor.dtype for tensor in tensors} == {np.dtype(np.float32)}
    # What was trained is not what bfloat16 could hold.
    weights = np.concatenate([tensor.ravel() for tensor in paren.restore(trial.whole).parameters().values()])
    assert np.mean((weights.view(np.uint32) & 0xFFFF) != 0) > 0.9


def test_a_restored_model_computes_as_the_evaluation_did(trial: Trial) -> None:
    recorded = [line["evaluation/loss"] for line in metric_lines(trial.whole) if "evaluation/loss" in line]
    assert loss(trial, paren.restore(trial.whole)) == pytest.approx(recorded[-1], rel=1e-6)


def test_another_precision_is_another_experiment(trial: Trial, tmp_path: Path) -> None:
    trial.run(tmp_path / "run", steps=3)
    exact = write_program(tmp_path / "exact", trial.file.stem)
    other = replace(trial, experiment=paren.load(exact))
    for resume in (None, "latest"):
        with pytest.raises(paren.ParenError) as caught:
            other.run(tmp_path / "run", resume=resume)
        assert caught.value.code == "E-RUN-002"
        assert (
            caught.value.message
            == f"{tmp_path / 'run'} holds another experiment (:precision is bfloat16 there and off here)"
        )


def test_it_trains_nearly_as_in_float32(trial: Trial, tmp_path: Path) -> None:
    exact = paren.load(write_program(tmp_path, trial.file.stem))
    exact.run(out=tmp_path / "run", threads=trial.threads)
    half, whole = (
        np.array([line["loss"] for line in metric_lines(folder) if "loss" in line], np.float64)
        for folder in (trial.whole, tmp_path / "run")
    )
    assert len(half) == len(whole) >= STEPS // 2
    np.testing.assert_allclose(half, whole, rtol=0.02, atol=0.005)
    assert not np.array_equal(half, whole)
