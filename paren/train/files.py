"""Writing files so that a name never stands for half of its content."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import BinaryIO, Protocol

from paren.text.errors import ParenError, system_reason
from paren.text.json import Json, parse_json

Bytes = bytes | memoryview

TEMPORARY = ".temporary-"


class WritableFile(Protocol):
    """One of Python's files, or `places.direct.DirectFile`."""

    def write(self, data: Bytes, /) -> object: ...

    def flush(self) -> None: ...

    def fileno(self) -> int: ...


class Files:
    """The operations that change a disk. Everything a run publishes goes through them, so that a test can let any of
    them fail."""

    def write(self, file: WritableFile, data: Bytes) -> None:
        file.write(data)

    def reserve(self, file: BinaryIO, size: int) -> None:
        """Makes a file `size` bytes long, of zeros, and sees that the disk has room for them."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)

    def sync(self, file: WritableFile) -> None:
        """Returns when the content is on the disk."""
        file.flush()
        os.fsync(file.fileno())

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def sync_folder(self, folder: Path) -> None:
        """Returns when the names in a folder are on the disk."""
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


_LINE = json.JSONEncoder(ensure_ascii=False, allow_nan=False)  # kept, as making one costs as much as a short line


def json_bytes(content: object, indent: int | None = None) -> bytes:
    """`content` as one JSON text with a line end, in UTF-8. Bytes of a path that the locale cannot decode (Python keeps
    them as lone surrogates) become JSON escapes, which readers turn back. Raises ValueError for nan and infinity."""
    text = (
        _LINE.encode(content)
        if indent is None
        else json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False)
    )
    return text.encode("utf-8", "backslashreplace") + b"\n"


def read_object(path: Path) -> dict[str, Json] | None:
    """The JSON object in a file; None if there is none that can be read."""
    try:
        content = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def temporary_sibling(path: Path) -> Path:
    """An unused name beside `path`; what is left under such a name after a kill may be deleted."""
    return path.with_name(f"{TEMPORARY}{path.name}-{secrets.token_hex(4)}")


def write_atomically(files: Files, path: Path, content: bytes, *, durable: bool = True) -> None:
    """Gives `path` a new content: readers see the old one or the new one. Raises OSError, and leaves the old one.

    Not `durable`: a crash of the whole machine may lose the content. That is cheaper, for what is soon written again.
    """
    temporary = temporary_sibling(path)
    try:
        with temporary.open("wb") as file:
            files.write(file, content)
            if durable:
                files.sync(file)
        files.rename(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        files.sync_folder(path.parent)


def not_writable(path: Path, error: OSError) -> ParenError:
    """E-RUN-005, with the system's reason."""
    return ParenError(
        "E-RUN-005",
        f"{path} is not writable ({system_reason(error)})",
        fix="take another --out, or make the folder writable",
    )
