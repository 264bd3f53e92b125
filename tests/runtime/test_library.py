"""Finding BLAS and libgomp, and saying None where they are not what is needed."""

from __future__ import annotations

import ctypes.util
import shutil
from pathlib import Path

import pytest

from paren.runtime import library


def find_blas_in(folder: Path | None, monkeypatch: pytest.MonkeyPatch) -> library.Blas | None:
    monkeypatch.setattr(library, "_torch_folder", lambda: folder)
    return library.find_blas.__wrapped__()


def find_openmp_in(folder: Path | None, monkeypatch: pytest.MonkeyPatch) -> library.OpenMP | None:
    monkeypatch.setattr(library, "_torch_folder", lambda: folder)
    return library.find_openmp.__wrapped__()


def test_a_library_that_is_missing_broken_or_without_symbols_is_no_blas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_blas_in(None, monkeypatch) is None
    assert find_blas_in(tmp_path, monkeypatch) is None
    path = tmp_path / "libtorch_cpu.so"
    path.write_bytes(b"not a library")
    assert find_blas_in(tmp_path, monkeypatch) is None


def test_a_library_without_the_symbols_is_no_blas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = library._torch_folder()
    found = sorted(folder.glob("libgomp*")) if folder is not None else []
    if not found:
        pytest.skip("torch carries no libgomp to stand for another library")
    shutil.copy(found[0], tmp_path / "libtorch_cpu.so")
    assert find_blas_in(tmp_path, monkeypatch) is None


def test_without_torchs_libgomp_the_systems_is_used_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libgomp.so.1").write_bytes(b"not a library")
    monkeypatch.setattr(ctypes.util, "find_library", lambda _name: None)
    assert find_openmp_in(tmp_path, monkeypatch) is None
    assert find_openmp_in(None, monkeypatch) is None
    monkeypatch.setattr(ctypes.util, "find_library", lambda _name: "libc.so.6")
    assert find_openmp_in(None, monkeypatch) is None
