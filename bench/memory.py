"""Planned against measured memory: `python -m bench.memory [W1 W3 ...]`, in float32 and in bfloat16.

A run with evaluations and checkpoints is watched from outside: the peak of its anonymous resident memory, less what was
resident just before its state and its arena were allocated. Beside it stand the plan and what the run itself reported
(`runtime/peak_bytes`). Plan and measurement are to be within 3 % of each other.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.contestants import PAREN
from bench.paren_contestant import FILES, Stamps
from bench.recorder import Recorder, say
from bench.watch import Failed, memory_of, watch
from bench.workloads.sizes import WORKLOADS, LanguageModel

STEPS, EVERY = 4, 2
HELD_OUT = 3  # batches of an evaluation
GOAL = 0.03
MIB = 1 << 20
NAMES = [name for name, workload in WORKLOADS.items() if isinstance(workload, LanguageModel) and not workload.bfloat16]


@dataclass(frozen=True)
class Measured:
    """Bytes: the plan's sum and parts, what the run reported, and what was seen from outside."""

    planned: int
    parts: dict[str, int]
    reported: int
    seen: int

    @property
    def difference(self) -> float:
        """How much more was seen than planned, as a share of the plan."""
        return self.seen / self.planned - 1


def announce_baseline() -> None:
    """Lets the watcher look at this process when the engine takes its baseline, before it allocates."""
    import paren.engine  # only in the process that is watched

    start_counting = paren.engine.CompiledEngine.start_counting

    def announced(engine: paren.engine.CompiledEngine) -> None:
        say("baseline", waits=True)
        sys.stdin.readline()
        start_counting(engine)

    paren.engine.CompiledEngine.start_counting = announced  # type: ignore[method-assign]


def train(name: str, precision: str, threads: int) -> None:
    """The process that is watched."""
    from paren import load  # only in the process that is watched

    workload = WORKLOADS[name]
    assert isinstance(workload, LanguageModel)
    announce_baseline()
    settings = {"steps": STEPS, "every": EVERY, "held-out": HELD_OUT * workload.batch, "precision": precision}
    experiment = load(FILES / "evaluated.paren", variant=name, set=settings)
    recorder = Recorder(STEPS)
    with tempfile.TemporaryDirectory() as folder:
        run = experiment.run(out=folder, threads=threads, progress=Stamps(recorder, 0))
        lines = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]
    memory = next(line for line in lines if line.get("annotation") == "memory")
    peak = max(line.get("runtime/peak_bytes", 0) for line in lines)
    parts = {part: size for part, size in memory.items() if part not in ("step", "annotation", "planned")}
    recorder.finish({}, planned=memory["planned"], reported=peak, parts=parts)


def measure(name: str, precision: str, threads: int) -> Measured:
    """Runs a workload and watches it. Raises `Failed`."""
    baseline: list[int] = []

    def asked(event: str, process: int) -> None:
        if event == "baseline":
            baseline.append(memory_of(process)["RssAnon"])

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench.memory", name, "--train", precision, "--threads", str(threads)]
        seen = watch(command, PAREN.environment(threads, Path(folder)), asked=asked)
    found = json.loads(json.dumps(dict(seen.more)))
    return Measured(found["planned"], found["parts"], found["reported"], seen.anonymous - baseline[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=NAMES)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--train", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        train(given.workloads[0], given.train, given.threads)
        return
    print(f"{'MiB':16}{'planned':>10}{'reported':>10}{'seen':>10}{'seen / planned':>16}   goal within {GOAL:.0%}")
    for name in given.workloads:
        for precision in ("off", "bfloat16"):
            label = f"{name} {'float32' if precision == 'off' else precision}"
            try:
                found = measure(name, precision, given.threads)
            except Failed as failure:
                print(f"{label:16} failed: {failure}", flush=True)
                continue
            answer = "reached" if abs(found.difference) <= GOAL else "NOT REACHED"
            figures = "".join(f"{size / MIB:10.1f}" for size in (found.planned, found.reported, found.seen))
            parts = ", ".join(f"{part} {size / MIB:.1f}" for part, size in found.parts.items() if size)
            print(f"{label:16}{figures}{found.difference:+16.1%}   {answer}: {parts}", flush=True)


if __name__ == "__main__":
    main()
