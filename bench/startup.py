"""Where the time goes from the start of a process to its first step: `python -m bench.startup [W1 W3 ...]`.

Each workload is started twice, without and with compiled kernels in the cache. Two figures for each stage: seconds of
the wall, and seconds of processor time, which other load on the machine does not lengthen much.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from bench.contestants import PAREN
from bench.paren_contestant import settings_of
from bench.watch import ROOT
from bench.workloads.sizes import WORKLOADS

STAGES = {
    "python": "the interpreter",
    "import": "import paren",
    "load": "reading and evaluating the file",
    "plan": "plans of all graphs",
    "open": "device, data and their checks, folder",
    "compile": "kernels compiled or loaded, the report",
    "fill": "first weights, files of the run",
    "step": "the first step",
}


class Marks:
    """A progress view that notes when each stage ends."""

    def __init__(self, start: float) -> None:
        self.ends: dict[str, tuple[float, float]] = {}
        self.start = start

    def end_of(self, stage: str) -> None:
        self.ends.setdefault(stage, (time.monotonic() - self.start, time.process_time()))

    def begin(self, done: int, stop: int) -> None:
        self.end_of("fill")

    def step(self, step: int, record: Mapping[str, object]) -> None:
        self.end_of("step")

    def phase(self, name: str) -> None:
        if name == "compiling":
            self.end_of("open")

    def notice(self, text: str) -> None:
        if text.startswith("compiling "):
            self.end_of("compile")

    def end(self) -> None: ...


def child(name: str, weights: Path, threads: int | None, start: float) -> None:
    """Starts a run, notes its stages, and ends it after one step."""
    marks = Marks(start)
    marks.end_of("python")
    from paren import load  # its loading is a stage

    marks.end_of("import")
    file, variant, settings = settings_of(WORKLOADS[name], 1, weights)
    experiment = load(file, variant=variant, set=settings)
    marks.end_of("load")
    assert experiment.plans
    marks.end_of("plan")
    with tempfile.TemporaryDirectory() as folder:
        experiment.run(out=folder, threads=threads, steps=1, progress=marks)
    print(json.dumps(marks.ends))


def show(name: str, rounds: list[dict[str, tuple[float, float]]]) -> None:
    """The stages of the cold and of the warm start."""
    print(f"{name}: seconds{'cold: wall':>36}{'processor':>11}{'warm: wall':>12}{'processor':>11}")
    before = [(0.0, 0.0)] * len(rounds)
    for stage, words in STAGES.items():
        cells = ""
        for number, ends in enumerate(rounds):
            wall, used = ends.get(stage, before[number])
            cells += f"{wall - before[number][0]:12.3f}{used - before[number][1]:11.3f}"
            before[number] = (wall, used)
        print(f"  {words:58}"[:42].ljust(42) + cells)
        if stage == "fill":
            until = "".join(f"{wall:12.3f}{used:11.3f}" for wall, used in before)
            print(f"  {'to the beginning of the first step':40}{until}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=["W1", "W3", "W4"])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--child", nargs=2, metavar=("WEIGHTS", "START"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.workloads[0], Path(given.child[0]), given.threads, float(given.child[1]))
        return
    for name in given.workloads:
        with tempfile.TemporaryDirectory() as folder:
            weights = Path(folder) / "weights.safetensors"
            environment = PAREN.environment(given.threads or 2, Path(folder))
            prepare = [sys.executable, "-m", PAREN.module, name, "--prepare", "--weights", str(weights)]
            subprocess.run(prepare, cwd=ROOT, env=environment, check=True)
            rounds = []
            for _ in range(2):
                command = [sys.executable, "-m", "bench.startup", name]
                command += ["--threads", str(given.threads)] if given.threads else []
                command += ["--child", str(weights), str(time.monotonic())]
                done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
                rounds.append(json.loads(done.stdout))
            show(name, rounds)


if __name__ == "__main__":
    main()
