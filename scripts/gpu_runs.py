"""Whole runs on the first card: the same training as on the CPU, the same bits again, resume, memory within its plan.

Part of `scripts/gpu_check.py`. Each check is a function that gives a phrase with its figures, and raises `Wrong` with
what it found instead.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paren import load
from paren.environment import inherited_variables
from paren.train.read_run import read_annotations, read_metrics, read_weights

ROOT = Path(__file__).parent.parent
LANGUAGE_MODEL = ROOT / "bench" / "workloads" / "evaluated.paren"
STEPS = 24
MEMORY_GOAL = 0.03  # of the plan


class Wrong(Exception):
    """A check that did not hold, with what was found."""


@dataclass(frozen=True)
class Case:
    """A file to train for `STEPS` steps. `tolerance`: how far losses may be apart, relative to the CPU's."""

    name: str
    file: Path
    variant: str | None
    settings: Mapping[str, object]
    tolerance: float


CASES = (
    Case("GPT, float32", LANGUAGE_MODEL, "W3", {"every": 8, "held-out": 8}, 1e-4),
    Case("GPT, bfloat16", LANGUAGE_MODEL, "W3", {"every": 8, "held-out": 8, "precision": "bfloat16"}, 5e-3),
    Case("GPT, float16", LANGUAGE_MODEL, "W3", {"every": 8, "held-out": 8, "precision": "float16"}, 2e-3),
    Case(
        "GPT of odd sizes",
        LANGUAGE_MODEL,
        "W3",
        {"vocabulary": 331, "length": 63, "batch": 3, "every": 8, "held-out": 3},
        1e-4,
    ),
    Case("network on rows in memory", ROOT / "bench" / "workloads" / "ratio.paren", None, {"epochs": 1}, 1e-4),
    Case("regression", ROOT / "examples" / "regression.paren", None, {}, 1e-3),
    Case("digits, convolutions", ROOT / "examples" / "digits.paren", None, {}, 1e-3),
)


def train(case: Case, device: str, out: Path, steps: int, resume: str | None = None) -> np.ndarray:
    """The losses of a run, float64[steps]."""
    settings = dict(case.settings)
    if case.file.name == "ratio.paren":
        settings["weights"] = str(_weights(out.parent))
    elif case.file == LANGUAGE_MODEL:
        settings["steps"] = STEPS
    run = load(case.file, variant=case.variant, set=settings).run(out=out, device=device, steps=steps, resume=resume)
    columns = read_metrics(run.out)
    return columns["loss"][np.isfinite(columns["loss"])]


def _weights(folder: Path) -> Path:
    from bench.paren_contestant import write_weights  # only this case needs the benchmark's first weights
    from bench.workloads.sizes import WORKLOADS

    path = folder / "weights.safetensors"
    if not path.exists():
        write_weights(WORKLOADS["W4"], path)
    return path


def digest(out: Path) -> str:
    """SHA-256 of the trained parameters."""
    content = hashlib.sha256()
    for name, array in sorted(read_weights(out).parameters.items()):
        content.update(name.encode())
        content.update(np.ascontiguousarray(array).tobytes())
    return content.hexdigest()


def compare_with_cpu(case: Case) -> str:
    """The losses of the card are the CPU's to a tolerance."""
    with tempfile.TemporaryDirectory() as folder:
        there, here = (train(case, device, Path(folder) / device, STEPS) for device in ("cuda", "cpu"))
    if there.shape != here.shape:
        raise Wrong(f"{len(there)} losses, {len(here)} on the CPU")
    apart = float(np.abs(there / here - 1).max())
    found = f"{len(there)} losses, at most {apart:.1e} apart ({there[0]:.4f} to {there[-1]:.4f})"
    if not apart <= case.tolerance:
        raise Wrong(f"{found}, {case.tolerance:.0e} allowed: {there[:4].tolist()} and {here[:4].tolist()}")
    return found


def repeat_and_resume(case: Case) -> str:
    """Two runs, and one that was cut in the middle and resumed, end with the same bits."""
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / name for name in ("first", "second", "cut")]
        for out in outs[:2]:
            train(case, "cuda", out, STEPS)
        train(case, "cuda", outs[2], STEPS // 3)
        train(case, "cuda", outs[2], STEPS, resume="latest")
        digests = [digest(out) for out in outs]
    if len(set(digests)) != 1:
        raise Wrong(f"three runs gave the digests {[each[:12] for each in digests]}")
    return f"three runs gave {digests[0][:12]}"


def compare_ways(case: Case) -> list[str]:
    """On two cards NCCL and the hosts end with the same bits, and a run that was cut does; what each said of it."""
    with tempfile.TemporaryDirectory() as folder:
        outs = {name: Path(folder) / name for name in ("nccl", "hosts", "cut")}
        said = [f"{way}: {line}" for way in ("nccl", "hosts") for line in _train_on_two(case, outs[way], way, STEPS)]
        _train_on_two(case, outs["cut"], "nccl", STEPS // 3)
        _train_on_two(case, outs["cut"], "nccl", STEPS, "--resume", "latest")
        digests = [digest(out) for out in outs.values()]
    if len(set(digests)) != 1:
        raise Wrong(f"three runs gave the digests {[each[:12] for each in digests]}; {'; '.join(said)}")
    if not any("from card to card by NCCL" in line for line in said):
        raise Wrong("; ".join(said))
    return said


def _train_on_two(case: Case, out: Path, way: str, steps: int, *more: str) -> list[str]:
    """A run on the first two cards; its lines about the exchange."""
    settings = {**case.settings, "steps": STEPS}
    command = [sys.executable, "-m", "paren", "run", str(case.file), "--out", str(out), "--device", "cuda"]
    command += ["--steps", str(steps), *(["--variant", case.variant] if case.variant else []), *more]
    for name, value in settings.items():
        command += ["--set", f'{name}="{value}"' if isinstance(value, str) else f"{name}={value}"]
    variables = inherited_variables() | {"PAREN_DEVICES": "0,1", "PAREN_CARD_GRADIENTS": way}
    done = subprocess.run(command, env=variables, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise Wrong(f"exit code {done.returncode}: {done.stderr[-2000:]}")
    return [line.strip() for line in done.stderr.splitlines() if line.startswith(("exchange", "E-DEV-034"))]


def keep_to_the_plan(variant: str, precision: str, steps: int = 6) -> str:
    """The peak of the card's memory is the planned one, with evaluations and checkpoints in the run."""
    settings = {"steps": steps, "every": steps // 2, "held-out": 8, "precision": precision}
    with tempfile.TemporaryDirectory() as folder:
        run = load(LANGUAGE_MODEL, variant=variant, set=settings).run(out=folder, device="cuda")
        planned = next(each["planned"] for each in read_annotations(run.out) if each["annotation"] == "memory")
        peak = float(np.nanmax(read_metrics(run.out)["runtime/peak_bytes"]))
    off = peak / planned - 1
    found = f"{peak / 2**20:,.0f} MiB of {planned / 2**20:,.0f} planned ({off:+.1%})"
    if abs(off) > MEMORY_GOAL:
        raise Wrong(found)
    return found


def checks() -> dict[str, Callable[[], str]]:
    """Every check by its name, the quickest first."""
    found: dict[str, Callable[[], str]] = {}
    for case in CASES:
        found[f"{case.name}: as on the CPU"] = lambda case=case: compare_with_cpu(case)
    for case in CASES[:3]:
        found[f"{case.name}: the same bits again, and resumed"] = lambda case=case: repeat_and_resume(case)
    for variant, precision in (("W5", "off"), ("W1", "off"), ("W2", "bfloat16"), ("W6", "bfloat16")):
        found[f"memory of {variant}"] = lambda v=variant, p=precision: keep_to_the_plan(v, p)
    return found
