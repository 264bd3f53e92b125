"""Stacking: which degrees there are, how one is chosen, what it changes (the order of sums) and what it does not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from metric_lines import without_measured

import paren
from paren.forecast import choices
from paren.forecast.memory import memory_of
from paren.forecast.plans import make_plans
from paren.forecast.stacking import Candidate, choose, degrees, first_candidate, forced_candidate
from paren.ir.program import Program
from paren.pipeline import Planning
from paren.plan.limits import Limits
from paren.runtime.cache import PlanCache
from paren.text.errors import ParenError
from paren.train.read_run import read_annotations, read_metrics, read_weights

TEXT = """\
(def batch 22)
(def microbatches 8)
(defdata points
  (python "points.py" points :fields ((x float32 [5]) (y float32 []) (w float32 []))
          :split ((train 0.8) (validation 0.2)) :evaluation-count 5))
(defmodel net ((x float32 [5]))
  (linear (dropout (tanh (linear x 12)) 0.3) 1))
(defrun :data points :loss (mean-squared-error (net x) y) :weight w :optimizer (adam :rate 1e-2) :clip 0.5 :average 0.9
  :batch batch :microbatches microbatches :steps 9 :evaluate-every 3 :checkpoint-every 4 :log-every 1 :seed 5)
(defdiagnostic spread (mean (abs (net x))) :every 2 :reduce mean)
"""
POINTS = """\
import numpy as np


def points():
    random = np.random.default_rng(7)
    x = random.normal(size=(64, 5)).astype(np.float32)
    w = (random.random(64) < 0.7).astype(np.float32)
    return {"x": x, "y": np.tanh(x[:, 0]).astype(np.float32), "w": w}
"""
SLOW_STARTS = Limits(traffic=1e12, products={"float32": 1e15}, instructions=1e15, start=1.0)
PRODUCTS_ONLY = Limits(traffic=1e30, products={"float32": 1e9}, instructions=1e30, start=0.0)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAREN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "points.py").write_text(POINTS)
    path = tmp_path / "net.paren"
    path.write_text(TEXT)
    return path


def candidate(file: Path, **settings: int) -> Candidate:
    program = paren.load(file, set=settings).program
    plans = make_plans(program, Planning(threads=1))
    return Candidate(program, plans, memory_of(program, plans))


def state(out: Path) -> dict[str, np.ndarray]:
    weights = read_weights(out)
    return {**weights.parameters, **{f"{name}/average": value for name, value in weights.averages.items()}}


def annotation(out: Path) -> Any:
    """The line that tells of the stacking."""
    (line,) = [each for each in read_annotations(out) if each["annotation"] == "stacking"]
    return line


def lines(out: Path) -> list[dict[str, object]]:
    """The metrics without what is measured, and without the annotations that tell of memory and stacking."""
    read = [without_measured(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line for line in read if line.get("annotation") not in ("memory", "stacking")]


def test_plans_that_were_made_before_keep_what_is_said_of_their_cache(file: Path) -> None:
    program = paren.load(file).program
    cache = PlanCache(file.parent)
    made = make_plans(program, Planning(cache=cache))
    first = first_candidate(program, Planning(threads=7, cache=PlanCache(file.parent)), 1 << 40, lambda: made)
    assert first.plans.planning.cache is cache
    assert first.plans.planning.threads == 7
    assert first.plans.accumulate is made.accumulate


# What there is to choose from -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "expected"), [(1, [1]), (2, [1, 2]), (8, [1, 2, 4, 8]), (6, [1, 2, 3, 6])])
def test_degrees_divide_the_microbatches(file: Path, count: int, expected: list[int]) -> None:
    program = paren.load(file, set={"microbatches": count}).program
    assert degrees(program) == expected
    assert degrees(replace(program, ranks=count)) == [1]
    assert degrees(replace(program, run=replace(program.run, reproducible_over=1))) == [1]


def test_a_degree_that_does_not_divide_is_refused(file: Path) -> None:
    with pytest.raises(ParenError) as caught:
        paren.load(file).run(file.parent / "out", stacking=3)
    error = caught.value
    assert (error.code, error.message) == ("E-MEM-003", "--stacking 3 does not divide the 8 microbatches of a batch")
    assert error.fix == "use 1, 2, 4 or 8, or leave it out"
    assert error.span is not None
    assert str(error.span).endswith("net.paren:9:30")


def test_reproducible_runs_take_every_microbatch_alone(file: Path) -> None:
    file.write_text(TEXT.replace(":seed 5", ":seed 5 :reproducible-over 2"))
    with pytest.raises(ParenError) as caught:
        forced_candidate(candidate(file), 2)
    assert caught.value.message == "--stacking 2 is not 1, and :reproducible-over needs every microbatch alone"
    assert caught.value.fix == "use 1, or leave it out"


# How it is chosen -----------------------------------------------------------------------------------------------------


def never(_: Candidate) -> float:
    raise AssertionError("nothing is to be measured")


def test_predictions_decide_where_they_differ(file: Path) -> None:
    """Each step of the plan costs a second here, whatever it does: the fewest calls win."""
    choice = choose(candidate(file), 1 << 40, SLOW_STARTS, never)
    assert (choice.candidate.stacking, choice.reason) == (8, "predicted")
    assert choice.predicted[1] == pytest.approx(8 * choice.predicted[8])


def test_a_measurement_decides_where_predictions_are_close(file: Path) -> None:
    times = {1: 3.0, 2: 2.0, 4: 2.5}
    first = candidate(file, batch=24)
    choice = choose(first, 1 << 40, PRODUCTS_ONLY, lambda each: times[each.stacking])
    assert (choice.candidate.stacking, choice.reason) == (2, "measured")
    assert choice.measured[2] == 2.0
    assert choose(first, 1 << 40, PRODUCTS_ONLY).reason == "predicted"


def test_larger_calls_are_tried_as_long_as_they_win(file: Path) -> None:
    """What a call costs beyond its steps is seen by measuring only; near the fastest, the least memory decides."""
    first = candidate(file, batch=24)
    choice = choose(first, 1 << 40, PRODUCTS_ONLY, lambda each: 1.0 / each.stacking)
    assert (choice.candidate.stacking, list(choice.measured)) == (8, [1, 2, 4, 8])
    choice = choose(first, 1 << 40, PRODUCTS_ONLY, lambda each: {1: 1.0, 2: 0.99, 4: 0.98}[each.stacking])
    assert (choice.candidate.stacking, list(choice.measured)) == (1, [1, 2])


def test_only_what_fits_is_chosen(file: Path) -> None:
    first = candidate(file)
    second = forced_candidate(first, 2)
    choice = choose(first, second.memory.planned, SLOW_STARTS, never)
    assert (choice.candidate.stacking, choice.reason) == (2, "predicted")
    choice = choose(first, second.memory.planned - 1, SLOW_STARTS, never)
    assert (choice.candidate.stacking, choice.reason) == (1, "the only one that fits")


def test_a_choice_is_said_in_a_line(file: Path) -> None:
    first = candidate(file, batch=24)
    choice = choose(first, 1 << 40, PRODUCTS_ONLY, lambda each: {1: 1.6, 2: 0.09, 4: 0.2}[each.stacking])
    said = "2 of 8 microbatches a call, measured: 1 takes 1,600 ms, 2 takes 90 ms, 4 takes 200 ms"
    assert choice.describe() == said
    line = choice.told
    assert (line["stacking"], line["microbatches"], line["rows"]) == (2, 8, 6)
    chosen = line["chosen"]
    assert isinstance(chosen, dict)
    assert (chosen["reason"], chosen["measured_ms"]) == ("measured", {"1": 1600.0, "2": 90.0, "4": 200.0})


# What it changes ------------------------------------------------------------------------------------------------------


def trained(file: Path, out: str, **options: object) -> Path:
    paren.load(file).run(file.parent / out, threads=1, **options)  # type: ignore[arg-type]
    return file.parent / out


def close(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray], tolerance: float) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_allclose(value, other[name], rtol=tolerance, atol=tolerance, err_msg=name)


def test_all_degrees_train_the_same_network(file: Path) -> None:
    """Dropout, weights, a short last batch, clipping, an average: all of them see examples, never calls."""
    outs = {degree: trained(file, f"out-{degree}", stacking=degree) for degree in (1, 2, 4, 8)}
    outs[0] = trained(file, "out-automatic")
    first = read_metrics(outs[1])
    for degree, out in outs.items():
        close(state(out), state(outs[1]), 2e-5)
        series = read_metrics(out)
        for name in ("loss", "evaluation/loss", "gradient-norm", "rate", "spread", "step"):
            np.testing.assert_allclose(series[name], first[name], rtol=1e-4, err_msg=f"{name} of {degree}")


def test_a_forced_and_a_measured_choice_give_the_same_bits(file: Path) -> None:
    automatic = trained(file, "automatic")
    line = annotation(automatic)
    assert line["chosen"]["reason"] in ("measured", "predicted")
    forced = trained(file, "forced", stacking=line["stacking"])
    assert {name: value.tobytes() for name, value in state(automatic).items()} == {
        name: value.tobytes() for name, value in state(forced).items()
    }
    assert lines(automatic) == lines(forced)


def test_the_choice_is_stored_and_remembered(file: Path) -> None:
    first = trained(file, "first")
    line = annotation(first)
    stored = json.loads((first / "run.json").read_bytes())
    assert stored["identity"]["stacking"] == line["stacking"]
    second = trained(file, "second")
    again = annotation(second)
    assert (again["chosen"], again["stacking"]) == ({"reason": "remembered"}, line["stacking"])
    assert lines(first) == lines(second)


def test_one_microbatch_has_nothing_to_choose(file: Path) -> None:
    paren.load(file, set={"microbatches": 1}).run(file.parent / "out", steps=1)
    assert [each["annotation"] for each in read_annotations(file.parent / "out")] == ["memory"]
    assert not (file.parent / "cache" / choices.FILE).exists()


# Going on from a checkpoint -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("degree", [2, 4])
def test_a_resume_keeps_the_degree(file: Path, degree: int) -> None:
    whole = trained(file, "whole", stacking=degree)
    trained(file, "cut", stacking=degree, steps=4)
    cut = trained(file, "cut", resume="latest")
    assert {name: value.tobytes() for name, value in state(whole).items()} == {
        name: value.tobytes() for name, value in state(cut).items()
    }
    assert lines(whole) == lines(cut)


def needed(file: Path, degree: int) -> int:
    first = candidate(file)
    return forced_candidate(first, degree).memory.planned


def test_a_resume_with_less_memory_says_that_it_is_not_exact(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacking 8 at first; then only one microbatch a call fits. The position is kept in samples and steps."""
    cut = trained(file, "cut", stacking=8, steps=4)
    monkeypatch.setenv("PAREN_MEMORY", str(needed(file, 1)))
    with pytest.raises(ParenError) as caught:
        trained(file, "cut", resume="latest")
    error = caught.value
    place = cut / "checkpoints" / "000004"
    assert error.code == "E-CKPT-007"
    assert error.message == f"going on from {place} would not be bit-exact: stacking 8 there and 1 here"
    assert error.fix == "resume on the same device and layout, or accept other bits with --allow-new-layout"
    trained(file, "cut", resume="latest", allow_new_layout=True)
    monkeypatch.delenv("PAREN_MEMORY")
    whole = trained(file, "whole", stacking=8)
    close(state(cut), state(whole), 2e-5)
    series, expected = read_metrics(cut), read_metrics(whole)
    assert series["step"].tolist() == expected["step"].tolist()
    np.testing.assert_allclose(series["loss"], expected["loss"], rtol=1e-4)
    assert (
        json.loads((cut / "status.json").read_bytes())["samples"]
        == json.loads((whole / "status.json").read_bytes())["samples"]
    )


# What was remembered --------------------------------------------------------------------------------------------------


def program(file: Path) -> Program:
    return paren.load(file).program


def test_choices_are_kept_by_graph_and_device(file: Path, tmp_path: Path) -> None:
    one = choices.choice_key(program(file), "cpu", "x86", 2)
    assert one == choices.choice_key(program(file), "cpu", "x86", 2)
    other = choices.choice_key(program(file), "cpu", "x86", 1)
    assert one != other
    notes: list[str] = []
    assert choices.recall(tmp_path, one, notes.append) is None
    choices.remember(tmp_path, one, 2)
    choices.remember(tmp_path, other, 4)
    choices.remember(tmp_path, one, 8)
    assert choices.recall(tmp_path, one, notes.append) == 8
    assert choices.recall(tmp_path, other, notes.append) == 4
    assert notes == []


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"\xff\xfe", b'{"a": '])
def test_a_damaged_file_is_a_note(tmp_path: Path, content: bytes) -> None:
    (tmp_path / choices.FILE).write_bytes(content)
    notes: list[str] = []
    assert choices.recall(tmp_path, "key", notes.append) is None
    assert notes == [f"{tmp_path / choices.FILE} is damaged, so its choices are made again"]
    choices.remember(tmp_path, "key", 4)
    assert choices.recall(tmp_path, "key", notes.append) == 4
    assert len(notes) == 1


@pytest.mark.parametrize("value", [0, -1, "2", None, True, 2.0])
def test_a_degree_that_is_none_is_not_taken(tmp_path: Path, value: object) -> None:
    (tmp_path / choices.FILE).write_text(json.dumps({"key": value}))
    assert choices.recall(tmp_path, "key", lambda _: None) is None


def test_a_remembered_degree_that_does_not_divide_is_chosen_again(file: Path, tmp_path: Path) -> None:
    trained(file, "first")
    path = tmp_path / "cache" / choices.FILE
    path.write_text(json.dumps(dict.fromkeys(json.loads(path.read_bytes()), 3)))
    second = trained(file, "second")
    assert annotation(second)["chosen"]["reason"] != "remembered"


def test_a_folder_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    choices.remember(tmp_path / "file" / "below", "key", 2)
    assert choices.recall(tmp_path / "file" / "below", "key", lambda _: None) is None


def test_the_oldest_choices_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "MOST", 3)
    for number in range(5):
        choices.remember(tmp_path, f"key {number}", number + 1)
    assert json.loads((tmp_path / choices.FILE).read_bytes()) == {"key 2": 3, "key 3": 4, "key 4": 5}
