"""Small studies as files: a network of a few parameters on data of a Python function."""

from __future__ import annotations

from pathlib import Path

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
