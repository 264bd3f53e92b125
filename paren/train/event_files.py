"""TensorBoard's event files, through TensorBoard's own writer; torch is not needed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from paren.text.errors import ParenError
from paren.train.state import Json


class EventFiles:
    """Writes the series of a run for TensorBoard, from a step on: what an earlier start wrote for later steps is
    dropped by TensorBoard when it reads the mark of the new start.

    Raises E-RUN-011 if the package tensorboard is not installed.
    """

    def __init__(self, folder: Path, step: int) -> None:
        try:  # an optional package, imported only by runs that ask for it
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise ParenError(
                "E-RUN-011",
                "--tensorboard needs the package tensorboard, which is not installed",
                fix="pip install 'paren[tensorboard]'",
            ) from error
        self._event, self._summary = Event, Summary
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(folder))
        start = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(step=step + 1, wall_time=time.time(), session_log=start))

    def write(self, record: Mapping[str, Json]) -> None:
        """Adds the numbers of a line of metrics; annotations are no series."""
        if "annotation" in record:
            return
        values = [
            self._summary.Value(tag=name, simple_value=value)
            for name, value in record.items()
            if isinstance(value, int | float) and name != "step"
        ]
        self._writer.add_event(
            self._event(step=record["step"], wall_time=time.time(), summary=self._summary(value=values))
        )

    def close(self) -> None:
        """Returns when everything is in the file."""
        self._writer.close()
