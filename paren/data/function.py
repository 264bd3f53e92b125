"""`(python "f.py" function ...)`: data from a Python function next to the file."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from paren.data.digest import array_digest, digest_of
from paren.data.fields import ArraySplit, Column, check_columns, cut_into_splits
from paren.data.paths import find_file, shown
from paren.data.python_file import PythonFile, Read, importing_from
from paren.ir.op import Array
from paren.ir.program import DataForm
from paren.text.errors import Note, ParenError, did_you_mean


def call_data_function(form: DataForm, root: Path, seed: int, read: Read = Path.read_bytes) -> dict[str, ArraySplit]:
    """Calls the function and checks what it returns. `read` gives the bytes of its file and of those beside it.

    It gets the keywords of the form (a list as a tuple), and `seed` if its signature has a parameter of that name and
    the form does not give one. It returns a mapping from field name to array (samples, *field shape), cut by `:split`,
    or a mapping from split name to such mappings. What it prints goes to stderr.

    Raises E-DATA-001 (no file), E-DATA-011 (not to be loaded or called), E-DATA-012 (it raised), E-DATA-013 (it
    returned something else), and what `check_columns` raises.
    """
    written, name = str(form.arguments[0]), str(form.arguments[1]).replace("-", "_")
    path = find_file(form, "0", written, root)
    file = PythonFile(path, shown(path, root), "E-DATA-011", "E-DATA-012", read)
    origin = f"{name} in {file.place}"
    span = form.spans.get("1", form.span)
    with importing_from(path.parent, {}, read), contextlib.redirect_stdout(sys.stderr):
        function = file.find(file.load(form.spans.get("0", form.span)), name, span)
        keywords = _keywords(form, function, name, file.place, seed)
        with file.errors(origin, span):
            result = function(**keywords)
    parts = _parts(form, result, origin)
    if "" in parts:
        columns = _columns(form, parts[""], origin)
        return cut_into_splits(form, columns, _digest(columns))
    if "split" in form.options:
        raise ParenError(
            "E-DATA-013",
            f"{origin} returns the splits {', '.join(parts)} itself, so :split has no meaning",
            form.spans.get("split", form.span),
            fix="remove :split, or return one mapping from field to array",
        )
    splits = {}
    for split, arrays in parts.items():
        columns = _columns(form, arrays, f"split {split} of {origin}")
        total = check_columns(form, columns)
        splits[split] = ArraySplit(split, form.fields, columns, 0, total, total, False, _digest(columns))
    return splits


def _keywords(form: DataForm, function: Callable[..., object], name: str, place: str, seed: int) -> dict[str, object]:
    written = form.options.get("keywords", ())
    pairs = [pair for pair in written if isinstance(pair, tuple)] if isinstance(written, tuple) else []
    keywords: dict[str, object] = {str(pair[0]).replace("-", "_"): pair[1] for pair in pairs}
    signature = inspect.signature(function)
    if "seed" in signature.parameters:
        keywords.setdefault("seed", seed)
    try:
        signature.bind(**keywords)
    except TypeError as error:
        raise ParenError(
            "E-DATA-011",
            f"{name} in {place} cannot be called with the keywords of the form: {error}",
            form.spans.get("1", form.span),
            notes=(Note(f"its signature is {name}{signature}"),),
        ) from None
    return keywords


def _parts(form: DataForm, result: object, origin: str) -> dict[str, Mapping[str, object]]:
    """The result by split; under the empty name if the function leaves the splits to `:split`."""
    span = form.spans.get("1", form.span)
    fix = "return a dict from field name to array, or a dict from split name to such dicts"
    if not isinstance(result, Mapping) or not all(isinstance(key, str) for key in result):
        raise ParenError("E-DATA-013", f"{origin} returns {_kind(result)}", span, fix=fix)
    nested = [key for key, value in result.items() if isinstance(value, Mapping)]
    if not nested:
        return {"": result}
    if len(nested) < len(result):
        other = next(key for key in result if key not in nested)
        raise ParenError("E-DATA-013", f"{origin} returns splits ({nested[0]}) beside arrays ({other})", span, fix=fix)
    return dict(result)


def _kind(value: object) -> str:
    if isinstance(value, Mapping):
        return "a mapping whose keys are not all strings"
    return "nothing (None)" if value is None else f"a value of type {type(value).__name__}"


def _columns(form: DataForm, arrays: Mapping[str, object], origin: str) -> dict[str, Column]:
    names = [field.name for field in form.fields]
    for key in arrays:
        if key not in names:
            raise ParenError(
                "E-DATA-013",
                f"{origin} returns {key}, which is no declared field{did_you_mean(key, names)}: "
                f"the fields are {', '.join(names)}",
                form.spans.get("1", form.span),
            )
    columns = {}
    for key, value in arrays.items():
        array: Array
        try:
            array = np.asarray(value)
        except (ValueError, TypeError, RuntimeError) as error:
            raise ParenError(
                "E-DATA-013",
                f"{key} from {origin} is no array",
                form.spans.get("1", form.span),
                notes=(Note(f"NumPy says: {error}"),),
            ) from None
        digest = array_digest(array) if array.dtype.kind in "biuf" else ""
        columns[key] = Column(array, f"{key} from {origin}", digest)
    return columns


def _digest(columns: Mapping[str, Column]) -> str:
    return digest_of(*((name, columns[name].digest) for name in sorted(columns)))
