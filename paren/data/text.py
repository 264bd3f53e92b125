"""Text as a stream of bounded pieces: UTF-8 without a byte-order mark, lines ended by LF, mistakes with their place."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path

from paren.text.errors import ParenError
from paren.text.source import Span

BLOCK = 1 << 18  # bytes


def read_text(path: Path, place: str, span: Span | None) -> Iterator[str]:
    """The text of a file in pieces of at most `BLOCK` characters, whatever the locale.

    A byte-order mark at the start is dropped; CRLF and a lone CR become LF. Raises E-DATA-002 with line and column
    (both from 1, columns in characters) where bytes are no UTF-8, and E-DATA-021 where the file cannot be read.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")("strict")
    after_return = False
    line, column = 1, 1
    try:
        with open(path, "rb") as file:
            while True:
                data = file.read(BLOCK)
                try:
                    piece = decoder.decode(data, final=not data)
                except UnicodeDecodeError as error:
                    before, _ = _normalised(error.object[: error.start].decode("utf-8-sig"), after_return)
                    line, column = _advanced(line, column, before)
                    byte = error.object[error.start]
                    raise ParenError(
                        "E-DATA-002",
                        f"{place}:{line}:{column}: the byte 0x{byte:02x} is not UTF-8 ({error.reason})",
                        span,
                        fix="save the file as UTF-8",
                    ) from None
                piece, after_return = _normalised(piece, after_return)
                if piece:
                    line, column = _advanced(line, column, piece)
                    yield piece
                if not data:
                    return
    except OSError as error:
        raise ParenError("E-DATA-021", f"{place} cannot be read: {error.strerror}", span) from None


def _normalised(piece: str, after_return: bool) -> tuple[str, bool]:
    """LF for CRLF and CR; `after_return` says that the piece before ended in CR, whose LF was already given out."""
    if after_return and piece.startswith("\n"):
        piece, after_return = piece[1:], False
    elif piece:
        after_return = False
    ends = piece.endswith("\r") or after_return
    return piece.replace("\r\n", "\n").replace("\r", "\n"), ends


def _advanced(line: int, column: int, piece: str) -> tuple[int, int]:
    ends = piece.count("\n")
    return (line + ends, len(piece) - piece.rfind("\n")) if ends else (line, column + len(piece))
