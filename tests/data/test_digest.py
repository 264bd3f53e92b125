"""Digests of files follow their bytes, also where a change hides behind the same size and time (case S07)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import paren.data.digest as digest_module
from paren.data.digest import array_digest, digest_of, file_digest


@pytest.fixture
def big(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that counts as large, long unchanged."""
    monkeypatch.setattr(digest_module, "REMEMBERED_FROM", 1)
    monkeypatch.setattr(digest_module, "SETTLED_AFTER", -1_000_000_000)
    path = tmp_path / "big.bin"
    path.write_bytes(b"abc")
    return path


def count_hashing(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    hashed: list[Path] = []
    original = digest_module._hashed
    monkeypatch.setattr(digest_module, "_hashed", lambda path: hashed.append(path) or original(path))
    return hashed


def test_a_large_file_is_hashed_once(big: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = count_hashing(monkeypatch)
    assert file_digest(big, tmp_path / "cache") == file_digest(big, tmp_path / "cache")
    assert len(hashed) == 1


def test_bytes_changed_under_the_same_size_and_time_are_noticed(big: Path, tmp_path: Path) -> None:
    first, times = file_digest(big, tmp_path / "cache"), os.stat(big)
    with open(big, "r+b") as file:
        file.write(b"x")
    os.utime(big, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = os.stat(big)
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (times.st_size, times.st_mtime_ns, times.st_ino)
    assert file_digest(big, tmp_path / "cache") != first


def test_a_file_that_has_just_changed_is_not_remembered(
    big: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest_module, "SETTLED_AFTER", 2_000_000_000)
    hashed = count_hashing(monkeypatch)
    file_digest(big, tmp_path / "cache")
    file_digest(big, tmp_path / "cache")
    assert len(hashed) == 2


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"identity": 3}', b"\xff"])
def test_a_damaged_record_is_not_believed(big: Path, tmp_path: Path, damage: bytes) -> None:
    first = file_digest(big, tmp_path / "cache")
    (record,) = (tmp_path / "cache" / "digests").iterdir()
    assert json.loads(record.read_bytes())["digest"] == first
    record.write_bytes(damage)
    assert file_digest(big, tmp_path / "cache") == first


def test_small_files_leave_no_record(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"abc")
    file_digest(tmp_path / "small", tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_arrays_differ_by_type_shape_and_values_not_by_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(12, dtype=np.int32).reshape(3, 4)
    digests = [
        array_digest(values),
        array_digest(values.astype(np.int64)),
        array_digest(values.reshape(4, 3)),
        array_digest(values + 1),
        array_digest(np.array(3)),
        array_digest(np.zeros((0, 4), np.int32)),
    ]
    assert len(set(digests)) == len(digests)
    assert array_digest(np.asfortranarray(values)) == digests[0]
    assert array_digest(values.astype(">i4")) == digests[0]
    monkeypatch.setattr(digest_module, "BLOCK", 4)
    assert array_digest(values) == digests[0]


def test_parts_are_not_confused() -> None:
    digests = [digest_of("a", "b"), digest_of("ab"), digest_of("a,b"), digest_of(["a"], "b"), digest_of("a", None)]
    assert len(set(digests)) == len(digests)
