"""Long series made short for drawing: extremes stay, so that a peak of one step is still seen."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from paren.train.read_run import Floats


def thin(steps: Floats, values: Floats, most: int) -> tuple[Floats, Floats]:
    """At most `most` (at least 4) of the points [n], in order: of each of equally many neighbours the least and the
    greatest, and the ends. Values are finite."""
    count = len(values)
    if count <= most:
        return steps, values
    borders = np.linspace(1, count - 1, (most - 2) // 2 + 1).astype(int)
    kept = {0, count - 1}
    for first, last in pairwise(borders.tolist()):
        if last > first:
            part = values[first:last]
            kept |= {int(first + part.argmin()), int(first + part.argmax())}
    order = np.array(sorted(kept))
    return steps[order], values[order]
