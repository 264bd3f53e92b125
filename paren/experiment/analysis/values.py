"""What analysis functions return, as JSON: numpy's numbers become Python's, and what has no JSON is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from paren.text.json import Json

MOST_ELEMENTS = 10_000  # of an array that becomes lists of numbers


class NoJson(Exception):
    """A value that JSON does not have: `place` is where it lies, such as `["a"][3]`; `what` says it in words."""

    def __init__(self, place: str, what: str) -> None:
        super().__init__(what)
        self.place = place
        self.what = what


def to_json(value: object, place: str = "") -> Json:
    """A value as JSON; small arrays become lists. Raises `NoJson` for NaN and infinity, and for other types."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NoJson(place, f"{value}")
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufU":
        if value.size > MOST_ELEMENTS:
            raise NoJson(place, f"an array of {value.size:,} elements, at most {MOST_ELEMENTS:,} are kept as text")
        value = value.tolist()
        return to_json(value, place)
    if isinstance(value, list | tuple):
        return [to_json(each, f"{place}[{number}]") for number, each in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise NoJson(place, f"a mapping with the key {key!r}, which is no string")
        return {str(key): to_json(each, f"{place}[{str(key)!r}]") for key, each in value.items()}
    if isinstance(value, np.ndarray):
        raise NoJson(place, f"an array of {value.dtype}")
    raise NoJson(place, kind_of(value))


def kind_of(value: object) -> str:
    """What a value is, for a message."""
    return "nothing (None)" if value is None else f"a value of type {type(value).__name__}"
