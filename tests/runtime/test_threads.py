"""The default number of threads: physical cores, and no more than a quota."""

from __future__ import annotations

from pathlib import Path

import pytest

from paren.runtime import threads
from paren.runtime.threads import default_threads


def test_threads_default_to_physical_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _process: {0, 1, 2, 3}, raising=False)
    for processor in range(4):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{processor}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{processor % 2},{processor % 2 + 2}\n")
    assert default_threads(tmp_path) == 2
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("50000 100000\n")
    assert default_threads(tmp_path) == 1


def test_without_topology_every_processor_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _process: {0, 5, 7}, raising=False)
    assert default_threads(tmp_path) == 3
