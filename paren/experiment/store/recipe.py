"""What an artifact is made from: the digest of it is the artifact's name, and two of them can be compared."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from paren.experiment.python.packages import version_of
from paren.ir.program import Value
from paren.text.brevity import shorten, tell_apart
from paren.text.json import Json

FORMAT = 1
KEY_DIGITS = 24
# What stands below these parts is told by its own name alone.
_BARE = ("device", "keywords", "settings", "sources", "versions", "needs", "member")


@dataclass(frozen=True)
class Recipe:
    """`kind` is data, model or product. `parts` are what decides about the content: equal parts, equal content. `about`
    does not count; it is kept beside them to say in a user's words why parts differ (the settings of the job).

    `name` is the name of the product; for data and models it is a word for people, and counts like the parts.
    """

    kind: str
    name: str
    parts: Mapping[str, Json]
    about: Mapping[str, Json] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """24 hexadecimal digits: the start of the SHA-256 of everything that counts."""
        return digest([FORMAT, self.kind, self.name, dict(self.parts)])[:KEY_DIGITS]

    @property
    def folder(self) -> str:
        """The folder below `store/` that artifacts of this kind lie in: for a product its name."""
        return self.name if self.kind == "product" else self.kind


def digest(content: Json) -> str:
    """SHA-256 (64 hexadecimal digits) of a JSON value; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def as_json(value: Value) -> Json:
    """A value of a file as JSON that tells all values apart: `1`, `1.0` and `true` are three, and infinity, which JSON
    does not have, is `{"float": "inf"}`."""
    if isinstance(value, tuple):
        return [as_json(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value


def versions(packages: Iterable[str] = ()) -> dict[str, Json]:
    """The versions that decide about what Python functions compute: of Python (major and minor), of numpy, and of those
    of `packages` (names as they are imported) that are not of the standard library."""
    found: dict[str, Json] = {"python": ".".join(platform.python_version_tuple()[:2])}
    for package in sorted({"numpy", *packages}):
        version = version_of(package)
        if version is not None:
            found[package] = version
    return found


def differences(before: Recipe, now: Recipe) -> list[str]:
    """What changed between two recipes, in words: `rows: 50000 -> 150000`, `problem.py draw: changed`.

    What `about` says comes first where it differs and the parts do as well. Without a difference that counts, nothing.
    """
    if before.key == now.key:
        return []
    said = list(_compare("", dict(before.about), dict(now.about)))
    parts = list(_compare("", {"name": before.name, **before.parts}, {"name": now.name, **now.parts}))
    return list(dict.fromkeys([*said, *parts]))


def _compare(place: str, before: Json, now: Json) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for name in dict.fromkeys([*before, *now]):
            below = f"{place} {name}" if place and place not in _BARE else name
            if name not in before:
                yield f"{below}: new" + ("" if _is_opaque(now[name]) else f", {shorten(_show(now[name]))}")
            elif name not in now:
                yield f"{below}: gone" + ("" if _is_opaque(before[name]) else f", was {shorten(_show(before[name]))}")
            else:
                yield from _compare(below, before[name], now[name])
    elif digest(before) != digest(now):
        opaque = _is_opaque(before) or _is_opaque(now)
        yield f"{place}: changed" if opaque else f"{place}: {' -> '.join(tell_apart(_show(before), _show(now)))}"


def _is_opaque(value: Json) -> bool:
    """A digest says nothing to people."""
    digits = set("0123456789abcdef")
    return isinstance(value, str) and len(value) >= KEY_DIGITS and set(value) <= digits


def _show(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
