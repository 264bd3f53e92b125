"""Long texts in few words: what is shown of two that differ, such as instruction sets, in a line of a message."""

from __future__ import annotations

import re

LONG = 60  # characters


def shorten(text: str) -> str:
    """The text, or its beginning."""
    return text if len(text) <= LONG else f"{text[: LONG - 3]}..."


def tell_apart(one: str, other: str) -> tuple[str, str]:
    """Both texts; where one is long, without the words that both have, so that what differs is seen."""
    if max(len(one), len(other)) <= LONG:
        return one, other
    words, others = (re.split(r"[ ,]+", text) for text in (one, other))
    first, second = (
        " ".join(word for word in own if word not in known)
        for own, known in ((words, set(others)), (others, set(words)))
    )
    return shorten(first) or "without", shorten(second) or "without"
