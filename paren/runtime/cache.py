"""Compiled kernels, plans and graphs of libraries on disk, by content: verified when read, atomic when written, never a
reason for a run to fail."""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from paren.plan.kernel import Kernel

HASH_BYTES = 32


@dataclass
class Cache:
    """Objects of a kind in the cache folder, or nothing at all if it is None. `notes` says once what went wrong, in
    the same words for all kinds where it is the folder that cannot be used."""

    kind: ClassVar[str]
    folder: Path | None
    notes: list[str] = field(default_factory=list)

    def key(self, *parts: str) -> str:
        """SHA-256 over texts; their lengths enter it, so that no two lists of parts collide."""
        digest = hashlib.sha256()
        for part in parts:
            data = part.encode()
            digest.update(f"{len(data)}:".encode())
            digest.update(data)
        return digest.hexdigest()

    def holds(self, key: str) -> bool:
        """Whether there is something under a key, damaged or not. What may not be looked at counts as missing."""
        return self.folder is not None and os.path.exists(self._path(key))  # Path.exists raises where it may not look

    def read(self, key: str) -> bytes | None:
        """The object of a key; None if there is none or it is damaged (it is then rebuilt and replaced)."""
        if self.folder is None:
            return None
        path = self._path(key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as problem:
            self._note_unusable(problem)
            return None
        content = data[HASH_BYTES:]
        if self._seal(key, content) != data[:HASH_BYTES]:
            self._note(f"a damaged {self.kind} in the cache folder {self.folder} was made again")
            return None
        return content

    def write(self, key: str, content: bytes) -> None:
        """Keeps an object; a reader sees all of it or nothing. A full disk or a read-only folder gives a note."""
        if self.folder is None:
            return
        path = self._path(key)
        temporary = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".part-")
            with os.fdopen(handle, "wb") as file:
                file.write(self._seal(key, content) + content)
            os.replace(temporary, path)
        except OSError as problem:
            self._note_unusable(problem)
            if temporary is not None:
                with suppress(OSError):  # the note above says all there is to say
                    Path(temporary).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{self.kind}s" / key[:2] / key[2:]

    def _seal(self, key: str, content: bytes) -> bytes:
        """The hash covers the key too, so that a file under another name is not taken for this one."""
        return hashlib.sha256(key.encode() + content).digest()

    def _note_unusable(self, problem: OSError) -> None:
        self._note(f"the cache folder {self.folder} cannot be used, so each start compiles anew: {problem.strerror}")

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


class KernelCache(Cache):
    kind = "kernel"


class PlanCache(Cache):
    kind = "plan"


class GraphCache(Cache):
    kind = "graph"


def kernel_key(kernel: Kernel, by_rows: bool) -> str:
    """What a device finds loaded code by: equal kernels share it, in the form whose units are rows or in the other."""
    return f"{kernel.digest} by rows" if by_rows else kernel.digest
