"""`(python "f.py" function ...)`: data from a Python function next to the file."""

from __future__ import annotations

import contextlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

import numpy as np

from paren.data.digest import array_digest, digest_of
from paren.data.fields import ArraySplit, Column, check_columns, cut_into_splits
from paren.data.paths import find_file, shown
from paren.ir.op import Array
from paren.ir.program import DataForm
from paren.text.errors import Note, ParenError, did_you_mean

_END_FRAMES = 8  # of a deep stack, so many of the outermost and innermost calls are shown


def call_data_function(form: DataForm, root: Path, seed: int) -> dict[str, ArraySplit]:
    """Calls the function and checks what it returns.

    It gets the keywords of the form (a list as a tuple), and `seed` if its signature has a parameter of that name and
    the form does not give one. It returns a mapping from field name to array (samples, *field shape), cut by `:split`,
    or a mapping from split name to such mappings. What it prints goes to stderr.

    Raises E-DATA-001 (no file), E-DATA-011 (not to be loaded or called), E-DATA-012 (it raised), E-DATA-013 (it
    returned something else), and what `check_columns` raises.
    """
    written, name = str(form.arguments[0]), str(form.arguments[1]).replace("-", "_")
    path = find_file(form, "0", written, root)
    place = shown(path, root)
    with _importing_from(path.parent), contextlib.redirect_stdout(sys.stderr):
        module = _load(form, path, place)
        function = _look_up(form, module, name, place)
        result = _call(form, function, _keywords(form, function, name, place, seed), name, path, place)
    origin = f"{name} in {place}"
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


@contextlib.contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """Lets the user's file import files next to it, and forgets those afterwards, so that files of the same name next
    to another experiment in this process are not mistaken for them."""
    known = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - known:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).is_relative_to(folder) and "site-packages" not in Path(file).parts:
                del sys.modules[name]


def _load(form: DataForm, path: Path, place: str) -> ModuleType:
    """Runs the file as a module. The source is compiled here, so no stale byte code on disk can stand in for it."""
    span = form.spans.get("0", form.span)
    module = ModuleType(f"paren_data_{digest_of(str(path))[:12]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    try:
        code = compile(path.read_bytes(), str(path), "exec")
    except SyntaxError as error:
        where = place if error.lineno is None else f"{place}:{error.lineno}"
        raise ParenError("E-DATA-011", f"{where}: {error.msg}", span) from None
    except (ValueError, OSError) as error:
        raise ParenError("E-DATA-011", f"{place} cannot be read as Python: {error}", span) from None
    with _users_errors(form, f"loading {place}", path, place, "0"):
        exec(code, module.__dict__)
    return module


def _look_up(form: DataForm, module: ModuleType, name: str, place: str) -> Callable[..., object]:
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ParenError(
            "E-DATA-011",
            f"{place} has no function {name}{did_you_mean(name, known)}",
            form.spans.get("1", form.span),
        )
    return function  # type: ignore[no-any-return]


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


def _call(
    form: DataForm, function: Callable[..., object], keywords: Mapping[str, object], name: str, path: Path, place: str
) -> object:
    with _users_errors(form, f"{name} in {place}", path, place, "1"):
        return function(**keywords)


@contextlib.contextmanager
def _users_errors(form: DataForm, what: str, path: Path, place: str, key: str) -> Iterator[None]:
    """Reports an exception of the user's code with the user's lines; frames of paren are left out."""
    try:
        yield
    except (Exception, SystemExit) as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
        notes = [
            Note(
                f"{place if f.filename == str(path) else f.filename}:{f.lineno}, in {f.name}: {f.line or ''}".rstrip(
                    ": "
                )
            )
            for f in frames
            if not f.filename.endswith("contextlib.py")
        ]
        if len(notes) > 2 * _END_FRAMES:
            left_out = Note(f"{len(notes) - 2 * _END_FRAMES} further calls between")
            notes = [*notes[:_END_FRAMES], left_out, *notes[-_END_FRAMES:]]
        text = f"{type(error).__name__}: {error}".rstrip(": ")
        raise ParenError("E-DATA-012", f"{what} raised {text}", form.spans.get(key, form.span), notes=notes) from error


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
