"""The manifest of a checkpoint: what it holds, what it belongs to, and digests of every byte of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Self

from paren.text.json import Json, parse_json
from paren.train.places.place import MANIFEST, Place
from paren.train.state import LoopState

FORMAT = 3
FILE = MANIFEST


class Damaged(Exception):
    """A checkpoint is not what its manifest says, or its manifest is not what was written; the text says where."""


class OtherFormat(Exception):
    """The manifest is of a format version that this paren does not read; the argument is that version."""


@dataclass(frozen=True)
class StoredSlot:
    """One slot: which file holds it, and the SHA-256 of its bytes."""

    role: str
    dtype: str
    shape: tuple[int, ...]
    sha256: str
    file: str


@dataclass(frozen=True)
class StoredFile:
    """A file of tensors: its bytes, and its digest (see `tensor_file.file_digest`)."""

    size: int
    digest: str


@dataclass(frozen=True)
class Manifest:
    """`run`: id of the run that wrote it. `parent`: id of the checkpoint that the training continued from, if any.

    `sequence` counts the checkpoints that were written into one place, so it tells the order of writing even after a
    resume from an older one. `program` is the digest of the experiment, `identity` the device and layout that decide
    about bits. `metrics_bytes` is the length of the metrics file that belongs to the state, in the run directory of id
    `directory`: a run whose directory was lost goes on in another.
    """

    run: str
    parent: str | None
    sequence: int
    step: int
    samples: int
    updates: int
    program: str
    identity: Mapping[str, Json]
    versions: Mapping[str, str]
    written: str
    directory: str
    metrics_bytes: int
    loop: LoopState
    slots: Mapping[str, StoredSlot]
    files: Mapping[str, StoredFile]
    format: int = field(default=FORMAT)

    @cached_property
    def id(self) -> str:
        """SHA-256 of the content: it names the checkpoint in its children's `parent`."""
        return hashlib.sha256(_canonical(self.content())).hexdigest()

    def content(self) -> dict[str, Any]:
        return {**asdict(self), "loop": self.loop.to_json()}

    def to_bytes(self) -> bytes:
        return json.dumps({**self.content(), "id": self.id}, indent=1, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def read(cls, folder: Place) -> Self:
        """The manifest of a checkpoint folder. Raises `Damaged` or `OtherFormat`, and E-S3-* if a bucket refuses."""
        try:
            content = parse_json(folder.read(FILE))
        except FileNotFoundError:
            raise Damaged("manifest.json is missing") from None
        except (OSError, ValueError) as error:
            raise Damaged("manifest.json is not readable") from error
        if not isinstance(content, dict):
            raise Damaged("manifest.json holds no object")
        if content.get("format") != FORMAT:
            raise OtherFormat(content.get("format"))
        identity = content.pop("id", None)
        if hashlib.sha256(_canonical(content)).hexdigest() != identity:
            raise Damaged("the content of manifest.json does not match its id")
        try:
            content["loop"] = LoopState.from_json(content["loop"])
            content["slots"] = {
                name: StoredSlot(**{**slot, "shape": tuple(slot["shape"])}) for name, slot in content["slots"].items()
            }
            content["files"] = {name: StoredFile(**file) for name, file in content["files"].items()}
            return cls(**content)
        except (KeyError, TypeError, AttributeError) as error:
            raise Damaged("manifest.json lacks a field") from error


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
