"""Text corpora: cut into splits, encoded once, and kept in the cache as memory-mapped streams of tokens."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from itertools import groupby, islice
from pathlib import Path
from typing import BinaryIO

import numpy as np

from paren.data.dataset import Dataset, Int64Array, Split
from paren.data.digest import digest_of, file_digest
from paren.data.documents import Document, document_sizes, find_documents, pieces_between
from paren.data.paths import find_file, shown
from paren.data.splits import TRAIN, split_fractions, split_ranges
from paren.data.stream import TokenSplit, token_split
from paren.data.tokenizer import BYTES, ByteTokenizer, Tokenizer, load_tokenizer, train_byte_pair
from paren.ir.op import Array
from paren.ir.program import DataForm
from paren.text.errors import ParenError
from paren.text.json import parse_json

FORMAT = 1  # of the cache; another number is another key
CHUNK = 1 << 16  # characters encoded as one text
CHUNKS = 32  # encoded at a time
DAY = 86_400
ANNOUNCED_FROM = 4_000_000  # bytes of text


@dataclass(frozen=True)
class _Encoding:
    """How a form wants its text encoded. `kind` is bytes, byte-pair or file; `asked` the vocabulary of byte-pair;
    `file` the tokenizer file; `boundary` join, separate or token; `special` the text of the special token."""

    kind: str
    asked: int
    file: Path | None
    place: str
    boundary: str
    special: str | None


def open_corpus(form: DataForm, root: Path, cache: Path, announce: Callable[[str], None]) -> Dataset:
    """Opens `text-files`, `python-docs` or `python-stdlib`.

    The text of all documents, one after the other, is cut by `:split` at bytes (moved to a border of characters); each
    split is then encoded by itself, so no token and no window spans two splits. A byte-pair tokenizer is trained on the
    split `train` alone (the first one, if none is called so).

    The encoded splits stand in `cache/tokens/KEY`, where KEY is a digest of the documents' bytes and of the options
    that decide the tokens; they are made in a folder aside and published by one rename, and checked by their digests
    when they are used again.
    """
    encoding = _read_encoding(form, root)
    documents = find_documents(form, root, cache)
    key = digest_of(
        FORMAT,
        [document.digest for document in documents],
        split_fractions(form),
        (encoding.kind, encoding.asked, encoding.boundary, encoding.special),
        None if encoding.file is None else file_digest(encoding.file, cache),
        version("tokenizers") if encoding.kind == "byte-pair" else None,
    )
    folder = cache / "tokens" / key
    notes: list[str] = []
    manifest = _verified(folder, cache)
    if manifest is None:
        if folder.exists():
            notes.append(f"the cached tokens in {folder} were damaged, and have been made again")
        manifest = _publish(form, encoding, documents, folder, announce)
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    vocabulary = max(tokenizer.vocabulary, encoding.asked)
    if tokenizer.vocabulary < encoding.asked:
        notes.append(
            f"the byte-pair tokenizer has {tokenizer.vocabulary} tokens of the {encoding.asked} asked for, since the "
            f"text has no more pairs to merge: ids {tokenizer.vocabulary} .. {encoding.asked - 1} stand for nothing"
        )
    splits: dict[str, Split] = {}
    for name, _ in split_fractions(form):
        split = _open_split(form, name, folder, manifest)
        splits[name] = split
        if len(split.stretches) > 2 and split.skipped:
            notes.append(
                f"{split.skipped} of {len(split.stretches) - 1} documents in split {name} have fewer than "
                f"{split.length + 1} tokens, and are left out"
            )
    parts = [(name, split.count, split.digest) for name, split in splits.items()]
    identity = digest_of("corpus", tokenizer.digest, vocabulary, parts)
    return Dataset(form.fields, splits, vocabulary, tokenizer, identity, tuple(notes))


def _read_encoding(form: DataForm, root: Path) -> _Encoding:
    chosen = form.options.get("tokenizer", ("bytes",))
    boundary = form.options.get("boundary", ("join",))
    kind, *values = chosen if isinstance(chosen, tuple) else (chosen,)
    joint, *text = boundary if isinstance(boundary, tuple) else (boundary,)
    special = str(text[0]) if text else None
    span = form.spans.get("tokenizer", form.span)
    if kind == "file":
        file = find_file(form, "tokenizer", str(values[0]), root)
        return _Encoding("file", 0, file, shown(file, root), str(joint), special)
    if kind == "bytes":
        return _Encoding("bytes", 0, None, "", str(joint), special)
    least = BYTES + (special is not None)
    asked = values[0] if values else None
    if not isinstance(asked, int) or isinstance(asked, bool) or asked < least:
        raise ParenError(
            "E-DATA-015",
            f"a byte-pair tokenizer has at least {least} tokens, and :vocab is {asked!r}",
            span,
            notes=(),
            fix=f"write (byte-pair :vocab {max(512, least)}), say",
        )
    return _Encoding("byte-pair", asked, None, "", str(joint), special)


def _verified(folder: Path, cache: Path) -> dict[str, str] | None:
    """The manifest of a cache entry (file name -> digest) if every file is there as it was written."""
    try:
        manifest: dict[str, str] = parse_json((folder / "manifest.json").read_bytes())
        intact = all(file_digest(folder / name, cache) == digest for name, digest in manifest.items())
    except (FileNotFoundError, ValueError, AttributeError):
        return None
    return manifest if intact else None


def _publish(
    form: DataForm, encoding: _Encoding, documents: list[Document], folder: Path, announce: Callable[[str], None]
) -> dict[str, str]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(folder.parent)
    aside = folder.parent / f".{folder.name}.{os.getpid()}.{time.monotonic_ns()}"
    aside.mkdir()
    try:
        _encode_splits(form, encoding, documents, aside, announce)
        manifest = {file.name: file_digest(file, folder.parent.parent) for file in sorted(aside.iterdir())}
        (aside / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        if folder.exists():
            os.rename(folder, aside.with_name(f"{aside.name}.damaged"))
        try:
            os.rename(aside, folder)
        except OSError:
            if not folder.exists():  # else another process has just published the same contents
                raise
    finally:
        for rest in (aside, aside.with_name(f"{aside.name}.damaged")):
            shutil.rmtree(rest, ignore_errors=True)
    return manifest


def _remove_leftovers(folder: Path) -> None:
    """Removes what a killed process left aside more than a day ago."""
    for entry in folder.glob(".*"):
        if time.time() - entry.stat().st_mtime > DAY:
            shutil.rmtree(entry, ignore_errors=True)


def _encode_splits(
    form: DataForm, encoding: _Encoding, documents: list[Document], folder: Path, announce: Callable[[str], None]
) -> None:
    sizes = document_sizes(documents)
    if not sum(sizes):
        raise ParenError("E-DATA-019", "there is no text in the documents", form.span)
    ranges = split_ranges(form, sum(sizes), "bytes")
    if sum(sizes) >= ANNOUNCED_FROM:
        announce(f"encoding {sum(sizes) / 1e6:.0f} MB of text, which is kept in the cache")
    tokenizer = _make_tokenizer(form, encoding, documents, sizes, ranges)
    boundary = None
    if encoding.special is not None:
        boundary = tokenizer.special(encoding.special)
        if boundary is None:
            raise ParenError(
                "E-DATA-015",
                f"the tokenizer {encoding.place} has no token {encoding.special!r}",
                form.spans.get("boundary", form.span),
            )
    tokenizer.save(folder / "tokenizer.json")
    for name, (start, stop) in ranges.items():
        texts = pieces_between(documents, sizes, start, stop)
        _encode_split(folder, name, tokenizer, texts, boundary, encoding.boundary == "separate")


def _make_tokenizer(
    form: DataForm,
    encoding: _Encoding,
    documents: list[Document],
    sizes: list[int],
    ranges: Mapping[str, tuple[int, int]],
) -> Tokenizer:
    if encoding.kind == "bytes":
        return ByteTokenizer(encoding.special)
    if encoding.file is not None:
        return load_tokenizer(encoding.file, encoding.place, form.spans.get("tokenizer", form.span))
    start, stop = ranges.get(TRAIN, next(iter(ranges.values())))
    chunks = (chunk for _, chunk in _chunks(pieces_between(documents, sizes, start, stop)))
    return train_byte_pair(chunks, encoding.asked, encoding.special)


def _chunks(pieces: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The pieces of each document put together anew: at most `CHUNK` characters each, cut after the end of a line where
    there is one. Where they are cut depends on the text alone."""
    for number, group in groupby(pieces, key=lambda piece: piece[0]):
        text = ""
        for _, piece in group:
            text += piece
            while len(text) > CHUNK:
                cut = text.rfind("\n", 0, CHUNK) + 1 or CHUNK
                yield number, text[:cut]
                text = text[cut:]
        if text:
            yield number, text


def _encode_split(
    folder: Path,
    name: str,
    tokenizer: Tokenizer,
    pieces: Iterator[tuple[int, str]],
    boundary: int | None,
    separate: bool,
) -> None:
    """Writes `NAME.npy` (tokens) and `NAME.stretches.npy` (int64 borders), with a few chunks in memory at a time."""
    smallest = next(kind for kind in (np.uint8, np.uint16, np.uint32) if tokenizer.vocabulary <= np.iinfo(kind).max + 1)
    dtype = np.dtype(smallest).newbyteorder("<")
    borders, written, last = [0], 0, None
    chunks = _chunks(pieces)
    with open(folder / f"{name}.npy", "wb") as file:
        _write_header(file, dtype, 0)
        while block := list(islice(chunks, CHUNKS)):
            encoded = tokenizer.encode_many([text for _, text in block])
            for (number, _), ids in zip(block, encoded, strict=True):
                if last is not None and number != last:
                    if boundary is not None:
                        file.write(np.array([boundary], dtype).tobytes())
                        written += 1
                    if separate:
                        borders.append(written)
                last = number
                file.write(ids.astype(dtype).tobytes())
                written += len(ids)
        _write_header(file, dtype, written)
    np.save(folder / f"{name}.stretches.npy", np.array([*borders, written], np.int64))


def _write_header(file: BinaryIO, dtype: np.dtype[np.generic], count: int) -> None:
    """The header of a one-axis array. NumPy leaves room for any length, so it can be written again once it
    is known."""
    file.seek(0)
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(file, description)


def _open_split(form: DataForm, name: str, folder: Path, manifest: Mapping[str, str]) -> TokenSplit:
    file = f"{name}.npy"
    stream: Array = np.load(folder / file, mmap_mode="r")
    stretches: Int64Array = np.load(folder / f"{name}.stretches.npy")
    digest = digest_of(manifest[file], manifest[f"{name}.stretches.npy"])
    return token_split(form, name, stream, stretches, f"split {name}", 0, digest)
