"""What CUDA_VISIBLE_DEVICES does to the cards of a machine, in words; CUDA itself applies it without one."""

from __future__ import annotations

from collections.abc import Sequence

NAME = "CUDA_VISIBLE_DEVICES"


def describe_mask(mask: str, cards: Sequence[tuple[str, str]]) -> str:
    """Why a mask hides what it hides. `cards`: name and UUID of each card of the machine.

    CUDA takes ordinals and UUIDs (or their beginnings), ignores the first entry that is no card and all behind it, and
    shows nothing if an entry is repeated.
    """
    if not mask.strip():
        return f"{NAME} is empty, which hides every card"
    said = f"{NAME} is `{mask}`"
    if not cards or "MIG-" in mask:
        return said  # the machine's cards are not told, or parts of cards are named, which are not listed
    seen: list[int] = []
    for entry in (part.strip() for part in mask.split(",")):
        places = _named(entry, cards)
        if entry.startswith("-"):
            return f"{said}: `{entry}` hides every card from there on"
        if len(places) != 1:
            reason = "names several cards" if places else "names no card of this machine"
            return f"{said}: `{entry}` {reason}, so it and what follows are ignored"
        if places[0] in seen:
            return f"{said}: `{entry}` repeats a card, and then CUDA shows none"
        seen += places
    return said


def _named(entry: str, cards: Sequence[tuple[str, str]]) -> list[int]:
    """The cards that an entry may mean."""
    if entry.isdecimal():
        return [int(entry)] if int(entry) < len(cards) else []
    return [place for place, (_, uuid) in enumerate(cards) if entry and uuid.startswith(entry)]
