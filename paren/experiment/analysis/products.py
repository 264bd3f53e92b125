"""Products: what a function returns is stored as arrays and values, and read back without copying."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from paren.experiment.analysis.values import NoJson, kind_of, to_json
from paren.experiment.store.artifact import Artifact, Writer
from paren.ir.op import Array
from paren.text.errors import ParenError
from paren.text.json import Json
from paren.text.source import Span


class Product(Mapping[str, "Array | Json"]):
    """A stored product: name -> array, mapped into memory and not writable, or JSON value. Names are sorted."""

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact

    def __getitem__(self, name: str) -> Array | Json:
        """Raises KeyError, and E-STORE-002 if the product is damaged."""
        if name not in self._artifact.names:
            raise KeyError(f"the product has no {name!r}, it has {', '.join(self._artifact.names)}")
        try:
            return self._artifact.array(name)
        except KeyError:
            return copy.deepcopy(self._artifact.json(name))  # who changes it does not change the next one's

    def __iter__(self) -> Iterator[str]:
        return iter(self._artifact.names)

    def __len__(self) -> int:
        return len(self._artifact.names)

    def __repr__(self) -> str:
        return f"<Product of {', '.join(self)}>"

    @property
    def folder(self) -> Path:
        """Where it is stored. Nothing in it may be changed."""
        return self._artifact.folder


def store_product(writer: Writer, result: object, origin: str, span: Span, may_be_empty: bool) -> None:
    """Stores what `origin` (words for messages) returned: a mapping from names to arrays and values. `may_be_empty`:
    whether it may return None, as it has written arrays itself.

    Raises E-STUDY-008 for anything else, E-STORE-001 for names and arrays that cannot be stored.
    """
    if result is None and may_be_empty:
        return
    if not isinstance(result, Mapping):
        raise ParenError(
            "E-STUDY-008",
            f"{origin} returns {kind_of(result)}",
            span,
            fix="return a dict from names to arrays, numbers, texts and lists",
        )
    for name, value in result.items():
        if not isinstance(name, str):
            message = f"{origin} returns the name {name!r}, which is no string"
            raise ParenError("E-STUDY-008", message, span, fix="give each array and value a name")
        try:
            array = _as_array(value)
            if array is not None:
                writer.array(name, array)
            else:
                writer.json(name, to_json(value))
        except NoJson as error:
            raise ParenError(
                "E-STUDY-008",
                f"{name}{error.place} from {origin} is {error.what}",
                span,
                fix="return arrays of numbers under names of their own; None stands for an undefined number",
            ) from None
        except ParenError as error:
            raise ParenError(
                error.code, f"{error.message} ({origin})", span, notes=error.notes, fix=error.fix
            ) from None


def _as_array(value: object) -> Array | None:
    """The array that a value is, also a tensor or a column of a table; None for what is kept as JSON."""
    if isinstance(value, np.ma.MaskedArray):
        raise NoJson("", "a masked array, which has a mask that would be lost")
    if isinstance(value, np.generic | str | Mapping | list | tuple) or not hasattr(value, "__array__"):
        return None
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise NoJson("", f"no array that NumPy can read: {error}") from None
    if array.dtype.kind == "O":
        raise NoJson("", "an array of objects, which only pickles could keep")
    return array if array.ndim else None
