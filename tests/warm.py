"""`paren` as processes of their own, forked from one that has loaded everything.

A test of real processes needs their memory, signals and exit codes, and not the second of work that each takes to load,
or two where torch is loaded. Environment, folder and streams of a process are its own. What paren itself starts, ranks
and workers, is started as ever; tests of how commands load, of terminals and of pipes take `subprocess`.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import IO

LIMIT = 300.0  # seconds of a command; a machine that is busy with other things is slow


class Command:
    """A running `paren ARGUMENTS`, used like a `subprocess.Popen` whose streams are captured as text.

    `environment`: all its variables, those of this process if None. `script`: a Python file that runs in place of
    `paren`. `session`: whether it leads a session of its own.
    """

    def __init__(
        self,
        arguments: Sequence[object],
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        script: Path | None = None,
        session: bool = False,
    ) -> None:
        self._said = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115  # closed by the next line
        weakref.finalize(self, _close, self._said)
        streams = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in self._said]
        words = [str(argument) for argument in arguments]
        variables = dict(os.environ if environment is None else environment)
        given = (words, variables, str(folder or Path.cwd()), streams, script, session)
        self._process = warm_context().Process(target=_become, args=given, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, minus the number of the signal that ended it; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float = LIMIT) -> int:
        """Raises subprocess.TimeoutExpired."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(f"{self._process.name}, which said {self.said(1)[-2000:]}", timeout)
        return self.returncode

    def communicate(self, timeout: float = LIMIT) -> tuple[str, str]:
        """What it wrote to stdout and stderr, once it has ended."""
        self.wait(timeout)
        return self.said(0), self.said(1)

    def said(self, stream: int) -> str:
        """What it has written so far to stdout (0) or stderr (1)."""
        content = os.pread(self._said[stream].fileno(), os.fstat(self._said[stream].fileno()).st_size, 0)
        return content.decode(errors="replace")

    def wait_to_say(self, pattern: str) -> None:
        """Returns once stderr has a text of a pattern."""
        end = time.monotonic() + LIMIT
        while re.search(pattern, self.said(1)) is None:
            assert self.returncode is None, f"it ended with {self.returncode} and said {self.said(1)}"
            assert time.monotonic() < end, f"it did not say {pattern!r} but {self.said(1)}"
            time.sleep(0.02)


def warm_context() -> multiprocessing.context.ForkServerContext:
    """Processes of this context are forked from one that has loaded everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["loaded"])
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # all that it knows of where modules are
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        os.environ |= {} if path is None else {"PYTHONPATH": path}
    return context


def _close(files: list[IO[bytes]]) -> None:
    for file in files:
        file.close()


def _become(
    words: list[str],
    variables: dict[str, str],
    folder: str,
    streams: list[str],
    script: Path | None,
    session: bool,
) -> None:
    for number, path in enumerate(streams, start=1):
        opened = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115  # for as long as the process lives
    sys.stderr = open(2, "w", closefd=False, errors="backslashreplace", buffering=1)  # noqa: SIM115
    assert "loaded" in sys.modules, "what `loaded` imports could not be loaded before, of which Python says nothing"
    if session:
        os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = ["paren", *words]
    if script is not None:
        runpy.run_path(str(script), run_name="__main__")
        return
    from paren.__main__ import main

    sys.exit(main())


@atexit.register
def _end() -> None:
    """Nothing that a failed test left is waited for when Python ends."""
    for process in multiprocessing.active_children():
        process.kill()
