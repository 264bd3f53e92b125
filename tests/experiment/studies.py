"""Small studies as files: a network of a few parameters on data of a Python function."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from paren.experiment.events import Event
from paren.experiment.jobs import Job
from paren.train.read_run import read_weights

DATA = """import numpy as np


def pairs(rows, seed):
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, 2)).astype(np.float32)
    return {"x": x, "y": x.sum(1)}
"""

PLAIN = """(def rows 40)
(def rate 1e-2)
(def hidden [4])
(def replica 0)
(def prior "uniform")
(defdata points
  (python "data.py" pairs
    :fields ((x float32 [2]) (y float32 []))
    :split ((train 0.8) (validation 0.2))
    :rows rows))
(defmodel net ((x float32 [2])) (mlp x hidden 1 :activation tanh))
(defrun :data points :loss (mean-squared-error (net x) y) :optimizer (adam :rate rate) :batch 8 :steps 4
  :seed replica)
"""


def write_study(folder: Path, forms: str = "", text: str = PLAIN) -> Path:
    """`text` and further forms as study.paren, with its data function."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data.py").write_text(DATA)
    path = folder / "study.paren"
    path.write_text(text + forms)
    return path


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    """What changes a file of a folder."""

    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return change


def read_from_arrays(path: Path, *files: str) -> None:
    """Lets a study that `write_study` wrote read its data from files of arrays, all of which are for training."""
    text = path.read_text()
    begin, end = text.index('  (python "data.py" pairs'), text.index("(defmodel")
    named = " ".join(f'"{file}"' for file in files)
    arrays = f"(arrays {named} :fields ((x float32 [2]) (y float32 [])) :split ((train 1.0))))"
    path.write_text(f"{text[:begin]}{arrays}\n{text[end:]}")


def faults(fault: str, gate: Path | None = None) -> dict[str, str]:
    """Variables for workers in which a fault comes about, as `faults/sitecustomize.py` says."""
    places = [str(Path(__file__).parents[1] / "faults"), os.environ.get("PYTHONPATH", "")]
    return {"FAULT": fault, "GATE": str(gate), "PYTHONPATH": os.pathsep.join(filter(None, places))}


class Shown:
    """A view of a study that keeps what it is told, and calls `at` with each event."""

    def __init__(self, at: Callable[[Event], None] = lambda _: None) -> None:
        self.events: list[Event] = []
        self.notices: list[str] = []
        self.at = at

    def begin(self, jobs: Sequence[Job], finished: int) -> None:
        self.begun = [job.name for job in jobs]

    def show(self, event: Event) -> None:
        self.events.append(event)
        self.at(event)

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def end(self) -> None: ...

    def ended(self, kind: str) -> set[int]:
        """The orders of the jobs that ended so."""
        return {event.job for event in self.events if event.kind == kind}


def weights(out: Path) -> dict[str, dict[str, bytes]]:
    """The bits of all parameters, by the folder of the job."""
    found = {}
    for path in sorted(out.glob("runs/*/*/job.json")):
        model = path.parent / json.loads(path.read_bytes())["model"]
        values = read_weights(model).parameters
        found[path.parent.relative_to(out).as_posix()] = {name: array.tobytes() for name, array in values.items()}
    return found


def states(out: Path) -> dict[str, str]:
    """The state of each job, by its folder below `runs` without the digest."""
    found = {}
    for path in sorted(out.glob("runs/*/*/status.json")):
        name = re.sub(r"-[0-9a-f]{12}", "", path.parent.relative_to(out / "runs").as_posix())
        found[name] = json.loads(path.read_bytes())["state"]
    return found


def files_below(*folders: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file and folder below some."""
    paths = [path for folder in folders for path in (folder, *folder.rglob("*"))]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in paths if path.exists()}
