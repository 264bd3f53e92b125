"""What a job of a study costs beside its training: `python -m bench.jobs [--jobs 100]`.

Trivial jobs (a network of 17 parameters, 5 steps, 40 rows of its own data each) in one worker, into a fresh folder: the
processor time of a job and of its parts, and the least wall time of a job, as other load on the machine changes the
first little and the least seldom. Goal: 50 ms a job. Then a launch that finds everything done, and a plan beside 10,000
artifacts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import paren.data.function
import paren.engine
import paren.experiment.jobs
import paren.experiment.store.artifact
import paren.experiment.training
import paren.forecast.stacking
import paren.inspect.explain
import paren.prepare
import paren.run
import paren.train.checkpoint
import paren.train.loop
from paren import api
from paren.experiment.events import Event
from paren.experiment.jobs import Job

GOAL, PLAN_GOAL = 50.0, 2.0  # milliseconds a job, seconds
ARTIFACTS = 10_000

DATA = """import numpy as np


def pairs(rows, seed):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, 2)).astype(np.float32)
    return {"x": x, "y": x.sum(1)}
"""

STUDY = """(def replica 0)
(defdata points
  (python "data.py" pairs :fields ((x float32 [2]) (y float32 [])) :split ((train 0.8) (validation 0.2)) :rows 40))
(defmodel net ((x float32 [2])) (mlp x [4] 1 :activation tanh))
(defrun :data points :loss (mean-squared-error (net x) y) :optimizer (adam :rate 1e-2) :batch 8 :steps 5
  :seed replica)
"""

# Parts of a job that do not lie in one another.
PARTS: tuple[tuple[str, object, str], ...] = (
    ("evaluating its program", paren.experiment.jobs, "elaborate"),
    ("its data: calling the function, storing", paren.experiment.training.Trainer, "data"),
    ("plans", paren.run, "first_candidate"),
    ("engine: code, buffers, bound steps", paren.prepare, "CompiledEngine"),
    ("lowering report", paren.prepare, "explain"),
    ("checkpoint", paren.train.checkpoint.CheckpointStore, "save"),
    ("sealing and publishing the model", paren.experiment.training.Store, "_publish"),
    ("fsync, in all of these", os, "fsync"),
)


class Parts:
    """Processor and wall seconds of the parts, summed."""

    def __init__(self) -> None:
        self.processor = {name: 0.0 for name, _, _ in PARTS}
        self.wall = dict(self.processor)
        for name, place, attribute in PARTS:
            setattr(place, attribute, self._timed(name, getattr(place, attribute)))

    def _timed(self, name: str, original: Callable[..., object]) -> Callable[..., object]:
        def timed(*given: object, **named: object) -> object:
            wall, processor = time.perf_counter(), time.process_time()
            try:
                return original(*given, **named)
            finally:
                self.wall[name] += time.perf_counter() - wall
                self.processor[name] += time.process_time() - processor

        return timed


class View:
    """Wall times between the ends of jobs."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._last = time.perf_counter()

    def begin(self, jobs: list[Job], finished: int) -> None:
        self._last = time.perf_counter()

    def show(self, event: Event) -> None:
        if event.kind == "done":
            now = time.perf_counter()
            self.times.append(now - self._last)
            self._last = now

    def notice(self, text: str) -> None: ...

    def end(self) -> None: ...


def write_study(folder: Path, jobs: int) -> Path:
    """The study, with so many replicas."""
    (folder / "data.py").write_text(DATA)
    path = folder / "study.paren"
    path.write_text(f"{STUDY}(defcohort (replica {' '.join(map(str, range(jobs)))}))\n")
    return path


def add_artifacts(out: Path, count: int) -> None:
    """So many more artifacts in the store: copies of what a model's holds, without its arrays."""
    first = next((out / "store" / "model").iterdir())
    manifest = json.loads((first / "artifact.json").read_bytes())
    for number in range(count):
        folder = out / "store" / "model" / f"{number:024x}"
        folder.mkdir()
        (folder / "artifact.json").write_text(json.dumps(manifest))


def seconds(action: Callable[[], object]) -> float:
    """The least of three."""
    found = []
    for _ in range(3):
        start = time.perf_counter()
        action()
        found.append(time.perf_counter() - start)
    return min(found)


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=100)
    jobs = parser.parse_args().jobs
    folder = Path(tempfile.mkdtemp())
    try:
        path, out, view = write_study(folder, jobs), folder / "out", View()
        api.load(path).train(folder / "warm", progress=View())  # kernels are in the cache
        parts = Parts()
        experiment = api.load(path)
        processor = time.process_time()
        experiment.train(out, progress=view)
        processor = (time.process_time() - processor) / jobs * 1e3
        least, middle = min(view.times) * 1e3, median(view.times) * 1e3
        print(f"{jobs} jobs, processor {processor:.1f} ms a job (goal {GOAL:.0f})")
        print(
            f"  wall {least:.1f} at least, {middle:.1f} median, without evaluating the programs, which is done before"
        )
        for name in parts.wall:
            own, wall = parts.processor[name] / jobs * 1e3, parts.wall[name] / jobs * 1e3
            print(f"  {name:42} processor {own:6.2f} ms, wall {wall:6.2f}")
        print(f"everything is done already: {seconds(lambda: api.load(path).train(out)):.2f} s")
        add_artifacts(out, ARTIFACTS)
        planned = seconds(lambda: api.load(path).plan(out))
        print(f"plan beside {ARTIFACTS:,} artifacts: {planned:.2f} s (goal {PLAN_GOAL:.0f})")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
