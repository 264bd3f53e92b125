"""An artifact: a folder of arrays, values and files that nobody changes any more; `artifact.json` lists them.

artifact.json   format, kind, name, key, recipe, created, metadata, files with bytes and SHA-256, digest of all this
NAME.npy        an array
values.json     all values that are not arrays, by name
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from paren.data.numpy_file import UNREADABLE
from paren.experiment.store.claims import not_writable
from paren.experiment.store.recipe import Recipe, digest
from paren.ir.op import Array
from paren.text.brevity import shorten
from paren.text.errors import ParenError, first_line
from paren.text.json import Json, parse_json
from paren.text.size import count_of
from paren.train.files import TEMPORARY, Files, json_bytes
from paren.train.lock import HOLDER, LOCK
from paren.train.status import now

MANIFEST = "artifact.json"
VALUES = "values.json"
FORMAT = 1
_LONGEST = 100  # characters of a name
_KINDS = "biufcSUMm"  # of dtypes: what a .npy file gives back as it was


@dataclass(frozen=True)
class StoredFile:
    """A file of an artifact, by its path in it: bytes, SHA-256, and of an array its dtype and shape."""

    size: int
    sha256: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Artifact:
    """A published artifact. `metadata` is what its builder returned. Nothing in `folder` may be changed."""

    folder: Path
    recipe: Recipe
    created: str
    metadata: Json
    files: Mapping[str, StoredFile]

    @property
    def key(self) -> str:
        return self.recipe.key

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all arrays and values, sorted."""
        arrays = [path.removesuffix(".npy") for path, file in self.files.items() if file.shape is not None]
        return tuple(sorted([*arrays, *self._values]))

    def mark_as_used(self) -> bool:
        """Notes the time, for `prune` to see that somebody needs it; whether it is still there."""
        try:
            os.utime(self.folder / MANIFEST)
        except FileNotFoundError:
            return False
        except OSError:  # of a read-only folder, from which nothing is pruned
            return True
        return True

    def array(self, name: str) -> Array:
        """An array, mapped into memory and not writable. Raises KeyError if there is none of that name, E-STORE-002 if
        it is damaged."""
        if f"{name}.npy" not in self.files:
            raise KeyError(name)
        try:
            values: Array = np.load(self.folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        except UNREADABLE as error:
            raise damaged(self.folder, f"{name}.npy cannot be read as an array ({first_line(error)})") from None
        return values

    def json(self, name: str) -> Json:
        """A value that is no array. Raises KeyError if there is none of that name."""
        return self._values[name]

    @cached_property
    def _values(self) -> dict[str, Json]:
        if VALUES not in self.files:
            return {}
        try:
            found: dict[str, Json] = parse_json((self.folder / VALUES).read_bytes())
        except (OSError, ValueError):
            raise damaged(self.folder, f"{VALUES} cannot be read") from None
        return found


class Writer:
    """What a builder stores arrays and values with, under names of letters, digits, `-` and `_`.

    All methods raise E-STORE-001 for a name that cannot be one or is taken and for content that cannot be kept, and
    E-STORE-003 if the disk refuses.
    """

    def __init__(self, folder: Path, files: Files) -> None:
        self._folder = folder
        self._files = files
        self._arrays: dict[str, Array | None] = {}  # of those that were allocated, the memory map
        self._values: dict[str, Json] = {}

    def allocate(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """A new array of zeros to be filled, which lies in the artifact's file and not in memory. Its bytes are
        reserved on the disk, so that filling it cannot fail."""
        kind = np.dtype(dtype)
        path = self._place(name, kind)
        with writing(path):
            with path.open("xb") as file:
                header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
                file.flush()
                self._files.reserve(file, file.tell() + kind.itemsize * math.prod(shape))
            values: Array = np.load(path, mmap_mode="r+", allow_pickle=False)
        self._arrays[name] = values
        return values

    def array(self, name: str, values: Array) -> None:
        """Stores an array."""
        path = self._place(name, values.dtype)
        with writing(path), path.open("xb") as file:
            np.lib.format.write_array(_Through(self._files, file), values, allow_pickle=False)
        self._arrays[name] = None

    def json(self, name: str, value: Json) -> None:
        """Stores a number, text, list or mapping. NaN and infinity have no place in JSON: None stands for undefined."""
        self._check(name)
        try:
            json_bytes(value)
        except (ValueError, TypeError) as error:
            raise ParenError("E-STORE-001", f"the value {name} cannot be kept as JSON: {error}") from None
        self._values[name] = value

    def finish(self) -> list[str]:
        """Writes the values, and lets go of the memory maps; the names of the allocated arrays."""
        allocated = [name for name, values in self._arrays.items() if values is not None]
        self._arrays |= dict.fromkeys(allocated)
        if self._values:
            path = self._folder / VALUES
            with writing(path), path.open("xb") as file:
                self._files.write(file, json_bytes(self._values))
        return allocated

    def _place(self, name: str, dtype: np.dtype[Any]) -> Path:
        self._check(name)
        if dtype.kind not in _KINDS:
            raise ParenError(
                "E-STORE-001",
                f"the array {name} has the dtype {dtype}, which a .npy file cannot keep without pickles",
                fix="make it an array of numbers, booleans or fixed-length strings",
            )
        return self._folder / f"{name}.npy"

    def _check(self, name: str) -> None:
        check_name(name, "an array or value of an artifact")
        if name in self._arrays or name in self._values:
            raise ParenError("E-STORE-001", f"{name} is stored twice", fix="give each array and value its own name")


@dataclass(frozen=True)
class _Through:
    """A file as numpy writes to it, by the operations that a test can let fail."""

    files: Files
    file: BinaryIO

    def write(self, data: bytes) -> None:
        self.files.write(self.file, data)


def check_name(name: str, what: str) -> None:
    """Raises E-STORE-001 unless a name is safe as the name of a file on every system."""
    if name and len(name) <= _LONGEST and all(each.isalnum() or each in "-_" for each in name):
        return
    raise ParenError(
        "E-STORE-001",
        f"{shorten(name, _LONGEST)!r} cannot be the name of {what}: "
        f"letters, digits, - and _ only, at most {_LONGEST} of them",
    )


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises E-STORE-003 for an operating-system error in the block, with the space that is left."""
    try:
        yield
    except OSError as error:
        raise not_writable(path, error) from error


def seal(folder: Path, recipe: Recipe, metadata: Json, files: Files, allocated: Collection[str]) -> Artifact:
    """Lists and hashes all files below a folder, and writes `artifact.json`: the folder is then ready for its name.

    A model and arrays that were allocated are on the disk when this returns. After a crash of the whole machine other
    files may be empty, which is seen by their size; an allocated one has its size from the start. Raises E-STORE-003.
    """
    listed = {}
    durable = recipe.kind == "model"
    with writing(folder):
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not _is_passing(path)]
        for path in paths:
            with path.open("rb+") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                size = file.tell()
                dtype, shape = _described(path) if path.suffix == ".npy" else (None, None)
                if durable or path.stem in allocated:
                    files.sync(file)
            listed[path.relative_to(folder).as_posix()] = StoredFile(size, sha256, dtype, shape)
        artifact = Artifact(folder, recipe, now(), metadata, listed)
        with (folder / MANIFEST).open("wb") as file:
            files.write(file, json_bytes(_content(artifact), indent=1))
            if durable:
                files.sync(file)
        for below in {path.parent for path in paths} | {folder} if durable else ():
            files.sync_folder(below)
    return artifact


def read_artifact(folder: Path) -> Artifact | None:
    """The artifact in a folder; None if there is no such folder. Only sizes are compared; `changed_files` reads bytes.

    Raises E-STORE-002, naming the file, if its manifest is damaged, or a file is gone or has another size.
    """
    try:
        content = parse_json((folder / MANIFEST).read_bytes())
        stated = content.pop("digest")
        if stated != digest(content):
            raise ValueError("its digest is another")
        parts = content["recipe"]
        files = {
            path: StoredFile(each["bytes"], each["sha256"], each.get("dtype"), _shape(each.get("shape")))
            for path, each in content["files"].items()
        }
        recipe = Recipe(content["kind"], content["name"], parts["parts"], parts["about"])
        if recipe.key != folder.name:
            raise damaged(folder, f"it is the artifact {recipe.key} under another name")
        artifact = Artifact(folder, recipe, content["created"], content["metadata"], files)
    except (FileNotFoundError, NotADirectoryError):
        if not folder.is_dir():
            return None
        raise damaged(folder, f"{MANIFEST} is missing") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise damaged(folder, f"{MANIFEST} is not what was written") from None
    for path, file in files.items():
        try:
            size = os.stat(folder / path).st_size
        except OSError:
            raise damaged(folder, f"{path} is missing") from None
        if size != file.size:
            raise damaged(folder, f"{path} has {size} instead of {count_of(file.size, 'byte')}")
    return artifact


def read_whole(folder: Path) -> Artifact | None:
    """The artifact in a folder, if there is one that is not found damaged."""
    try:
        return read_artifact(folder)
    except ParenError as error:
        if error.code != "E-STORE-002":
            raise
        return None


def changed_files(artifact: Artifact) -> list[str]:
    """The files whose bytes are not those that were published; every byte is read. Raises OSError."""
    found = []
    for path, file in artifact.files.items():
        with (artifact.folder / path).open("rb") as stored:
            if hashlib.file_digest(stored, "sha256").hexdigest() != file.sha256:
                found.append(path)
    return found


def damaged(folder: Path, what: str) -> ParenError:
    """E-STORE-002 for an artifact."""
    return ParenError(
        "E-STORE-002",
        f"the artifact {folder} is damaged: {what}",
        fix="move it away: paren run makes again what is needed",
    )


def _content(artifact: Artifact) -> dict[str, Json]:
    files: dict[str, Json] = {}
    for path, file in artifact.files.items():
        described: dict[str, Json] = {"bytes": file.size, "sha256": file.sha256}
        if file.shape is not None:
            described |= {"dtype": file.dtype, "shape": list(file.shape)}
        files[path] = described
    recipe = artifact.recipe
    content: dict[str, Json] = {
        "format": FORMAT,
        "kind": recipe.kind,
        "name": recipe.name,
        "key": recipe.key,
        "recipe": {"parts": dict(recipe.parts), "about": dict(recipe.about)},
        "created": artifact.created,
        "metadata": artifact.metadata,
        "files": files,
    }
    return content | {"digest": digest(content)}


def _described(path: Path) -> tuple[str, tuple[int, ...]]:
    """Dtype and shape of a .npy file."""
    values = np.load(path, mmap_mode="r", allow_pickle=False)
    return values.dtype.str, values.shape


def _shape(stored: list[int] | None) -> tuple[int, ...] | None:
    return None if stored is None else tuple(stored)


def _is_passing(path: Path) -> bool:
    """Whether a file in the folder of a run is of its process, and not of what it made."""
    return path.name in (LOCK, HOLDER, MANIFEST) or path.name.startswith(TEMPORARY)
