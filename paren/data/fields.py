"""Arrays that are all there: checked against the declared fields, and read by index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from paren.data.dataset import Chunk, Int64Array
from paren.data.digest import digest_of
from paren.data.order import permuted
from paren.data.splits import split_ranges
from paren.ir.op import Array
from paren.ir.program import DataForm, Field
from paren.runtime.walk import Walk
from paren.text.errors import ParenError, Report, did_you_mean

SPLIT_SEED = 0
CHUNK_VALUES = 1 << 20
KINDS = {"b": 0, "i": 1, "u": 1, "f": 2}  # of dtypes, the simpler first


@dataclass(frozen=True)
class Column:
    """An array (samples, *field shape) as stored, and words for where it came from (`array x of pairs.npz`)."""

    values: Array
    origin: str
    digest: str


@dataclass(frozen=True)
class ArraySplit:
    """Samples `start <= i < start + count` of `columns`, which hold `total`.

    If `shuffled`, they are taken in the order of a fixed permutation of all samples, the same in every run, so that
    splits of sorted data are alike. Only the samples that are asked for are touched. `walk`: what computes that order
    faster.
    """

    name: str
    fields: tuple[Field, ...]
    columns: Mapping[str, Column]
    start: int
    count: int
    total: int
    shuffled: bool
    digest: str
    walk: Walk | None = None

    def read(self, indices: Int64Array) -> dict[str, Array]:
        rows = self.places(indices)
        return {f.name: self.columns[f.name].values[rows].astype(f.type.dtype.numpy) for f in self.fields}

    def chunks(self, field: str) -> Iterator[Chunk]:
        column = self.columns[field]
        size = int(np.prod(column.values.shape[1:], dtype=np.int64))
        step = max(1, CHUNK_VALUES // max(1, size))
        for first in range(0, self.count, step):
            rows = np.sort(self.places(np.arange(first, min(first + step, self.count), dtype=np.int64)))
            yield Chunk(column.values[rows], self._place(column.origin, rows))

    def places(self, indices: Int64Array) -> Int64Array:
        """The rows of the columns that samples stand in."""
        places = indices + self.start
        return permuted(places, self.total, SPLIT_SEED, 0, self.walk) if self.shuffled else places

    def _place(self, origin: str, rows: Int64Array) -> _Place:
        return _Place(origin, rows)


@dataclass(frozen=True, eq=False)
class _Place:
    origin: str
    rows: Int64Array

    def __call__(self, index: int) -> str:
        return f"sample {self.rows[index]} of {self.origin}"


def cut_into_splits(form: DataForm, columns: Mapping[str, Column], digest: str) -> dict[str, ArraySplit]:
    """Checks the columns against the declared fields and cuts the samples by `:split`.

    Raises E-DATA-005 for a split that gets nothing, and what `check_columns` raises.
    """
    total = check_columns(form, columns)
    shuffled = "split" in form.options
    return {
        name: ArraySplit(
            name, form.fields, columns, start, stop - start, total, shuffled, digest_of(digest, start, stop, shuffled)
        )
        for name, (start, stop) in split_ranges(form, total, "samples").items()
    }


def check_columns(form: DataForm, columns: Mapping[str, Column]) -> int:
    """The number of samples in columns that fit the declared fields in name, dtype, shape and length.

    A stored dtype fits if it is of the field's kind or of a simpler one (bool < integer < float): float64 is rounded to
    float32, wider integers must be in range (which the checks before step 1 see to). Raises E-DATA-007 (name),
    E-DATA-008 (dtype), E-DATA-009 (shape), E-DATA-010 (lengths), E-DATA-019 (no samples).
    """
    report = Report()
    for field in form.fields:
        with report.collect():
            _check_column(field, columns)
    report.finish()
    lengths = {name: len(column.values) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{columns[name].origin} has {length}" for name, length in lengths.items())
        raise ParenError("E-DATA-010", f"the fields differ in their number of samples: {listed}", form.span)
    total = next(iter(lengths.values()))
    if total == 0:
        raise ParenError("E-DATA-019", f"there are no samples in {next(iter(columns.values())).origin}", form.span)
    return total


def _check_column(field: Field, columns: Mapping[str, Column]) -> None:
    if field.name not in columns:
        listed = ", ".join(columns) or "nothing"
        hint = did_you_mean(field.name, columns)
        raise ParenError("E-DATA-007", f"no data for field {field.name}{hint}: there is {listed}", field.span)
    column = columns[field.name]
    stored, wanted = column.values.dtype, field.type.dtype
    if KINDS.get(stored.kind, len(KINDS)) > KINDS[wanted.numpy.kind]:
        raise ParenError(
            "E-DATA-008",
            f"field {field.name} is {wanted}, but {column.origin} holds {stored}",
            field.span,
            fix=f"store it as {wanted}, or declare the field with the dtype that it has",
        )
    shape = column.values.shape
    if shape[1:] != field.type.shape or not shape:
        raise ParenError(
            "E-DATA-009",
            f"field {field.name} is {field.type} for each sample, but {column.origin} has shape {_listed(shape)}",
            field.span,
            fix=f"the array must have shape {_listed(('samples', *field.type.shape))}",
        )


def _listed(shape: tuple[object, ...]) -> str:
    return f"[{' '.join(map(str, shape))}]"
