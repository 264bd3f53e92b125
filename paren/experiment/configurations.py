"""Which configurations a study has, with which members: a pure function of its factors."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import product

from paren.ir.program import Factor, Study, Value, same_value
from paren.lang.value import show

BASELINE, ALL = "baseline", "all"  # folders of what changes nothing, and of a configuration without a cohort
LONGEST = 100  # characters of a folder's name that say what has changed

Values = Mapping[str, Value]


@dataclass(frozen=True)
class Configuration:
    """`changed`: what differs from the baseline, in the order in which the file declares its factors; `members`: the
    combinations of the cohort's factors, at least the empty one."""

    changed: Values
    members: tuple[Values, ...]


def combine(study: Study, baseline: Values, pinned: Collection[str] = ()) -> tuple[Configuration, ...]:
    """The configurations of a study without duplicates: the baseline and each alternative of the sweep alone, then the
    grid, crossed. A study of a grid only has its crossing only.

    `baseline` are the settings in force; those `pinned` by `--set` keep their value, whatever a factor lists.
    """
    free = [factor for factor in study.sweep if factor.name not in pinned]
    changes: list[dict[str, Value]] = []
    if study.sweep or not study.grid:
        changes.append({})
        changes += [{factor.name: value} for factor in free for value in factor.values]
    if study.grid:
        changes += _cross(study.grid, baseline, pinned)
    distinct: dict[str, Values] = {}
    for change in changes:
        changed = {name: value for name, value in change.items() if not same_value(value, baseline[name])}
        distinct.setdefault(_text(changed), changed)
    members = {_text(member): member for member in _cross(study.cohort, baseline, pinned)}
    return tuple(Configuration(changed, tuple(members.values())) for changed in distinct.values())


def _cross(factors: Iterable[Factor], baseline: Values, pinned: Collection[str]) -> list[dict[str, Value]]:
    """All combinations, the last factor varying fastest."""
    listed = [
        [(factor.name, value) for value in ((baseline[factor.name],) if factor.name in pinned else factor.values)]
        for factor in factors
    ]
    return [dict(pairs) for pairs in product(*listed)]


def configuration_folder(changed: Values, settings: Values, cohort: Collection[str]) -> str:
    """`<changed>-<12 hex>`: the digits are a digest of all settings but the cohort's."""
    shared = {name: value for name, value in settings.items() if name not in cohort}
    digest = hashlib.sha256(_text(shared).encode()).hexdigest()[:12]
    return f"{_name(changed) or BASELINE}-{digest}"


def member_folder(member: Values) -> str:
    """`prior-uniform,replica-0`; members of different values have different names."""
    return _name(member) or ALL


def show_values(values: Values) -> str:
    """`rate 0.01, rows 50000`, or `baseline`."""
    return ", ".join(f"{name} {show(value)}" for name, value in values.items()) or BASELINE


def _name(values: Values) -> str:
    parts = [f"{_safe(name)}-{_safe_value(value)}" for name, value in values.items()]
    name = ",".join(parts)
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}-{_short(name)}"


def _safe_value(value: Value) -> str:
    """A value in a folder's name. Flat lists of numbers are joined; what else has to be written differently ends with
    a digest of the value, so that no two values share a name."""
    if isinstance(value, tuple) and value and not any(isinstance(item, tuple | str) for item in value):
        return "-".join(show(item) for item in value)
    return _safe(value if isinstance(value, str) else show(value))


def _safe(text: str) -> str:
    kept = re.sub(r"[^A-Za-z0-9_.+-]", "-", text)[:LONGEST]
    if kept == text and text and not text.startswith("."):
        return text
    return f"{kept.strip('.-')}-{_short(text)}".lstrip("-")


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def _text(values: Values) -> str:
    """Values as a text that is equal just for equal ones: 1, 1.0 and true differ in it."""
    return json.dumps(sorted(values.items()))
