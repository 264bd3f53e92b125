"""The lowering report says what the plans say, and fits on one screen."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
from defined_kernels import defined_device
from fake_nccl import fake_library
from plan_costs import plan_cost

import paren
from paren import api
from paren.api import Experiment
from paren.forecast.memory import memory_of
from paren.forecast.plans import Plans, make_plans
from paren.forecast.stacking import Candidate, make_candidate, most_stacked
from paren.inspect.explain import Explanation, explain
from paren.inspect.screen import HEIGHT, WIDTH, draw_short, show_scaled
from paren.parallel.topology import Visible
from paren.pipeline import Planning
from paren.plan.cost import Cost, step_cost
from paren.plan.decision import Decision, Pattern
from paren.plan.memory import kernels_of
from paren.plan.plan import Copy, Launch, Plan, Product
from paren.plan.traits import CUDA
from paren.runtime.cuda import nccl
from paren.runtime.cuda.requirements import Finding
from paren.text.size import show_bytes
from paren.text.source import Source, Span
from paren.train.files import Files
from paren.train.progress import Silent

EXAMPLES = Path(__file__).parents[2] / "examples"
GPT = str(EXAMPLES / "gpt.paren")
TARGETS = {"cpu": {"device": "cpu"}, "card": {"card": "h100-80g"}, "memory": {"memory": "24GiB", "arch": "sm_90"}}


@pytest.fixture(scope="module")
def gpt() -> Experiment:
    return paren.load(GPT)


@pytest.fixture(scope="module", params=list(TARGETS))
def report(request: pytest.FixtureRequest, gpt: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Explanation:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAREN_CACHE", str(tmp_path_factory.getbasetemp() / "explained"))
        return gpt.explain(**TARGETS[request.param], stacking=1)


@lru_cache(maxsize=1)
def plans_for_cards() -> Plans:
    return make_plans(paren.load(GPT).program, Planning(traits=CUDA))


def plans_of(experiment: Experiment, report: Explanation) -> Plans:
    """The plans that a report is about."""
    return experiment.plans if report.target.there else plans_for_cards()


def distinct(plans: Plans) -> dict[str, Plan]:
    """Every plan once, by the first of its names."""
    found: dict[int, tuple[str, Plan]] = {}
    for name, plan in plans.all.items():
        found.setdefault(id(plan), (name, plan))
    return dict(found.values())


def test_regions_are_the_steps_of_the_plans(gpt: Experiment, report: Explanation) -> None:
    graphs = {graph["name"]: graph for graph in report.data["graphs"]}
    plans = distinct(plans_of(gpt, report))
    assert set(graphs) == set(plans)
    for name, plan in plans.items():
        graph, cost = graphs[name], plan_cost(plan)
        assert (graph["steps"], len(graph["regions"])) == (len(plan.steps), len(plan.steps))
        assert graph["kernels"] == len(kernels_of(plan))
        assert graph["products"] == sum(isinstance(step, Product) for step in plan.steps)
        assert graph["copies"] == sum(isinstance(step, Copy) for step in plan.steps)
        assert graph["arena_bytes"] == plan.arena_bytes
        for key, value in vars(cost).items():
            if key != "instructions":
                assert graph[key] == value == sum(region[key] for region in graph["regions"])
        assert sum(graph["not_fused"].values()) == len(plan.refusals)


def test_a_region_has_the_place_and_the_sizes_of_its_step(gpt: Experiment, report: Explanation) -> None:
    plan = plans_of(gpt, report).accumulate
    buffers = {buffer.id: buffer for buffer in plan.buffers}
    (graph,) = [graph for graph in report.data["graphs"] if graph["name"] == "accumulate"]
    for step, region in zip(plan.steps, graph["regions"], strict=True):
        cost = step_cost(step, buffers)
        assert (region["read"], region["written"], region["flops"]) == (cost.read, cost.written, cost.flops)
        assert region["place"] == str(step.spans[0])
        if isinstance(step, Product):
            assert region["flops"] > 0
            assert region["name"].startswith(f"{step.m}x{step.k}x{step.n}")
            assert region["result"] == str(buffers[step.c.buffer].type)
        elif isinstance(step, Launch):
            assert region["name"] == step.kernel.name


def test_memory_is_the_plan_s(gpt: Experiment, report: Explanation) -> None:
    """With the copy of the state that checkpoints are written from where there is room for it."""
    (saving,) = [pattern for pattern in report.patterns if pattern.pattern is Pattern.SAVING] or [None]
    plans = replace(plans_of(gpt, report), copies_state=saving is not None and saving.fired)
    wanted, memory = memory_of(gpt.program, plans), report.data["memory"]
    assert memory["parts"] == wanted.parts
    assert memory["planned"] == wanted.planned == sum(memory["parts"].values())
    peak = {"graph": wanted.peak_graph, "place": wanted.peak_place, "gradients": wanted.peak_gradients}
    assert memory["peak"] == peak
    assert memory["fits"] == (wanted.planned <= memory["free"])
    assert memory["reserve"] == (0 if report.target.there else 1 << 30)
    largest = max(graph["arena_bytes"] for graph in report.data["graphs"])
    assert memory["parts"]["live"] == largest


def test_a_step_calls_each_graph_as_often_as_the_loop_does(gpt: Experiment, report: Explanation) -> None:
    calls = {graph["name"]: graph["calls"] for graph in report.data["graphs"]}
    assert calls["accumulate"] == gpt.program.run.microbatches == 4
    assert calls["initialize"] == calls["evaluate"] == calls["diagnose logit-scale"] == 0
    assert all(count == 1 for name, count in calls.items() if name.startswith("update"))


def test_predicted_time_is_the_sum_of_the_regions(report: Explanation) -> None:
    data = report.data
    if report.target.limits is None:
        assert data["seconds"] is None
        return
    sums = {graph["name"]: sum(region["seconds"] for region in graph["regions"]) for graph in data["graphs"]}
    step = sum(graph["calls"] * sums[graph["name"]] for graph in data["graphs"])
    assert data["seconds"] == pytest.approx(step)
    limits = data["target"]["limits"]
    for region in (region for graph in data["graphs"] for region in graph["regions"]):
        assert region["seconds"] >= region["flops"] / limits["products"]["float32"]
        assert region["seconds"] >= (region["read"] + region["written"]) / limits["traffic"]


def test_the_report_is_one_screen(report: Explanation) -> None:
    lines = str(report).splitlines()
    assert len(lines) <= HEIGHT == 50
    assert max(map(len, lines)) <= WIDTH == 120
    assert all(line == line.rstrip() for line in lines)


def test_the_screen_counts_repeated_blocks_once(gpt: Experiment, report: Explanation) -> None:
    """The six layers are one line each of what they compute."""
    data = report.data
    (graph,) = [graph for graph in data["graphs"] if graph["name"] == "accumulate"]
    rows = re.findall(
        r"^  x (\d+) +product (\d+x\d+x\d+(?: for [\d ]+?)?)  +(float32\[[\d ]+\]) .* (\S+)$", str(report), re.M
    )
    assert len(rows) > 6
    for count, name, result, place in rows:
        equal = [
            region
            for region in graph["regions"]
            if (region["name"], region["result"], region["place"]) == (name, result, f"{GPT}:{place}")
        ]
        assert int(count) == len(equal)
    assert gpt.program.settings[0].value in {int(row[0]) for row in rows}


def test_the_variant_with_twelve_layers_fits_on_the_screen_too(tmp_path: Path) -> None:
    experiment = paren.load(GPT, variant="gpt2")
    report = experiment.explain(card="h100-80g")
    lines = str(report).splitlines()
    assert len(lines) <= HEIGHT
    assert max(map(len, lines)) <= WIDTH
    assert re.search(r"^  x 12 +product \d+x768x3072 ", str(report), re.MULTILINE)


def test_products_of_bfloat16_have_their_own_rate(gpt: Experiment) -> None:
    """Loops over tiles multiply in the type of their products."""
    large = {"seq": 1024, "vocab": 50257, "batch": 32, "microbatches": 1}
    whole, half = (
        paren.load(GPT, set=large | {"precision": precision}).explain(card="h100-80g")
        for precision in ("off", "bfloat16")
    )
    assert "TFLOP/s of float32 products" in str(whole)
    assert "TFLOP/s of bfloat16 products" in str(half)
    assert whole.seconds is not None
    assert half.seconds is not None
    assert half.seconds < whole.seconds / 2
    rate = half.data["target"]["limits"]["products"]["bfloat16"]
    (graph,) = [graph for graph in half.graphs if graph.name == "accumulate"]
    assert graph.tiles > 0
    for region in graph.regions:
        assert region.seconds is not None
        assert region.seconds >= region.cost.flops / rate
        if region.kind not in ("kernel", "product"):
            assert region.seconds < region.cost.flops / whole.data["target"]["limits"]["products"]["float32"]


def test_a_card_that_is_too_small_is_told(gpt: Experiment) -> None:
    report = gpt.explain(memory="1200MiB")
    assert not report.data["memory"]["fits"]
    planned = f"{memory_of(gpt.program, plans_for_cards()).planned / 2**20:.3g} MiB"
    first = f"memory     {planned} planned of 176 MiB (its memory without 1 GiB for CUDA's libraries): does not fit"
    assert str(report).splitlines()[1] == first
    assert "time " not in str(report).splitlines()[5]
    small = gpt.explain(device="reference", memory="1200MiB")
    assert (small.target.memory, small.target.limit, small.fits) == (1200 << 20, "--memory", True)
    assert small.data["compiling"] is None


def test_the_memory_that_is_allowed_is_all_of_a_card_by_its_name(
    gpt: Experiment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Size beside the option --memory is the option's; of a card that has less, it is the card's."""
    monkeypatch.setenv("PAREN_CACHE", str(tmp_path))
    monkeypatch.setenv("PAREN_MEMORY", "100MiB")
    report = gpt.explain(card="l4", stacking=1)
    assert (report.target.memory, report.target.limit, report.fits) == (100 << 20, "PAREN_MEMORY", False)
    assert gpt.explain(memory="24GiB", stacking=1).target.memory == 23 << 30
    monkeypatch.setenv("PAREN_MEMORY", "100GiB")
    target = gpt.explain(card="l4", stacking=1).target
    assert (target.memory, target.limit) == ((23034 << 20) - (1 << 30), "its memory without 1 GiB for CUDA's libraries")


def test_everything_is_json(report: Explanation) -> None:
    assert json.loads(json.dumps(report.data, allow_nan=False)) == report.data


def test_kernels_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAREN_CACHE", str(tmp_path))
    experiment = paren.load(EXAMPLES / "regression.paren")
    first, second = (experiment.explain(threads=1).compiling for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.compiled > 0
    assert second.compiled == 0
    assert second.reused >= first.compiled  # one kernel may have been made for the machine's limits


# Decisions ----------------------------------------------------------------------------------------------------------

SOURCE = Source(GPT, "(a)\n(b)\n(c)\n")
A, B, C = (Span(SOURCE, start, start + 3) for start in (0, 4, 8))


def with_decisions(gpt: Experiment, count: int = 0) -> Explanation:
    tiles = Decision(Pattern.ATTENTION, True, "tiles of 128 rows", A, 1 << 20)
    decisions = (
        Decision(Pattern.HEAD, False, "the logits are an output", B, 3 << 20),
        tiles,
        replace(tiles, span=C),
        *(Decision(Pattern.UPDATE, False, f"reason {number}", None) for number in range(count)),
    )
    plans = gpt.plans
    accumulate = replace(plans.accumulate, decisions=decisions)
    clip = Decision(Pattern.UPDATE, False, ":clip needs the whole gradient first", C)
    changed = replace(plans, accumulate=accumulate, decisions=(clip,))
    return explain(gpt.program, changed, gpt.explain(memory="24GiB").target)


def test_decisions_are_grouped_and_ordered(gpt: Experiment) -> None:
    report = with_decisions(gpt)
    places = {f"{GPT}:{line}:1" for line in (1, 2, 3)}
    known = [row for row in report.data["patterns"] if set(row["places"]) & places]
    assert known == [
        {
            "pattern": "attention in tiles",
            "fired": True,
            "reason": "tiles of 128 rows",
            "count": 2,
            "places": [f"{GPT}:1:1", f"{GPT}:3:1"],
            "saved_bytes": 2 << 20,
        },
        {
            "pattern": "head in chunks",
            "fired": False,
            "reason": "the logits are an output",
            "count": 1,
            "places": [f"{GPT}:2:1"],
            "saved_bytes": 3 << 20,
        },
        {
            "pattern": "update inside the backward",
            "fired": False,
            "reason": ":clip needs the whole gradient first",
            "count": 1,
            "places": [f"{GPT}:3:1"],
            "saved_bytes": 0,
        },
    ]
    lines = str(report).splitlines()
    assert "  yes attention in tiles          x 2       2 MiB  tiles of 128 rows (1:1)" in lines
    assert "  no  head in chunks                        3 MiB  the logits are an output (2:1)" in lines
    assert "  no  update inside the backward                   :clip needs the whole gradient first (3:1)" in lines


def test_many_decisions_leave_room_for_the_rest(gpt: Experiment) -> None:
    report = with_decisions(gpt, 40)
    lines = str(report).splitlines()
    assert len(lines) <= HEIGHT
    assert max(map(len, lines)) <= WIDTH
    assert any(re.fullmatch(r"  and \d+ more: --json lists all", line) for line in lines)
    assert sum(line.startswith("  x ") for line in lines) >= 6


def test_costs_of_all_graphs_are_in_the_time_line(gpt: Experiment, report: Explanation) -> None:
    if report.target.limits is None:
        return
    cost = sum((graph.cost.times(graph.calls) for graph in report.graphs), Cost())
    assert f"{show_scaled(cost.flops, 'FLOP')} of products, {show_scaled(cost.bytes, 'B')} moved" in str(report)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (7.34e11, "FLOP", "734 GFLOP"),
        (46.9e12, "FLOP/s", "46.9 TFLOP/s"),
        (28e15, "FLOP", "28,000 TFLOP"),
        (59_200, "B", "59.2 kB"),
        (999_900, "B", "1 MB"),
        (12, "B", "12 B"),
        (0, "FLOP", "0 FLOP"),
        (23.4e12, " instructions/s", "23.4 T instructions/s"),
    ],
)
def test_amounts_have_three_digits_and_a_prefix(value: float, unit: str, text: str) -> None:
    assert show_scaled(value, unit) == text


def test_the_lines_of_a_run_fit_a_narrow_terminal(report: Explanation) -> None:
    narrow, wide = draw_short(report, 60), draw_short(report)
    assert max(map(len, narrow)) <= 60
    assert "".join("".join(narrow).split()) == "".join("".join(wide).split())


# Runs ---------------------------------------------------------------------------------------------------------------


def test_a_run_writes_its_report_and_says_the_first_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAREN_CACHE", str(tmp_path / "cache"))
    said: list[str] = []

    class View(Silent):
        def notice(self, text: str) -> None:
            said.append(text)

    experiment = paren.load(EXAMPLES / "regression.paren", variant="smoke")
    run = experiment.run(out=tmp_path / "run", steps=2, progress=View())
    written = json.loads((run.out / "report/lowering.json").read_text())
    planned = memory_of(experiment.program, experiment.plans).planned
    assert written["memory"]["planned"] == planned
    assert written["compiling"]["compiled"] > 0
    assert {graph["name"] for graph in written["graphs"]} == set(distinct(experiment.plans))
    begin = next(number for number, line in enumerate(said) if line.startswith("memory     "))
    assert f"{planned / 2**20:.3g} MiB planned of " in said[begin]
    assert any(line.startswith(f"compiling  {written['compiling']['compiled']} kernel") for line in said)


def test_a_report_that_cannot_be_written_has_a_code(gpt: Experiment, tmp_path: Path) -> None:
    (tmp_path / "report").write_text("")
    with pytest.raises(paren.ParenError) as caught:
        gpt.explain(memory="24GiB").write(tmp_path, Files())
    text = f"E-RUN-005: {tmp_path}/report is not writable (file exists)"
    assert str(caught.value) == f"{text}\n  fix: take another --out, or make the folder writable"


def test_degrees_of_stacking_that_fit_a_card(gpt: Experiment) -> None:
    """The highest one is found among the divisors of the microbatches, and is what its own plan needs."""
    plans = plans_for_cards()
    first = Candidate(gpt.program, plans, memory_of(gpt.program, plans))
    needed = {degree: make_candidate(first, degree).memory.planned for degree in (1, 2, 4)}
    assert most_stacked(first, needed[1] - 1) is None
    assert most_stacked(first, needed[1]) == most_stacked(first, needed[2] - 1) == (1, needed[1])
    assert most_stacked(first, needed[2]) == most_stacked(first, needed[4] - 1) == (2, needed[2])
    assert most_stacked(first, needed[4]) == (4, needed[4])
    report = gpt.explain(memory="24GiB")
    text = f"up to 4 fit, in {show_bytes(needed[4])}"
    assert report.data["stacking"]["text"] == (
        f"1 of 4 microbatches a call, as nothing is known about the speed; {text}"
    )
    assert report.data["stacking"]["chosen"]["most"] == 4
    assert text in " ".join(str(gpt.explain(card="h100-80g")).split())


def test_what_would_fit_is_said(tmp_path: Path) -> None:
    """What a report names as the smallest change needs as much as it says."""
    experiment = paren.load(EXAMPLES / "digits.paren")
    report = experiment.explain(device="reference", memory="3MiB")
    fix = report.data["memory"]["fix"]
    match = re.fullmatch(r"write :microbatches (\d+), which needs (.*)", fix)
    assert match is not None
    text = (EXAMPLES / "digits.paren").read_text().replace("(defrun", f"(defrun :microbatches {match[1]} ", 1)
    (tmp_path / "f.paren").write_text(text)
    smaller = paren.load(tmp_path / "f.paren").explain(device="reference", memory="3MiB", stacking=1)
    assert smaller.fits
    assert show_bytes(smaller.memory.planned) == match[2]
    assert smaller.data["memory"]["fix"] is None
    assert f"           fix: {fix}" in str(report).splitlines()


@pytest.mark.parametrize(
    ("target", "times"),
    [({"card": "h100-80g"}, (", 8.84 us", ", 19.9 us")), ({"memory": "24GiB"}, ("", ""))],
)
def test_what_cudnn_would_change_on_a_card(target: dict[str, str], times: tuple[str, str]) -> None:
    """The result of the forward and the gradients of q, k and v are read and written once less, in each of 2 calls. The
    products of q, k and v and of gelu's gradient are neither written nor read, that of gelu is only not read."""
    settings = {"layers": 1, "batch": 16, "microbatches": 2, "vocab": 512, "precision": "bfloat16"}
    report = paren.load(GPT, set=settings).explain(device="cuda", stacking=1, **target)
    moved = 2 * 2 * 2 * 4 * 8 * 256 * 384
    spared = 2 * 2 * 8 * 256 * (2 * 3 * 384 + 2 * 1536 + 1536)
    assert report.fallbacks == (
        "with the extra cudnn attention writes where the plan wants it: "
        f"{show_bytes(moved)} of copies a step less{times[0]}",
        "with the extra cudnn 3 products of a call are one step with the kernel after them, if that is faster: "
        f"{show_bytes(spared)} less to move a step{times[1]}",
    )
    assert all(text in " ".join(str(report).split()) for text in report.fallbacks)


def test_without_attention_cudnn_changes_nothing(gpt: Experiment) -> None:
    """Also where it is computed in float32, which no library takes."""
    assert gpt.explain(card="h100-80g", stacking=1).fallbacks == ()


def test_the_report_is_of_one_of_the_ranks_that_are_asked_for(
    gpt: Experiment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PAREN_CACHE", str(tmp_path))
    monkeypatch.setenv("PAREN_DEVICES", "0,1")
    report = gpt.explain(device="cpu", stacking=1)
    assert report.program.ranks == 2
    assert report.memory.parts["exchange"] > 0
    assert re.search(r"\bexchange [0-9]", str(report))


def test_a_rank_has_its_part_of_the_machine(gpt: Experiment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PAREN_CACHE", str(tmp_path))
    monkeypatch.setenv("PAREN_MEMORY", "1GiB")
    monkeypatch.setattr("paren.run.default_threads", lambda: 6)
    monkeypatch.setattr(api, "visible_devices", lambda name: Visible("cpu", 8, ""))
    monkeypatch.setenv("PAREN_DEVICES", "0,1")
    target = gpt.explain(device="cpu", stacking=1).target
    assert (target.name, target.memory) == ("cpu, 3 threads", 512 << 20)
    assert target.limit == "PAREN_MEMORY, shared by 2 ranks"
    monkeypatch.setenv("PAREN_DEVICES", "0")
    target = gpt.explain(device="cpu", threads=2, stacking=1).target
    assert (target.name, target.memory, target.limit) == ("cpu, 2 threads", 1 << 30, "PAREN_MEMORY")


def test_gradients_at_the_beginning_of_the_arena_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAREN_CACHE", str(tmp_path))
    report = paren.load(EXAMPLES / "regression.paren", variant="smoke").explain(device="cpu")
    memory = report.memory
    (accumulate,) = [graph for graph in report.graphs if graph.name == memory.peak_graph]
    assert memory.peak_gradients == memory.parts["gradients"] > 0
    assert memory.parts["live"] + memory.peak_gradients == accumulate.arena_bytes
    told = f"in live and the 320 bytes of gradients before it, {show_bytes(accumulate.arena_bytes)} in all, there"
    assert told in " ".join(str(report).split())


def test_what_auto_took_and_what_of_a_study_is_left_out_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAREN_CACHE", str(tmp_path))
    monkeypatch.setattr(
        "paren.runtime.device.examine_cuda", lambda _: [Finding("torch", "no card is here", "E-DEV-004", (), "")]
    )
    study = paren.load(EXAMPLES / "nre/nre.paren", variant="smoke")
    lines = str(study.explain(device="auto")).splitlines()
    assert lines[1] == "device     auto: the CPU, because no card is here"
    assert lines[2] == "study      of this study only the training of the file's own values; paren plan shows all jobs"
    assert study.explain(card="h100-80g").remarks.keys() == {"study"}
    assert paren.load(GPT).explain(device="reference").data["remarks"] == {}


def test_the_report_of_a_rank_says_whether_cards_exchange_gradients(
    gpt: Experiment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PAREN_CACHE", str(tmp_path))
    monkeypatch.setenv("PAREN_DEVICES", "0,1")
    monkeypatch.setattr(api, "visible_devices", lambda name: Visible("cuda", 2, ""))
    monkeypatch.setattr(api, "limits_of", lambda device, cache: None)
    monkeypatch.setattr(api, "open_own", lambda *_: defined_device()[0])
    monkeypatch.setattr(nccl, "find_nccl", fake_library)
    report = gpt.explain(device="cuda", stacking=1)
    assert report.memory.parts["exchange"] > 0
    assert report.memory.host_parts["exchange"] == 0
    assert report.fallbacks == ()
    monkeypatch.setattr(nccl, "find_nccl", lambda: "libnccl-of-nobody.so.2")
    report = gpt.explain(device="cuda", stacking=1)
    assert report.memory.host_parts["exchange"] > 0
    assert "exchange" not in report.memory.parts
    assert report.fallbacks == (
        "E-DEV-034: gradients of the cards go through the hosts, which is slower: NCCL cannot be loaded: "
        "libnccl-of-nobody.so.2: cannot open shared object file: No such file or directory",
    )
