"""The loop: global weighted means, padding, non-finite values, clipping, evaluation, early stopping, diagnostics."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from training_fakes import COUNT, SPAN, ArraySplit, LinearEngine, Trial, examples, run_form, split_data

from paren.data.loader import evaluation_batches
from paren.ir.program import Best, Diagnostic
from paren.text.errors import InternalError, ParenError
from paren.train.diagnostics import REDUCERS
from paren.train.loop import weighted_means
from paren.train.read_run import read_annotations, read_metrics
from paren.train.status import read_status

PLAIN = {"evaluate_every": None, "keep_best": None}


def losses(out) -> list[float]:
    return read_metrics(out)["loss"].tolist()


def masked(valid: int) -> dict[str, np.ndarray]:
    """16 examples: weight 1 for the first `valid`, 0 for the rest, which come in any order in the batch."""
    fields = examples(16, 5)
    fields["weight"] = (np.arange(16) < valid).astype(np.float32)
    return fields


# ---- B01, B04: the split of a batch changes nothing ------------------------------------------------------------------


@pytest.mark.parametrize("valid", [1, 7, 15, 16])
def test_any_number_of_microbatches_gives_the_same_training(tmp_path, valid):
    results = []
    for count in (1, 2, 4, 8, 3):
        run = run_form(batch=16, microbatches=count, steps=5, clip=0.5, **PLAIN)
        trial = Trial(tmp_path / f"{count}", run, training=masked(valid), validation=False)
        trial.start()
        results.append(
            (losses(trial.out), read_metrics(trial.out)["gradient-norm"], trial.engine.state["linear.weight"])
        )
    for result in results[1:]:
        for value, reference in zip(result, results[0], strict=True):
            np.testing.assert_allclose(value, reference, rtol=2e-5)


def test_a_loss_is_the_sum_over_the_batch_divided_by_its_weight(tmp_path):
    """Weights 0.5 and 3 among others, in microbatches of 8 and 8: not a mean of means."""
    fields = examples(16, 5)
    fields["weight"] = np.linspace(0, 3, 16).astype(np.float32)
    run = run_form(batch=16, microbatches=2, steps=1, **PLAIN)
    trial = Trial(tmp_path / "run", run, training=fields, validation=False)
    trial.start()
    engine = LinearEngine()
    engine.initialize(run.seed)
    with split_data(run, fields, False).batches(0, 1) as batches:
        parts = [engine.accumulate(part, 0) for part in next(iter(batches)).microbatches]
    expected = sum(loss for loss, _ in parts) / sum(weight for _, weight in parts)
    assert losses(trial.out) == [expected]


def test_the_short_last_batch_of_an_epoch_is_weighted_by_what_it_holds(tmp_path):
    """22 examples in batches of 8: the third batch holds 6, over epochs with 4 microbatches as with one."""
    results = []
    for count in (1, 4):
        run = run_form(microbatches=count, steps=None, epochs=2, **PLAIN)
        trial = Trial(tmp_path / f"{count}", run, validation=False)
        assert trial.start().step == 6
        assert [len(batch) for batch in trial.data.training.seen] == [8, 8, 6, 8, 8, 6]
        results.append(losses(trial.out))
    np.testing.assert_allclose(results[0], results[1], rtol=2e-5)


def test_position_is_counted_in_samples_and_steps(tmp_path):
    """B09: another number of microbatches leaves samples, steps and updates alone."""
    for count in (1, 4):
        trial = Trial(tmp_path / f"{count}", run_form(microbatches=count, **PLAIN), validation=False)
        trial.start()
        manifest = json.loads((trial.out / "checkpoints" / "000012" / "manifest.json").read_text())
        assert (manifest["step"], manifest["samples"], manifest["updates"]) == (12, 4 * COUNT, 12)


# ---- padding -------------------------------------------------------------------------------------------------------


def test_a_batch_of_padding_has_loss_0_and_makes_no_update(tmp_path):
    fields = examples(COUNT, 1)
    fields["weight"][:] = 0
    with split_data(run_form()).batches(0, 1) as batches:
        fields["weight"][next(iter(batches)).indices] = 1
    rates = []
    trial = Trial(tmp_path / "run", run_form(steps=3, **PLAIN), training=fields, validation=False)
    trial.before = lambda name, number: rates.append(number) if name == "update" else None
    trial.start()
    assert losses(trial.out)[1:] == [0.0, 0.0]
    assert rates == [1]
    notes = [note for note in read_annotations(trial.out) if note["annotation"] == "padding"]
    assert notes == [
        {"step": 2, "annotation": "padding", "padding": 1},
        {"step": 3, "annotation": "padding", "padding": 2},
    ]


def test_a_run_of_padding_only_does_not_exit_as_trained(tmp_path):
    fields = examples(COUNT, 1)
    fields["weight"][:] = 0
    trial = Trial(tmp_path / "run", run_form(steps=3, **PLAIN), training=fields, validation=False)
    with pytest.raises(ParenError) as caught:
        trial.start()
    assert caught.value.code == "E-RUN-009"
    assert caught.value.message == (
        "no optimizer update was made in 3 steps: 3 batches had no weight, 0 steps were not finite"
    )
    assert read_status(trial.out).state == "failed"


def test_negative_weights_have_no_mean(tmp_path):
    fields = examples(COUNT, 1)
    fields["weight"][:] = -1
    trial = Trial(tmp_path / "run", run_form(**PLAIN), training=fields, validation=False)
    with pytest.raises(ParenError) as caught:
        trial.start()
    assert caught.value.code == "E-NUM-003"
    assert caught.value.message == "the loss weights of step 1 sum to -8, and a mean needs a weight above 0"


# ---- N01: what is not finite ---------------------------------------------------------------------------------------


def poisoned(value: float) -> dict[str, np.ndarray]:
    """The first example of the third batch has a value that is not finite."""
    fields = examples(COUNT, 1)
    with split_data(run_form()).batches(2, 3) as batches:
        fields["x"][next(iter(batches)).indices[0], 0] = value
    return fields


@pytest.mark.parametrize(("value", "shown"), [(math.nan, "nan"), (math.inf, "inf")])
def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, value, shown):
    trial = Trial(tmp_path / "run", run_form(checkpoint_every=2, **PLAIN), training=poisoned(value), validation=False)
    with pytest.raises(ParenError) as caught:
        trial.start()
    error = caught.value
    assert error.code == "E-NUM-001"
    assert error.message == f"the loss of step 3 is {shown}, first produced by 'log'"
    assert error.span == SPAN
    assert str(error).startswith("linear.paren:1:1: E-NUM-001: ")
    last = json.loads((trial.out / "metrics.jsonl").read_text().splitlines()[-1])
    assert last == {"step": 3, "loss": shown}
    status = read_status(trial.out)
    assert (status.state, status.step, status.code, status.message) == ("failed", 2, "E-NUM-001", error.message)
    assert [path.name for path in (trial.out / "checkpoints").glob("0*")] == ["000002"]


def test_a_gradient_that_is_not_finite_stops_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(LinearEngine, "gradient_norm", lambda self, weight: math.inf)
    monkeypatch.setattr(LinearEngine, "locate_nonfinite", lambda self, microbatch, step: None)
    trial = Trial(tmp_path / "run", run_form(**PLAIN), validation=False)
    with pytest.raises(ParenError) as caught:
        trial.start()
    assert caught.value.code == "E-NUM-001"
    assert caught.value.message == "the gradient norm of step 1 is inf"
    assert caught.value.span is None


def test_skipped_steps_are_counted_and_advance_data_but_not_the_schedule(tmp_path):
    numbers = []
    run = run_form(steps=6, on_nonfinite="skip", **PLAIN)
    trial = Trial(tmp_path / "run", run, training=poisoned(math.nan), validation=False)
    trial.before = lambda name, number: numbers.append(number) if name == "update" else None
    trial.start()
    values = losses(trial.out)
    assert len(values) == 6
    skipped = int(np.isnan(values).sum())
    assert skipped == 2  # once in each of the two epochs
    assert numbers == [1, 2, 3, 4]
    notes = [note for note in read_annotations(trial.out) if note["annotation"] == "skipped"]
    assert notes[0] == {
        "step": 3,
        "annotation": "skipped",
        "cause": "loss",
        "skipped": 1,
        "operation": "log",
        "place": "linear.paren:1:1",
    }
    assert trial.engine.state["linear.weight"].dtype == np.float32
    assert np.isfinite(trial.engine.state["linear.weight"]).all()


def test_too_many_skipped_steps_in_a_row_stop_the_run(tmp_path):
    fields = examples(COUNT, 1)
    fields["x"][:] = np.nan
    run = run_form(on_nonfinite="skip", skip_limit=3, **PLAIN)
    trial = Trial(tmp_path / "run", run, training=fields, validation=False)
    with pytest.raises(ParenError) as caught:
        trial.start()
    assert caught.value.code == "E-NUM-002"
    assert caught.value.message == (
        "4 steps in a row were skipped and :skip-limit is 3: the loss of step 4 is nan, first produced by 'log'"
    )
    assert caught.value.span == SPAN
    assert np.isnan(losses(trial.out)).tolist() == [True] * 4


# ---- clipping ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [1e-3, 1e9, None])
def test_the_scale_of_an_update_clips_the_global_norm(tmp_path, monkeypatch, clip):
    seen = []
    original = LinearEngine.update

    def update(self, scale, number):
        seen.append(math.sqrt(sum(float(np.sum((g * scale) ** 2)) for g in self.gradients.values())))
        return original(self, scale, number)

    monkeypatch.setattr(LinearEngine, "update", update)
    trial = Trial(tmp_path / "run", run_form(clip=clip, **PLAIN), validation=False)
    trial.start()
    norms = read_metrics(trial.out)["gradient-norm"]
    expected = norms if clip is None else np.minimum(norms, clip)
    np.testing.assert_allclose(seen, expected, rtol=1e-5)


def test_a_gradient_of_0_is_no_division_by_0(tmp_path, monkeypatch):
    monkeypatch.setattr(LinearEngine, "gradient_norm", lambda self, weight: 0.0)
    trial = Trial(tmp_path / "run", run_form(steps=2, **PLAIN), validation=False)
    trial.start()
    assert read_metrics(trial.out)["gradient-norm"].tolist() == [0.0, 0.0]


# ---- evaluation ----------------------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(rows=st.integers(1, 9), count=st.integers(1, 17))
def test_an_evaluation_is_exact_for_any_split_into_batches(rows, count):
    engine = LinearEngine()
    engine.initialize(4)
    split = ArraySplit("validation", examples(count, 3))
    means = weighted_means(engine, evaluation_batches(split, rows))
    whole = weighted_means(engine, evaluation_batches(split, count))
    assert means.keys() == {"loss", "error"}
    for name in means:
        assert means[name] == pytest.approx(whole[name], rel=1e-6)


def test_evaluations_come_every_n_steps_and_at_the_end(tmp_path):
    trial = Trial(tmp_path / "run", run_form(evaluate_every=5))
    trial.start()
    columns = read_metrics(trial.out)
    assert columns["step"][~np.isnan(columns["evaluation/loss"])].tolist() == [5, 10, 12]
    assert columns["step"][~np.isnan(columns["evaluation/error"])].tolist() == [5, 10, 12]


def test_a_run_by_epochs_evaluates_after_each(tmp_path):
    trial = Trial(tmp_path / "run", run_form(steps=None, epochs=3, evaluate_every=None))
    trial.start()
    columns = read_metrics(trial.out)
    assert columns["step"][~np.isnan(columns["evaluation/loss"])].tolist() == [3, 6, 9]


def test_an_evaluation_without_weight_is_nan_and_never_the_best(tmp_path, monkeypatch):
    monkeypatch.setattr(LinearEngine, "evaluate", lambda self, microbatch: {"loss": (0.0, 0.0), "error": (0.0, 0.0)})
    trial = Trial(tmp_path / "run")
    trial.start()
    assert '"evaluation/loss": "nan"' in (trial.out / "metrics.jsonl").read_text()
    assert not (trial.out / "best" / "manifest.json").exists()


def test_the_best_parameters_are_those_of_the_best_evaluation(tmp_path):
    kept = {}
    trial = Trial(tmp_path / "run", run_form(evaluate_every=1, keep_best=Best("evaluation/error", "max", None, SPAN)))
    updates = []

    def before(name, number):
        if name == "update":
            updates.append(number)
        elif name == "evaluate":
            kept[updates[-1]] = {key: array.copy() for key, array in trial.engine.state.items()}

    trial.before = before
    trial.start()
    columns = read_metrics(trial.out)
    step = int(columns["step"][int(np.nanargmax(columns["evaluation/error"]))])
    manifest = json.loads((trial.out / "best" / "manifest.json").read_text())
    assert (manifest["step"], manifest["metric"]) == (step, "evaluation/error")
    stored = safetensors.numpy.load_file(trial.out / "best" / manifest["file"])
    assert sorted(stored) == ["linear.bias", "linear.bias/average", "linear.weight", "linear.weight/average"]
    for name, array in stored.items():
        np.testing.assert_array_equal(array, kept[step][name])


def test_a_metric_that_the_evaluation_does_not_give_is_a_fault_of_paren(tmp_path):
    trial = Trial(tmp_path / "run", run_form(keep_best=Best("evaluation/x", "min", None, SPAN)))
    with pytest.raises(InternalError, match="internal error in train: the evaluation gives no series 'evaluation/x'"):
        trial.start()
    status = read_status(trial.out)
    assert (status.state, status.code) == ("failed", None)
    assert status.message.startswith("InternalError: internal error in train")


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"evaluate_every": 5, "keep_best": None}, "evaluate-every"),
        ({"evaluate_every": None}, "keep"),
        ({**PLAIN, "stop_early": Best("evaluation/loss", "min", 2, SPAN)}, "stop-early"),
    ],
)
def test_an_evaluation_needs_a_split(tmp_path, changes, option):
    with pytest.raises(ParenError) as caught:
        Trial(tmp_path / "run", run_form(**changes), validation=False).start()
    assert caught.value.code == "E-RUN-013"
    assert caught.value.message == f":{option} needs a split to evaluate on, and the data have none"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("patience", [1, 2, 4])
def test_early_stopping_counts_evaluations_without_a_better_value(tmp_path, monkeypatch, patience):
    values = iter([5.0, 4.0, 4.5, 3.0, 3.0, 3.5, 3.1, 3.2, 3.3, 3.4, 9.0, 9.0, 9.0])
    monkeypatch.setattr(
        LinearEngine, "evaluate", lambda self, microbatch: {"loss": (next(values), 1.0), "error": (0.0, 1.0)}
    )
    rule = Best("evaluation/loss", "min", patience, SPAN)
    run = run_form(steps=13, microbatches=1, evaluate_every=1, stop_early=rule)
    trial = Trial(tmp_path / "run", run)
    outcome = trial.start()
    assert (outcome.ended, outcome.step) == ("complete", {1: 3, 2: 6, 4: 8}[patience])
    assert read_status(trial.out).state == "complete"


# ---- diagnostics, lines --------------------------------------------------------------------------------------------


def test_diagnostics_fold_over_microbatches_before_the_update(tmp_path):
    names = {"max": "max", "min": "min", "mean": "mean", "count": "sum"}
    results = []
    for count in (1, 3):
        trial = Trial(tmp_path / f"{count}", run_form(microbatches=count, **PLAIN), validation=False)
        trial.diagnostics = {name: Diagnostic(name, 4, reduce, SPAN) for name, reduce in names.items()}
        trial.start()
        columns = read_metrics(trial.out)
        assert columns["step"][~np.isnan(columns["max"])].tolist() == [4, 8, 12]
        results.append({name: columns[name][[3, 7, 11]] for name in names})
    for name in names:
        np.testing.assert_allclose(results[0][name], results[1][name], rtol=1e-4)
    assert results[0]["count"].tolist() == [8, 8, 6]


def test_reducers_keep_a_nan_wherever_it_stands():
    for parts in ([(math.nan, 1.0), (2.0, 1.0)], [(2.0, 1.0), (math.nan, 1.0)]):
        assert all(math.isnan(reduce(parts)) for reduce in REDUCERS.values())
    parts = [(1.0, 1.0), (4.0, 3.0)]
    assert {name: reduce(parts) for name, reduce in REDUCERS.items()} == {"max": 4, "min": 1, "sum": 5, "mean": 3.25}


def test_lines_come_at_the_first_step_every_n_and_at_the_end(tmp_path):
    trial = Trial(tmp_path / "run", run_form(log_every=5, **PLAIN), validation=False)
    trial.start()
    assert read_metrics(trial.out)["step"].tolist() == [1, 5, 10, 12]


def test_a_line_holds_what_was_computed_and_measured(tmp_path):
    trial = Trial(tmp_path / "run", run_form(steps=1, **PLAIN), validation=False)
    trial.start()
    first, second = map(json.loads, (trial.out / "metrics.jsonl").read_text().splitlines())
    memory = {"planned": 4096, "parameters": 20, "saves_while_training": False}
    assert first == {"step": 0, "annotation": "memory", **memory}
    assert list(second) == [
        "step",
        "loss",
        "gradient-norm",
        "rate",
        "tokens-per-second",
        "examples-per-second",
        "runtime/step-ms",
        "runtime/peak_bytes",
    ]
    assert second["rate"] == 0.05


def test_the_engine_is_closed_however_a_run_ends(tmp_path):
    trial = Trial(tmp_path / "a", run_form(**PLAIN), validation=False)
    trial.start()
    assert trial.engine.closed
    failing = Trial(tmp_path / "b", run_form(**PLAIN), training=poisoned(math.nan), validation=False)
    with pytest.raises(ParenError):
        failing.start()
    assert failing.engine.closed
