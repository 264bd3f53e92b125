"""What a profile collects: which steps are sampled, nested events, the trace as Chrome reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from paren.text.errors import ParenError
from paren.text.json import Json
from paren.train import profile as profiles
from paren.train.files import Files
from paren.train.profile import Event, Profile, profiled, profiled_step


class Clock:
    """A clock that goes on by a millisecond each time it is looked at."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-3
        return self.now


def describe(graph: str, number: int) -> tuple[str, Mapping[str, Json]]:
    return f"{graph} {number}", {"flops": 10 * number}


def described() -> Profile:
    profile = Profile(Clock())
    profile.describe = describe
    return profile


def sampled(first: int, stop: int) -> list[int]:
    """The positions whose graphs are run region by region."""
    profile = described()
    profile.begin(first, stop)
    found = []
    for position in range(first, stop):
        with profile.step(position):
            if profile.observer("accumulate", of_step=True).wants():
                found.append(position)
        assert not profile.sampling
    assert profile.sampled_steps == len(found)
    return found


@pytest.mark.parametrize(
    ("first", "stop", "wanted"),
    [(0, 100, [2, 3, 4]), (50, 100, [52, 53, 54]), (0, 4, [2, 3]), (0, 3, [2]), (0, 2, [1]), (7, 8, [7]), (3, 3, [])],
)
def test_warm_steps_are_sampled(first: int, stop: int, wanted: list[int]) -> None:
    assert sampled(first, stop) == wanted


def test_first_calls_of_other_graphs_are_sampled() -> None:
    profile = described()
    evaluate = profile.observer("evaluate", of_step=False)
    assert [evaluate.wants() for _ in range(5)] == [True, True, True, False, False]
    assert profile.observer("diagnose scale", of_step=False).wants()


def test_the_trace_nests_as_the_run_did(tmp_path: Path) -> None:
    profile = described()
    profile.begin(0, 1)
    with profile.step(0):
        begin = profile.clock()
        profile.observer("accumulate", of_step=True).regions(
            [(begin, profile.clock()), (profile.clock(), profile.clock())]
        )
    with profile.span("save", "save"):
        pass
    profile.write(tmp_path, Files(), regions=[{"seconds": 1.0}])
    content = json.loads((tmp_path / profiles.TRACE).read_text())
    assert content["regions"] == [{"seconds": 1.0}]
    events = [event for event in content["traceEvents"] if event["ph"] == "X"]
    assert [(event["name"], event["cat"]) for event in events] == [
        ("step 1", "step"),
        ("accumulate", "graph"),
        ("accumulate 0", "region"),
        ("accumulate 1", "region"),
        ("save", "save"),
    ]
    assert [(event["ts"], event["dur"]) for event in events] == [
        (1000, 5000),
        (2000, 3000),
        (2000, 1000),
        (4000, 1000),
        (7000, 1000),
    ]
    assert [event["args"] for event in events[:4]] == [{"sampled": True}, {}, {"flops": 0}, {"flops": 10}]
    assert {event["name"] for event in content["traceEvents"] if event["ph"] == "M"} == {"process_name", "thread_name"}


def test_steps_of_one_call_are_one_event() -> None:
    profile = described()
    profile.begin(0, 100)
    assert profile.sampled_until == 5
    profile.steps(5, 69, profile.clock())
    (event,) = profile.events
    assert (event.name, event.category) == ("steps 6 to 69", "step")
    assert event.arguments == {"sampled": False, "steps": 64}
    assert event.end - event.begin == pytest.approx(1e-3)


def test_an_error_ends_its_events() -> None:
    profile = described()
    profile.begin(0, 1)
    with pytest.raises(ValueError, match="in the step"), profile.step(0):
        raise ValueError("in the step")
    assert [event.name for event in profile.events] == ["step 1"]


def test_a_long_run_keeps_its_first_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "MOST_EVENTS", 3)
    profile = described()
    for number in range(5):
        profile.add(Event(str(number), "wait", 0.0, 1.0))
    assert [event.name for event in profile.events] == ["0", "1", "2"]


def test_without_a_profile_a_span_is_nothing() -> None:
    with profiled(None, "save", "save"), profiled_step(None, 0):
        pass


def test_a_trace_that_cannot_be_written_has_a_code(tmp_path: Path) -> None:
    (tmp_path / "report").write_text("")
    with pytest.raises(ParenError) as caught:
        described().write(tmp_path, Files())
    text = f"E-RUN-005: {tmp_path}/report is not writable (file exists)"
    assert str(caught.value) == f"{text}\n  fix: take another --out, or make the folder writable"
