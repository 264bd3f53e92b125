"""CSV files with a header: named columns of numbers, with the place of every wrong cell."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from paren.data.text import read_text
from paren.ir.op import Array
from paren.ir.types import DType
from paren.text.errors import ParenError
from paren.text.size import count_of
from paren.text.source import Span

ROWS = 1 << 14
CORRECT = "correct the cell, leave its row out, or declare the field with another type"
BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


def read_csv(path: Path, place: str, types: Mapping[str, DType], span: Span) -> dict[str, Array]:
    """The columns of a CSV file that are in `types`: name -> array (rows,) as float64, int64 or bool.

    UTF-8, comma between cells, double quotes around those that hold one; the first line names the columns; empty lines
    are skipped. A number is written as in Python, `nan` and `inf` included; a boolean is true, false, 1 or 0.

    Raises E-DATA-002 (not UTF-8), E-DATA-006 (no header, a name twice, a row of another length), E-DATA-020 (a cell
    that is no number of its field's kind).
    """
    parts: dict[str, list[Array]] = {}
    with _malformed(place, span):
        reader = csv.reader(_lines(path, place, span), strict=True)
        header = [name.strip() for name in next(reader, [])]
        if not header:
            raise ParenError("E-DATA-006", f"{place} is empty", span, fix="the first line must name the columns")
        for name in header:
            if header.count(name) > 1:
                raise ParenError("E-DATA-006", f"{place} has two columns named {name}", span)
        parts = {name: [] for name in header if name in types}
        rows = ((reader.line_num, row) for row in reader if row)
        while block := list(islice(rows, ROWS)):
            for line, row in block:
                if len(row) != len(header):
                    told = count_of(len(row), "cell")
                    message = f"{place}:{line}: this row has {told}, but the header has {len(header)}"
                    raise ParenError("E-DATA-006", message, span)
            for name, blocks in parts.items():
                number = header.index(name)
                cells = [row[number].strip() for _, row in block]
                blocks.append(_parsed(cells, types[name], _Cells(place, name, block), span))
    return {
        name: np.concatenate(blocks) if blocks else np.zeros(0, _stored(types[name])) for name, blocks in parts.items()
    }


@dataclass(frozen=True)
class _Cells:
    """The cells of one column in a block of (line, row) pairs."""

    place: str
    name: str
    block: list[tuple[int, list[str]]]

    def __call__(self, index: int) -> str:
        return f"{self.place}:{self.block[index][0]}: {self.name}"


def _lines(path: Path, place: str, span: Span) -> Iterator[str]:
    rest = ""
    for piece in read_text(path, place, span):
        *lines, rest = (rest + piece).split("\n")
        for line in lines:
            yield line + "\n"
    if rest:
        yield rest


@contextmanager
def _malformed(place: str, span: Span) -> Iterator[None]:
    try:
        yield
    except csv.Error as error:
        raise ParenError("E-DATA-006", f"{place} is not a CSV file: {error}", span) from None


def _stored(dtype: DType) -> np.dtype[np.generic]:
    if dtype is DType.BOOL:
        return np.dtype(np.bool_)
    return np.dtype(np.float64) if dtype.is_float else np.dtype(np.int64)


def _parsed(cells: list[str], dtype: DType, place: Callable[[int], str], span: Span) -> Array:
    convert: Callable[[str], object]
    if dtype is DType.BOOL:
        convert, kind = lambda cell: BOOLEANS[cell.lower()], "boolean"
    elif dtype.is_float:
        convert, kind = float, "number"
    else:
        convert, kind = int, "integer"
    values: list[object] = []
    for number, cell in enumerate(cells):
        try:
            values.append(convert(cell))
        except (ValueError, KeyError):
            what = f"{cell!r} is no {kind}" if cell else "the cell is empty"
            raise ParenError("E-DATA-020", f"{place(number)}: {what}", span, fix=CORRECT) from None
    try:
        return np.array(values, _stored(dtype))
    except OverflowError:
        number = next(i for i, value in enumerate(values) if not -(1 << 63) <= int(str(value)) < 1 << 63)
        what = f"{place(number)}: {cells[number]} does not fit 64 bits"
        raise ParenError("E-DATA-020", what, span, fix=CORRECT) from None
