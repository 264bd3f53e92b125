"""What a corpus consists of: documents in a fixed order, from files or from what CPython ships."""

from __future__ import annotations

import hashlib
import importlib
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from paren.data.digest import digest_of, file_digest
from paren.data.paths import find_files, shown
from paren.data.text import read_text
from paren.ir.program import DataForm
from paren.text.errors import InternalError, ParenError

OUTSIDE_LIBRARY = ("site-packages", "dist-packages", "__pycache__")
GENERATED = "_sysconfigdata"  # written when CPython is built, so it differs between machines


@dataclass(frozen=True)
class Document:
    """`read` gives the normalised text in bounded pieces, the same each time. `digest` is that of the stored bytes."""

    place: str
    digest: str
    read: Callable[[], Iterator[str]]


def find_documents(form: DataForm, root: Path, cache: Path) -> list[Document]:
    """The documents of a corpus form, in the order of their names.

    Raises E-DATA-001 where a pattern matches nothing, E-DATA-014 where CPython's library came without its sources.
    """
    match form.kind:
        case "text-files":
            return _text_files(form, root, cache)
        case "python-docs":
            return _python_topics()
        case "python-stdlib":
            return _python_sources(form)
    raise InternalError("data", f"{form.kind} is no kind of corpus")


def _text_files(form: DataForm, root: Path, cache: Path) -> list[Document]:
    paths: dict[Path, str] = {}
    for number, pattern in enumerate(form.arguments):
        for path in find_files(form, str(number), str(pattern), root):
            paths.setdefault(path, str(number))
    documents = []
    for path in sorted(paths, key=lambda path: path.as_posix()):
        span, place = form.spans.get(paths[path], form.span), shown(path, root)
        try:
            digest = file_digest(path, cache)
        except OSError as error:
            raise ParenError("E-DATA-021", f"{place} cannot be read: {error.strerror}", span) from None
        documents.append(Document(place, digest, partial(read_text, path, place, span)))
    return documents


def _python_topics() -> list[Document]:
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics  # half a megabyte of literals
    return [Document(f"topic {name}", digest_of(text), partial(_whole, text)) for name, text in sorted(topics.items())]


def _whole(text: str) -> Iterator[str]:
    yield text


def _python_sources(form: DataForm) -> list[Document]:
    """All `*.py` files of the standard library that are UTF-8, its tests included; installed packages are not."""
    folder = Path(sysconfig.get_path("stdlib"))
    documents = []
    for path in sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).as_posix()):
        inner = path.relative_to(folder)
        if set(inner.parts).intersection(OUTSIDE_LIBRARY) or path.name.startswith(GENERATED) or not path.is_file():
            continue
        data = path.read_bytes()
        try:
            data.decode("utf-8")
        except UnicodeDecodeError:
            continue  # CPython's tests hold sources in other encodings, and broken ones, on purpose
        digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        documents.append(Document(inner.as_posix(), digest, partial(read_text, path, inner.as_posix(), form.span)))
    if not documents:
        raise ParenError(
            "E-DATA-014",
            f"there are no sources of the standard library in {folder}",
            form.span,
            fix="use a Python that ships them, or (python-docs)",
        )
    return documents


def document_sizes(documents: list[Document]) -> list[int]:
    """Size of each document in bytes of normalised UTF-8. Reads all of the text, and so finds every wrong byte."""
    return [sum(len(piece.encode()) for piece in document.read()) for document in documents]


def pieces_between(documents: list[Document], sizes: list[int], start: int, stop: int) -> Iterator[tuple[int, str]]:
    """The text of bytes `start <= i < stop` of all documents together, as (number of document, piece).

    A border within a character is moved to the character's end, so neighbouring ranges share nothing and lose nothing.
    """
    offset = 0
    for number, document in enumerate(documents):
        if offset + sizes[number] > start and offset < stop:
            place = offset
            for piece in document.read():
                data = piece.encode()
                first, last = (_border(data, border - place) for border in (start, stop))
                if first < last:
                    yield number, data[first:last].decode()
                place += len(data)
        offset += sizes[number]


def _border(data: bytes, index: int) -> int:
    index = min(max(index, 0), len(data))
    while index < len(data) and data[index] & 0xC0 == 0x80:
        index += 1
    return index
