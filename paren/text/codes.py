"""The registry of error codes: `paren help CODE` prints an entry, `docs/errors.md` is generated from all of them."""

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


def _code(code: str, title: str, cause: str, fix: str) -> None:
    if code in CODES:
        raise ValueError(f"error code {code} is registered twice")
    CODES[code] = Code(code, title, cause, fix)
