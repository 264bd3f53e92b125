"""`paren` in a process of its own, as a user starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from warm import LIMIT, Command

EXAMPLES = Path(__file__).parents[2] / "examples"

SMALL = """(def batch 8)
(def rate 1e-2)
(defvariant smoke (batch 4))
(defdata table
  (arrays "d.npz" :fields ((x float32 [3]) (label int32 [])) :split ((train 0.5) (validation 0.5))))
(defmodel net ((x float32 [3])) (linear x 4))
(defrun :data table :loss (cross-entropy (net x) label) :optimizer (sgd :rate rate)
  :batch batch :steps 4 :evaluate-every 2)
"""


@dataclass(frozen=True)
class Ended:
    """A process that has ended."""

    code: int
    out: str
    err: str


def paren(folder: Path, *arguments: str, **variables: str) -> Ended:
    """Runs a command in `folder` with its own cache; fails if a traceback is shown."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PAREN_")}
    # "replace" and not "strict": under an ASCII locale the test must read whatever the command wrote.
    given = {**inherited, "PAREN_CACHE": str(folder / "cache"), **variables}
    if any(name.startswith(("PYTHON", "LC_")) for name in variables):  # which Python reads when it starts
        done = subprocess.run(
            [sys.executable, "-m", "paren", *arguments],
            cwd=folder,
            env=given,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=LIMIT,
            check=False,
        )
        ended = Ended(done.returncode, done.stdout, done.stderr)
    else:
        command = Command(arguments, given, folder)
        out, err = command.communicate()
        ended = Ended(command.wait(), out, err)
    assert "Traceback" not in ended.out + ended.err, ended.err
    return ended


def write_table(folder: Path, label: npt.ArrayLike | None = None, rows: int = 32) -> None:
    """The data of `SMALL`: zeros, and labels 0 to 3 in turn unless given."""
    values = np.arange(rows, dtype=np.int32) % 4 if label is None else np.asarray(label)
    np.savez(folder / "d.npz", x=np.zeros((rows, 3), np.float32), label=values)


def write_small(folder: Path, text: str = SMALL) -> Path:
    """`SMALL`, or what was made of it, as f.paren, with its data."""
    path = folder / "f.paren"
    path.write_text(text, encoding="utf-8")
    write_table(folder)
    return path
