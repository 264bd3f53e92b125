"""The plan of a run's memory: its parts, and that a run takes no more and no less, seen from inside and outside."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import paren
from paren.data.loader import PREFETCH
from paren.forecast.memory import STACK, memory_of
from paren.forecast.plans import Plans, make_plans
from paren.ir.program import Program
from paren.ir.types import DType, TensorType
from paren.pipeline import Planning
from paren.plan.memory import busiest_step, top_steps
from paren.plan.plan import Buffer, Copy, Place, Plan
from paren.plan.traits import CUDA
from paren.text.source import Source, Span
from paren.train.read_run import read_annotations, read_metrics

SPAN = Span(Source("f.paren", "x"), 0, 1)

GPT = """\
(def microbatches 1)
(defdata text
  (token-file "tokens.bin" :dtype uint16 :length 64 :split ((train 0.9) (validation 0.1)) :evaluation-count 24{more}))
(def (block x)
  (let ((x (+ x (scope attention (causal-attention (layer-norm x) :heads 4)))))
    (+ x (scope mlp (linear (gelu (linear (layer-norm x) 1024)) 256)))))
(defmodel gpt ((tokens int32 [64]))
  (let ((table (param embedding [512 256] :init (normal 0.02)))
        (x (take table tokens))
        (x (fold (i 3) (x x) (scope (block i) (block x)))))
    (matmul (layer-norm x) (transpose table))))
(defrun :data text :loss (cross-entropy (gpt tokens) targets) :optimizer (adamw :rate 1e-4) :clip 1.0
  :batch 16 :microbatches microbatches :steps 6 :evaluate-every 2 :checkpoint-every 3 :log-every 1
  :keep (best evaluation/loss :min) :seed 1)
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAREN_CACHE", str(tmp_path / "cache"))


def write_gpt(folder: Path, more: str = "") -> Path:
    np.random.default_rng(0).integers(0, 512, 20_000).astype(np.uint16).tofile(folder / "tokens.bin")
    path = folder / "gpt.paren"
    path.write_text(GPT.format(more=more))
    return path


# From inside and outside ----------------------------------------------------------------------------------------------

OUTSIDE = """\
import json, sys, threading, time
import paren
from paren.engine import CompiledEngine

def anonymous():
    with open("/proc/self/smaps_rollup") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("Anonymous:"))

peak, baseline, ended = 0, 0, threading.Event()

def watch():
    global peak
    while not ended.wait(0.002):
        peak = max(peak, anonymous())

def before_the_arena(self):
    global peak, baseline
    baseline = peak = anonymous()
    start_counting(self)

start_counting, CompiledEngine.start_counting = CompiledEngine.start_counting, before_the_arena
thread = threading.Thread(target=watch)
thread.start()
try:
    paren.load("gpt.paren").run("out", threads=1)
finally:
    ended.set()
    thread.join()
print(json.dumps(peak - baseline))
"""


def test_a_run_takes_what_was_planned(tmp_path: Path) -> None:
    """With evaluations, checkpoints and the best parameters inside the run; another thread looks on."""
    program, plans = planned_of(write_gpt(tmp_path))
    planned = memory_of(program, replace(plans, planning=Planning(threads=1), copies_state=True)).planned
    done = subprocess.run(
        [sys.executable, "-c", OUTSIDE], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    outside = json.loads(done.stdout.splitlines()[-1])
    inside = np.nanmax(read_metrics(tmp_path / "out")["runtime/peak_bytes"])
    assert planned > 40 << 20
    (annotation,) = [each for each in read_annotations(tmp_path / "out") if each["annotation"] == "memory"]
    assert (annotation["planned"], annotation["saves_while_training"]) == (planned, True)
    memory = memory_of(program, plans)
    place = memory.peak_place.rpartition("/")[2]  # the file had another path here
    assert (annotation["peak_graph"], annotation["peak_place"]) == (memory.peak_graph, place)
    for peak in (inside, outside):
        assert abs(peak / planned - 1) < 0.03, (inside, outside, planned)


def planned_of(file: Path) -> tuple[Program, Plans]:
    program = paren.load(file).program
    return program, make_plans(program)


def test_every_line_has_a_peak_that_never_falls(tmp_path: Path) -> None:
    paren.load(write_gpt(tmp_path)).run(tmp_path / "out", threads=1, steps=3)
    columns = read_metrics(tmp_path / "out")
    peaks = columns["runtime/peak_bytes"][~np.isnan(columns["loss"])]
    assert len(peaks) == 3
    assert np.all(np.diff(peaks) >= 0)


def test_a_resume_takes_no_more_than_a_fresh_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Almost all memory that is allowed is planned; the checkpoint is not held beside the state."""
    file, out = write_gpt(tmp_path), tmp_path / "out"
    planned = memory_of(*planned_of(file)).planned
    monkeypatch.setenv("PAREN_MEMORY", str(int(1.04 * planned)))
    paren.load(file).run(out, threads=1, steps=3)
    fresh = np.nanmax(read_metrics(out)["runtime/peak_bytes"])
    paren.load(file).run(out, threads=1, resume="latest")
    resumed = read_metrics(out)["runtime/peak_bytes"][-1]
    assert resumed < 1.03 * min(fresh, planned)


# Parts ----------------------------------------------------------------------------------------------------------------


def test_an_evaluation_has_rows_of_its_own(tmp_path: Path) -> None:
    """`:evaluation-batch` changes the calls of an evaluation, and its means by rounding only."""
    losses, arenas = [], []
    for number, more in enumerate(("", " :evaluation-batch 5", " :evaluation-batch 24")):
        file = write_gpt(tmp_path, more)
        program, plans = planned_of(file)
        assert program.evaluation_rows == (16, 5, 24)[number]
        assert program.rows == 16
        arenas.append(plans.evaluate.arena_bytes)
        out = tmp_path / f"out-{number}"
        paren.load(file).run(out, threads=1, steps=2)
        losses.append(read_metrics(out)["evaluation/loss"])
    assert arenas[1] < arenas[0] < arenas[2]
    for other in losses[1:]:
        np.testing.assert_allclose(other, losses[0], rtol=1e-6)


def test_a_large_evaluation_is_what_is_refused(tmp_path: Path) -> None:
    program, plans = planned_of(write_gpt(tmp_path, " :evaluation-batch 2000"))
    memory = memory_of(program, plans)
    assert memory.peak_graph == "evaluate"
    assert memory.parts["live"] == plans.evaluate.arena_bytes > plans.accumulate.arena_bytes


def test_stacked_calls_hold_more_and_read_the_same(tmp_path: Path) -> None:
    first = paren.load(write_gpt(tmp_path), set={"microbatches": 4}).program
    parts = memory_of(first, make_plans(first)).parts
    whole = memory_of(*planned_of(write_gpt(tmp_path))).parts
    assert parts["live"] < whole["live"]
    for part in ("parameters", "gradients", "optimizer", "averages", "products", "saving", "host"):
        assert parts[part] == whole[part]


def test_a_rank_counts_its_part_of_a_batch_and_no_tables_of_many_steps(tmp_path: Path) -> None:
    program = replace(paren.load(write_gpt(tmp_path), set={"microbatches": 2}).program, ranks=2)
    example = 2 * 64 * 4
    part = 8 * (example + 8) + 16 * 8  # 8 rows, and the indices of the batch
    evaluation = 2 * program.evaluation_rows * (example + 8)
    inputs = memory_of(program, make_plans(program)).parts["inputs"]
    assert (program.calls, inputs) == (1, (PREFETCH + 1) * part + 8 * example + evaluation)


def test_the_sums_of_a_tree_of_gradients_lie_in_host_memory(tmp_path: Path) -> None:
    """Of 4 leaves on 2 ranks each adds 2: one sum, and the newest leaf."""
    program = replace(paren.load(write_gpt(tmp_path), set={"microbatches": 4}).program, ranks=2)
    tree = replace(program, run=replace(program.run, reproducible_over=4))
    own = memory_of(program, make_plans(program)).parts["gradients"]
    assert memory_of(tree, make_plans(tree)).parts["gradients"] == 3 * own
    on_card = memory_of(tree, make_plans(tree, Planning(traits=CUDA)))
    assert (on_card.parts["gradients"], on_card.host_parts["gradients"]) == (own, 2 * own)


@pytest.mark.parametrize("threads", [1, 3, 16])
def test_the_threads_of_a_run_count_and_not_those_of_the_machine(tmp_path: Path, threads: int) -> None:
    """More threads than processors may take less than planned: not all of them multiply at once."""
    file = write_gpt(tmp_path)
    paren.load(file).run(tmp_path / "out", threads=threads, steps=3)
    (memory,) = [each for each in read_annotations(tmp_path / "out") if each["annotation"] == "memory"]
    assert memory["planned"] == paren.load(file).explain(threads=threads).data["memory"]["planned"]
    program, plans = planned_of(file)
    parts, one = (memory_of(program, replace(plans, planning=Planning(threads=n))).parts for n in (threads, 1))
    assert parts["products"] == threads * one["products"] > 0
    assert parts["host"] - one["host"] == (threads - 1) * STACK
    copying = replace(plans, planning=Planning(threads=threads), copies_state=True)
    assert memory["planned"] == memory_of(program, copying).planned
    assert np.nanmax(read_metrics(tmp_path / "out")["runtime/peak_bytes"]) < 1.03 * memory["planned"]


# Where most is alive --------------------------------------------------------------------------------------------------


def buffer(number: int, size: int, first: int, last: int, offset: int) -> Buffer:
    return Buffer(number, "", TensorType(DType.UINT8, (size,)), Place.ARENA, first, last, offset, SPAN)


def test_bytes_that_two_buffers_share_are_counted_once() -> None:
    """Buffer 1 is written over buffer 0 in step 1, where both are alive; step 3 has more than that alive."""
    buffers = (buffer(0, 64, 0, 1, 0), buffer(1, 64, 1, 3, 0), buffer(2, 48, 3, 4, 64))
    steps = tuple(Copy(0, 1, (SPAN,), ()) for _ in range(5))
    assert busiest_step(Plan("p", buffers, steps, {}, 128, ())) == 3


def test_what_ends_the_arena_may_be_alive_where_little_else_is() -> None:
    """Step 0 has most alive; buffer 2 reaches the end in steps 2 and 3, and of these 3 has more alive."""
    buffers = (buffer(0, 192, 0, 0, 0), buffer(1, 64, 1, 3, 64), buffer(2, 80, 2, 3, 128), buffer(3, 32, 3, 4, 0))
    steps = tuple(Copy(0, 1, (SPAN,), ()) for _ in range(5))
    plan = Plan("p", buffers, steps, {}, 208, ())
    assert top_steps(plan) == [2, 3]
    assert busiest_step(plan, top_steps(plan)) == 3
    assert busiest_step(plan) == 0
    assert top_steps(Plan("p", (), steps, {}, 0, ())) == []
