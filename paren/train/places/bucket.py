"""Names under a prefix of a bucket as a place of checkpoints: a folder is published by its manifest, written last.

The data of a checkpoint have names that are used once, and the manifest has their names. So a manifest never stands for
half of anything: to take the place of another is to write one small object.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field

from paren.text.errors import ParenError
from paren.train.places.lease import Lease
from paren.train.places.object_store import Bucket
from paren.train.places.place import MANIFEST, Draft, Sink
from paren.train.places.transfer import Download, afterwards, download, upload

PROBE = ".probe-"
CHECKPOINT = re.compile(r"[0-9]{6,}")
DATA = re.compile(r"[a-z0-9-]+-[0-9a-f]{8}\.safetensors")


@dataclass(frozen=True)
class BucketFolder:
    """All keys that begin with `prefix`, which is empty or ends with a slash."""

    bucket: Bucket
    prefix: str

    def __str__(self) -> str:
        return f"s3://{self.bucket.name}/{self.prefix}".rstrip("/")

    @property
    def name(self) -> str:
        return self.prefix.rstrip("/").rpartition("/")[2]

    def child(self, name: str) -> BucketFolder:
        return BucketFolder(self.bucket, f"{self.prefix}{name}/")

    def exists(self) -> bool:
        return self.bucket.exists(self.prefix + MANIFEST)

    def published(self) -> list[str]:
        split = [name.partition("/") for name in self._names()]
        return sorted(folder for folder, _, name in split if name == MANIFEST)

    def files(self) -> list[str]:
        return [name for name in self._names() if "/" not in name]

    def read(self, name: str) -> bytes:
        return self.bucket.get(self.prefix + name)

    def open(self, name: str) -> AbstractContextManager[Download]:
        return download(self.bucket, self.prefix + name)

    def write(self, name: str, content: bytes) -> None:
        self.bucket.put(self.prefix + name, content)

    def create(self, name: str, size: int) -> AbstractContextManager[Sink]:
        return upload(self.bucket, self.prefix + name, size)

    @contextmanager
    def draft(self) -> Iterator[Draft]:
        draft = _BucketDraft(self)
        try:
            yield draft
        except Exception:
            draft.give_up()
            raise

    def delete(self, name: str) -> None:
        self.bucket.delete(self.prefix + name)

    def remove(self) -> None:
        """The manifest goes first: without it the rest is nothing."""
        self.delete(MANIFEST)
        for name in self._names():
            self.delete(name)

    def clean(self) -> None:
        """What is not ours by its name is left alone, and so are data that a manifest names."""
        try:
            for key, upload_id in self.bucket.uploads(self.prefix):
                if key.endswith(".safetensors"):
                    self.bucket.abort(key, upload_id)
        except ParenError as error:  # a store may not tell, or not to everybody
            self.bucket.notice(f"uploads that killed runs left in {self} stay: {error.message}")
        names = self._names()
        for name in names:
            folder, _, file = name.partition("/")
            if name.startswith(PROBE):
                self.delete(name)
            elif CHECKPOINT.fullmatch(folder) and DATA.fullmatch(file):
                manifest = self.child(folder).read(MANIFEST) if f"{folder}/{MANIFEST}" in names else b""
                if file.encode() not in manifest:
                    self.delete(name)

    def probe(self) -> None:
        name = f"{PROBE}{secrets.token_hex(4)}"
        self.write(name, b"paren")
        found = self.read(name)
        listed = self.files()
        self.delete(name)
        if found != b"paren" or name not in listed:
            raise ParenError(
                "E-S3-007",
                f"{self} gives back something else than was written",
                fix="see docs/object-storage.md for what paren asks of a store",
            )

    def lock(self, notice: Callable[[str], None]) -> Lease:
        return Lease(self.bucket, self.prefix, notice)

    def free(self) -> int | None:
        return None

    def _names(self) -> list[str]:
        return [key.removeprefix(self.prefix) for key in self.bucket.keys(self.prefix)]


@dataclass
class _BucketDraft:
    folder: BucketFolder
    token: str = field(default_factory=lambda: secrets.token_hex(4))
    created: list[str] = field(default_factory=list)

    def stored(self, name: str) -> str:
        stem, _, ending = name.rpartition(".")
        return f"{stem}-{self.token}.{ending}"

    def create(self, name: str, size: int) -> AbstractContextManager[Sink]:
        self.created.append(self.stored(name))
        return self.folder.create(self.stored(name), size)

    def publish(self, name: str, content: bytes) -> None:
        """From the last write on nothing is taken back if an error is told: the store may have done it."""
        if self.folder.bucket.lease is not None:
            self.folder.bucket.lease.prove()
        created, self.created = self.created, []
        self.folder.write(name, content)
        try:
            for old in self.folder.files():
                if DATA.fullmatch(old) and old not in created:
                    self.folder.delete(old)
        except ParenError as error:
            self.folder.bucket.notice(f"what {self.folder} held before could not be deleted: {error.message}")

    def give_up(self) -> None:
        """Deletes what was written, as far as the store answers now; the next start does the rest."""
        with afterwards(self.folder.bucket), suppress(ParenError):
            for name in self.created:
                self.folder.delete(name)
