"""How `:split ((train 0.95) (validation 0.05))` cuts a number of things into ranges."""

from __future__ import annotations

import math

from paren.ir.program import DataForm
from paren.text.errors import ParenError

TRAIN = "train"
VALIDATION = "validation"
SUM_TOLERANCE = 1e-9


def split_fractions(form: DataForm) -> tuple[tuple[str, float], ...]:
    """The splits a data form asks for: name and fraction, in its order; all of it is `train` without `:split`."""
    written = form.options.get("split", ((TRAIN, 1.0),))
    pairs = written if isinstance(written, tuple) else ()
    return tuple((str(pair[0]), float(pair[1])) for pair in pairs if isinstance(pair, tuple))  # type: ignore[arg-type]


def split_ranges(form: DataForm, count: int, what: str) -> dict[str, tuple[int, int]]:
    """Cuts `count` things (`what` names them, for messages) into one range `start <= i < stop` for each split.

    The border after some splits is at the sum of their fractions times `count`, rounded down. Raises E-DATA-005 where
    a split gets nothing.
    """
    ranges: dict[str, tuple[int, int]] = {}
    start, done = 0, 0.0
    for name, fraction in split_fractions(form):
        done = math.fsum((done, fraction))
        stop = min(count, math.floor(done * count + SUM_TOLERANCE * count))
        if stop <= start:
            raise ParenError(
                "E-DATA-005",
                f"split {name} gets nothing: a fraction of {fraction:g} of {count} {what}",
                form.spans.get("split", form.span),
                fix="give it a larger fraction, or supply more data",
            )
        ranges[name] = (start, stop)
        start = stop
    return ranges
