"""Long texts in few words: what is shown of one, and of two that differ, such as instruction sets, in a message."""

from __future__ import annotations

import difflib
import re

LONG = 60  # characters


def shorten(text: str, width: int = LONG) -> str:
    """The text, or its beginning, in at most `width` characters."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


def tell_apart(one: str, other: str) -> tuple[str, str]:
    """Both texts; where one is long, the words in which they differ, or, where only the order of words does, both from
    there on."""
    if max(len(one), len(other)) <= LONG:
        return one, other
    words, others = (re.split(r"[ ,]+", text) for text in (one, other))
    codes = difflib.SequenceMatcher(None, words, others, autojunk=False).get_opcodes()
    changes = [places for kind, *places in codes if kind != "equal"]
    first = [word for begin, end, _, _ in changes for word in words[begin:end]]
    second = [word for _, _, begin, end in changes for word in others[begin:end]]
    if first == second:
        place = changes[0][0] if changes else 0
        first, second = words[place:], others[place:]
    return shorten(" ".join(first)) or "without", shorten(" ".join(second)) or "without"
