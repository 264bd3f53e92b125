"""paren and its peers side by side in one run: `python bench/compare.py W1 W3 ... [--rounds N] [--only NAME,NAME]`;
with `--device cuda` on the first card.

Each contestant is a process of its own. They take turns (A B C A B C ...), so that what drifts on the machine drifts
for all. A round during which something else was computing is run again, and marked if that does not help. The machine's
limits are measured in the same run. Everything is kept in `bench/results/`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
if str(ROOT) not in sys.path:  # run as a file and not as a module
    sys.path.insert(0, str(ROOT))

from bench.contestants import PAREN, Contestant, contestants_of, own_path  # noqa: E402  # after the path
from bench.goals import DISTURBED, Summary, disagreement, floor_of, judge, summarise  # noqa: E402
from bench.recorder import read_clock  # noqa: E402
from bench.report import table, verdicts  # noqa: E402
from bench.watch import Failed, Outcome, watch  # noqa: E402
from bench.workloads.sizes import WORKLOADS, Workload  # noqa: E402

RESULTS = Path(__file__).parent / "results"
LIMIT = 900.0  # seconds that one process may take


@dataclass(frozen=True)
class Settings:
    """How to measure. `again`: how often a disturbed round of a contestant is repeated. `patience`: seconds to wait for
    an idle machine before each process. `timed`: units that are timed, None for the workload's own number."""

    rounds: int
    threads: int
    again: int
    patience: float
    timed: int | None
    only: tuple[str, ...]
    device: str


@dataclass
class Entry:
    """A contestant's rounds so far, and what went wrong."""

    contestant: Contestant
    outcomes: list[Outcome] = field(default_factory=list)
    failure: str = ""


def say(text: str) -> None:
    """Progress goes to stderr."""
    print(text, file=sys.stderr, flush=True)


def wait_until_idle(patience: float) -> None:
    """Returns when less than a tenth of a core is in use, or after `patience` seconds."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        before = read_clock()
        time.sleep(0.5)
        after = read_clock()
        if (after.machine - before.machine) / (after.wall - before.wall) < 0.1:
            return


def run_once(entry: Entry, workload: Workload, settings: Settings, folder: Path) -> Outcome:
    """One process of a contestant."""
    wait_until_idle(settings.patience)
    contestant = entry.contestant
    timed = settings.timed or workload.timed
    command = contestant.command(
        workload.name, timed, settings.threads, folder / "weights.safetensors", settings.device
    )
    return watch(command, contestant.environment(settings.threads, folder), LIMIT)


def run_round(entry: Entry, workload: Workload, settings: Settings, folder: Path) -> None:
    """Adds a round, the least disturbed of its repetitions, or notes the failure.

    The first round is the one without caches, so what repeats it can only replace its timings of steps.
    """
    try:
        outcome = run_once(entry, workload, settings, folder)
        for _ in range(settings.again):
            if outcome.others <= DISTURBED:
                break
            say(f"    {entry.contestant.name}: {outcome.others:.2f} cores were used by others, again")
            other = run_once(entry, workload, settings, folder)
            if other.others < outcome.others:
                outcome = replace(other, began=outcome.began, first=outcome.first)
    except Failed as failure:
        entry.failure = str(failure)
        say(f"    {entry.contestant.name} failed: {failure}")
        return
    entry.outcomes.append(outcome)
    say(f"    {entry.contestant.name}: {median(outcome.seconds) * 1e3:,.2f} ms, others {outcome.others:.2f}")


def present(workload: Workload, settings: Settings) -> list[Entry]:
    """Who takes part; says who is not installed."""
    found = []
    for contestant in contestants_of(workload):
        if settings.only and contestant.name not in settings.only:
            continue
        if not contestant.is_installed(settings.device):
            say(f"  {contestant.name} is not installed (python -m bench.peers install)")
            continue
        found.append(Entry(contestant))
    return found


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for weights and caches that begins empty."""
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        yield Path(folder)


def compare(workload: Workload, settings: Settings) -> list[Entry]:
    """All rounds of a workload."""
    say(f"{workload.name}: {workload.title}")
    entries = present(workload, settings)
    with scratch() as folder:
        if any(entry.contestant == PAREN for entry in entries):
            prepare = [sys.executable, "-m", PAREN.module, workload.name, "--prepare"]
            prepare += ["--weights", str(folder / "weights.safetensors")]
            subprocess.run(prepare, cwd=ROOT, check=True, env=PAREN.environment(settings.threads, folder))
        for number in range(settings.rounds):
            say(f"  round {number + 1} of {settings.rounds}")
            for entry in entries:
                if not entry.failure:
                    run_round(entry, workload, settings, folder)
    return entries


def summaries(workload: Workload, entries: Sequence[Entry]) -> list[Summary]:
    """A line for each contestant that finished; those whose losses are not the reference's are marked.

    The reference is torch in eager mode, or the first that is not paren, or paren alone.
    """
    finished = [entry for entry in entries if entry.outcomes and not entry.failure]
    order = sorted(finished, key=lambda entry: (entry.contestant.name != "torch-eager", entry.contestant == PAREN))
    reference = order[0].outcomes[0].losses if order else ()
    found = []
    for entry in finished:
        reasons = [disagreement(workload, outcome.losses, reference) for outcome in entry.outcomes]
        summary = summarise(entry.contestant.name, entry.outcomes)
        found.append(replace(summary, disagrees=next(filter(None, reasons), "")))
    return found


def measure_limits(settings: Settings) -> dict[str, dict[str, float]]:
    """`machine` and `limits` from a process of its own."""
    module = "bench.card_limits" if settings.device == "cuda" else "bench.limits"
    command = [sys.executable, "-m", module, "--json"]
    if settings.device == "cpu":
        command += ["--threads", str(settings.threads)]
    environment = {**os.environ, "PYTHONPATH": own_path(), "OMP_NUM_THREADS": str(settings.threads)}
    done = subprocess.run(command, cwd=ROOT, check=True, env=environment, capture_output=True, text=True)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def keep(record: dict[str, object]) -> Path:
    """Writes the run's record as dated JSON."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{datetime.now(UTC):%Y-%m-%d-%H%M%S}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def parse() -> tuple[list[Workload], Settings]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="W1 ... W6", help="default: W1 to W5")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--again", type=int, default=2, help="repetitions of a disturbed round")
    parser.add_argument("--patience", type=float, default=20.0, help="seconds to wait for an idle machine")
    parser.add_argument("--timed", type=int, help="steps (epochs of W4) that are timed in a round")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", default="", help="names of contestants, separated by commas")
    given = parser.parse_args()
    names = [name.upper() for name in given.workloads] or [name for name in WORKLOADS if name != "W6"]
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        parser.error(f"no workload {unknown[0]}: there is {', '.join(WORKLOADS)}")
    only = tuple(name for name in given.only.split(",") if name)
    settings = Settings(given.rounds, given.threads, given.again, given.patience, given.timed, only, given.device)
    return [WORKLOADS[name] for name in names], settings


def main() -> None:
    workloads, settings = parse()
    found = measure_limits(settings)
    record: dict[str, object] = {**found, "settings": asdict(settings)}
    medians: dict[str, Summary] = {}
    for workload in workloads:
        entries = compare(workload, settings)
        lines = summaries(workload, entries)
        floor = floor_of(workload, found["limits"])
        record[workload.name] = {
            "title": workload.title,
            "floor": floor,
            "rounds": {entry.contestant.name: [asdict(outcome) for outcome in entry.outcomes] for entry in entries},
            "failures": {entry.contestant.name: entry.failure for entry in entries if entry.failure},
            "summaries": [asdict(line) for line in lines],
        }
        print(table(workload, lines, floor))
        own = next((line for line in lines if line.name == PAREN.name), None)
        if own is not None:
            medians[workload.name] = own
            judged = judge(workload, own, [line for line in lines if line is not own], settings.device)
            record[workload.name] |= {"verdicts": [asdict(verdict) for verdict in judged]}  # type: ignore[operator]
            print(verdicts(judged))
        for entry in entries:
            if entry.failure:
                print(f"  {entry.contestant.name} failed: {entry.failure}")
        print(flush=True)
    if "W1" in medians and "W2" in medians:
        ratio = medians["W2"].seconds / medians["W1"].seconds
        print(f"bfloat16 takes {ratio:.2f} of float32's time (W2 / W1; never above 1)")
    print(f"kept in {keep(record).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
