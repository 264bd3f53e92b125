"""Checks of a card in processes of their own: one that crashes, hangs or spoils the card takes only itself away.

A part of `scripts/gpu_check.py` is a list of checks that a child process makes one after another. It notes in a file
what it begins and what it found, so that nothing is lost however it ends. After a check that ends the process, or after
which the card answers no more, the next process goes on behind it; that check is made once more with every call waited
for, since the card tells of a failure only where somebody waits.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paren.environment import inherited_variables

LAST_LINES = 8  # of a traceback
LOST = 98  # exit code of a process whose card answers no more
AGAIN = 60.0  # seconds for a check that is made once more
WAITING = {"CUDA_LAUNCH_BLOCKING": "1"}


@dataclass(frozen=True)
class Check:
    """`run` puts what it has to say in a list, and raises where something does not hold."""

    name: str
    run: Callable[[list[str]], None]


@dataclass(frozen=True)
class Checked:
    """One check: how long it took, what it said, and why it failed, if it did."""

    name: str
    seconds: float
    said: tuple[str, ...]
    failure: str


def _note(record: Path, entry: Mapping[str, object]) -> None:
    with record.open("a") as file:
        file.write(json.dumps(entry) + "\n")


# In the child ---------------------------------------------------------------------------------------------------------


def make_checks(checks: Iterable[Check], record: Path, wanted: range, limit: float, ask: Callable[[], None]) -> int:
    """Makes the checks of these numbers and notes them; one that takes longer than `limit` seconds ends the process
    and shows where its threads are. `ask` raises if the card answers no more. The exit code."""
    for number, check in enumerate(checks):
        if number not in wanted:
            continue
        _note(record, {"begin": check.name, "number": number})
        faulthandler.dump_traceback_later(limit, exit=True)
        said: list[str] = []
        begin, failure = time.perf_counter(), ""
        try:
            check.run(said)
        except Exception as error:  # whatever it is: the next check may tell more
            failure = f"{type(error).__name__}: {str(error)[:600]}"
            lines = traceback.format_exc().strip().splitlines()[-LAST_LINES:]
            print(f"FAIL {check.name}: {failure}", *said, *lines, sep="\n     ", flush=True)
        else:
            print(f"PASS {check.name} ({time.perf_counter() - begin:.2f} s)", *said, flush=True)
        faulthandler.cancel_dump_traceback_later()
        _note(record, asdict(Checked(check.name, time.perf_counter() - begin, tuple(said), failure)))
        if failure:
            try:
                ask()
            except Exception as error:
                print(f"     the card answers no more: {str(error)[:200]}", flush=True)
                return LOST
    _note(record, {"end": True})
    return 0


# In the parent --------------------------------------------------------------------------------------------------------


def run_part(command: Sequence[str], record: Path, end: float, again: bool) -> list[Checked]:
    """All checks of a part up to `end` by the monotonic clock. `command` takes `--record FILE --skip N --most N`.
    `again`: what ends a process is made once more."""
    skip = 0
    while True:
        code = _run([*command, "--record", str(record), "--skip", str(skip)], end, {})
        entries = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
        if any("end" in entry for entry in entries):
            return _checked(entries)
        begun = [entry for entry in entries if "begin" in entry and entry["number"] >= skip]
        why = "no time was left" if code is None else f"its process ended with {code}"
        if not begun:
            print(f"FAIL no check began: {why}", flush=True)
            return [*_checked(entries), Checked("a process of checks", 0.0, (), why)]
        last = begun[-1]
        if entries[-1] is last:
            print(f"FAIL {last['begin']}: {why}", flush=True)
            lost = Checked(str(last["begin"]), 0.0, (), why)
            _note(record, asdict(lost))
            entries.append(asdict(lost))
        if code is None:
            return _checked(entries)
        skip = int(last["number"]) + 1
        if again:
            print(f"     {last['begin']} once more, with every call waited for:", flush=True)
            once = [*command, "--record", os.devnull, "--skip", str(skip - 1), "--most", "1"]
            _run(once, min(end, time.monotonic() + AGAIN), WAITING)


def _checked(entries: Iterable[dict[str, Any]]) -> list[Checked]:
    return [Checked(**{**entry, "said": tuple(entry["said"])}) for entry in entries if "failure" in entry]


def _run(command: Sequence[str], end: float, variables: dict[str, str]) -> int | None:
    """The exit code of a process, None if there was not enough time: it then says where it is, and is ended with all
    that it started."""
    if time.monotonic() >= end:
        return None
    child = subprocess.Popen(command, env=inherited_variables() | variables, start_new_session=True)
    try:
        return child.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGABRT)  # the fault handler writes where its threads are
        with suppress(subprocess.TimeoutExpired):
            child.wait(5.0)
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
