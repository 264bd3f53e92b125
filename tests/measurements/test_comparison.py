"""The measurements' own machinery: processes watched from outside, rounds made into lines, ratios judged."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import pytest

from bench.goals import Verdict, disagreement, floor_of, judge, summarise
from bench.report import table, verdicts
from bench.watch import Failed, Outcome, watch
from bench.workloads.sizes import WORKLOADS

CONTESTANT = """
from bench.recorder import Recorder, time_steps
recorder = Recorder(3)
held = bytearray(64 << 20)
print("a line of a library")
time_steps(recorder, lambda number: float(number), untimed=1)
recorder.finish({"python": "3"}, note="seen")
"""


def outcome(*seconds: float, **more: object) -> Outcome:
    plain = Outcome(seconds, (5.5, 5.4, 5.3, 5.0), 1.0, 2.0, 300 << 20, 200 << 20, 1.9, 0.1, 0.01, {})
    return replace(plain, **more)


def test_a_process_is_measured_from_outside() -> None:
    seen = watch([sys.executable, "-c", CONTESTANT], os.environ)
    assert len(seen.seconds) == 3
    assert seen.losses == (0.0, 1.0, 2.0, 3.0)
    assert 0 < seen.began < seen.first
    assert seen.peak > seen.anonymous > 64 << 20
    assert (seen.versions, seen.more) == ({"python": "3"}, {"note": "seen"})


def test_a_process_without_a_result_has_failed() -> None:
    with pytest.raises(Failed, match=r"^ZeroDivisionError: division by zero$"):
        watch([sys.executable, "-c", "import sys; sys.tracebacklimit = 0; 1 / 0"], os.environ)
    with pytest.raises(Failed, match=r"^exit code 3$"):
        watch([sys.executable, "-c", "raise SystemExit(3)"], os.environ)


def test_rounds_become_a_line() -> None:
    line = summarise("paren", [outcome(1.0, 2.0, 9.0, began=3.0), outcome(3.0), outcome(4.0, others=0.5, began=0.5)])
    assert (line.seconds, line.least, line.spread) == (3.0, 1.0, pytest.approx(2 / 3))
    assert (line.began_cold, line.began_warm) == (3.0, 0.75)
    assert (line.disturbed, line.others) == (1, 0.5)


def test_other_losses_are_other_work() -> None:
    reference = (5.5, 5.4, 5.3)
    assert disagreement(WORKLOADS["W3"], (5.50005, 5.4, 5.3, 4.0), reference) == ""
    assert disagreement(WORKLOADS["W3"], (5.5, 5.401, 5.3), reference) == "loss 2 is 5.40100, not 5.40000"
    assert disagreement(WORKLOADS["W3"], (float("nan"), 5.4, 5.3), reference) == "loss 1 is nan, not 5.50000"
    assert disagreement(WORKLOADS["W2"], (5.5, 5.4009, 5.3), reference) == ""
    assert disagreement(WORKLOADS["W4"], (0.3, 0.25, 0.22, 0.2079), ()) == ""
    assert disagreement(WORKLOADS["W4"], (0.3, 0.25, 0.22, 0.2186), ()) == "ends at 0.2186, not 0.2075"


def test_ratios_are_of_the_fastest_and_of_the_leanest() -> None:
    own = summarise("paren", [outcome(1.0), outcome(1.0)])
    quick = summarise("torch-compile", [outcome(2.0, peak=600 << 20)])
    lean = summarise("jax", [outcome(4.0, peak=150 << 20)])
    idle = replace(summarise("torch-eager", [outcome(0.1, peak=1 << 20)]), disagrees="loss 1 is 0, not 1")
    assert judge(WORKLOADS["W3"], own, [quick, lean, idle]) == [
        Verdict("time", 0.5, 0.55, "torch-compile"),
        Verdict("memory", 2.0, 1.0, "jax"),
        Verdict("warm start, s", 1.0, 1.5, ""),
    ]


def test_tables_say_everything() -> None:
    workload = WORKLOADS["W3"]
    floor = floor_of(workload, {"float32 products, GFLOP/s": 100.0, "bfloat16 products, GFLOP/s": 900.0})
    assert floor == pytest.approx(workload.flops / 1e11)
    own = summarise("paren", [outcome(0.028, others=0.3)])
    text = table(workload, [replace(own, disagrees="loss 1 is 0, not 1")], floor)
    assert text.splitlines()[0] == (
        "W3: 2 layers, 4 heads, width 128, vocabulary 256, 8 x 64 tokens, float32; "
        "a step needs 1.4 GFLOP, floor 13.59 ms"
    )
    assert " ".join(text.splitlines()[2].split()) == (
        "paren 28.00 28.00 0% 53.20 49% 300 200 1.00 - 2.00 - 1.90 0.30 "
        "disturbed in 1 of 1 rounds OTHER WORK: loss 1 is 0, not 1"
    )
    judged = [Verdict("time", 0.5, 0.55, "jax"), Verdict("warm start, s", 1.6, 1.5, "")]
    assert verdicts(judged).splitlines() == [
        "  time             0.50 of jax, goal 0.55: reached",
        "  warm start, s    1.60, goal 1.50: NOT REACHED",
    ]
