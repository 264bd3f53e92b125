"""Runs a contestant as a process of its own and measures it from outside: memory, and time since its start."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parent.parent
PAUSE = 0.01  # seconds between two looks at the memory of a process
LAST_LINES = 5  # of what a failed process wrote to stderr


@dataclass(frozen=True)
class Outcome:
    """What was seen of one process.

    `peak`: the most memory that was resident, files included, in bytes; `anonymous`: the most without files. `began`
    and `first`: seconds from its start to the beginning and to the end of its first step. `seconds`: of each timed
    unit. `busy`, `kernel`, `others`: cores used while timing, by it, by the kernel for it, by anything else.
    """

    seconds: tuple[float, ...]
    losses: tuple[float, ...]
    began: float
    first: float
    peak: int
    anonymous: int
    busy: float
    kernel: float
    others: float
    versions: Mapping[str, str]
    more: Mapping[str, object] = field(default_factory=dict)


class Failed(Exception):
    """The process ended without a result; the message holds the end of what it wrote."""


def memory_of(process: int) -> dict[str, int]:
    """`VmHWM`, `RssAnon` and their like of a process, in bytes; empty once it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines if line.startswith(("Vm", "Rss")))
    return {name.rstrip(":"): int(size) * 1024 for name, size, *_ in fields}


class _Looks:
    """The greatest anonymous memory of a process, looked at again and again by a thread."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.greatest = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(PAUSE):
            self.greatest = max(self.greatest, memory_of(self.process).get("RssAnon", 0))

    def end(self) -> None:
        self._over.set()
        self._thread.join()


def watch(
    command: Sequence[str],
    environment: Mapping[str, str],
    limit: float = 900.0,
    asked: Callable[[str, int], None] | None = None,
) -> Outcome:
    """Runs the command in the project's folder, for at most `limit` seconds.

    `asked(event, process)` is called on each event that the process reports, while it waits if it does. Raises
    `Failed` if there is no result.
    """
    start = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    written: list[str] = []
    listener = threading.Thread(target=_keep, args=(process.stderr, written), daemon=True)
    listener.start()
    timer = threading.Timer(limit, process.kill)
    timer.start()
    looks = _Looks(process.pid)
    events: dict[str, dict[str, object]] = {}
    memory: dict[str, int] = {}
    try:
        for line in process.stdout:
            event = _event(line)
            if event is None:
                written.append(line)
                continue
            events[str(event["event"])] = event
            if asked is not None:
                asked(str(event["event"]), process.pid)
            if event["event"] == "result":
                memory = memory_of(process.pid)
                process.stdin.close()  # which the process waits for
            if event.get("waits"):
                process.stdin.write("\n")
                process.stdin.flush()
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()
        timer.cancel()
        looks.end()
        listener.join()
        process.stderr.close()
    if "result" not in events:
        raise Failed(" | ".join(line.rstrip() for line in written[-LAST_LINES:]) or f"exit code {process.returncode}")
    return _outcome(events, start, memory, looks.greatest)


def _keep(stream: IO[str], lines: list[str]) -> None:
    lines.extend(stream)


def _event(line: str) -> dict[str, object] | None:
    """The event that a line reports; None for anything else that a library may print."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def _outcome(events: Mapping[str, dict[str, object]], start: float, memory: Mapping[str, int], most: int) -> Outcome:
    result = dict(events["result"])
    for name in ("event", "waits"):
        result.pop(name, None)

    def since(event: str) -> float:
        at = events[event]["at"]
        assert isinstance(at, float)
        return at - start

    known = {name: result.pop(name) for name in ("seconds", "losses", "busy", "kernel", "others", "versions")}
    return Outcome(
        seconds=tuple(known["seconds"]),  # type: ignore[arg-type]  # the recorder's types
        losses=tuple(known["losses"]),  # type: ignore[arg-type]
        began=since("begin"),
        first=since("first"),
        peak=memory["VmHWM"],
        anonymous=max(most, memory["RssAnon"]),
        busy=known["busy"],  # type: ignore[arg-type]
        kernel=known["kernel"],  # type: ignore[arg-type]
        others=known["others"],  # type: ignore[arg-type]
        versions=known["versions"],  # type: ignore[arg-type]
        more=result,
    )
