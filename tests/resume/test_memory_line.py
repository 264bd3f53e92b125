"""What a run says about its memory at the end: what was used since compiling, beside what was planned."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from resume_runs import run, write_program

from paren.train.read_run import read_annotations, read_metrics
from paren.train.run import describe_peak

WIDE = """\
(defdata points
  (python "points.py" points :fields ((x float32 [5]) (y float32 [])) :split ((train 0.8) (validation 0.2)) :rows 512))
(defmodel net ((x float32 [5]))
  (mlp x [1536 1536] 1 :activation tanh))
(defrun :data points :loss (mean-squared-error (net x) y) :optimizer (adam :rate 1e-4) :batch 256 :steps 5 :seed 1
        :evaluate-every 2 :checkpoint-every 2 :log-every 1)
"""


def test_the_peak_is_what_was_planned(tmp_path: Path) -> None:
    """A plan of tens of MiB, cold caches: the compiler's memory is not counted, and little else than the plan is."""
    file = write_program(tmp_path, "wide", WIDE)
    code, _, shown = run("run", file, "--out", tmp_path / "run", "--threads", 1)
    assert code == 0
    found = re.search(r"memory: peak ([\d.]+) MiB of ([\d.]+) MiB planned \(([+-]\d+) %\)\n", shown)
    assert found, shown
    (annotation,) = [each for each in read_annotations(tmp_path / "run") if each["annotation"] == "memory"]
    planned = annotation["planned"]
    parts = ("parameters", "gradients", "optimizer", "averages", "live", "inputs", "products", "saving", "host")
    assert planned == sum(annotation[part] for part in parts) > 32 << 20
    peak = np.nanmax(read_metrics(tmp_path / "run")["runtime/peak_bytes"])
    assert float(found[1]) == pytest.approx(peak / 2**20, abs=0.5)
    assert float(found[2]) == pytest.approx(planned / 2**20, abs=0.5)
    assert 0.9 * planned < peak < 1.05 * planned + (8 << 20)


def test_small_plans_have_no_share() -> None:
    assert describe_peak(200_000, 9_850) == "peak 195 KiB of 9.62 KiB planned"
    assert describe_peak(58_793_984, 55_976_064) == "peak 56.1 MiB of 53.4 MiB planned (+5 %)"
    assert describe_peak(40 << 20, 64 << 20) == "peak 40 MiB of 64 MiB planned (-38 %)"


def test_many_steps_a_call_take_no_more_than_planned(tmp_path: Path) -> None:
    """A network whose plan is mostly tables of places, each of which is made while the one before is in use."""
    text = WIDE.replace("1536 1536", "16").replace(":batch 256 :steps 5", ":batch 128 :steps 3000")
    text = re.sub(":evaluate-every.*", ":log-every 50)", text)
    code, _, shown = run("run", write_program(tmp_path, "narrow", text), "--out", tmp_path / "run", "--threads", 1)
    assert code == 0, shown
    (annotation,) = [each for each in read_annotations(tmp_path / "run") if each["annotation"] == "memory"]
    peak = np.nanmax(read_metrics(tmp_path / "run")["runtime/peak_bytes"])
    assert 0.4 * annotation["planned"] < peak < 1.05 * annotation["planned"] < 2.2 * 2**20
