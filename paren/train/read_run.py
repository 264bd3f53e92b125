"""Reading what a run has written: columns of metrics, checkpoints, weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paren.ir.op import Array
from paren.text.errors import ParenError, system_reason
from paren.text.json import parse_json
from paren.train.best import KEPT_ROLES
from paren.train.checkpoint import CheckpointStore, restore
from paren.train.manifest import FILE as MANIFEST
from paren.train.manifest import Damaged
from paren.train.metrics import FILE
from paren.train.places.place import Place
from paren.train.resume import all_damaged, damaged, find_checkpoints
from paren.train.run_directory import open_places, read_run_file
from paren.train.state import BestRecord
from paren.train.tensor_file import DTYPES, MalformedFile, file_digest, read_header, read_tensors

Floats = npt.NDArray[np.float64]


def read_metrics(out: str | Path) -> dict[str, Floats]:
    """The series of a run as columns, float64[lines]: `step`, then each series by name, nan where a line lacks it.

    Lines of one step are one row. Annotations are left out (`read_annotations` has them). A last line that is still
    being written is left out. Raises E-RUN-014 if there is no metrics file, or a line before the last is damaged.
    """
    return read_stream(out)[0]


def read_annotations(out: str | Path) -> list[dict[str, Any]]:
    """The annotations of a run, in order: `step`, `annotation`, and what belongs to it."""
    return read_stream(out)[1]


def read_stream(out: str | Path) -> tuple[dict[str, Floats], list[dict[str, Any]]]:
    """What `read_metrics` and `read_annotations` give, from reading the file once."""
    rows: dict[int, dict[str, float]] = {}
    annotations: list[dict[str, Any]] = []
    for number, record in _lines(out):
        if "annotation" in record:
            annotations.append(record)
            continue
        try:
            rows.setdefault(record["step"], {}).update({name: float(value) for name, value in record.items()})
        except (ValueError, TypeError) as error:
            raise _damaged_line(out, number) from error
    names = dict.fromkeys(name for row in rows.values() for name in row)
    return {name: np.array([row.get(name, np.nan) for row in rows.values()], np.float64) for name in names}, annotations


def _lines(out: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each line of the file with its number, from 1."""
    path = Path(out) / FILE
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ParenError(
            "E-RUN-014", f"{path} cannot be read ({system_reason(error)})", fix="give the directory of a run"
        ) from error
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            record = parse_json(line)
            record["step"]
        except (ValueError, TypeError, KeyError) as error:
            raise _damaged_line(out, number) from error
        yield number, record


def _damaged_line(out: str | Path, number: int) -> ParenError:
    return ParenError("E-RUN-014", f"line {number} of {Path(out) / FILE} is damaged")


@dataclass(frozen=True)
class Weights:
    """Parameters and averages (by parameter name; empty without `:average`) after `step` steps."""

    step: int
    parameters: Mapping[str, Array]
    averages: Mapping[str, Array]


def read_weights(out: Path, *, best: bool = False, checkpoints: str | None = None) -> Weights:
    """The weights of a run's newest checkpoint that is whole, or of its best evaluation; every byte is verified.

    `checkpoints`: where they are, if not in `out`. Raises E-RUN-014 if `out` is no run, E-CKPT-001 if it has no
    checkpoint or kept no best one, E-CKPT-003 and E-CKPT-010 for damage, E-S3-* if a bucket refuses.
    """
    stored = read_run_file(out)
    if stored is None:
        raise ParenError("E-RUN-014", f"{out} holds no run", fix="give the directory of a run")
    root, kept = open_places(out, checkpoints)
    if best:
        return _read_best(kept)
    store = CheckpointStore(root, stored["run"], stored["experiment"], {}, {}, keep=1)
    candidates = find_checkpoints(store, "latest", allow_new_layout=True)
    reasons = dict(candidates.unreadable)
    for checkpoint in candidates.checkpoints:
        slots = {
            name: np.empty(slot.shape, slot.dtype)
            for name, slot in checkpoint.manifest.slots.items()
            if slot.role in KEPT_ROLES
        }
        try:
            restore(checkpoint, slots)
        except Damaged as damage:
            reasons[checkpoint.folder.name] = str(damage)
            continue
        return _weights(checkpoint.manifest.step, slots)
    raise all_damaged(store, reasons)


def _read_best(folder: Place) -> Weights:
    try:
        record = BestRecord(**parse_json(folder.read(MANIFEST)))
    except FileNotFoundError:
        raise ParenError(
            "E-CKPT-001",
            f"{folder} holds no best parameters",
            fix="they are kept with :keep (best evaluation/loss :min)",
        ) from None
    except (ValueError, TypeError) as error:
        raise damaged(folder, "manifest.json is not readable") from error
    try:
        with folder.open(record.file) as content:
            entries, _, head = read_header(content, content.size)
            stored = sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end))
            slots = {name: np.empty(entry.shape, DTYPES[entry.dtype]) for name, entry in stored}
            tensors = read_tensors(content, slots.values())
    except (OSError, MalformedFile, KeyError) as error:
        raise damaged(folder, f"{record.file} is not readable") from error
    if file_digest(head, tensors) != record.digest:
        raise damaged(folder, f"the bytes of {record.file} do not match their digest")
    return _weights(record.step, slots)


def _weights(step: int, slots: Mapping[str, Array]) -> Weights:
    averages = {name.rpartition("/")[0]: array for name, array in slots.items() if name.endswith("/average")}
    return Weights(step, {name: array for name, array in slots.items() if "/" not in name}, averages)
