"""Finding libgomp, and saying None where there is none."""

from __future__ import annotations

import ctypes.util
from pathlib import Path

import pytest

from paren.runtime import openmp


def find_openmp_in(folder: Path | None, monkeypatch: pytest.MonkeyPatch) -> openmp.OpenMP | None:
    monkeypatch.setattr(openmp, "_torch_folder", lambda: folder)
    return openmp.find_openmp.__wrapped__()


def test_without_torchs_libgomp_the_systems_is_used_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libgomp.so.1").write_bytes(b"not a library")
    monkeypatch.setattr(ctypes.util, "find_library", lambda _name: None)
    assert find_openmp_in(tmp_path, monkeypatch) is None
    assert find_openmp_in(None, monkeypatch) is None
    monkeypatch.setattr(ctypes.util, "find_library", lambda _name: "libc.so.6")
    assert find_openmp_in(None, monkeypatch) is None
