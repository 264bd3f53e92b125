"""A folder on a disk as a place of checkpoints: a folder in it is published by one rename."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path

from paren.text.errors import ParenError
from paren.train.files import TEMPORARY, Bytes, Files, WritableFile, not_writable, temporary_sibling, write_atomically
from paren.train.lock import RunLock
from paren.train.places.direct import LARGE, DirectFile
from paren.train.places.place import Draft, Sink


@dataclass(frozen=True)
class _DiskSink:
    handle: WritableFile
    operations: Files

    def write(self, data: Bytes) -> None:
        self.operations.write(self.handle, data)

    def push(self) -> None:
        self.operations.sync(self.handle)


class _DirectSink(_DiskSink):
    def push(self) -> None:
        """The disk has it already."""


@dataclass(frozen=True)
class DiskContent:
    """An open file and its size in bytes."""

    handle: BufferedReader
    size: int

    def read(self, size: int, /) -> bytes:
        return self.handle.read(size)

    def readinto(self, buffer: memoryview, /) -> int:
        return self.handle.readinto(buffer)


@contextmanager
def create_file(path: Path, operations: Files, size: int = 0) -> Iterator[Sink]:
    """Writes a new file of about `size` bytes, which is on the disk when the block ends. Raises OSError."""
    sink: _DiskSink
    with ExitStack() as stack:
        if size < LARGE:
            sink = _DiskSink(stack.enter_context(path.open("xb")), operations)
        else:
            sink = _DirectSink(DirectFile(stack.enter_context(path.open("xb", buffering=0))), operations)
        yield sink
        operations.sync(sink.handle)


@contextmanager
def open_file(path: Path) -> Iterator[DiskContent]:
    """Reads a file. Raises OSError."""
    with path.open("rb") as handle:
        yield DiskContent(handle, os.fstat(handle.fileno()).st_size)


@dataclass(frozen=True)
class DiskFolder:
    """A folder; `operations` are those that change the disk."""

    path: Path
    operations: Files = field(default_factory=Files, compare=False)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        return self.path.name

    def child(self, name: str) -> DiskFolder:
        return DiskFolder(self.path / name, self.operations)

    def exists(self) -> bool:
        return self.path.is_dir()

    def published(self) -> list[str]:
        if not self.path.is_dir():
            return []
        return sorted(each.name for each in self.path.iterdir() if each.is_dir() and not _is_temporary(each))

    def files(self) -> list[str]:
        if not self.path.is_dir():
            return []
        return sorted(each.name for each in self.path.iterdir() if each.is_file() and not _is_temporary(each))

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def open(self, name: str) -> AbstractContextManager[DiskContent]:
        return open_file(self.path / name)

    def write(self, name: str, content: bytes) -> None:
        write_atomically(self.operations, self.path / name, content)

    @contextmanager
    def create(self, name: str, size: int) -> Iterator[Sink]:
        self.path.mkdir(parents=True, exist_ok=True)
        temporary = temporary_sibling(self.path / name)
        try:
            with create_file(temporary, self.operations, size) as sink:
                yield sink
            self.operations.rename(temporary, self.path / name)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    @contextmanager
    def draft(self) -> Iterator[Draft]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_sibling(self.path)
        try:
            temporary.mkdir()
            yield _DiskDraft(temporary, self.path, self.operations)
        except (OSError, ParenError):
            shutil.rmtree(temporary, ignore_errors=True)
            raise

    def delete(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def remove(self) -> None:
        leaving = temporary_sibling(self.path)
        self.operations.rename(self.path, leaving)
        shutil.rmtree(leaving)

    def clean(self) -> None:
        for left in self.path.glob(f"{TEMPORARY}*"):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink()

    def probe(self) -> None:
        first, second = temporary_sibling(self.path / "probe"), temporary_sibling(self.path / "probe")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with create_file(first, self.operations) as sink:
                sink.write(b"paren")
            self.operations.rename(first, second)
            second.unlink()
            self.operations.sync_folder(self.path)
        except OSError as error:
            first.unlink(missing_ok=True)
            raise not_writable(self.path, error) from error

    def lock(self, notice: Callable[[str], None]) -> RunLock:
        return RunLock(self.path)

    def free(self) -> int | None:
        folder = self.path
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        try:
            return shutil.disk_usage(folder).free
        except OSError:
            return None


@dataclass(frozen=True)
class _DiskDraft:
    folder: Path
    target: Path
    operations: Files

    def stored(self, name: str) -> str:
        return name

    def create(self, name: str, size: int) -> AbstractContextManager[Sink]:
        return create_file(self.folder / name, self.operations, size)

    def publish(self, name: str, content: bytes) -> None:
        """One rename. What stood under the name before is of an abandoned branch, or damaged."""
        with create_file(self.folder / name, self.operations) as sink:
            sink.write(content)
        self.operations.sync_folder(self.folder)
        replaced = None
        if self.target.exists():
            replaced = temporary_sibling(self.target)
            self.operations.rename(self.target, replaced)
        try:
            self.operations.rename(self.folder, self.target)
        except OSError:
            if replaced is not None:
                self.operations.rename(replaced, self.target)
            raise
        self.operations.sync_folder(self.target.parent)
        if replaced is not None:
            shutil.rmtree(replaced, ignore_errors=True)


def _is_temporary(path: Path) -> bool:
    return path.name.startswith(TEMPORARY)
