"""Where checkpoints lie, by few verbs: a folder on a disk (`disk`), or names under a prefix of a bucket (`bucket`).

What is under way is seen by nobody: a file appears whole or not at all, and so does a folder that is drafted. What a
kill leaves is deleted by `clean`. A disk refuses with OSError. A bucket raises FileNotFoundError for what does not
exist, and errors with a code (E-S3-*) for all else, after it has tried again whatever may pass.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from paren.train.files import Bytes

MANIFEST = "manifest.json"  # the file that comes last into a folder


class Sink(Protocol):
    """A file that is being written from its beginning to its end."""

    def write(self, data: Bytes) -> None:
        """Takes the next bytes; they may change once it returns."""
        ...

    def push(self) -> None:
        """Lets the place begin to keep what was written. Called by another thread, while more is written."""
        ...


class Readable(Protocol):
    """Bytes that are read from their beginning to their end, as Python's own files."""

    def read(self, size: int, /) -> bytes: ...

    def readinto(self, buffer: memoryview, /) -> int: ...


class Content(Readable, Protocol):
    """A file that is read; `size` in bytes."""

    @property
    def size(self) -> int: ...


class Draft(Protocol):
    """A folder on its way. Leaving its block without `publish` deletes what was written."""

    def stored(self, name: str) -> str:
        """The name that a file of it gets."""
        ...

    def create(self, name: str, size: int) -> AbstractContextManager[Sink]:
        """A file of about so many bytes; it is kept when the block ends without an error."""
        ...

    def publish(self, name: str, content: bytes) -> None:
        """Writes the last file, and lets the folder take its place, and that of one of the same name."""
        ...


class Place(Protocol):
    """A folder. As text, it is what a user calls it."""

    @property
    def name(self) -> str:
        """The last part of what it is called."""
        ...

    def child(self, name: str) -> Place:
        """The folder of that name in it, which need not exist."""
        ...

    def exists(self) -> bool:
        """Whether it is a published folder."""
        ...

    def published(self) -> list[str]:
        """The names of the published folders in it, sorted."""
        ...

    def files(self) -> list[str]:
        """The names of the files in it, sorted."""
        ...

    def read(self, name: str) -> bytes:
        """A small file."""
        ...

    def open(self, name: str) -> AbstractContextManager[Content]:
        """A large file."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Gives a small file a new content, in one."""
        ...

    def create(self, name: str, size: int) -> AbstractContextManager[Sink]:
        """Gives a large file of about so many bytes a new content; it changes when the block ends without an error."""
        ...

    def draft(self) -> AbstractContextManager[Draft]:
        """A new content for this folder."""
        ...

    def delete(self, name: str) -> None:
        """Deletes a file, if it exists."""
        ...

    def remove(self) -> None:
        """Deletes the folder with all that is in it."""
        ...

    def clean(self) -> None:
        """Deletes what killed writes left in it. Only the holder of the run's lock may call it."""
        ...

    def probe(self) -> None:
        """Does with a small file what a checkpoint will need. Raises E-RUN-005 or E-S3-* if that is refused."""
        ...

    def lock(self, notice: Callable[[str], None]) -> AbstractContextManager[object]:
        """Held while a run uses the folder. Raises E-RUN-004 if another run does, naming its holder."""
        ...

    def free(self) -> int | None:
        """Bytes that are free; None if that is not known."""
        ...
