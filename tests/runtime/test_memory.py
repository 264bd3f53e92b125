"""Memory: what is available under control groups, aligned allocation, and a refusal with a code."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from paren.runtime.memory import (
    Available,
    allocate,
    available_memory,
    peak_resident,
    processor_quota,
    resident_bytes,
    usable_memory,
)
from paren.text.errors import ParenError


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


VERSION_1 = {"proc/self/cgroup": "4:cpu,cpuacct:/x\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}
MACHINE = {"proc/meminfo": "MemTotal: 4096 kB\nMemAvailable:    2048 kB\n"}


def test_without_groups_the_machine_is_the_limit(tmp_path: Path) -> None:
    write(tmp_path, MACHINE)
    found = available_memory(tmp_path)
    assert found == Available(2048 * 1024, 4096 * 1024, "available memory of the machine")


def test_version_2_groups_count_up_to_the_root(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            **MACHINE,
            "proc/self/cgroup": "0::/outer/inner\n",
            "sys/fs/cgroup/outer/inner/memory.max": "max\n",
            "sys/fs/cgroup/outer/memory.max": "1000000\n",
            "sys/fs/cgroup/outer/memory.current": "700000\n",
            "sys/fs/cgroup/outer/memory.stat": "anon 1\ninactive_file 200000\n",
        },
    )
    found = available_memory(tmp_path)
    assert found == Available(500_000, 1_000_000, "memory limit of the control group")


def test_what_a_run_may_use() -> None:
    free = Available(1000, 4000, "available memory of the machine")
    assert usable_memory(free, None) == free
    assert usable_memory(free, 2000) == free
    assert usable_memory(free, 600) == Available(600, 600, "value of PAREN_MEMORY")


def test_resident_memory_is_that_of_the_process_itself() -> None:
    before = resident_bytes()
    array = allocate(32 << 20)
    array[:] = 1
    assert 0.9 * array.size < resident_bytes() - before < 1.2 * array.size


def test_a_child_sees_its_own_memory() -> None:
    program = """import os
from paren.runtime.memory import allocate, resident_bytes
resident_bytes()
if os.fork() == 0:
    array = allocate(32 << 20)
    array[:] = 1
    os._exit(resident_bytes() > 32 << 20)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


def test_version_1_groups(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            **MACHINE,
            "proc/self/cgroup": "5:cpu,cpuacct:/x\n9:memory:/docker/abc\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "900000\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "950000\n",
        },
    )
    assert available_memory(tmp_path).bytes == 0


def test_an_unlimited_group_leaves_the_machine(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            **MACHINE,
            "proc/self/cgroup": "9:memory:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2**63 - 4096}\n",
        },
    )
    assert available_memory(tmp_path).bytes == 2048 * 1024


def test_a_system_that_says_nothing(tmp_path: Path) -> None:
    assert available_memory(tmp_path).limit == "assumption of 1 GiB"


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "400000 100000\n"}, 4),
        ({**VERSION_1, "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n"}, None),
        ({**VERSION_1, "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000\n"}, 3),
    ],
)
def test_quota_of_processor_time(tmp_path: Path, files: dict[str, str], quota: int | None) -> None:
    write(tmp_path, files)
    assert processor_quota(tmp_path) == quota


@pytest.mark.parametrize("size", [0, 1, 100, 5 << 20])
def test_allocated_bytes_are_aligned_zeros_that_can_be_written(size: int) -> None:
    array = allocate(size)
    assert array.size == size
    assert array.ctypes.data % 64 == 0
    assert not array.any()
    array[:] = 7
    assert (array == 7).all()


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system has no huge pages")
def test_what_is_touched_here_and_there_lies_in_small_pages() -> None:
    """Otherwise packed operands take megabytes on a machine of many processors, and the plan counts kilobytes."""
    array = allocate(32 << 20, sparse=True)
    before = resident_bytes()
    array[:: 1 << 20] = 1
    assert resident_bytes() - before < 1 << 20


def test_memory_lives_as_long_as_its_views() -> None:
    view = allocate(4096)[100:200].view(np.uint8)
    assert not view.any()


def test_a_refused_allocation_has_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(ParenError) as caught:
        allocate(12345)
    error = caught.value
    assert error.code == "E-MEM-002"
    assert error.message.startswith("12.1 KiB could not be allocated, ")
    assert error.message.endswith(" are free")
    assert error.notes[1].message == "the system said: [Errno 12] Cannot allocate memory"
    assert error.fix == "make the model or the microbatch smaller, or end other programs"


def test_the_peak_grows_with_use() -> None:
    before = peak_resident()
    array = allocate(64 << 20)
    array[:] = 1
    assert peak_resident() >= before
    assert peak_resident() > 32 << 20
