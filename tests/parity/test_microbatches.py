"""How a batch is cut changes nothing but the order of sums: masks, batches of padding only, short last batches.

Losses, gradients and updates of one undivided batch against 2, 4 and 8 microbatches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest
from compiled_training import Arrays, Trainer, assert_gradients_agree, program

from paren.data.loader import Loader, Schedule

TOKENS = 8
TEXT = """
(defdata d (python "f.py" g :fields ((tokens int32 [8]) (targets int32 [8]) (kept {kept} [8]))))
(defmodel m ((tokens int32 [8]))
  (let ((x (+ (take (param table [11 12] :init (normal 1)) tokens) (param place [8 12] :init (normal 1))))
        (x (+ x (scope a (causal-attention (layer-norm x) :heads 2 :dropout-rate {dropped})))))
    (linear (dropout (gelu (linear x 16)) {dropped}) 11)))
(defrun :data d :loss (cross-entropy (m tokens) targets) :weight kept :optimizer (sgd :rate 0.1 :momentum 0.9)
  :clip 0.05 :batch {batch} :microbatches {microbatches} :steps 9 :seed 4)
"""
# Without `:weight`: the mask stands in the targets.
IGNORING = TEXT.replace(
    "(cross-entropy (m tokens) targets) :weight kept", "(cross-entropy (m tokens) targets :ignore 0)"
)


def fields(count: int, mask: np.ndarray, seed: int = 0, dtype: str = "float32") -> Arrays:
    generator = np.random.default_rng(seed)
    tokens, targets = generator.integers(1, 11, (2, count, TOKENS)).astype(np.int32)
    targets[mask == 0] = 0
    return {"tokens": tokens, "targets": targets, "kept": mask.astype(dtype)}


@cache
def compiled(text: str) -> Trainer:
    return Trainer(program(text))


def trainer(
    microbatches: int, batch: int = 16, dropped: float = 0.0, text: str = TEXT, kept: str = "float32"
) -> Trainer:
    """A program before its first step; the same one, begun again, for the same arguments."""
    made = compiled(text.format(microbatches=microbatches, batch=batch, dropped=dropped, kept=kept))
    made.restart()
    return made


@dataclass(frozen=True)
class Outcome:
    """What the first step gave."""

    record: dict[str, Any]
    weight: float
    gradients: Arrays
    parameters: Arrays


def first_step(made: Trainer, given: Arrays) -> Outcome:
    record = made.step(given)
    return Outcome(record, made.weight, made.gradients, made.parameters)


def assert_same_step(found: Outcome, wanted: Outcome) -> None:
    assert found.weight == pytest.approx(wanted.weight, rel=1e-6)
    assert found.record["loss"] == pytest.approx(wanted.record["loss"], rel=2e-6)
    assert found.record["gradient-norm"] == pytest.approx(wanted.record["gradient-norm"], rel=1e-5)
    assert_gradients_agree(found.gradients, wanted.gradients, 2e-5)
    for name, value in wanted.parameters.items():
        np.testing.assert_allclose(found.parameters[name], value, rtol=1e-5, atol=1e-7, err_msg=name)


def one_and_fifteen() -> np.ndarray:
    """Of the first 8 examples one token counts, of the last 8 fifteen; so also in two microbatches."""
    mask = np.zeros((16, TOKENS), np.float32)
    mask[3, 5] = 1
    mask[8:10] = 1
    mask[9, 7] = 0
    return mask


def ragged() -> np.ndarray:
    """Lengths from nothing to all, so that microbatches of 2 have weights from 0 to 16."""
    return (np.arange(TOKENS) < np.array([[0, 0, 1, 0, 8, 8, 3, 2, 5, 1, 1, 1, 0, 8, 7, 8]]).T).astype(np.float32)


def fractions() -> np.ndarray:
    """Weights that are no mask, some of them far above and below 1."""
    weights = np.random.default_rng(5).uniform(0, 3, (16, TOKENS)) * ragged()
    weights[4] *= 1000
    weights[13] *= 1e-3
    return weights.astype(np.float32)


def full() -> np.ndarray:
    return np.ones((16, TOKENS), np.float32)


MASKS = {"1 and 15": one_and_fifteen, "ragged": ragged, "fractions": fractions, "full": full}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("dropped", [0.0, 0.3])
def test_every_split_gives_the_same_step(name: str, dropped: float) -> None:
    """Also with dropout: a mask belongs to an example, not to a call."""
    given = fields(16, MASKS[name]())
    whole = first_step(trainer(1, dropped=dropped), given)
    assert whole.weight == pytest.approx(float(given["kept"].sum()), rel=1e-6)
    for microbatches in (2, 4, 8):
        assert_same_step(first_step(trainer(microbatches, dropped=dropped), given), whole)


@pytest.mark.parametrize("microbatches", [3, 5, 16])
def test_sizes_that_do_not_divide(microbatches: int) -> None:
    given = fields(16, ragged())
    assert_same_step(first_step(trainer(microbatches), given), first_step(trainer(1), given))


@pytest.mark.parametrize("microbatches", [1, 2, 8])
def test_ignored_targets_count_as_a_mask_does(microbatches: int) -> None:
    given = fields(16, one_and_fifteen())
    masked = first_step(trainer(1), given)
    assert masked.weight == 16
    assert_same_step(first_step(trainer(microbatches, text=IGNORING), given), masked)


@pytest.mark.parametrize("microbatches", [1, 4])
def test_a_mask_may_be_boolean(microbatches: int) -> None:
    floats = first_step(trainer(1), fields(16, ragged()))
    assert_same_step(first_step(trainer(microbatches, kept="bool"), fields(16, ragged(), dtype="bool")), floats)


@pytest.mark.parametrize("microbatches", [1, 2, 4, 8])
def test_a_batch_of_padding_only(microbatches: int) -> None:
    """Loss and gradient are 0, nothing is updated, the batch is consumed and counted, training goes on."""
    made = trainer(microbatches)
    made.step(fields(16, ragged()))
    before = {name: value.tobytes() for name, value in made.engine.slots().items()}
    record = made.step(fields(16, np.zeros((16, TOKENS)), seed=1))
    assert record == {"step": 2, "loss": 0.0}
    assert made.lines == [{"step": 2, "annotation": "padding", "padding": 1}]
    assert all((value == 0).all() for value in made.gradients.values())
    assert {name: value.tobytes() for name, value in made.engine.slots().items()} == before
    assert (made.state.step, made.state.updates, made.state.padding, made.state.samples) == (2, 1, 1, 32)
    assert np.isfinite(made.step(fields(16, ragged(), seed=2))["loss"])
    assert (made.state.step, made.state.updates) == (3, 2)


@pytest.mark.parametrize("microbatches", [1, 2, 4, 8])
@pytest.mark.parametrize("count", [1, 9, 15])
def test_a_short_batch_is_the_mean_of_what_it_holds(microbatches: int, count: int) -> None:
    """As a program whose `:batch` is that count computes it."""
    given = fields(count, full()[:count])
    short = first_step(trainer(microbatches), given)
    assert short.weight == count * TOKENS
    assert_same_step(short, first_step(trainer(1, batch=count), given))


class Examples:
    """A split in memory."""

    def __init__(self, count: int) -> None:
        self.name = self.digest = "train"
        self.count = count
        self.fields = fields(count, full()[:1].repeat(count, axis=0)) | {
            "kept": np.random.default_rng(3).integers(0, 2, (count, TOKENS)).astype(np.float32)
        }

    def read(self, indices: np.ndarray) -> Arrays:
        return {name: array[indices] for name, array in self.fields.items()}


@pytest.mark.parametrize("count", [10, 37, 40])
def test_two_epochs_with_a_short_last_batch(count: int) -> None:
    """Every example is taken once an epoch, every step's loss and update are those of one undivided batch."""
    split = Examples(count)
    schedule = Schedule(count, 16, 4)
    steps = 2 * schedule.steps_per_epoch
    records = {}
    for microbatches in (1, 4):
        made = trainer(microbatches)
        records[microbatches] = []
        taken: list[int] = []
        with Loader(split, made.made.run, made.made.rows, 0, steps, seed=4) as loader:  # type: ignore[arg-type]
            for batch in islice(loader, steps):
                taken += batch.indices.tolist()
                records[microbatches].append(made.step(split.read(batch.indices)))
        assert sorted(taken) == sorted(2 * list(range(count)))
        assert made.state.samples == 2 * count
    for found, wanted in zip(records[4], records[1], strict=True):
        assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
        assert found["step"] == wanted["step"]
