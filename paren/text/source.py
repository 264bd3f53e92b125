"""Where a piece of program text stands: sources and spans."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True, eq=False)
class Source:
    """One text that forms are read from: a file, the prelude, or a command-line setting.

    `name` is what messages show (a path as the user gave it, or `<command line>`).
    """

    name: str
    text: str = field(repr=False)

    @cached_property
    def line_starts(self) -> list[int]:
        """Offset of the first character of each line; a line ends at LF (the reader turned CRLF and CR into LF)."""
        starts = [0]
        starts.extend(i + 1 for i, character in enumerate(self.text) if character == "\n")
        return starts

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of an offset, both counted from 1, columns in characters."""
        line = bisect.bisect_right(self.line_starts, offset) - 1
        return line + 1, offset - self.line_starts[line] + 1

    def line(self, number: int) -> str:
        """The text of a line counted from 1, without its end."""
        start = self.line_starts[number - 1]
        end = self.line_starts[number] - 1 if number < len(self.line_starts) else len(self.text)
        return self.text[start:end]


@dataclass(frozen=True)
class Span:
    """Characters `start` up to `end` (excluded) of a source. Every form, node and launch carries one."""

    source: Source
    start: int
    end: int

    def __str__(self) -> str:
        line, column = self.source.position(self.start)
        return f"{self.source.name}:{line}:{column}"

    def __repr__(self) -> str:
        return f"<{self}>"

    def to(self, other: Span) -> Span:
        """The span from the start of this one to the end of `other`, in the same source."""
        return Span(self.source, self.start, other.end)
