"""A small experiment with all that a split of batches could disturb, and runs of it as commands, on ranks and nodes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from paren.train.read_run import read_metrics, read_weights

LIMIT = 120.0  # seconds of one command
TWO = {"PAREN_DEVICES": "0,1"}
LONG = ("--set", "epochs=2000", "--set", "evaluate=3")  # longer than any test
END = 40  # steps that a long run is compared after
HOST = socket.gethostname()
FAULTS = Path(__file__).parent / "faults"
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


def start(
    file: Path,
    out: Path,
    *arguments: str,
    variables: Mapping[str, str] | None = None,
    torchrun: int = 0,
    within: Sequence[str] = (),
) -> subprocess.Popen[str]:
    """`paren run` of the file, as a process whose streams are captured, or as so many ranks of torchrun's, started by
    the command `within`. FAULT and SEEN among the variables are for `faults/sitecustomize.py`."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("PAREN_")}
    given |= {"PAREN_CACHE": str(file.parent / "cache"), **(variables or {})}
    if {"FAULT", "SEEN"} & given.keys():
        given["PYTHONPATH"] = f"{FAULTS}{os.pathsep}{given.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", "paren", "run", str(file), "--out", str(out), "--threads", "1", *arguments]
    if torchrun:
        agent = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(torchrun)]
        command[1:1] = agent
    return subprocess.Popen([*within, *command], env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and stderr of a command."""
    try:
        _, said = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, said


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


def ranks_of(process: subprocess.Popen[str]) -> dict[int, int]:
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
