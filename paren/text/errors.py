"""The two kinds of error, and the one renderer with carets.

`ParenError` is the user's: it has a code, a message, a span where one is known, notes, and a fix. It is shown
without a traceback. `InternalError` is ours: it names the stage that broke its own rule.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from paren.text.source import Span

_EXCERPT_WIDTH = 110


@dataclass(frozen=True)
class Note:
    """A further line under an error: what an operand is, where something else stands."""

    message: str
    span: Span | None = None


class ParenError(Exception):
    """A mistake in what the user wrote, asked for, or supplied.

    `code` is in the registry `paren.text.codes` (`paren help CODE`); `message` is one sentence without a full stop;
    `fix` says what to do, when that is known.
    """

    def __init__(
        self, code: str, message: str, span: Span | None = None, *, notes: Iterable[Note] = (), fix: str | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.span = span
        self.notes = tuple(notes)
        self.fix = fix

    @property
    def errors(self) -> tuple[ParenError, ...]:
        """The single mistakes behind this error; itself, unless it is a `ParenErrors`."""
        return (self,)

    def __str__(self) -> str:
        return render(self)


class ParenErrors(ParenError):
    """All mistakes that one stage found, in the order of the text. Code, span, message and fix are the first one's."""

    def __init__(self, errors: Iterable[ParenError]) -> None:
        self._errors = tuple(errors)
        first = self._errors[0]
        super().__init__(first.code, first.message, first.span, notes=first.notes, fix=first.fix)

    @property
    def errors(self) -> tuple[ParenError, ...]:
        return self._errors

    def __str__(self) -> str:
        return "\n\n".join(render(error) for error in self._errors)


class InternalError(Exception):
    """A stage broke one of its own rules: a fault of paren, never of the user's file."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(f"internal error in {stage}: {message}")
        self.stage = stage


@dataclass
class Report:
    """Collects the mistakes of one stage, so that a file's mistakes are shown in one run."""

    errors: list[ParenError] = field(default_factory=list)

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Runs the block; a `ParenError` in it is kept and the program goes on after the block."""
        try:
            yield
        except ParenError as error:
            self.errors.extend(error.errors)

    def finish(self) -> None:
        """Raises what was collected, if anything was."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise ParenErrors(self.errors)


def render(error: ParenError) -> str:
    """The message as shown to people: place, code, message, source line with carets, notes, fix."""
    place = f"{error.span}: " if error.span else ""
    lines = [f"{place}{error.code}: {error.message}"]
    if error.span:
        lines += _excerpt(error.span)
    for note in error.notes:
        where = f" ({note.span})" if note.span else ""
        lines.append(f"  note: {note.message}{where}")
    if error.fix:
        lines.append(f"  fix: {error.fix}")
    return "\n".join(lines)


def _excerpt(span: Span) -> list[str]:
    """The line of the span with carets under it; of a very long line, the part around the span."""
    line_number, column = span.source.position(span.start)
    line = span.source.line(line_number)
    if not line:
        return []
    width = max(1, min(span.end - span.start, len(line) - column + 1))
    cut = 0
    if len(line) > _EXCERPT_WIDTH:
        cut = max(0, min(column - 1 - _EXCERPT_WIDTH // 4, len(line) - _EXCERPT_WIDTH))
        width = min(width, _EXCERPT_WIDTH - (column - 1 - cut))
    before = line[cut : column - 1]
    indent = "".join("\t" if character == "\t" else " " * _cells(character) for character in before)
    carets = "^" * max(1, sum(_cells(character) for character in line[column - 1 : column - 1 + width]))
    return [f"  {line[cut : cut + _EXCERPT_WIDTH]}", f"  {indent}{carets}"]


def _cells(character: str) -> int:
    """Columns that a terminal gives a character: two for wide East Asian ones, none for combining marks."""
    if character.isascii():
        return 1
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def describe_cause(error: BaseException) -> str:
    """An error in one line: code or type, text, and the place in the file that it is about."""
    if isinstance(error, ParenError):
        return f"{error.code}: {error.message}" + (f" ({error.span})" if error.span else "")
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def first_line(error: Exception) -> str:
    """What another package's error says, in one line: the first of its text, or its type where it says nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def system_reason(error: OSError) -> str:
    """What the system says of an operation that it refused, as part of a sentence: `no space left on device`."""
    return (error.strerror or str(error)).lower()


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is spelt most like `name`, if one is near."""
    near = difflib.get_close_matches(name, sorted(set(known)), n=1, cutoff=0.6)
    return near[0] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean X?)` for the nearest known name, or nothing."""
    near = nearest(name, known)
    return f" (did you mean {near}?)" if near else ""
