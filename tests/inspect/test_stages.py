"""`paren show` shows every graph of a run as it runs: all of them, at their sizes, with what lowering had to store."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import paren
from paren.api import Experiment
from paren.forecast.plans import make_plans, run_graphs
from paren.plan.memory import kernels_of
from paren.text.errors import ParenError

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module", params=["gpt", "digits", "regression"])
def experiment(request: pytest.FixtureRequest) -> Experiment:
    return paren.load(EXAMPLES / f"{request.param}.paren", variant="smoke")


def names(experiment: Experiment) -> list[str]:
    """The graphs of a run; of those that share a plan, the first."""
    first: dict[int, str] = {}
    plans = experiment.plans.all
    return [name for name, plan in plans.items() if first.setdefault(id(plan), name) == name]


@pytest.mark.parametrize("stage", ["graph", "fused", "plan"])
def test_every_graph_of_a_run_is_shown(experiment: Experiment, stage: str) -> None:
    headers = re.findall(r"^(?:graph|plan) ([^:(]+?)(?::| ?\(|$)", experiment.show(stage), re.MULTILINE)
    assert headers == names(experiment)


def test_plans_are_those_that_run(experiment: Experiment) -> None:
    text = experiment.show("plan")
    for name, plan in experiment.plans.all.items():
        if name in names(experiment):
            assert f"plan {name}: {len(plan.steps)} steps, arena {plan.arena_bytes} bytes\n" in text
    trained = re.search(r"state gradients (float32\[\d+\])", text)
    (buffer,) = [buffer for buffer in experiment.plans.finish.buffers if buffer.name == "gradients"]
    assert trained is not None
    assert trained[1] == str(buffer.type)


def test_the_code_of_every_kernel_is_shown(experiment: Experiment) -> None:
    digests = {digest for plan in experiment.plans.all.values() for digest in kernels_of(plan)}
    assert len(re.findall(r"^; ", experiment.show("code"), re.MULTILINE)) >= len(digests)


def test_fused_shows_what_could_be_lowered() -> None:
    """A group for every kernel or product that a plan has before loops over tiles are cut."""
    experiment = paren.load(EXAMPLES / "regression.paren", variant="smoke")
    plans = experiment.plans.all
    for name, count in re.findall(r"^graph ([^:]+): (\d+) steps$", experiment.show("fused"), re.MULTILINE):
        assert 0 < int(count) <= len(plans[name].steps)


def test_graphs_and_plans_have_the_same_names(experiment: Experiment) -> None:
    assert list(run_graphs(experiment.program)) == list(make_plans(experiment.program).all)


def test_a_stage_that_there_is_not() -> None:
    with pytest.raises(ParenError) as caught:
        paren.load(EXAMPLES / "regression.paren").show("grap")
    assert (caught.value.code, caught.value.message) == ("E-API-002", "no stage grap (did you mean graph?)")
    assert caught.value.fix == "use one of forms, program, graph, fused, plan, code"
