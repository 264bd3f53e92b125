"""A small experiment with all that a split of batches could disturb, and runs of it as commands, on ranks and nodes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from rank_processes import free_port
from warm import LIMIT, Command

from paren.train.read_run import read_metrics, read_weights

TWO = {"PAREN_DEVICES": "0,1"}
LONG = ("--set", "epochs=2000", "--set", "evaluate=3")  # longer than any test
END = 40  # steps that a long run is compared after
Started = Command | subprocess.Popen[str]
HOST = socket.gethostname()
ENDED = "(waited for it|ends with it)"  # a rank that others of a run that has failed left first is not waiting any more
CACHE = tempfile.TemporaryDirectory(prefix="paren-cache-")  # of all runs, as most compile the same
FAULTS = Path(__file__).parents[1] / "faults"
ROWS = """
import numpy as np


def pairs(rows, seed=0):
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, 6)).astype(np.float32)
    label = (x[:, :1] * x[:, 1:2] + 0.1 * random.standard_normal((rows, 1))).astype(np.float32)
    weight = (random.random(rows) < 0.8).astype(np.float32)
    fields = {"x": x, "label": label, "weight": weight}
    return {"train": fields, "validation": {name: values[:37] for name, values in fields.items()}}
"""
PROGRAM = """
(def rows 128)
(def batch 127)
(def microbatches 4)
(def epochs 3)
(def evaluate 2)
(def seed 0)

(defdata examples
  (python "rows.py" pairs :fields ((x float32 [6]) (label float32 [1]) (weight float32 [])) :rows rows))

(defmodel network ((x float32 [6]))
  (linear (dropout (tanh (linear x 16)) 0.2) 1))

(defrun
  :data             examples
  :loss             (mean-squared-error (network x) label)
  :weight           weight
  :metrics          ((error (mean-absolute-error (network x) label)))
  :optimizer        (adamw :rate 1e-2)
  :clip             1.0
  :seed             seed
  :batch            batch
  :microbatches     microbatches
  :epochs           epochs
  :evaluate-every   evaluate
  :checkpoint-every 2
  :keep-checkpoints 3
  :keep             (best evaluation/loss :min))

(defdiagnostic largest (max (abs (network x))) :every 1 :reduce max)
"""


def write_experiment(folder: Path) -> Path:
    """The experiment's file."""
    (folder / "rows.py").write_text(ROWS)
    path = folder / "experiment.paren"
    path.write_text(PROGRAM)
    return path


def start(file: Path, out: Path, *arguments: str, variables: Mapping[str, str] | None = None) -> Command:
    """`paren run` of the file, whose streams are captured. FAULT and SEEN among the variables are for
    `faults/sitecustomize.py`, which ranks that it starts load too."""
    given = environment(variables or {})
    script = FAULTS / "faulty_command.py" if {"FAULT", "SEEN"} & given.keys() else None
    return Command(words(file, out, *arguments), given, script=script)


def start_torchrun(
    ranks: int, file: Path, out: Path, *arguments: str, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """The same as ranks of torchrun's."""
    agent = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return _spawn([*agent, "-m", "paren", *words(file, out, *arguments)], environment(variables or {}))


def start_within(
    within: Sequence[str], file: Path, out: Path, *arguments: str, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """The same, started by the command `within`."""
    command = [*within, sys.executable, "-m", "paren", *words(file, out, *arguments)]
    return _spawn(command, environment(variables or {}))


def _spawn(command: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def words(file: Path, out: Path, *arguments: str) -> list[str]:
    return ["run", str(file), "--out", str(out), "--threads", "1", *arguments]


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """This process's without what would change a run, and `variables`."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("PAREN_")}
    given |= {"PAREN_CACHE": CACHE.name, **variables}
    if {"FAULT", "SEEN"} & given.keys():
        given["PYTHONPATH"] = f"{FAULTS}{os.pathsep}{given.get('PYTHONPATH', '')}"
    return given


def finish(process: Started) -> tuple[int, str]:
    """Exit code and stderr of a command."""
    try:
        _, said = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode is not None
    return process.returncode, said


def train_on_ranks(
    ranks: int, file: Path, out: Path, *arguments: str, nodes: int = 1, variables: Mapping[str, str] | None = None
) -> Path:
    """A run that has to succeed, of ranks that nobody watches but they themselves: where it is what they train that a
    test is about, and not how they are started, which takes several seconds of work."""
    here, port = ranks // nodes, free_port()
    shared = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": here, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    if ranks == 1:
        return train(file, out, *arguments, variables=variables)
    started = [
        start(
            file,
            out,
            *arguments,
            variables={name: str(value) for name, value in own.items()} | dict(variables or {}),
        )
        for own in (shared | {"RANK": rank, "LOCAL_RANK": rank % here} for rank in range(ranks))
    ]
    ends = [finish(process) for process in started]
    assert [code for code, _ in ends] == [0] * ranks, "\n".join(said for _, said in ends)
    return out


def train(file: Path, out: Path, *arguments: str, variables: Mapping[str, str] | None = None) -> Path:
    """A run that has to succeed."""
    code, said = finish(start(file, out, *arguments, variables=variables))
    assert code == 0, said
    return out


def series(out: Path) -> dict[str, np.ndarray]:
    """The metrics that do not depend on the clock or on memory."""
    columns = read_metrics(out)
    return {name: values for name, values in columns.items() if "second" not in name and not name.startswith("runtime")}


def parameters(out: Path) -> dict[str, bytes]:
    """The trained parameters by name, as bytes."""
    return {name: np.asarray(value).tobytes() for name, value in read_weights(out).parameters.items()}


def wait_for_step(out: Path, step: int) -> None:
    """Returns when the metrics have the line of a step."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        path = out / "metrics.jsonl"
        if path.exists() and f'"step": {step},' in path.read_text():
            return
        time.sleep(0.02)
    raise AssertionError(f"step {step} was not reached")


def last_line(said: str) -> str:
    """The last line that is not empty."""
    return said.strip().splitlines()[-1]


def node(index: int, port: int, nodes: int = 2, **more: str) -> dict[str, str]:
    return {
        "PAREN_NODES": str(nodes),
        "PAREN_NODE_RANK": str(index),
        "PAREN_RENDEZVOUS": f"127.0.0.1:{port}",
        "PAREN_RENDEZVOUS_TIMEOUT": "60",
        **more,
    }


def ranks_of(process: Started) -> dict[int, int]:
    """Process ids of the ranks that a command started, by rank."""
    found = {}
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        try:
            variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        rank = next((each for each in variables if each.startswith(b"RANK=")), None)
        if rank is not None:
            found[int(rank[5:])] = int(child)
    return found


def assert_gone(processes: Iterable[int]) -> None:
    """None of the processes runs any more."""
    assert [each for each in processes if Path(f"/proc/{each}").exists()] == []


def running(out: Path) -> list[str]:
    """Command lines of the ranks of a run that are still there."""
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in found.splitlines() if f"--out {out} " in line]
