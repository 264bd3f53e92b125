"""Runs `paren` in this process, and acts at one event of the run.

    python signalled_run.py ACTION TIMES EVENT NUMBER ARGUMENTS...

An event is a call of the engine (compile, initialize, step, steps, accumulate, finish, evaluate, diagnose) or an
operation on the disk (write, sync, rename, sync_folder; save stands for those of a checkpoint, any for every event).
ACTION is the number of a signal, sent TIMES times to this process at the NUMBERth event (from 0) of that name, or
`fill:FILE`, which fills the disk. A write that is killed leaves half of its bytes. `count FILE` as ACTION and TIMES
writes how many events there were.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from paren.cli.app import main
from paren.engine import CompiledEngine
from paren.runtime.executor import Executable
from paren.train import chunk
from paren.train.checkpoint import CheckpointStore
from paren.train.files import Files

ACTION, TIMES, EVENT, NUMBER = sys.argv[1:5]
KILL = str(int(signal.SIGKILL))
seen: Counter[str] = Counter()
saving = threading.Event()


def act() -> None:
    if ACTION.startswith("fill:"):
        with suppress(OSError), open(ACTION.removeprefix("fill:"), "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    elif ACTION != "count":
        for _ in range(int(TIMES)):
            os.kill(os.getpid(), int(ACTION))


def happened(*names: str) -> bool:
    """Notes an event under its names; whether it is the one to act at."""
    wanted = any(name == EVENT and seen[name] == int(NUMBER) for name in names)
    seen.update(names)
    return wanted


def watch(owner: type, method: str, name: str) -> None:
    original: Callable[..., Any] = getattr(owner, method)

    def watched(*arguments: Any, **named: Any) -> Any:
        if happened(name, "any"):
            act()
        return original(*arguments, **named)

    setattr(owner, method, watched)


def watch_files() -> None:
    for name in ("write", "sync", "rename", "sync_folder"):
        original = getattr(Files, name)

        def watched(files: Files, *arguments: Any, original: Callable[..., Any] = original, name: str = name) -> Any:
            if happened(name, "any", *(["save"] if saving.is_set() else [])):
                if name == "write" and ACTION == KILL:
                    file, data = arguments
                    file.write(bytes(data)[: len(data) // 2])
                    file.flush()
                act()
            return original(files, *arguments)

        setattr(Files, name, watched)
    write = CheckpointStore._write

    def save(store: CheckpointStore, *arguments: Any) -> Any:
        saving.set()
        try:
            return write(store, *arguments)
        finally:
            saving.clear()

    CheckpointStore._write = save  # type: ignore[method-assign]


if __name__ == "__main__":
    if EVENT == "steps":
        chunk.SECONDS = 60  # a call makes many steps on a slow machine as well
    watch(Executable, "__init__", "compile")
    for method in ("initialize", "step", "steps", "accumulate", "finish", "evaluate", "diagnose"):
        watch(CompiledEngine, method, method)
    watch_files()
    code = main(sys.argv[5:])
    if ACTION == "count":
        Path(TIMES).write_text(str(seen["any"]))
    sys.exit(code)
