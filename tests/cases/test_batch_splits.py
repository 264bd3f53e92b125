"""Batches: one optimizer step is a function of the global batch, however it is cut and whatever of it counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import paren

TEXT = """(def micro 1) (def batch 16) (def steps 1)
(defdata table (arrays "d.npz"
  :fields ((tokens int32 [8]) (targets int32 [8]) (mask float32 [8])) :split ((train 0.5) (validation 0.5))))
(defmodel net ((tokens int32 [8]))
  (linear (take (param e [11 6] :init (normal 0.5)) tokens) 11))
(defrun :data table :loss (cross-entropy (net tokens) targets) :weight mask :optimizer (sgd :rate 0.1)
  :batch batch :microbatches micro :steps steps :seed 3)
"""


def write(folder: Path, mask: np.ndarray, text: str = TEXT) -> Path:
    random = np.random.default_rng(7)
    tokens, targets = random.integers(0, 11, (2, *mask.shape)).astype(np.int32)
    np.savez(folder / "d.npz", tokens=tokens, targets=targets, mask=mask.astype(np.float32))
    path = folder / "f.paren"
    path.write_text(text)
    return path


def train(path: Path, micro: int, **settings: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    run = paren.load(path, set={"micro": micro, **settings}).run(out=path.parent / f"out{micro}", overwrite=True)
    return run.metrics(), run.restore().parameters()


def one_row(valid: int) -> np.ndarray:
    """A mask whose one training batch holds `valid` tokens in a row, 15 in others, and padding else."""
    mask = np.zeros((16, 8))
    mask[0, :valid] = 1
    mask[1:3] = 1
    mask[2, 7] = 0
    return mask


def masks() -> dict[str, np.ndarray]:
    whole = np.random.default_rng(1)
    return {
        "1 and 15 valid tokens": np.tile(one_row(1), (2, 1)),
        "8 and 15 valid tokens": np.tile(one_row(8), (2, 1)),
        "fractions": whole.random((32, 8)),
        "none left out": np.ones((32, 8)),
    }


@pytest.mark.parametrize("name", masks())
def test_every_division_of_a_batch_gives_the_same_step(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, masks()[name])
    metrics, parameters = train(path, 1)
    for micro in (2, 3, 8, 16):
        same_metrics, same_parameters = train(path, micro)
        np.testing.assert_allclose(same_metrics["loss"], metrics["loss"], rtol=1e-6, err_msg=str(micro))
        for parameter, value in parameters.items():
            np.testing.assert_allclose(same_parameters[parameter], value, rtol=1e-5, atol=1e-7, err_msg=str(micro))


def test_a_last_batch_that_is_short_is_weighted_by_what_it_holds(tmp_path: Path) -> None:
    path = write(tmp_path, np.ones((22, 8)), TEXT.replace(":steps steps", ":epochs 2"))
    metrics, parameters = train(path, 1, batch=4)
    assert len(metrics["step"]) == 6  # 11 examples: two whole batches and one of 3 in each epoch
    for micro in (2, 4):
        same_metrics, same_parameters = train(path, micro, batch=4)
        np.testing.assert_allclose(same_metrics["loss"], metrics["loss"], rtol=1e-6)
        for parameter, value in parameters.items():
            np.testing.assert_allclose(same_parameters[parameter], value, rtol=1e-5, atol=1e-7)


def test_a_run_of_padding_only_is_no_success(tmp_path: Path) -> None:
    path = write(tmp_path, np.zeros((32, 8)))
    with pytest.raises(paren.ParenError) as caught:
        train(path, 2)
    assert (caught.value.code, caught.value.message) == (
        "E-RUN-009",
        "no optimizer update was made in 1 step: 1 batch had no weight, 0 steps were not finite",
    )


@pytest.mark.parametrize(("batch", "micro", "examples"), [(8, 9, "8 examples"), (1, 2, "1 example")])
def test_more_microbatches_than_examples_are_refused_with_both_numbers(
    tmp_path: Path, batch: int, micro: int, examples: str
) -> None:
    path = write(tmp_path, np.ones((32, 8)))
    with pytest.raises(paren.ParenError) as caught:
        paren.load(path, set={"batch": batch, "micro": micro})
    assert caught.value.message == f":microbatches {micro} is more than the {examples} of a batch"
