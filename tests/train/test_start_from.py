"""First weights from an existing file: all or nothing, every mistake at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from training_fakes import SPAN, LinearEngine, Trial, run_form

from paren.text.errors import ParenError
from paren.train.start_from import load_weights

WEIGHT = np.arange(4, dtype=np.float32)
BIAS = np.array(7, np.float32)


def write(path: Path, **tensors: np.ndarray) -> Path:
    safetensors.numpy.save_file({name.replace("__", "."): array for name, array in tensors.items()}, path)
    return path


def parameters() -> dict[str, np.ndarray]:
    engine = LinearEngine()
    return {name: array for name, array in engine.state.items() if engine.roles[name] == "parameter"}


def mistakes(path: Path, names=(), into=None) -> list[str]:
    with pytest.raises(ParenError) as caught:
        load_weights(path, names, into or parameters(), SPAN)
    assert {error.code for error in caught.value.errors} <= {"E-START-001", "E-START-002"}
    assert all(error.span == SPAN for error in caught.value.errors)
    fix = "name a safetensors file, such as best/parameters-STEP.safetensors of a run"
    assert all(error.fix == fix for error in caught.value.errors if error.code == "E-START-001")
    return [error.message for error in caught.value.errors]


def test_weights_are_taken_by_name_and_the_rest_is_told(tmp_path):
    path = write(tmp_path / "w", linear__weight=WEIGHT, linear__bias=BIAS, mask=np.ones(3))
    slots = parameters()
    assert load_weights(path, (), slots, None) == ["mask"]
    np.testing.assert_array_equal(slots["linear.weight"], WEIGHT)
    assert slots["linear.bias"] == 7


def test_names_may_differ(tmp_path):
    path = write(tmp_path / "w", w=WEIGHT, linear__bias=BIAS)
    slots = parameters()
    assert load_weights(path, (("w", "linear.weight"),), slots, None) == []
    np.testing.assert_array_equal(slots["linear.weight"], WEIGHT)


def test_all_mistakes_at_once_and_nothing_is_changed(tmp_path):
    path = write(tmp_path / "w", linear__wieght=WEIGHT, linear__bias=np.zeros(3, np.float32))
    slots = parameters()
    assert mistakes(path, (("x", "linear.biass"),), slots) == [
        "the program has no parameter 'linear.biass' (did you mean linear.bias?)",
        f"{path} holds no tensor 'linear.weight' for parameter 'linear.weight' (did you mean linear.wieght?)",
        f"tensor 'linear.bias' of {path} is F32[3], and parameter 'linear.bias' is F32[]",
    ]
    assert not slots["linear.weight"].any()


@pytest.mark.parametrize(("dtype", "name"), [(np.float16, "F16"), (np.float64, "F64"), (np.int32, "I32")])
def test_another_element_type(tmp_path, dtype, name):
    path = write(tmp_path / "w", linear__weight=WEIGHT.astype(dtype), linear__bias=BIAS)
    assert mistakes(path) == [f"tensor 'linear.weight' of {path} is {name}[4], and parameter 'linear.weight' is F32[4]"]


def test_a_file_that_is_missing_or_something_else(tmp_path):
    assert mistakes(tmp_path / "none") == [
        f"the weights {tmp_path / 'none'} cannot be read (no such file or directory)"
    ]
    (tmp_path / "x").write_bytes(b"PK" * 40)
    assert mistakes(tmp_path / "x") == [
        f"{tmp_path / 'x'} is no safetensors file: the header's length of 5426920359214467920 bytes is more than "
        "the file holds"
    ]


def test_a_run_starts_from_them_and_its_averages_too(tmp_path):
    path = write(tmp_path / "w", linear__weight=WEIGHT, linear__bias=BIAS, mask=np.ones(3))
    seen = {}
    trial = Trial(tmp_path / "run", run_form(start_from=str(path)))

    def before(name, step):
        if name == "accumulate" and step == 0:
            seen.update({key: array.copy() for key, array in trial.engine.state.items()})

    trial.before = before
    trial.start()
    for name in ("linear.weight", "linear.weight/average"):
        np.testing.assert_array_equal(seen[name], WEIGHT)
    assert not seen["linear.weight/momentum"].any()
    assert trial.listener.notices[0] == f"{path} holds tensors that are not used: mask"


def test_a_resume_does_not_start_from_them_again(tmp_path):
    path = write(tmp_path / "w", linear__weight=WEIGHT, linear__bias=BIAS)
    run = run_form(start_from=str(path))
    trial, whole = Trial(tmp_path / "a", run), Trial(tmp_path / "b", run)
    trial.start(steps=5)
    path.rename(tmp_path / "moved")
    trial.start(resume="latest")
    (tmp_path / "moved").rename(path)
    whole.start()
    assert trial.state_bytes() == whole.state_bytes()
