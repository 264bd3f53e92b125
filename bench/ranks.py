"""What several ranks cost on one machine: `python -m bench.ranks [W5] [--ranks 2] [--steps 12] [--times 3]`.

The same batches are trained by one process with as many threads as there are ranks, and by ranks of one thread each, in
turns. Goal: a step of the ranks takes at most 15 % longer. Beside it stands how long the first rank exchanged gradients
in a step, and how much of that was beside the backward.

On a busy machine times say little: the load is printed, and processor time is compared too, of all processes in a step,
which does not count what others compute, nor waiting that sleeps.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

FILE = Path(__file__).parent / "workloads" / "steps.paren"
GOAL = 1.15
UNTIMED = 2  # steps


Measured = dict[str, list[float]]


def train(name: str, steps: int, out: Path, threads: int, devices: str) -> tuple[Measured, float]:
    """Trains a workload as a command; gives what its metrics measured, step by step, and processor seconds."""
    command = [sys.executable, "-m", "paren", "run", str(FILE), "--variant", name, "--set", f"steps={steps}"]
    command += ["--threads", str(threads), "--out", str(out)]
    given = {name: value for name, value in os.environ.items() if name not in ("PAREN_DEVICES", "PAREN_NODES")}
    before = processor_seconds()
    variables = {"PAREN_DEVICES": devices} if devices else {}
    subprocess.run(command, env=given | variables, check=True, capture_output=True)
    seconds = processor_seconds() - before
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    records = [line for line in lines if "annotation" not in line][UNTIMED:]
    series = [each for each in records[0] if each.startswith("runtime/")] if records else []
    return {each: [record[each] for record in records] for each in series}, seconds


def processor_seconds() -> float:
    """Of all processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Prints a line for each run, and the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", nargs="?", default="W5")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    ranks, name = options.ranks, options.workload
    kinds = {"alone": (ranks, ""), "ranks": (1, ",".join(map(str, range(ranks))))}
    least, busy = dict.fromkeys(kinds, float("inf")), dict.fromkeys(kinds, float("inf"))
    with tempfile.TemporaryDirectory() as folder:
        for time in range(options.times):
            for kind, (threads, devices) in kinds.items():
                out = Path(folder) / f"{kind} {time}"
                _, start = train(name, UNTIMED, out.with_name(f"{out.name} start"), threads, devices)
                found, whole = train(name, options.steps, out, threads, devices)
                steps, processor = found["runtime/step-ms"], 1e3 * (whole - start) / (options.steps - UNTIMED)
                least[kind], busy[kind] = min(least[kind], *steps), min(busy[kind], processor)
                told = f"{kind}: a step {min(steps):.0f} ms at least, {median(steps):.0f} in the middle"
                told += f", {processor:.0f} of processors"
                if "runtime/exchange-ms" in found:
                    spent, hidden = found["runtime/exchange-ms"], found["runtime/exchange-hidden-ms"]
                    told += f"; exchange {min(spent):.0f} at least, {median(spent):.0f} in the middle"
                    told += f", {100 * sum(hidden) / sum(spent):.0f} % of it hidden"
                print(f"{told}; load {os.getloadavg()[0]:.1f}", flush=True)
    ratio, processors = least["ranks"] / least["alone"], busy["ranks"] / busy["alone"]
    met = "met" if ratio <= GOAL else "missed"
    print(f"{name}: {ranks} ranks take {ratio:.2f} of one process of {ranks} threads (goal {GOAL}: {met})")
    print(f"processor time {processors:.2f}")


if __name__ == "__main__":
    main()
