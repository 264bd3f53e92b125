"""Digests of what data consist of, and how a large file's digest is remembered without being fooled."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paren.text.errors import ParenError
from paren.text.json import parse_json
from paren.text.source import Span

BLOCK = 1 << 20
REMEMBERED_FROM = 4 << 20  # bytes; hashing a smaller file costs about as much as looking its record up
SETTLED_AFTER = 2_000_000_000  # nanoseconds; no file system's clock is coarser than 2 s


def digest_of(*parts: object) -> str:
    """Digest (32 hexadecimal digits) of values whose JSON form is unambiguous: strings, numbers, None, tuples."""
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


def array_digest(values: npt.NDArray[np.generic]) -> str:
    """Digest of an array's dtype, shape and elements (little-endian, row by row), read in bounded pieces."""
    state = hashlib.blake2b(digest_size=16)
    little = values.dtype.newbyteorder("<")
    state.update(f"{little.str} {values.shape}".encode())
    rows = values.reshape(1) if values.ndim == 0 else values
    step = max(1, BLOCK // max(1, rows.itemsize * int(np.prod(rows.shape[1:], dtype=np.int64))))
    for start in range(0, len(rows), step):
        state.update(np.ascontiguousarray(rows[start : start + step], little).tobytes())
    return state.hexdigest()


def file_digest(path: Path, cache: Path) -> str:
    """Digest of a file's bytes.

    For a large file the digest is remembered in `cache` beside the file's identity: device, inode, size, time of last
    change of the bytes and of the inode. A program can set the first time back but not the second, so bytes changed
    under the same size and time are noticed. A file that changed less than two seconds ago is not remembered, since a
    further change could leave the same times.
    """
    before = os.stat(path)
    if before.st_size < REMEMBERED_FROM:
        return _hashed(path)
    identity = [before.st_dev, before.st_ino, before.st_size, before.st_mtime_ns, before.st_ctime_ns]
    record = cache / "digests" / f"{digest_of(os.fsencode(path.resolve()).hex())}.json"
    try:
        known = parse_json(record.read_bytes())
        if known["identity"] == identity:
            return str(known["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no record, or one that is damaged: the bytes decide
    started = time.time_ns()
    digest = _hashed(path)
    if started - max(before.st_mtime_ns, before.st_ctime_ns) > SETTLED_AFTER:
        write_atomically(record, json.dumps({"identity": identity, "digest": digest}).encode())
    return digest


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a small file of the cache so that a reader sees the old bytes or the new ones, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        aside.write_bytes(data)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def reporting_cache_errors(cache: Path, span: Span | None = None) -> Iterator[None]:
    """Raises E-DATA-021 for an operating-system error in the block. Files of the user report their own where they are
    read, so what is left is the cache."""
    try:
        yield
    except OSError as error:
        raise ParenError(
            "E-DATA-021",
            f"the cache folder {cache} cannot be used: {error.strerror}",
            span,
            fix="free some space, or give another folder in PAREN_CACHE",
        ) from error


def _hashed(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
