"""A run with a profile computes the same bits, and tells where its time went."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from plan_costs import plan_cost

import paren
from paren.forecast.plans import make_plans
from paren.inspect.screen import WIDTH
from paren.train.progress import Silent

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 7


class View(Silent):
    """Keeps what a run says."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def notice(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        base = tmp_path_factory.mktemp("profiles")
        patch.setenv("PAREN_CACHE", str(base / "cache"))
        yield base


def run(folder: Path, name: str, *, profile: bool, microbatches: int = 1, steps: int = STEPS) -> View:
    text = (EXAMPLES / "regression.paren").read_text().replace("regression.py", str(EXAMPLES / "regression.py"))
    text = text.replace(":batch          64", f":batch 64 :microbatches {microbatches}")
    (folder / f"{name}.paren").write_text(text)
    view = View()
    experiment = paren.load(folder / f"{name}.paren")
    experiment.run(out=folder / name, steps=steps, threads=1, stacking=1, profile=profile, progress=view)
    return view


@pytest.mark.parametrize("microbatches", [1, 3])
def test_a_profile_keeps_the_bits(folder: Path, microbatches: int) -> None:
    names = (f"plain{microbatches}", f"timed{microbatches}")
    for name, profile in zip(names, (False, True), strict=True):
        run(folder, name, profile=profile, microbatches=microbatches)
    plain, timed = (paren.restore(folder / name).parameters() for name in names)
    assert plain.keys() == timed.keys()
    for name, array in plain.items():
        np.testing.assert_array_equal(np.asarray(array), np.asarray(timed[name]))
    assert not (folder / names[0] / "report/trace.json").exists()


def test_the_trace_has_everything_that_took_time(folder: Path) -> None:
    run(folder, "trace", profile=True)
    content = json.loads((folder / "trace/report/trace.json").read_text())
    events = [event for event in content["traceEvents"] if event["ph"] == "X"]
    categories = {event["cat"] for event in events}
    assert categories == {"step", "wait", "graph", "region", "evaluate", "save"}
    steps = [event for event in events if event["cat"] == "step"]
    assert [event["name"] for event in steps[:5]] == [f"step {number}" for number in range(1, 6)]
    sampled = [event["args"]["sampled"] for event in steps]
    assert sampled == [False, False, True, True, True] + [False] * (len(steps) - 5)
    # Those after the sample may be made in one call, as ever.
    assert sum(event["args"].get("steps", 1) for event in steps) == STEPS
    assert sum(event["cat"] == "wait" for event in events) >= 5
    for region in (event for event in events if event["cat"] == "region"):
        assert {"graph", "number", "result", "read", "written", "flops", "place"} <= region["args"].keys()
        assert any(
            event["ts"] <= region["ts"] and region["ts"] + region["dur"] <= event["ts"] + event["dur"] + 0.01
            for event in events
            if event["cat"] == "graph" and event["name"] == region["args"]["graph"]
        )


@pytest.mark.parametrize("microbatches", [1, 4])
def test_the_rows_add_up_to_a_step(folder: Path, microbatches: int) -> None:
    name = f"rows{microbatches}"
    run(folder, name, profile=True, microbatches=microbatches)
    content = json.loads((folder / name / "report/trace.json").read_text())
    rows = content["regions"]
    plans = make_plans(paren.load(folder / f"{name}.paren").program)
    assert plans_calls(folder, name) == microbatches
    accumulate = plan_cost(plans.accumulate).times(microbatches)
    mine = [row for row in rows if row["graph"] == "accumulate"]
    for key in ("read", "written", "flops"):
        assert sum(row[key] for row in mine) == getattr(accumulate, key)
    assert sum(row["count"] for row in mine) == microbatches * len(plans.accumulate.steps)
    for row in rows:
        assert row["seconds"] > 0
        assert row["flops_per_second"] == pytest.approx(row["flops"] / row["seconds"])
        assert row["bytes_per_second"] == pytest.approx((row["read"] + row["written"]) / row["seconds"])


def plans_calls(folder: Path, name: str) -> int:
    """How often a step runs `accumulate`, by the report of the run."""
    graphs = json.loads((folder / name / "report/lowering.json").read_text())["graphs"]
    return next(graph["calls"] for graph in graphs if graph["name"] == "accumulate")


def test_the_table_is_said_at_the_end(folder: Path) -> None:
    said = run(folder, "table", profile=True).said
    begin = next(number for number, line in enumerate(said) if line.startswith("profile    "))
    assert " a step region by region, the least of 3; other steps took " in said[begin]
    assert said[begin + 1].startswith("           limits: products of float32 ")
    assert said[begin + 2].split()[:5] == ["time", "step", "count", "region", "result"]
    rows = said[begin + 3 :]
    assert any("product" in row for row in rows)
    assert any(row.endswith("a call of evaluate, region by region") for row in rows)
    assert max(map(len, said[begin:])) <= WIDTH


def test_a_run_of_one_step_is_sampled_whole(folder: Path) -> None:
    said = run(folder, "one", profile=True, steps=1).said
    assert any("region by region, the least of 1" in line for line in said)
    content = json.loads((folder / "one/report/trace.json").read_text())
    assert [event["args"]["sampled"] for event in content["traceEvents"] if event.get("cat") == "step"] == [True]


def test_a_run_that_is_complete_has_nothing_to_profile(folder: Path) -> None:
    run(folder, "done", profile=False, steps=600)
    said = run(folder, "done", profile=True, steps=600).said
    assert any("nothing to do" in line for line in said)
    assert not (folder / "done/report/trace.json").exists()
