"""Lines of `metrics.jsonl`, as far as equal runs agree in them."""

from __future__ import annotations

import json

from paren.train.metrics import MEASURED_SERIES


def without_measured(line: str) -> dict[str, object]:
    """A line's content without `MEASURED_SERIES` and how the stacking was chosen."""
    measured = MEASURED_SERIES | {"chosen", "text"}
    return {name: value for name, value in json.loads(line).items() if name not in measured}
