"""A run that is cut anywhere and resumed ends with the bytes, metrics and files of one that never stopped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from metric_lines import without_measured
from training_fakes import Killed, Trial, run_form

from paren.ir.program import Best, Diagnostic
from paren.text.errors import ParenError
from paren.train.manifest import Manifest
from paren.train.places.disk import DiskFolder
from paren.train.read_run import read_annotations, read_metrics

SPAN = run_form().keep_best.span
DIAGNOSTICS = {
    "max": Diagnostic("max", 3, "max", SPAN),
    "mean": Diagnostic("mean", 4, "mean", SPAN),
}


def lines(out: Path) -> list[dict]:
    return [without_measured(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def best(out: Path) -> tuple[bytes, bytes]:
    """The manifest of the best parameters, and the file it names."""
    manifest = (out / "best" / "manifest.json").read_bytes()
    return manifest, (out / "best" / json.loads(manifest)["file"]).read_bytes()


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Trial:
    trial = Trial(tmp_path_factory.mktemp("straight") / "run", run_form(log_every=2))
    trial.diagnostics = DIAGNOSTICS
    assert trial.start().ended == "complete"
    return trial


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(cuts=st.lists(st.integers(1, 12), max_size=4, unique=True).map(sorted))
def test_stops_at_any_steps_change_nothing(straight, tmp_path_factory, cuts):
    """Cuts at every position, the epoch border (3, 6, 9) and the last step included."""
    trial = Trial(tmp_path_factory.mktemp("cut") / "run", straight.run, diagnostics=DIAGNOSTICS)
    for steps in cuts:
        trial.start(steps=steps, resume="auto")
    trial.start(resume="auto")
    assert trial.state_bytes() == straight.state_bytes()
    assert lines(trial.out) == lines(straight.out)
    assert best(trial.out) == best(straight.out)


@pytest.mark.parametrize("update", range(1, 13))
def test_a_kill_at_any_update_changes_nothing(straight, tmp_path, update):
    """The process ends inside update `update`; what came after the last checkpoint is computed again."""

    def before(name: str, number: int) -> None:
        if name == "update" and number == update:
            raise Killed

    trial = Trial(tmp_path / "run", straight.run, diagnostics=DIAGNOSTICS, before=before)
    with pytest.raises(Killed):
        trial.start()
    trial.before = lambda name, step: None
    trial.start(resume="auto")
    assert trial.state_bytes() == straight.state_bytes()
    assert lines(trial.out) == lines(straight.out)
    assert best(trial.out) == best(straight.out)


def test_the_samples_of_a_resume_are_those_of_the_straight_run(tmp_path):
    run = run_form(evaluate_every=None, keep_best=None)
    whole, cut = Trial(tmp_path / "a", run, validation=False), Trial(tmp_path / "b", run, validation=False)
    whole.start()
    seen = []
    for steps in (5, 7, 12):
        cut.start(steps=steps, resume="auto")
        seen += cut.data.training.seen
    assert seen == whole.data.training.seen
    assert sorted(index for batch in seen[:3] for index in batch) == list(range(22))


def test_skips_padding_and_early_stopping_survive_a_cut(tmp_path):
    rule = Best("evaluation/error", "max", 3, SPAN)
    run = run_form(steps=30, on_nonfinite="skip", skip_limit=5, evaluate_every=1, stop_early=rule, checkpoint_every=100)
    from training_fakes import examples

    training = examples(22, 1)
    training["x"][4] = np.nan
    whole = Trial(tmp_path / "a", run, training=training)
    assert whole.start().ended == "complete"
    end = int(read_metrics(whole.out)["step"][-1])
    assert 3 < end < 30
    for cut in range(1, end + 1):
        trial = Trial(tmp_path / f"cut-{cut}", run, training=training)
        trial.start(steps=cut)
        outcome = trial.start(resume="auto")
        assert lines(trial.out) == lines(whole.out), cut
        assert outcome.step == end
    assert any(each["annotation"] == "skipped" for each in read_annotations(whole.out))


def test_the_last_evaluation_of_a_shorter_run_is_dropped_when_it_goes_on(tmp_path):
    trial = Trial(tmp_path / "run")
    outcome = trial.start(steps=7)
    assert (outcome.ended, outcome.exit_code, outcome.step) == ("steps", 0, 7)
    assert lines(trial.out)[-1].keys() == {"step", "evaluation/loss", "evaluation/error"}
    trial.start(resume="latest")
    assert [line["step"] for line in lines(trial.out) if "annotation" not in line] == list(range(1, 13))


def test_an_older_checkpoint_starts_a_branch_that_latest_follows(tmp_path):
    """The abandoned branch is not resumed from, although its numbers are higher."""
    trial = Trial(tmp_path / "run", run_form(checkpoint_every=2))
    trial.start(steps=10)
    trial.before = lambda name, number: (_ for _ in ()).throw(Killed) if number == 6 and name == "update" else None
    with pytest.raises(Killed):
        trial.start(resume="4")
    assert (trial.out / "checkpoints" / "latest").read_text().splitlines()[0] == "000004"
    steps = []
    trial.before = lambda name, step: steps.append(step) if name == "accumulate" else None
    trial.start(resume="latest")
    assert steps[0] == 4
    assert [line["step"] for line in lines(trial.out) if "annotation" not in line] == list(range(1, 13))


def test_a_checkpoint_can_be_continued_in_another_directory(tmp_path):
    first = Trial(tmp_path / "a")
    first.start()
    second = Trial(tmp_path / "b")
    second.start(resume=str(first.out / "checkpoints" / "000004"))
    assert second.state_bytes() == first.state_bytes()
    notes = read_annotations(second.out)
    assert [note["annotation"] for note in notes] == ["memory", "resumed"]
    assert [line["step"] for line in lines(second.out) if "loss" in line] == list(range(5, 13))


def test_checkpoints_of_a_resume_name_the_one_they_continue(tmp_path):
    trial = Trial(tmp_path / "run")
    trial.start(steps=5)
    trial.start(resume="latest")
    manifests = [Manifest.read(DiskFolder(path)) for path in sorted((trial.out / "checkpoints").glob("0*"))]
    assert [manifest.step for manifest in manifests] == [4, 5, 8, 12]
    assert [manifest.parent for manifest in manifests] == [None, *[manifest.id for manifest in manifests[:-1]]]


def test_a_resume_into_a_directory_of_another_run_is_refused(tmp_path):
    first, second = Trial(tmp_path / "a"), Trial(tmp_path / "b")
    first.start(), second.start(steps=5)
    path = first.out / "checkpoints" / "000004"
    with pytest.raises(ParenError) as caught:
        second.start(resume=str(path))
    assert caught.value.code == "E-CKPT-011"
    assert caught.value.message == f"the checkpoint {path} was written by another run than the one in {second.out}"


def test_another_device_is_refused_unless_allowed(tmp_path):
    trial = Trial(tmp_path / "run")
    trial.start(steps=4)
    trial.identity = {"device": "cuda", "threads": 2}
    with pytest.raises(ParenError) as caught:
        trial.start(resume="latest")
    assert caught.value.code == "E-CKPT-007"
    assert caught.value.message == (
        f"going on from {trial.out / 'checkpoints' / '000004'} would not be bit-exact: "
        "device cpu there and cuda here, threads none there and 2 here"
    )
    trial.start(resume="latest", allow_new_layout=True)
    assert trial.listener.notices[0] == "not bit-exact: device cpu there and cuda here, threads none there and 2 here"


@pytest.mark.parametrize(
    ("there", "here", "said", "same"),
    [
        (
            {"nodes": 2, "gradients between nodes": "bf16"},
            {},
            "gradients between nodes bf16 there and none here, nodes 2 there and 1 here",
            "on as many ranks and nodes",
        ),
        (
            {"nodes": 2, "gradients between nodes": "bf16"},
            {"nodes": 2, "gradients between nodes": "f32"},
            "gradients between nodes bf16 there and f32 here",
            "with the same PAREN_NODE_GRADIENTS",
        ),
    ],
)
def test_other_nodes_or_gradients_between_them_are_refused(tmp_path, there, here, said, same):
    trial = Trial(tmp_path / "run")
    trial.identity = {"device": "cpu", **there}
    trial.start(steps=4)
    trial.identity = {"device": "cpu", **here}
    with pytest.raises(ParenError) as caught:
        trial.start(resume="latest")
    assert (caught.value.code, caught.value.fix) == (
        "E-DP-002",
        f"resume {same}, or accept other bits with --allow-new-layout",
    )
    path = trial.out / "checkpoints" / "000004"
    assert caught.value.message == f"going on from {path} would not be bit-exact: {said}"


def test_of_two_processors_only_what_differs_is_told(tmp_path):
    target = f"one {' '.join(f'+feature{number}' for number in range(40))} LLVM 22"
    trial = Trial(tmp_path / "run")
    trial.identity = {"device": "cpu", "target": target}
    trial.start(steps=4)
    trial.identity = {"device": "cpu", "target": target.replace("one", "other").replace("+feature7 ", "")}
    with pytest.raises(ParenError) as caught:
        trial.start(resume="latest")
    assert caught.value.message.endswith("bit-exact: target one +feature7 there and other here")


@pytest.mark.parametrize("wanted", [".", "checkpoints"])
def test_a_folder_that_is_no_checkpoint(tmp_path, wanted):
    trial = Trial(tmp_path / "run")
    trial.start(steps=4)
    path = trial.out / wanted
    with pytest.raises(ParenError) as caught:
        trial.start(resume=str(path))
    assert (caught.value.code, caught.value.message) == ("E-CKPT-002", f"{path} is no checkpoint")
    assert [note.message for note in caught.value.notes] == [f"{trial.out / 'checkpoints'} holds 000004"]


def test_metrics_that_were_cut_off_are_an_error(tmp_path):
    trial = Trial(tmp_path / "run")
    trial.start(steps=4)
    path = trial.out / "metrics.jsonl"
    size = path.stat().st_size
    path.write_bytes(b"")
    with pytest.raises(ParenError) as caught:
        trial.start(resume="latest")
    assert caught.value.code == "E-CKPT-012"
    assert caught.value.message.startswith(f"{path} has 0 bytes, and the checkpoint continues after byte ")
    assert size > 0


def test_the_best_of_the_past_is_in_force_after_going_back(tmp_path):
    """Going back before the best evaluation brings back the best of that time, so both agree again."""
    trial = Trial(tmp_path / "run", replace(run_form(), evaluate_every=2, checkpoint_every=2, steps=8))
    trial.start(steps=2)
    early = best(trial.out)
    trial.start(resume="latest", steps=6)
    assert best(trial.out) != early
    trial.before = lambda name, step: (_ for _ in ()).throw(Killed)
    with pytest.raises(Killed):
        trial.start(resume="2")
    assert best(trial.out) == early
