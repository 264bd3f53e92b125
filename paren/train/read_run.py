"""Reading what a run has written: columns of metrics, checkpoints, weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paren.text.errors import ParenError
from paren.train.metrics import FILE

Floats = npt.NDArray[np.float64]


def read_metrics(out: Path) -> dict[str, Floats]:
    """The series of a run as columns, float64[lines]: `step`, then each series by name, nan where a line lacks it.

    Lines of one step are one row. Annotations are left out (`read_annotations` has them). A last line that is still
    being written is left out. Raises E-RUN-014 if there is no metrics file, or a line before the last is damaged.
    """
    rows: dict[int, dict[str, float]] = {}
    for record in _lines(out):
        if "annotation" not in record:
            row = rows.setdefault(record["step"], {})
            row.update({name: float(value) for name, value in record.items()})
    names = dict.fromkeys(name for row in rows.values() for name in row)
    return {name: np.array([row.get(name, np.nan) for row in rows.values()], np.float64) for name in names}


def read_annotations(out: Path) -> list[dict[str, Any]]:
    """The annotations of a run, in order: `step`, `annotation`, and what belongs to it."""
    return [record for record in _lines(out) if "annotation" in record]


def _lines(out: Path) -> Iterator[dict[str, Any]]:
    path = out / FILE
    try:
        content = path.read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ParenError("E-RUN-014", f"{path} cannot be read ({reason})", fix="give the directory of a run") from error
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            record = json.loads(line)
            record["step"]
        except (ValueError, TypeError, KeyError) as error:
            raise ParenError("E-RUN-014", f"line {number} of {path} is damaged") from error
        yield record
