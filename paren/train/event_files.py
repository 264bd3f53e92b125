"""TensorBoard's event files, through TensorBoard's own writer; torch is not needed."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from paren.text.errors import ParenError
from paren.text.json import Json

FOLDER = "tensorboard"
FLUSH = 5  # seconds after which a viewer sees what was written
MODULES = (
    "tensorboard.compat.proto.event_pb2",
    "tensorboard.compat.proto.summary_pb2",
    "tensorboard.summary.writer.event_file_writer",
)


def require_tensorboard() -> None:
    """Raises E-RUN-011 if the package tensorboard is not installed. It is optional, so only runs that ask for it
    import it."""
    try:
        for module in MODULES:
            importlib.import_module(module)
    except ImportError as error:
        raise ParenError(
            "E-RUN-011",
            "--tensorboard needs the package tensorboard, which is not installed",
            fix="pip install 'paren[tensorboard]'",
        ) from error


class EventFiles:
    """Writes the series of a run into `out/tensorboard`, from the steps after `step` on: what an earlier start wrote
    for them is dropped by TensorBoard when it reads the mark of the new start.

    Leaving the `with` block returns when everything is in the file.
    """

    def __init__(self, out: Path, step: int) -> None:
        event, summary, writer = map(importlib.import_module, MODULES)
        self._event, self._summary = event.Event, summary.Summary
        folder = out / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = writer.EventFileWriter(str(folder), flush_secs=FLUSH)
        start = event.SessionLog(status=event.SessionLog.START)
        self._writer.add_event(self._event(step=step + 1, wall_time=time.time(), session_log=start))

    def write(self, record: Mapping[str, Json]) -> None:
        """Adds the numbers of a line of metrics; annotations are no series."""
        if "annotation" in record:
            return
        values = [
            self._summary.Value(tag=name, simple_value=value)
            for name, value in record.items()
            if isinstance(value, int | float) and name != "step"
        ]
        summary = self._summary(value=values)
        self._writer.add_event(self._event(step=record["step"], wall_time=time.time(), summary=summary))

    def flush(self) -> None:
        """Returns when all events so far are in the file."""
        self._writer.flush()

    def __enter__(self) -> EventFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
