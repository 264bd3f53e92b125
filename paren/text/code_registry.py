"""The registry of error codes, which the `codes_*` files fill at import; `paren.text.codes` has all of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Code:
    """`cause` says when the error is raised, `fix` what to do about it; both are sentences for users."""

    code: str
    title: str
    cause: str
    fix: str


CODES: dict[str, Code] = {}


def register(code: str, title: str, cause: str, fix: str) -> None:
    """Adds an entry; a code stands once."""
    if code in CODES:
        raise ValueError(f"error code {code} is registered twice")
    CODES[code] = Code(code, title, cause, fix)
