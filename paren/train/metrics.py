"""`metrics.jsonl`: one JSON object a line, flushed line by line, cut back to the checkpoint on a resume."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

from paren.text.errors import ParenError, system_reason
from paren.text.json import Json, parse_json
from paren.text.size import count_of
from paren.train.files import json_bytes

FILE = "metrics.jsonl"

# Series that depend on the clock and on the machine's state: two equal runs agree in all the others.
EXCHANGE_SERIES = frozenset({"runtime/exchange-ms", "runtime/exchange-hidden-ms", "runtime/exchange-bytes"})
MEASURED_SERIES = EXCHANGE_SERIES | {
    "tokens-per-second",
    "examples-per-second",
    "runtime/step-ms",
    "runtime/peak_bytes",
}


def encode(record: Mapping[str, Json]) -> bytes:
    """A line of the file. JSON has no nan: a number that is not finite is written as "nan", "inf" or "-inf"."""
    try:
        return json_bytes(dict(record))
    except ValueError:
        return json_bytes(finite(dict(record)))


def encode_all(records: Iterable[Mapping[str, Json]]) -> bytes:
    """The lines of records, each as `encode` writes it; a number that one record after another holds is written out
    once. Writing digits takes most of the time of a line, and the lines of a call share what was measured of it."""
    known: dict[str, tuple[Json, str]] = {}
    lines = []
    for record in records:
        parts = []
        for name, value in record.items():
            before = known.get(name)
            if before is None or before[0] is not value:
                if type(value) is not int and not (type(value) is float and math.isfinite(value)):
                    lines.append(encode(record).decode("utf-8"))
                    break
                before = known[name] = value, f"{_quoted(name)}: {value!r}"
            parts.append(before[1])
        else:
            lines.append(f"{{{', '.join(parts)}}}\n")
    return "".join(lines).encode("utf-8")


@lru_cache(maxsize=256)
def _quoted(name: str) -> str:
    return json_bytes(name).decode("utf-8").rstrip("\n")


def length(path: Path, step: int) -> int:
    """Bytes of the lines of a file up to a step; 0 if it does not exist."""
    done = 0
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                try:
                    if not line.endswith(b"\n") or parse_json(line)["step"] > step:
                        break
                except (ValueError, TypeError, KeyError):
                    break
                done += len(line)
    return done


class MetricsWriter:
    """Appends lines to `path`, which is cut to `size` bytes first (0: a new file).

    Raises E-CKPT-012 if the file is shorter than `size`.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        present = path.stat().st_size if path.exists() else 0
        if present < size:
            raise ParenError(
                "E-CKPT-012",
                f"{path} has {count_of(present, 'byte')}, and the checkpoint continues after byte {size}",
                fix="put the file back, or resume into another folder: --out NEW --resume CHECKPOINT",
            )
        self._file = path.open("ab", buffering=0)
        self._file.truncate(size)
        self._size = size

    @property
    def size(self) -> int:
        """Bytes written so far, earlier runs' included."""
        return self._size

    def write(self, *records: Mapping[str, Json]) -> None:
        """Appends a line for each. Raises E-RUN-012 if the disk refuses."""
        lines = encode_all(records)
        try:
            done = 0
            while done < len(lines):
                done += self._file.write(lines[done:]) or 0
        except OSError as error:
            raise ParenError(
                "E-RUN-012",
                f"{self._path} could not be written ({system_reason(error)})",
                fix="make room, then continue with --resume latest",
            ) from error
        self._size += len(lines)

    def annotate(self, step: int, kind: str, **values: Json) -> None:
        """Appends a line that is no measurement: what happened at a step."""
        self.write({"step": step, "annotation": kind, **values})

    def sync(self) -> None:
        """Returns when all lines are on the disk."""
        os.fsync(self._file.fileno())

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def finite(value: Any) -> Any:
    """`value` with "nan", "inf" and "-inf" for the numbers that JSON lacks."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [finite(each) for each in value]
    return value
