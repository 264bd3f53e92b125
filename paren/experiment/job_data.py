"""The data of a job: what a Python function makes is an artifact, which is made once and then mapped into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from paren.data.dataset import Dataset
from paren.data.fields import ArraySplit, Column
from paren.data.function import call_data_function
from paren.data.open import dataset_of, open_data
from paren.data.paths import find_file
from paren.environment import read_environment
from paren.experiment.python.sources import Sources
from paren.experiment.store.artifact import Artifact, Writer
from paren.experiment.store.declared_files import check_files, digest_of_content, file_changed
from paren.experiment.store.recipe import Recipe, as_json, versions
from paren.experiment.store.store import Store
from paren.ir.op import Array
from paren.ir.program import DataForm, Program, Value
from paren.text.json import Json

DATA = "data"


def data_root(program: Program, asked: Path | None) -> Path:
    """The folder that relative paths of data start from: the one asked for, or the file's."""
    return (asked or Path(program.path).parent).absolute()


def data_recipe(program: Program, asked: Path | None, sources: Sources) -> Recipe | None:
    """What the data of a Python function are made from; None for other data, which are known by their content.

    The function is not run. Raises E-DATA-001 if its file, or one of its `:files`, is not there.
    """
    form = program.data
    if form.kind != "python":
        return None
    root = data_root(program, asked)
    path = find_file(form, "0", str(form.arguments[0]), root)
    function = str(form.arguments[1]).replace("-", "_")
    reach = sources.reach(path, function, form.spans.get("1", form.span))
    keywords = dict(_pairs(form, "keywords"))
    parts: dict[str, Json] = {
        "function": function,
        "sources": dict(reach.pieces),
        "keywords": {name: as_json(value) for name, value in keywords.items()},
        "fields": [[field.name, str(field.type)] for field in form.fields],
        "split": as_json(form.options.get("split", ())),
        "versions": versions(reach.packages),
    }
    if reach.takes("seed") and "seed" not in keywords:
        parts["seed"] = program.run.seed
    if files := _files(form, root):
        parts["files"] = {name: digest_of_content(file) for name, file in files.items()}
    return Recipe(DATA, DATA, parts)


def known_identity(program: Program) -> str | None:
    """The identity of data that are not made by a function, where it is known without reading a file."""
    form = program.data
    return open_data(form, root=Path(), cache=Path()).identity if form.kind == "digits" else None


def make_data(program: Program, recipe: Recipe, store: Store, asked: Path | None, sources: Sources) -> Dataset:
    """The data that a function makes, from the artifact of its recipe, which is made if it is not there."""
    form, seed = program.data, program.run.seed
    root = data_root(program, asked)
    files = _files(form, root)

    def make(writer: Writer) -> Json:
        splits = call_data_function(form, root, seed, sources.text)
        check_files(recipe, files, form.span)
        return _write(writer, splits)

    return dataset_of(form, _read(form, store.build(recipe, make)))


def _files(form: DataForm, root: Path) -> dict[str, Path]:
    """The files of `:files`, by the names that the form has for them. Raises E-DATA-001."""
    written = form.options.get("files", ())
    names = map(str, written) if isinstance(written, tuple) else ()
    return {name: find_file(form, "files", name, root) for name in names}


def check_unchanged(program: Program, asked: Path | None, data: Dataset) -> None:
    """Raises E-STORE-007 if arrays that are mapped from their files were changed during the training."""
    form = program.data
    if form.kind == "arrays" and any(str(each).endswith(".npy") for each in form.arguments):
        cache = read_environment().cache / "data"
        if open_data(form, root=data_root(program, asked), cache=cache).identity != data.identity:
            raise file_changed(" or ".join(map(str, form.arguments)), form.span)


def read_data(program: Program, asked: Path | None, notice: Callable[[str], None]) -> Dataset:
    """Data that no function makes, where they lie. Raises what is wrong with them as files."""
    cache = read_environment().cache / "data"
    data = open_data(program.data, root=data_root(program, asked), cache=cache, announce=notice)
    for note in data.notes:
        notice(note)
    return data


class Splits(Mapping[str, Mapping[str, Array]]):
    """The examples of a data set: split -> field -> array (examples, *field shape), not writable. A split is read into
    memory when it is first asked for."""

    def __init__(self, data: Dataset) -> None:
        self._data = data
        self._read: dict[str, Mapping[str, Array]] = {}

    def __getitem__(self, name: str) -> Mapping[str, Array]:
        if name not in self._data.splits:
            raise KeyError(f"the data have no split {name!r}, they have {', '.join(self)}")
        if name not in self._read:
            split = self._data.splits[name]
            self._read[name] = split.read(np.arange(split.count, dtype=np.int64))
            for array in self._read[name].values():
                array.flags.writeable = False
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data.splits)

    def __len__(self) -> int:
        return len(self._data.splits)


def _pairs(form: DataForm, option: str) -> list[tuple[str, Value]]:
    written = form.options.get(option, ())
    pairs = [pair for pair in written if isinstance(pair, tuple)] if isinstance(written, tuple) else []
    return [(str(pair[0]), pair[1]) for pair in pairs]


def _write(writer: Writer, splits: Mapping[str, ArraySplit]) -> Json:
    """Stores the columns of the splits, those that are shared once; gives what else makes the splits."""
    sets: list[Mapping[str, Column]] = []
    entries: list[Json] = []
    for split in splits.values():
        number = next((number for number, known in enumerate(sets) if known is split.columns), len(sets))
        if number == len(sets):
            sets.append(split.columns)
            for place, column in enumerate(split.columns.values()):  # a field's name need not be one of a file
                writer.array(f"{number}-{place}", column.values)
        entries.append(
            {
                "name": split.name,
                "columns": {name: [column.origin, column.digest] for name, column in split.columns.items()},
                "set": number,
                "start": split.start,
                "count": split.count,
                "total": split.total,
                "shuffled": split.shuffled,
                "digest": split.digest,
            }
        )
    return {"splits": entries}


def _read(form: DataForm, artifact: Artifact) -> dict[str, ArraySplit]:
    """The splits of an artifact, their arrays mapped into memory."""
    metadata: Any = artifact.metadata
    splits = {}
    for entry in metadata["splits"]:
        columns = {
            name: Column(np.asarray(artifact.array(f"{entry['set']}-{place}")), origin, digest)
            for place, (name, (origin, digest)) in enumerate(entry["columns"].items())
        }
        numbers = (entry["start"], entry["count"], entry["total"], entry["shuffled"])
        splits[entry["name"]] = ArraySplit(entry["name"], form.fields, columns, *numbers, entry["digest"])
    return splits
