"""How `:split ((train 0.95) (validation 0.05))` cuts a number of things into ranges."""

from __future__ import annotations

import math

from paren.ir.program import DataForm
from paren.text.errors import ParenError

TRAIN = "train"
VALIDATION = "validation"
SUM_TOLERANCE = 1e-9


def split_fractions(form: DataForm) -> tuple[tuple[str, float], ...]:
    """The splits a data form asks for: name and fraction, in its order; all of it is `train` without `:split`.

    Raises E-DATA-005 where a name is given twice, a fraction is not in 0 .. 1, or their sum exceeds 1.
    """
    if "split" not in form.options:
        return ((TRAIN, 1.0),)
    pairs: list[tuple[str, float]] = []
    span = form.spans.get("split", form.span)
    written = form.options["split"]
    for pair in written if isinstance(written, tuple) else (written,):
        if not (
            isinstance(pair, tuple)
            and len(pair) == 2
            and isinstance(pair[0], str)
            and isinstance(pair[1], int | float)
            and not isinstance(pair[1], bool)
        ):
            raise ParenError("E-DATA-005", "each split is a name and a fraction", span, fix="write (train 0.95)")
        name, fraction = pair[0], float(pair[1])
        if not 0 < fraction <= 1:
            raise ParenError(
                "E-DATA-005", f"the fraction {fraction:g} of split {name} is not in 0 < fraction <= 1", span
            )
        if name in dict(pairs):
            raise ParenError("E-DATA-005", f"split {name} is given twice", span)
        pairs.append((name, fraction))
    if not pairs:
        raise ParenError("E-DATA-005", "there is no split", span, fix="write ((train 0.95) (validation 0.05))")
    total = math.fsum(fraction for _, fraction in pairs)
    if total > 1 + SUM_TOLERANCE:
        raise ParenError("E-DATA-005", f"the fractions of the splits sum to {total:g}, more than 1", span)
    return tuple(pairs)


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
