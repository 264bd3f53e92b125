"""Faults at random moments on any of four ranks, of two nodes or of torchrun: nothing stays behind, the rank is named,
and the run goes on exactly.

SEED repeats a campaign. Each round prints what it did and for how long there were processes after it.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rank_processes import free_port
from rank_runs import (
    HOST,
    LIMIT,
    TWO,
    Started,
    finish,
    last_line,
    node,
    parameters,
    ranks_of,
    running,
    start,
    start_torchrun,
    train_on_ranks,
    wait_for_step,
    write_experiment,
)

STEPS = 30  # within which a fault comes
ENDLESS = ("--set", "epochs=2000", "--set", "evaluate=3", "--stacking", "1")
PACE = "sleep0.05@{}:steps"
REST = "sleep@{}:step{}"  # so that it gets no further, however late the fault comes
GONE, FROZEN = 15.0, 25.0  # seconds after which all processes are to be gone on a machine that has time for them
FAULTS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "raise": None}
EARLY = ("join", "data", "compile")  # places before the first step
Layout = Callable[..., list[Started]]


def on_two_nodes(file: Path, out: Path, *arguments: str, fault: str = "") -> list[Started]:
    port = free_port()
    variables = [node(index, port, FAULT=fault, **TWO) for index in range(2)]
    return [start(file, out, *ENDLESS, *arguments, variables=each) for each in variables]


def under_torchrun(file: Path, out: Path, *arguments: str, fault: str = "") -> list[Started]:
    return [start_torchrun(4, file, out, *ENDLESS, *arguments, variables={"FAULT": fault})]


LAYOUTS: dict[str, Layout] = {"nodes": on_two_nodes, "torchrun": under_torchrun}


def complete(file: Path, out: Path, layout: str, steps: int, *arguments: str) -> dict[str, bytes]:
    """The parameters after so many steps."""
    nodes = 2 if layout == "nodes" else 1
    return parameters(train_on_ranks(4, file, out, *ENDLESS, "--steps", str(steps), *arguments, nodes=nodes))


def find_rank(processes: list[Started], rank: int) -> int:
    """The process of a rank, as soon as there is one."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        found = {number: process for each in processes for number, process in ranks_of(each).items()}
        if rank in found:
            return found[rank]
        time.sleep(0.01)
    raise AssertionError(f"rank {rank} did not start")


def disturb(chance: random.Random, file: Path, out: Path, layout: str, kind: str) -> tuple[str, float]:
    """One fault at a random moment of a run that goes on: what it was, and for how many seconds there were processes
    after it."""
    rank, early = chance.randrange(4), chance.random() < 0.3
    step, moment = steps_of(out) + chance.randint(1, STEPS), chance.uniform(0, 5)
    number, place = FAULTS[kind], chance.choice(EARLY) if early else f"step{step}"
    fault = f"{PACE.format(rank)} " + (REST.format(rank, step + 8) if number else f"raise@{rank}:{place}")
    processes = LAYOUTS[layout](file, out, "--resume", "auto", fault=fault)
    process = find_rank(processes, rank)
    if number is None:
        # Not by a signal, whose error is lost where a library expects errors, as in many an import.
        when = f"at {place}"
        wait_for_end(process)
    elif early and not (layout == "torchrun" and kind == "stop"):  # before the first sign only a launcher sees that
        time.sleep(moment)
        when = f"{moment:.2f} s after the start"
    else:
        wait_for_step(out, step)
        time.sleep(moment / 25)
        when = f"from step {step} on"
    if number is not None:
        os.kill(process, number)
    begin = time.monotonic()
    ends = [finish(each) for each in processes]
    while running(out) and time.monotonic() - begin < LIMIT:
        time.sleep(0.05)
    seconds = time.monotonic() - begin
    told = f"{kind} rank {rank} on {layout} {when}"
    assert not running(out), told
    for code, said in ends:
        assert code == 1, f"{told}: {said}"
        assert is_named(rank, said, layout), f"{told}: {said}"
    return told, seconds


def wait_for_end(process: int) -> None:
    """Returns when a process of another parent has ended."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    raise AssertionError(f"process {process} did not end")


def is_named(rank: int, said: str, layout: str) -> bool:
    """Whether the last line of a run names a rank. torchrun speaks last, and alone if it ends ranks that have not met
    yet."""
    lines = [line for line in said.splitlines() if line.startswith("E-DP-")]
    if layout == "torchrun" and not lines:
        return re.search(rf"Root Cause.*\n.*\n.*\n.*\n *rank +: {rank} ", said) is not None
    last = last_line(said) if layout == "nodes" else lines[-1]
    return re.match(rf"E-DP-008: rank {rank} on {HOST} failed ", last) is not None


def steps_of(out: Path) -> int:
    """The last step that the metrics have."""
    path = out / "metrics.jsonl"
    found = re.findall(r'"step": ([0-9]+)', path.read_text()) if path.exists() else []
    return int(found[-1]) if found else 0


def run_rounds(folder: Path, plan: list[tuple[str, list[str]]], steps: int) -> None:
    """Runs, each on a layout with faults of these kinds one after another, that in the end are as if undisturbed:
    after `steps`, which are more than a disturbed one gets to."""
    seed = int(os.environ.get("SEED", secrets.randbelow(1 << 32)))
    print(f"SEED={seed}")
    chance = random.Random(seed)
    file = write_experiment(folder)
    layouts = {layout for layout, _ in plan}
    wanted = {layout: complete(file, folder / f"undisturbed on {layout}", layout, steps) for layout in layouts}
    times: dict[str, list[float]] = {kind: [] for kind in FAULTS}
    for number, (layout, kinds) in enumerate(plan):
        out = folder / f"run {number}"
        for kind in kinds:
            told, seconds = disturb(chance, file, out, layout, kind)
            print(f"run {number}: {told}, {seconds:.1f} s", flush=True)
            times[kind].append(seconds)
        assert complete(file, out, layout, steps, "--resume", "auto") == wanted[layout], f"run {number}"
    for kind, found in times.items():
        if found:
            late = sum(seconds > (FROZEN if kind == "stop" else GONE) for seconds in found)
            print(f"{kind}: {len(found)} rounds, {min(found):.1f} to {max(found):.1f} s, {late} of them too late")


def test_a_few_faults_at_random_moments(tmp_path: Path) -> None:
    run_rounds(tmp_path, [("nodes", ["kill"]), ("torchrun", ["stop"])], 120)


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
def test_faults_at_random_moments(tmp_path: Path, layout: str) -> None:
    """25 rounds on each layout."""
    kinds = list(FAULTS)
    run_rounds(tmp_path, [(layout, [kinds[(run + round) % 3] for round in range(5)]) for run in range(5)], 300)
