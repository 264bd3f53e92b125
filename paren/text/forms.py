"""Forms: what the reader makes of text. Frozen, each with its span."""

from __future__ import annotations

from dataclasses import dataclass

from paren.text.source import Span


@dataclass(frozen=True)
class Symbol:
    name: str
    span: Span


@dataclass(frozen=True)
class Keyword:
    """`:name`; `name` is without the colon."""

    name: str
    span: Span


@dataclass(frozen=True)
class Number:
    """`text` is the literal as written (`6e-4`, `0x10`), which the formatter keeps."""

    value: int | float
    text: str
    span: Span


@dataclass(frozen=True)
class String:
    value: str
    span: Span


@dataclass(frozen=True)
class Boolean:
    value: bool
    span: Span


@dataclass(frozen=True)
class List:
    """`( )` with `bracket` "(", or `[ ]` with "["."""

    items: tuple[Form, ...]
    bracket: str
    span: Span


Form = Symbol | Keyword | Number | String | Boolean | List
