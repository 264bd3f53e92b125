"""Two small experiments in which everything that a resume must carry is on, and the means to run and compare them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from metric_lines import without_measured
from warm import Command

import paren
from paren.api import Experiment
from paren.run import Run
from paren.train.manifest import Manifest
from paren.train.places.disk import DiskFolder
from paren.train.status import Status, read_status

STEPS = 20
EPOCH = 4  # steps, the last of them with a short batch

GPT = """\
; A language model with dropout.
(def width 16)
(def dropped 0.2)
(def rate 3e-2)
(def steps 20)

(defdata text
  (text-files "text.txt" :tokenizer bytes :length 16 :split ((train 0.8) (validation 0.2)) :evaluation-count 3))

(def (block x)
  (let ((x (+ x (scope attention (dropout (causal-attention (layer-norm x) :heads 2) dropped)))))
    (+ x (scope mlp (dropout (linear (gelu (linear (layer-norm x) 32)) width) dropped)))))

(defmodel gpt ((tokens int32 [16]))
  (let ((table (param embedding [256 width] :init (normal 0.05)))
        (x     (dropout (take table tokens) dropped))
        (x     (fold (i 2) (x x) (scope (block i) (block x)))))
    (matmul (layer-norm x) (transpose table))))

(defrun
  :data text
  :loss (cross-entropy (gpt tokens) targets)
  :metrics ((accuracy (= (argmax (gpt tokens)) targets)))
  :optimizer (adamw :rate (warmup-cosine rate :warmup 3 :until steps) :weight-decay 0.1)
  :clip 1.0
  :average 0.8
  :batch 6
  :microbatches 3
  :steps steps
  :evaluate-every 5
  :checkpoint-every 4
  :keep-checkpoints 2
  :log-every 1
  :keep (best evaluation/loss :min)
  :seed 3)

(defdiagnostic scale (max (abs (gpt tokens))) :every 3 :reduce max)
"""

MLP = """\
; A regression with dropout.
(def hidden 12)
(def dropped 0.3)
(def steps 20)
(def patience 50)

(defdata points
  (python "points.py" points :fields ((x float32 [5]) (y float32 [])) :split ((train 0.8) (validation 0.2)) :rows 28))

(defmodel net ((x float32 [5]))
  (let ((x (dropout (tanh (linear x hidden)) dropped)))
    (linear (dropout (tanh (linear x hidden)) dropped) 1)))

(defrun
  :data points
  :loss (mean-squared-error (net x) y)
  :metrics ((absolute-error (mean-absolute-error (net x) y)))
  :optimizer (muon :rate 0.02)
  :average 0.9
  :batch 6
  :microbatches 4
  :steps steps
  :evaluate-every 3
  :checkpoint-every 7
  :log-every 2
  :keep (best evaluation/loss :min)
  :stop-early (evaluation/loss :min :patience patience)
  :seed 5)

(defdiagnostic spread (abs (net x)) :every 2 :reduce mean)
"""

POINTS = """\
import numpy as np


def points(rows, seed):
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 5)).astype(np.float32)
    return {"x": x, "y": np.sin(x).sum(axis=1).astype(np.float32)}
"""

PROGRAMS = {"gpt": GPT, "mlp": MLP}


def write_program(folder: Path, name: str = "gpt", text: str | None = None) -> Path:
    """Writes an experiment and its data into a folder; gives its file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text(" ".join(f"the {n} and {n * n % 89}" for n in range(1, 36)))
    (folder / "points.py").write_text(POINTS)
    path = folder / f"{name}.paren"
    path.write_text(PROGRAMS[name] if text is None else text)
    return path


@dataclass(frozen=True)
class Trial:
    """An experiment's file, and the folder of its uncut run. A step makes a call for each microbatch, so that there are
    places between them to stop at; with `stacking` None it is left to choose, which is one call for all and for many
    steps.

    The larger experiment runs on one thread: teams of threads on a machine that other tests share are slow.
    """

    file: Path
    experiment: Experiment
    whole: Path
    stacking: int | None = 1

    @classmethod
    def make(cls, folder: Path, name: str, stacking: int | None = 1) -> Trial:
        file = write_program(folder, name)
        trial = cls(file, paren.load(file), folder / "whole", stacking)
        ended = trial.run(trial.whole)
        assert (ended.ended, ended.step) == ("complete", STEPS)
        return trial

    @property
    def threads(self) -> int | None:
        return 1 if self.file.stem == "gpt" else None

    def run(self, out: Path, steps: int | None = None, resume: str | None = None) -> Run:
        return self.experiment.run(out=out, steps=steps, resume=resume, threads=self.threads, stacking=self.stacking)

    def command(self, out: Path, *options: object) -> tuple[object, ...]:
        """The same run on the command line."""
        threads = () if self.threads is None else ("--threads", self.threads)
        stacking = () if self.stacking is None else ("--stacking", self.stacking)
        return ("run", self.file, "--out", out, *threads, *stacking, *options)


def assert_equal_runs(out: Path, other: Path) -> None:
    """Complete, with the same bytes and the same lines, and nothing half-written is left."""
    assert metric_lines(out) == metric_lines(other)
    assert final_state(out) == final_state(other)
    assert status_of(out).state == "complete"
    assert not list(out.rglob(".temporary*"))


def newest(out: Path) -> Path:
    """The folder of the last checkpoint."""
    return max((out / "checkpoints").glob("[0-9]*"))


def final_state(out: Path) -> dict[str, object]:
    """All that a run leaves and that equal runs have in common: bytes of every slot, loop, best parameters."""
    folder = newest(out)
    manifest = Manifest.read(DiskFolder(folder))
    best = json.loads((out / "best" / "manifest.json").read_bytes())
    files = {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
    files |= {
        path.name: path.read_bytes() for path in (out / "best").glob("*.safetensors") if path.name == best["file"]
    }
    return {"files": files, "loop": manifest.loop, "slots": manifest.slots, "best": best}


def metric_lines(out: Path) -> list[dict[str, object]]:
    """The lines of the metrics file without time, throughput and memory, which is what is free."""
    lines = [without_measured(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line.get("annotation") not in ("resumed", "memory")]


def status_of(out: Path) -> Status:
    status = read_status(out)
    assert status is not None
    return status


def run(*arguments: object) -> tuple[int, str, str]:
    """Runs `paren` to its end: exit code, stdout, stderr."""
    return ended(Command(arguments))


def ended(command: Command) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of a command."""
    out, err = command.communicate()
    return command.wait(), out, err


def run_signalled(action: object, times: object, event: str, number: int, *arguments: object) -> tuple[int, str, str]:
    """`paren` with an action at an event (see signalled_run.py): exit code, stdout, stderr."""
    words = (action, times, event, number, *arguments)
    return ended(Command(words, script=Path(__file__).parent / "signalled_run.py"))
