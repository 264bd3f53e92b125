"""The checks that need a card, on one that is not there: they hold, and what ends their process ends nothing else."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from emulated_card import emulated_device

from paren import run
from scripts import gpu_epilogues, gpu_profile, gpu_runs
from scripts.gpu_check import verbs
from scripts.gpu_graphs import KERNELS
from scripts.gpu_processes import Check, Checked, run_part

ROOT = Path(__file__).resolve().parents[2]
SLOW = ("softmax of long rows", "a whole sum, argmax", "gather and scatter")

# A part of five checks; the second ends the process, the third hangs, after the fourth the card is lost.
PART = """
import argparse, os, sys, time
from pathlib import Path
from scripts.gpu_processes import Check, make_checks

parser = argparse.ArgumentParser()
parser.add_argument("--record", type=Path)
parser.add_argument("--skip", type=int)
parser.add_argument("--most", type=int, default=100)
given = parser.parse_args()
lost = []

def wrong(said):
    said.append("something")
    lost.append(1)
    raise ArithmeticError("off by 3")

def ask():
    if lost:
        raise RuntimeError("CUDA error: an illegal memory access")

checks = [
    Check("first", lambda said: said.append("well")),
    Check("second", lambda said: os._exit(3)),
    Check("third", lambda said: time.sleep(1000)),
    Check("fourth", wrong),
    Check("fifth", lambda said: said.append(os.environ.get("CUDA_LAUNCH_BLOCKING", "at once"))),
]
sys.exit(make_checks(checks, given.record, range(given.skip, given.skip + given.most), 5.0, ask))
"""


def test_what_ends_a_process_ends_no_other_check(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "part.py"
    file.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{PART}")
    found = run_part([sys.executable, str(file)], tmp_path / "record", time.monotonic() + 300, True)
    assert [(each.name, each.said, each.failure) for each in found] == [
        ("first", ("well",), ""),
        ("second", (), "its process ended with 3"),
        ("third", (), "its process ended with 1"),
        ("fourth", ("something",), "ArithmeticError: off by 3"),
        ("fifth", ("at once",), ""),
    ]
    printed = capfd.readouterr()
    assert "Timeout (0:00:05)!" in printed.err  # and where it was
    assert "the card answers no more: CUDA error: an illegal memory access" in printed.out
    assert "fourth once more, with every call waited for:" in printed.out


def test_a_part_without_time_says_so(tmp_path: Path) -> None:
    assert run_part([sys.executable, "-c", ""], tmp_path / "record", time.monotonic(), False) == [
        Checked("a process of checks", 0.0, (), "no time was left")
    ]


def named(name: str) -> list[Check]:
    return [check for check in verbs(emulated_device()[0]) if name in check.name]


QUICK = ("transfers", "figures", "copy", "capture", "guard", "bfloat16 bfloat16 float32", "inside a graph", "of 8")


@pytest.mark.parametrize("name", [*QUICK, *KERNELS])
def test_the_checks_of_a_card_hold_on_one_that_is_not_there(name: str) -> None:
    """Those of long loops, which the emulation takes long for, are left out."""
    for check in named(name if name not in KERNELS else f"kernel: {name}"):
        if name not in SLOW:
            check.run([])


def test_runs_are_compared_on_a_card_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    device, real = emulated_device()[0], run.open_device
    monkeypatch.setattr(run, "open_device", lambda name, *given: device if name == "cuda" else real(name, *given))
    (case,) = (case for case in gpu_runs.CASES if case.name == "regression")
    assert gpu_runs.compare_with_cpu(case).startswith("24 losses, at most ")
    assert gpu_runs.repeat_and_resume(case).startswith("three runs gave ")


@pytest.mark.long
def test_a_profile_of_a_card_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_profile, "open_cuda", lambda index, cache: emulated_device()[0])
    small = ["layers=1", "heads=2", "width=16", "seq=12", "vocab=256", "batch=2", "warmup=2", "steps=20"]
    monkeypatch.setattr(sys, "argv", ["gpu_profile", "--variant", "smoke", *small])
    gpu_profile.main()
    assert "the step's graph " in capsys.readouterr().out


@pytest.mark.parametrize("able", [None, ()])
def test_products_with_their_kernels_are_compared_where_a_library_joins_them(
    able: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_epilogues, "WIDTH", 32)
    monkeypatch.setattr(gpu_epilogues, "HIDDEN", 64)
    device, card = emulated_device()
    card.able = able
    said: list[str] = []
    gpu_epilogues.compare_joined(device, 24, "bfloat16", said)
    if able is None:
        assert [line.partition(" after ")[2].partition(":")[0] for line in said] == ["24 x 32 x 64"] * 2
    else:
        assert said == ["not joined: the package of cuDNN is not installed"]
