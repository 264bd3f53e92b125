"""Large files, written past the system's cache of files."""

from __future__ import annotations

import errno
import fcntl
import io
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from paren.train.files import Files
from paren.train.places import direct, disk
from paren.train.places.disk import create_file


@pytest.mark.parametrize("size", [0, 1, 4096, 8192, 50_001])
@pytest.mark.parametrize("trouble", ["none", "not offered", "refused", "short"])
def test_large_files_are_written_past_the_cache(tmp_path, monkeypatch, size, trouble):
    """Whole, whatever the system offers: the same bytes, from pieces of any length."""
    monkeypatch.setattr(direct, "BUFFER", 4096)
    monkeypatch.setattr(disk, "LARGE", 0)
    done = []

    class File(io.FileIO):
        def write(self, data):
            done.append(len(data))
            direct_now = fcntl.fcntl(self, fcntl.F_GETFL) & os.O_DIRECT
            if trouble == "refused" and direct_now:
                raise OSError(errno.EINVAL, "Invalid argument")
            return super().write(data[:512] if trouble == "short" else data)

    def control(file, command, argument=0):
        if trouble == "not offered" and argument & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return fcntl.fcntl(file, command, argument)

    monkeypatch.setattr(direct, "fcntl", SimpleNamespace(**{**vars(fcntl), "fcntl": control}))
    monkeypatch.setattr(Path, "open", lambda path, mode, buffering: File(path, mode))
    content = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    with create_file(tmp_path / "x", Files(), size) as sink:
        for begin in range(0, size, 777):
            sink.write(content[begin : begin + 777])
            sink.push()
    monkeypatch.undo()
    assert (tmp_path / "x").read_bytes() == content
    assert trouble != "none" or done == [4096] * (size // 4096) + [size % 4096] * (size % 4096 > 0)
