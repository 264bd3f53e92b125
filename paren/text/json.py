"""What JSON can hold, and the one way in which files of it are read."""

from __future__ import annotations

import json
from typing import Any

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def parse_json(text: str | bytes) -> Any:
    """What a JSON text holds, which may be anything until it was looked at. Raises ValueError for what is no JSON, and
    for what is nested more deeply than Python can follow."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
