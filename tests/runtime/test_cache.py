"""The kernel cache: by content, verified, atomic, and never a reason for a run to fail."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from kernel_samples import gelu, run_on

from paren.environment import read_environment
from paren.runtime.cache import KernelCache
from paren.runtime.cpu import CpuDevice
from paren.runtime.native import Compiler


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def compute(device: CpuDevice) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    x = np.linspace(-3, 3, 70).astype(np.float32)
    result = np.empty_like(x)
    run_on(device, gelu(7, 10), [x, result])
    return result


def test_a_second_start_compiles_nothing(tmp_path: Path) -> None:
    first = CpuDevice(1, tmp_path)
    wanted = compute(first)
    assert (first.compiler.compiled, first.compiler.reused) == (2, 0)  # the driver and the kernel
    second = CpuDevice(1, tmp_path)
    np.testing.assert_array_equal(compute(second), wanted)
    assert (second.compiler.compiled, second.compiler.reused) == (0, 2)
    assert list(second.notes) == []


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "swap"])
def test_damaged_objects_are_rebuilt(tmp_path: Path, damage: str) -> None:
    wanted = compute(CpuDevice(1, tmp_path))
    paths = files(tmp_path)
    contents = [path.read_bytes() for path in paths]
    for path, content, other in zip(paths, contents, reversed(contents), strict=True):
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes({"flip": flipped, "cut": content[:-1], "empty": b"", "swap": other}[damage])
    device = CpuDevice(1, tmp_path)
    np.testing.assert_array_equal(compute(device), wanted)
    assert device.compiler.reused == 0
    assert list(device.notes) == [f"a damaged kernel in the cache folder {tmp_path} was made again"]
    assert [path.read_bytes() for path in files(tmp_path)] == contents


def test_a_folder_that_cannot_be_made_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    device = CpuDevice(1, tmp_path / "file")
    compute(device)
    assert list(device.notes) == [
        f"the cache folder {tmp_path / 'file'} cannot be used, so each start compiles anew: Not a directory"
    ]


def test_an_object_that_may_not_be_looked_at_counts_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_named: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "stat", refuse)
    assert not KernelCache(tmp_path).holds("0" * 64)


def test_a_full_disk_is_a_note_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    device = CpuDevice(1, tmp_path)
    compute(device)
    assert list(device.notes) == [
        f"the cache folder {tmp_path} cannot be used, so each start compiles anew: No space left on device"
    ]
    assert files(tmp_path) == []


def test_no_folder_keeps_nothing() -> None:
    cache = KernelCache(None)
    cache.write("0" * 64, b"object")
    assert cache.read("0" * 64) is None
    assert cache.notes == []


def test_keys_tell_parts_apart(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    assert len({cache.key("ab", "c"), cache.key("a", "bc"), cache.key("abc"), cache.key("ab", "c", "")}) == 4


def test_the_target_is_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compute(CpuDevice(1, tmp_path))
    monkeypatch.setattr(Compiler, "target", property(lambda _self: "another processor"))
    other = CpuDevice(1, tmp_path)
    compute(other)
    assert other.compiler.reused == 0


def test_the_users_folder_is_named_after_paren() -> None:
    assert read_environment({}).cache.name == "paren"
