"""Figures that plot functions return: saved as PDF and PNG, and closed."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from paren.data.python_file import PythonFile
from paren.experiment.analysis.values import kind_of
from paren.experiment.layout import RECORD
from paren.experiment.store.artifact import check_name, writing
from paren.text.errors import ParenError
from paren.text.json import Json
from paren.text.source import Span
from paren.train.files import Files, json_bytes, read_object, write_atomically

_RESOLUTION = 150  # dots per inch of a PNG
_WITHOUT_DATE = {"pdf": {"CreationDate": None}, "png": {"Software": None}}  # equal figures are equal files


class Figure(Protocol):
    """What a matplotlib figure offers, by matplotlib's names."""

    def savefig(self, fname: BinaryIO, *, format: str, dpi: float, metadata: Mapping[str, str | None]) -> None: ...


def drawn_record(folder: Path) -> Mapping[str, Json]:
    """The record of the plot that a folder holds; an empty one unless all of its files are there."""
    record = read_object(folder / RECORD) or {}
    files = record.get("files")
    there = isinstance(files, list) and all((folder / str(name)).is_file() for name in files)
    return record if there else {}


def drawn_key(folder: Path) -> Json:
    """The key of the plot that a folder holds, if all of its files are there."""
    return drawn_record(folder).get("key")


def mark_outdated(folder: Path, key: str | None = None) -> None:
    """Notes of a plot that was drawn under another key than `key` that it is to be drawn again: until then, figures of
    another state lie there."""
    record = read_object(folder / RECORD)
    if record is not None and record.get("key") not in (None, key):
        with writing(folder):
            write_atomically(Files(), folder / RECORD, json_bytes(record | {"key": None}, indent=1), durable=False)


def save_plot(
    result: object,
    name: str,
    folder: Path,
    made_from: Mapping[str, Json],
    file: PythonFile,
    origin: str,
    span: Span,
) -> None:
    """Saves a figure as `NAME.pdf` and `NAME.png`, or those of a mapping under their own names, into `folder`, in the
    place of an earlier plot. `made_from` goes into its record; `origin`, in words, and `file` are what returned it.

    Raises E-STUDY-008 for anything else, E-STUDY-007 if a figure cannot be drawn, E-STORE-001 for a name that cannot be
    a file's, E-STORE-003."""
    figures: dict[str, Figure] = {}
    for stem, figure in (result if isinstance(result, Mapping) else {name: result}).items():
        if not isinstance(stem, str) or not callable(getattr(figure, "savefig", None)):
            what = f"{kind_of(figure)} under {stem!r}" if isinstance(result, Mapping) else kind_of(result)
            raise ParenError(
                "E-STUDY-008",
                f"{origin} returns {what}",
                span,
                fix="return a matplotlib figure, or a dict from names to figures",
            )
        check_name(stem, "a figure")
        figures[stem] = cast(Figure, figure)
    if not figures:
        raise ParenError("E-STUDY-008", f"{origin} returns no figures", span, fix="return at least one")
    saved: dict[str, bytes] = {}
    for stem, figure in figures.items():
        for kind, metadata in _WITHOUT_DATE.items():
            content = io.BytesIO()
            with file.errors(f"saving {stem} of {origin}", span):
                figure.savefig(content, format=kind, dpi=_RESOLUTION, metadata=metadata)
            saved[f"{stem}.{kind}"] = content.getvalue()
    record = json_bytes({**made_from, "files": list(saved)}, indent=1)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for written, data in {**saved, RECORD: record}.items():
            write_atomically(Files(), folder / written, data, durable=False)
        for path in folder.iterdir():
            if path.suffix in (".pdf", ".png") and path.name not in saved:
                path.unlink()  # a figure of the earlier plot


@contextlib.contextmanager
def closing_figures() -> Iterator[None]:
    """Closes the figures that a block opened and left open."""
    before = set(_open_figures())
    try:
        yield
    finally:
        for number in set(_open_figures()) - before:
            sys.modules["matplotlib.pyplot"].close(number)


def _open_figures() -> list[int]:
    """The numbers of pyplot's figures, if it is loaded at all."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    return [] if pyplot is None else pyplot.get_fignums()
