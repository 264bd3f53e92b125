"""`(arrays "x.npy" "table.csv" ...)`: fields from array files and tables."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from paren.data.digest import array_digest, digest_of, file_digest
from paren.data.fields import ArraySplit, Column, cut_into_splits
from paren.data.numpy_file import UNREADABLE
from paren.data.paths import find_file, shown
from paren.data.table import read_csv
from paren.ir.op import Array
from paren.ir.program import DataForm, Field
from paren.ir.types import DType
from paren.text.errors import ParenError, did_you_mean, first_line
from paren.text.source import Span


def open_arrays(form: DataForm, root: Path, cache: Path) -> dict[str, ArraySplit]:
    """Opens the files of an `arrays` form and cuts their samples by `:split`.

    A file supplies named columns: a `.npy` file one, named like the file; a `.npz` file its arrays; a CSV or Parquet
    file those of its header. A field takes the column of its own name, or those that `:columns` lists for it; several
    are put side by side as the field's last axis. `.npy` files are memory-mapped, the others are read into memory.

    Raises E-DATA-001 (no file), E-DATA-006 (no such format, or damaged), E-DATA-007 (no such column), E-DATA-020 (a
    cell of a CSV file), E-DATA-014 (pyarrow is missing), and what `cut_into_splits` raises.
    """
    listed = _listed_columns(form)
    types = {name: field.type.dtype for field in form.fields for name in listed.get(field.name, (field.name,))}
    found: dict[str, Column] = {}
    for number, argument in enumerate(form.arguments):
        span = form.spans.get(str(number), form.span)
        path = find_file(form, str(number), str(argument), root)
        for name, column in _read(path, shown(path, root), types, cache, span).items():
            if name in found:
                message = f"column {name} is in two files: {found[name].origin}, {column.origin}"
                raise ParenError("E-DATA-007", message, span)
            found[name] = column
    columns = {field.name: _gather(field, listed.get(field.name), found) for field in form.fields}
    digest = digest_of(*((name, column.digest) for name, column in sorted(columns.items())))
    return cut_into_splits(form, columns, digest)


def _listed_columns(form: DataForm) -> dict[str, tuple[str, ...]]:
    """`:columns`: field name -> column names."""
    written = form.options.get("columns", ())
    pairs = [pair for pair in written if isinstance(pair, tuple)] if isinstance(written, tuple) else []
    return {str(name): tuple(map(str, names)) for name, names in pairs if isinstance(names, tuple)}


def _gather(field: Field, listed: tuple[str, ...] | None, found: Mapping[str, Column]) -> Column:
    names = listed or (field.name,)
    for name in names:
        if name not in found:
            raise ParenError(
                "E-DATA-007",
                f"field {field.name} needs column {name}, which is in no file{did_you_mean(name, found)}: "
                f"there is {', '.join(found) or 'nothing'}",
                field.span,
            )
    parts = [found[name] for name in names]
    if listed is None:
        return parts[0]
    shapes = {part.values.shape for part in parts}
    if len(shapes) > 1 or parts[0].values.ndim != 1:
        shown_shapes = ", ".join(f"{part.origin} has [{' '.join(map(str, part.values.shape))}]" for part in parts)
        raise ParenError(
            "E-DATA-009",
            f"the columns of field {field.name} must each have one number a sample: {shown_shapes}",
            field.span,
        )
    values = np.stack([part.values for part in parts], axis=1).reshape(-1, *field.type.shape)
    return Column(values, f"columns {', '.join(names)}", array_digest(values))


def _read(path: Path, place: str, types: Mapping[str, DType], cache: Path, span: Span) -> dict[str, Column]:
    """The columns of one file; of a table only those in `types`."""
    match path.suffix.lower():
        case ".npy":
            values = _load_numpy(path, place, span)
            return {path.stem: Column(values, f"array {path.stem} in {place}", file_digest(path, cache))}
        case ".npz":
            return {
                name: _column(name, values, "array", place) for name, values in _load_npz(path, place, span).items()
            }
        case ".csv":
            arrays = read_csv(path, place, types, span)
        case ".parquet":
            arrays = _read_parquet(path, place, types, span)
        case _:
            raise ParenError(
                "E-DATA-006",
                f"{place} is of no known kind of array file",
                span,
                fix="use a .npy, .npz, .csv or .parquet file",
            )
    return {name: _column(name, values, "column", place) for name, values in arrays.items()}


def _column(name: str, values: Array, kind: str, place: str) -> Column:
    digest = array_digest(values) if values.dtype.kind in "biuf" else ""
    return Column(values, f"{kind} {name} in {place}", digest)


def _load_numpy(path: Path, place: str, span: Span) -> Array:
    try:
        values: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except UNREADABLE as error:
        raise ParenError("E-DATA-006", f"{place} is not a NumPy array file: {_sentence(error)}", span) from None
    return values


def _load_npz(path: Path, place: str, span: Span) -> dict[str, Array]:
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except UNREADABLE as error:
        raise ParenError("E-DATA-006", f"{place} is not a NumPy archive: {_sentence(error)}", span) from None


def _read_parquet(path: Path, place: str, types: Mapping[str, DType], span: Span) -> dict[str, Array]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")  # an extra: most runs need no Parquet
    except ImportError:
        raise ParenError(
            "E-DATA-014",
            f"{place} needs the library pyarrow, which is not installed",
            span,
            fix="pip install 'paren[parquet]'",
        ) from None
    try:
        file = parquet.ParquetFile(path)
        names = [name for name in file.schema_arrow.names if name in types]
        table = file.read(columns=names)
    except (ValueError, OSError) as error:  # pyarrow's errors are kinds of these
        raise ParenError("E-DATA-006", f"{place} is not a Parquet file: {_sentence(error)}", span) from None
    arrays: dict[str, Array] = {}
    for name in names:
        column = table.column(name)
        if column.null_count:
            raise ParenError("E-DATA-006", f"column {name} of {place} has {column.null_count} missing values", span)
        values = column.to_numpy()
        if values.dtype == object and len(values):  # lists of one length each are a column with a further axis
            try:
                values = np.stack([np.asarray(value) for value in values])
            except ValueError:
                raise ParenError(
                    "E-DATA-009", f"the lists in column {name} of {place} differ in length", span
                ) from None
        arrays[name] = values
    return arrays


def _sentence(error: Exception) -> str:
    return first_line(error).rstrip(".")
