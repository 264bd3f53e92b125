"""Text becomes tokens: brackets, strings, atoms and comments, each with its place.

The scanner never stops at a mistake: it appends the error and goes on behind it, so that all mistakes of a file are
found in one run. The reader uses the tokens that carry meaning, the formatter also the comments.
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

from paren.text.errors import Note, ParenError
from paren.text.source import Source, Span


class Token(NamedTuple):
    """Characters `start` up to `end` of the text; `kind` is one of the module's five kinds."""

    kind: str
    start: int
    end: int


OPEN = "open"
CLOSE = "close"
STRING = "string"
ATOM = "atom"
COMMENT = "comment"
BLOCK_COMMENT = "block comment"

_TOKEN = re.compile(
    r"""(?P<space>[ \t\n\r]+)
      | (?P<atom>[^\s()\[\]";#|“”„«»]+)
      | (?P<open>[(\[])
      | (?P<close>[)\]])
      | (?P<string>"(?:[^"\\\n]|\\[^\n])*")
      | (?P<comment>;[^\n]*)""",
    re.VERBOSE,
)
_BLOCK_MARK = re.compile(r"#\||\|#")
_REST_OF_LINE = re.compile(r"[^\n]*")
_HASH = re.compile(r"#[^\s()\[\]\";]*")
_CURLY_STRING = re.compile(r"[“”„«»](?:[^\n“”„«»\"()]*[“”«»])?")
_SPACES = re.compile(r"[^\S \t\n\r]+")
# Control characters, and the marks that reorder text on the screen so that it reads as what it is not.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]+")


def scan(source: Source, errors: list[ParenError]) -> list[Token]:
    """All tokens of the text in order, comments included; mistakes are appended to `errors`.

    A token with a mistake of its own (a string that is not closed, a curly quote) is an error and no token.
    """
    text = _replace_control_characters(source, errors)
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            position = _scan_rare(source, text, position, tokens, errors)
            continue
        kind = match.lastgroup
        if kind is not None and kind != "space":
            tokens.append(Token(kind, position, match.end()))
        position = match.end()
    return tokens


def describe_character(character: str) -> str:
    """How messages name one character: as itself where it can be seen, and by its number and Unicode name."""
    name = unicodedata.name(character, "control character").lower()
    code = f"U+{ord(character):04X}"
    if character.isprintable() and not unicodedata.combining(character):
        return f"`{character}`" if character.isascii() else f"`{character}` ({code}, {name})"
    return f"{code} ({name})"


def _replace_control_characters(source: Source, errors: list[ParenError]) -> str:
    """The text with the same length and spaces in place of characters that may stand nowhere."""
    for match in _CONTROL.finditer(source.text):
        errors.append(
            ParenError(
                "E-TXT-010",
                f"{describe_character(match[0][0])} may not stand in a paren file",
                Span(source, match.start(), match.end()),
                fix='delete it; in a string, write it as an escape such as "\\u0007"',
            )
        )
    return _CONTROL.sub(lambda match: " " * len(match[0]), source.text)


def _scan_rare(source: Source, text: str, start: int, tokens: list[Token], errors: list[ParenError]) -> int:
    """Scans what the token pattern does not match: block comments and mistakes. Returns where to go on."""
    if text.startswith("#|", start):
        return _scan_block_comment(source, text, start, tokens, errors)
    character = text[start]
    if character == '"':
        end = _end(_REST_OF_LINE, text, start)
        errors.append(
            ParenError(
                "E-TXT-006",
                "the string is not closed on its line",
                Span(source, start, end),
                fix='close it with `"`; a line break in a string is written \\n',
            )
        )
    elif character == "#":
        end = _end(_HASH, text, start)
        errors.append(_hash_error(text[start:end], Span(source, start, end)))
    elif character == "|":
        end = start + 2 if text.startswith("|#", start) else start + 1
        errors.append(
            ParenError(
                "E-TXT-010",
                f"`{text[start:end]}` closes no comment" if end > start + 1 else "`|` is not part of the language",
                Span(source, start, end),
                fix="a comment stands between `#|` and `|#`, and each `#|` inside it needs its own `|#`",
            )
        )
    elif character in "“”„«»":
        end = _end(_CURLY_STRING, text, start)
        errors.append(
            ParenError(
                "E-TXT-010",
                f"{describe_character(character)} does not quote a string",
                Span(source, start, end),
                fix='write strings with the straight quote `"`; word processors and web pages change it',
            )
        )
    else:
        end = _end(_SPACES, text, start)
        errors.append(space_error(character, Span(source, start, end)))
    return end


def space_error(character: str, span: Span) -> ParenError:
    """The error for a space that is not the ordinary one, most often pasted from a web page."""
    return ParenError(
        "E-TXT-010",
        f"{describe_character(character)} looks like a space but is not one",
        span,
        fix="replace it with an ordinary space; it is often pasted from a web page",
    )


def _scan_block_comment(source: Source, text: str, start: int, tokens: list[Token], errors: list[ParenError]) -> int:
    opened = [start]
    position = start + 2
    while opened:
        match = _BLOCK_MARK.search(text, position)
        if match is None:
            notes = [Note("a comment inside it is not closed either", Span(source, at, at + 2)) for at in opened[1:4]]
            errors.append(
                ParenError(
                    "E-TXT-007",
                    "the comment `#|` is not closed",
                    Span(source, start, start + 2),
                    notes=notes,
                    fix="close it with `|#`; comments nest, so each `#|` needs its own",
                )
            )
            return len(text)
        if match[0] == "#|":
            opened.append(match.start())
        else:
            opened.pop()
        position = match.end()
    tokens.append(Token(BLOCK_COMMENT, start, position))
    return position


def _hash_error(word: str, span: Span) -> ParenError:
    fix = "`#` only stands in comments, `#| like this |#`"
    if word.lower() in ("#t", "#true"):
        fix = "write true"
    elif word.lower() in ("#f", "#false"):
        fix = "write false"
    elif word == "#":
        fix = "a comment begins with `;` or stands between `#|` and `|#`; a literal list is written [1 2 3]"
    return ParenError("E-TXT-010", f"`{word}` is not part of the language", span, fix=fix)


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    return match.end() if match and match.end() > start else start + 1
