"""`status.json`: what a run is doing, for people and schedulers that look from outside."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from paren.parallel.sign import TRAINING
from paren.text.errors import ParenError, system_reason
from paren.text.json import parse_json
from paren.train.files import Files, json_bytes, write_atomically

FILE = "status.json"

PAUSE = 2.0

RUNNING, COMPLETE, FAILED, STOPPED = "running", "complete", "failed", "stopped"


@dataclass(frozen=True)
class Status:
    """`state`: running, complete, failed, or stopped (by a signal or by `--steps`; `--resume latest` goes on).

    `step` of `steps` positions are done. `code` and `message` say why a run failed. `phase` is what it does now.
    Times are UTC, ISO 8601. A run that was killed still says `running`; nobody holds its lock then.
    """

    state: str
    step: int
    steps: int
    samples: int
    started: str
    updated: str
    phase: str | None = None
    code: str | None = None
    message: str | None = None


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_status(out: Path) -> Status | None:
    """The status of a run directory; None if there is none that can be read."""
    try:
        content = parse_json((out / FILE).read_bytes())
        return Status(**content)
    except (OSError, ValueError, TypeError):
        return None


@dataclass
class StatusFile:
    """Keeps `out/status.json` up to date. A write on the way that fails is not worth the run: the next one tries
    again. Only the last one, `final`, raises E-RUN-012."""

    out: Path
    steps: int
    files: Files = field(default_factory=Files)
    status: Status = field(init=False)
    _written: float = field(init=False, default=float("-inf"))

    def __post_init__(self) -> None:
        time = now()
        self.status = Status(RUNNING, 0, self.steps, 0, time, time)

    def running(self, phase: str) -> None:
        """Says what the run does now."""
        self.status = replace(self.status, phase=phase)
        with suppress(OSError):  # see above
            self._write(durable=False)

    def final(self, state: str, *, code: str | None = None, message: str | None = None) -> None:
        self.status = replace(self.status, state=state, phase=None, code=code, message=message)
        try:
            self._write(durable=True)
        except OSError as error:
            raise ParenError(
                "E-RUN-012",
                f"{self.out / FILE} could not be written ({system_reason(error)})",
                fix="make room, then continue with --resume latest",
            ) from error

    def progress(self, step: int, samples: int) -> None:
        """Notes the position; while training, the file follows at most once in `PAUSE` seconds."""
        self.status = replace(self.status, step=step, samples=samples)
        if self.status.phase == TRAINING and time.monotonic() - self._written >= PAUSE:
            self.running(TRAINING)

    def _write(self, durable: bool) -> None:
        self._written = time.monotonic()
        self.status = replace(self.status, updated=now())
        content = json_bytes(asdict(self.status), indent=1)
        write_atomically(self.files, self.out / FILE, content, durable=durable)
