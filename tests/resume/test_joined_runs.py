"""Runs whose products are one step with the kernels after them where that is faster: what is measured once is
remembered, what a checkpoint was trained with is kept, and what no longer can be is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from defined_kernels import defined_device
from fake_card import FakeCard
from resume_runs import metric_lines, newest, write_program
from safetensors.numpy import load_file

import paren
from paren import prepare as prepare_module
from paren import run
from paren.api import Experiment
from paren.data.loader import Share
from paren.forecast.stacking import Candidate
from paren.inspect.explain import REPORT
from paren.plan import epilogue, memory
from paren.plan.decision import Pattern
from paren.plan.epilogue import Epilogue
from paren.prepare import Preparation
from paren.runtime.cuda.device import CudaDevice
from paren.text.errors import ParenError
from paren.text.json import Json
from paren.train.experiment import Prepared
from paren.train.progress import Silent


@dataclass(frozen=True)
class Started:
    """The card of a run, and the forms that were compared on it."""

    card: FakeCard
    compared: list[str]

    @property
    def joined(self) -> int:
        """How often products were started as one step with their kernels."""
        return self.card.started.count("join")


Start = Callable[..., Started]
FIRST = "causal-attention after "  # the first product that is joined in each layer


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """The language model in bfloat16."""
    monkeypatch.setenv("PAREN_CACHE", str(tmp_path / "cache"))
    file = write_program(tmp_path, "gpt")
    file.write_text(file.read_text().replace("  :seed 3)", '  :precision "bfloat16"\n  :seed 3)'))
    return paren.load(file)


@pytest.fixture
def start(experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Trains in a folder on a new card, whose library joins what it is `able` to. `seconds`: of two steps and of one,
    for every form."""

    def started(
        name: str,
        steps: int,
        seconds: tuple[float, float] = (2.0, 1.0),
        able: tuple[str, ...] | None = None,
        **how: object,
    ) -> Started:
        device, card = defined_device()
        card.able = able
        compared: list[str] = []

        def compare(self: CudaDevice, each: Epilogue, cells: object) -> tuple[float, float]:
            compared.append(each.form)
            return seconds

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CudaDevice, "compare_joined", compare)
            patch.setattr(run, "open_device", lambda *_: device)
            read = paren.load(experiment.program.path)  # as it stands now
            read.run(tmp_path / name, device="cuda", stacking=3, steps=steps, **how)  # type: ignore[arg-type]
        return Started(card, compared)

    return started


def state(out: Path) -> dict[str, bytes]:
    return {key: value.tobytes() for key, value in load_file(newest(out) / "parameters.safetensors").items()}


def identity(out: Path) -> dict[str, Json]:
    found = json.loads((newest(out) / "manifest.json").read_bytes())["identity"]
    assert isinstance(found, dict)
    return found


def joined_in(out: Path) -> dict[str, Json]:
    found = identity(out)["joined products"]
    assert isinstance(found, dict)
    return found


def decisions(out: Path) -> list[dict[str, object]]:
    patterns = json.loads((out / REPORT).read_bytes())["patterns"]
    return [each for each in patterns if each["pattern"] == Pattern.EPILOGUE.value]


def test_the_faster_way_is_measured_once_and_remembered(start: Start, tmp_path: Path) -> None:
    first = start("first", 2)
    second = start("second", 2)
    assert len(first.compared) == len(set(first.compared)) == 3
    assert second.compared == []
    assert first.joined == second.joined > 0
    assert state(tmp_path / "first") == state(tmp_path / "second")
    joined = joined_in(tmp_path / "first")
    assert {name.partition("(")[2][:12] for name in joined} == set(first.compared)
    assert set(joined.values()) == {2}  # two layers
    assert {(each["fired"], each["reason"]) for each in decisions(tmp_path / "first")} == {
        (True, "1e+03 ms as one step, 2e+03 ms as two")
    }
    assert {each["reason"] for each in decisions(tmp_path / "second")} == {"as an earlier run measured"}
    assert sum(int(str(each["count"])) for each in decisions(tmp_path / "second")) == 6  # two layers


def test_what_is_remembered_to_be_slower_is_not_made_again(start: Start) -> None:
    """A library takes its time to make the program of a form."""
    assert len(start("slower", 2, seconds=(1.0, 2.0)).card.made) == 3
    assert start("again", 2).card.made == set()


def test_damaged_choices_are_told_once(start: Start, tmp_path: Path) -> None:
    said: list[str] = []

    class View(Silent):
        def notice(self, text: str) -> None:
            said.append(text)

    cache = tmp_path / "cache" / "choices.json"
    cache.parent.mkdir()
    cache.write_bytes(b"{")
    assert len(start("out", 2, progress=View()).compared) == 3
    assert [text for text in said if text.startswith(str(cache))] == [
        f"{cache} is damaged, so its choices are made again"
    ]
    assert len(json.loads(cache.read_bytes())) == 3


def test_what_is_not_faster_stays_two_steps(start: Start, tmp_path: Path) -> None:
    slower = start("slower", 2, seconds=(1.0, 0.98))
    assert slower.joined == 0
    assert "joined products" not in identity(tmp_path / "slower")
    assert {(each["fired"], each["reason"]) for each in decisions(tmp_path / "slower")} == {
        (False, "980 ms as one step, 1e+03 ms as two")
    }
    again = start("again", 2)
    assert again.compared == []
    assert again.joined == 0
    assert state(tmp_path / "again") == state(tmp_path / "slower")


def test_without_the_package_nothing_is_measured(start: Start, tmp_path: Path) -> None:
    assert start("out", 2, able=()).compared == []
    assert {(each["fired"], each["reason"]) for each in decisions(tmp_path / "out")} == {
        (False, "the package of cuDNN (extra cudnn) is not there, or does not compute it")
    }


@pytest.mark.parametrize("joined", [True, False])
def test_a_resumed_run_goes_on_as_it_began(joined: bool, start: Start, tmp_path: Path) -> None:
    """To the same bits, though what is remembered would choose otherwise now."""
    ways = [(2.0, 1.0), (1.0, 2.0)]
    seconds, otherwise = ways if joined else ways[::-1]
    start("whole", 8, seconds=seconds)
    start("cut", 3, seconds=seconds)
    cache = tmp_path / "cache" / "choices.json"
    cache.unlink()
    start("other", 2, seconds=otherwise)
    went_on = start("cut", 8, seconds=otherwise, resume="latest")
    assert went_on.compared == []
    assert (went_on.joined > 0) is joined
    assert {(each["fired"], each["reason"]) for each in decisions(tmp_path / "cut")} == {(joined, "as the run began")}
    assert state(tmp_path / "cut") == state(tmp_path / "whole")
    assert identity(tmp_path / "cut") == identity(tmp_path / "whole")


def test_a_resume_whose_plan_joins_fewer_is_refused(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it may where less memory is free. The forms are the same, and the bits are not."""
    start("out", 3)
    place = newest(tmp_path / "out")
    found = epilogue.find_epilogues
    monkeypatch.setattr(memory, "find_epilogues", lambda steps, buffers: found(steps, buffers)[1:])
    monkeypatch.setenv("PAREN_CACHE", str(tmp_path / "other"))  # other plans
    with pytest.raises(ParenError) as caught:
        start("out", 5, resume="latest")
    assert caught.value.code == "E-CKPT-007"
    said = f"going on from {place} would not be bit-exact: joined products: "
    differences = caught.value.message.removeprefix(said).split(", joined products: ")
    assert differences == [f"{name} 2 there and 1 here" for name in joined_in(tmp_path / "out") if FIRST in name]
    assert len(differences) == 3  # in the training graph, an evaluation and a diagnostic


def test_an_evaluation_that_joins_fewer_is_another_run(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loss would differ, and so what is the best and where a training stops early."""
    start("out", 3)
    shrink = prepare_module.shrink

    def shrunk(candidate: Candidate, limit: int) -> Candidate:
        plans = shrink(candidate, limit).plans
        evaluate = replace(plans.evaluate, epilogues=plans.evaluate.epilogues[1:])
        return replace(candidate, plans=replace(plans, evaluate=evaluate))

    monkeypatch.setattr(prepare_module, "shrink", shrunk)
    with pytest.raises(ParenError) as caught:
        start("out", 5, resume="latest")
    (name,) = (each for each in joined_in(tmp_path / "out") if FIRST in each and each.endswith(" in evaluate"))
    assert caught.value.message.endswith(f" would not be bit-exact: joined products: {name} 2 there and 1 here")


def test_a_library_that_no_longer_joins_is_no_silent_change(start: Start, tmp_path: Path) -> None:
    start("out", 3)
    joined = joined_in(tmp_path / "out")
    with pytest.raises(ParenError) as caught:
        start("out", 5, able=(), resume="latest")
    assert caught.value.code == "E-CKPT-007"
    place = newest(tmp_path / "out")
    said = ", ".join(f"joined products: {name} {count} there and none here" for name, count in joined.items())
    assert caught.value.message == f"going on from {place} would not be bit-exact: {said}"
    start("out", 5, able=(), resume="latest", allow_new_layout=True)
    assert "joined products" not in identity(tmp_path / "out")


def test_a_rank_that_cannot_join_what_the_first_joins_is_refused(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[Preparation] = []
    prepare = Preparation.__call__

    def note(self: Preparation, stored: Mapping[str, Json] | None) -> Prepared:
        prepared.append(self)
        return prepare(self, stored)

    monkeypatch.setattr(Preparation, "__call__", note)
    start("out", 2)
    told = identity(tmp_path / "out")
    forms = told["joined products"]
    device, card = defined_device()
    follower = replace(prepared[0], device=device, share=Share(1, 2))
    card.able = None
    assert prepare(follower, told).identity["joined products"] == forms
    card.able = ()
    with pytest.raises(ParenError) as caught:
        prepare(follower, told)
    assert isinstance(forms, dict)
    differences = [f"joined products: {name} {count} on rank 0 and none on rank 1" for name, count in forms.items()]
    assert caught.value.code == "E-DP-006"
    assert caught.value.message == "; ".join(differences)
    fix = "give all ranks equal cards and equal packages: the extra cudnn on all of them, or on none"
    assert caught.value.fix == fix


def test_the_numbers_are_those_of_the_two_steps_to_rounding(start: Start, tmp_path: Path) -> None:
    start("one", 8)
    (tmp_path / "cache" / "choices.json").unlink()
    start("two", 8, seconds=(1.0, 2.0))
    assert state(tmp_path / "one") != state(tmp_path / "two")
    one, two = ([line["loss"] for line in metric_lines(tmp_path / out) if "loss" in line] for out in ("one", "two"))
    np.testing.assert_allclose(one, two, rtol=1e-2)


def test_a_text_that_calls_the_same_by_another_name_goes_on(
    experiment: Experiment, start: Start, tmp_path: Path
) -> None:
    """What a run is does not depend on names, and neither does what it joins."""
    start("out", 3)
    joined = joined_in(tmp_path / "out")
    file = Path(experiment.program.path)
    file.write_text("(def bent gelu)\n" + file.read_text().replace("(gelu ", "(bent "))
    start("out", 5, resume="latest")
    assert joined_in(tmp_path / "out") == joined
