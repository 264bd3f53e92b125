"""What a run costs beside its arithmetic: `python -m bench.overhead [W1 W5]`.

- The share of a step that is spent outside compiled code: time between the ends of two steps, less the time in the
  native calls of the device. Goal: under 2 % on W1 and W5.
- A checkpoint against a plain copy of its bytes to the same disk, flushed, in turns. Goal: under 1.2 on W1.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import paren
from bench.paren_contestant import FILES
from bench.workloads.sizes import WORKLOADS, LanguageModel
from paren.plan.decision import Pattern
from paren.runtime.cpu import CpuDevice
from paren.runtime.task import Runs, Task

CHUNK = 8 << 20  # bytes
UNTIMED = 2  # steps, and at least as many checkpoints
OUTSIDE_GOAL, CHECKPOINT_GOAL = 0.02, 1.2


class NativeTime:
    """Seconds in the device's native calls since the last `take`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        original = CpuDevice.sequence

        def sequence(device: CpuDevice, tasks: Sequence[Task]) -> Runs:
            run = original(device, tasks)

            def timed(times: int = 1) -> int:
                start = time.perf_counter()
                done = run(times)
                self.seconds += time.perf_counter() - start
                return done

            return timed

        CpuDevice.sequence = sequence  # type: ignore[method-assign]  # in this process, which measures and ends

    def take(self) -> float:
        """The seconds, which start again at 0."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


class View:
    """A progress view that notes steps and checkpoints, and copies each checkpoint right after it was written."""

    def __init__(self, native: NativeTime) -> None:
        self.native = native
        self.out = Path()
        self.outside: list[float] = []
        self.saved: list[float] = []
        self.copied: list[float] = []
        self._last = 0.0
        self._saving: float | None = None

    def begin(self, done: int, stop: int) -> None:
        self._last = time.perf_counter()
        self.native.take()

    def step(self, step: int, record: Mapping[str, object]) -> None:
        now, compiled = time.perf_counter(), self.native.take()
        self.outside.append(1 - compiled / (now - self._last))
        self._last = time.perf_counter()

    def phase(self, name: str) -> None:
        now = time.perf_counter()
        if name == "saving":
            self._saving = now
        elif self._saving is not None:
            self.saved.append(now - self._saving)
            self._saving = None
            newest = max((self.out / "checkpoints").glob("[0-9]*"))
            self.copied.append(copy_and_flush(newest, self.out / "copy"))
            self.native.take()
            self._last = time.perf_counter()

    def notice(self, text: str) -> None: ...

    def end(self) -> None: ...


def copy_and_flush(folder: Path, target: Path) -> float:
    """Seconds that a plain copy of a folder's files takes until it is on the disk. They are in the system's cache."""
    for path in folder.iterdir():
        with path.open("rb") as source:
            while source.read(CHUNK):
                pass
    start = time.perf_counter()
    target.mkdir()
    for path in sorted(folder.iterdir()):
        with path.open("rb") as source, (target / path.name).open("wb") as copy:
            while chunk := source.read(CHUNK):
                copy.write(chunk)
            copy.flush()
            os.fsync(copy.fileno())
    seconds = time.perf_counter() - start
    for path in target.iterdir():
        path.unlink()
    target.rmdir()
    return seconds


def measure(name: str, steps: int, threads: int, folder: Path, native: NativeTime) -> None:
    """Measures a workload and prints its lines."""
    workload = WORKLOADS[name]
    assert isinstance(workload, LanguageModel)
    saves = 3
    settings = {"steps": steps, "every": -(-steps // saves), "held-out": workload.batch}
    view = View(native)
    with tempfile.TemporaryDirectory(dir=folder) as out:
        view.out = Path(out)
        experiment = paren.load(FILES / "evaluated.paren", variant=name, set=settings)
        explained = experiment.explain(device="cpu", threads=threads)
        if any(each.pattern is Pattern.SAVING and each.fired for each in explained.patterns):
            # No room for a copy of the state: a checkpoint is written before the next step, and can be timed.
            os.environ["PAREN_MEMORY"] = str(explained.memory.planned - 1)
        experiment.run(out=out, threads=threads, progress=view)
        os.environ.pop("PAREN_MEMORY", None)
    every = settings["every"]
    plain = [share for number, share in enumerate(view.outside, start=1) if number > UNTIMED and number % every]
    outside = median(plain)
    answer = _answer(outside < OUTSIDE_GOAL)
    print(f"{name}: outside compiled code {outside:7.2%} of a step, goal {OUTSIDE_GOAL:.0%}: {answer}")
    ratio = median(saved / copied for saved, copied in zip(view.saved, view.copied, strict=True))
    times = ", ".join(f"{saved:.2f} / {copied:.2f} s" for saved, copied in zip(view.saved, view.copied, strict=True))
    answer = _answer(ratio < CHECKPOINT_GOAL)
    print(
        f"{name}: a checkpoint takes {ratio:.2f} of a plain copy ({times}), goal {CHECKPOINT_GOAL}: {answer}",
        flush=True,
    )


def _answer(reached: bool) -> str:
    return "reached" if reached else "NOT REACHED"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=["W1", "W5"])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; default: the temporary folder")
    given = parser.parse_args()
    native = NativeTime()
    for name in given.workloads:
        measure(name, given.steps, given.threads, given.folder, native)


if __name__ == "__main__":
    main()
