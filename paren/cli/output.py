"""What commands write: results to stdout, errors and prose to stderr, colours on a terminal only."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TextIO

import typer

from paren.environment import forces_colour, leads, wants_colour
from paren.text.errors import Note, ParenError, render
from paren.text.source import Span

if TYPE_CHECKING:
    from rich.console import RenderableType

# Wider than any table: in a pipe nothing is cut off or wrapped.
_PIPE_WIDTH = 1000


def print_result(text: str) -> None:
    """Writes a result to stdout as it is."""
    print_painted(text, {})


def flush_result() -> None:
    """Writes what is left of a result, while a refusal can still be told."""
    with _naming(sys.stdout):
        sys.stdout.flush()


def end_with_folder(folder: str, code: int) -> None:
    """Writes the folder of a run to stdout, the first of several ranks for all, and ends with its exit code."""
    if leads():
        print_result(folder)
    if code:
        raise typer.Exit(code)


def print_painted(text: str, styles: Mapping[str, str]) -> None:
    """Writes a result to stdout; on a terminal, what each pattern of `styles` matches is in its style."""
    _write(text if text.endswith("\n") else f"{text}\n", styles, sys.stdout, coloured=sys.stdout.isatty())


def print_json(data: object) -> None:
    """Writes a result to stdout as JSON."""
    print_result(json.dumps(data, ensure_ascii=False, indent=1, default=str))


def print_table(table: RenderableType) -> None:
    """Writes a rich table to stdout: in colour on a terminal, plain and never cut off in a pipe."""
    # rich costs a third of the start-up of `paren check`, so only what draws loads it.
    from rich.console import Console

    console = Console(highlight=False, color_system=_colours())
    if console.is_terminal:
        console.print(table)
        return
    console = Console(highlight=False, width=_PIPE_WIDTH)
    with console.capture() as capture:
        console.print(table)
    print_result("\n".join(line.rstrip() for line in capture.get().splitlines()))


def say(text: str) -> None:
    """Writes prose to stderr."""
    sys.stderr.write(f"{text}\n")


def report_errors(error: ParenError, *, as_json: bool) -> None:
    """Shows every mistake in the error: to stderr for people, or to stdout as one JSON object a line."""
    if as_json:
        for single in error.errors:
            print_result(json.dumps(describe_error(single), ensure_ascii=False))
        return
    coloured = sys.stderr.isatty() or forces_colour()
    for number, single in enumerate(error.errors):
        if number:
            say("")
        _write(f"{render(single)}\n", _error_styles(single.code), sys.stderr, coloured=coloured)
    if len(error.errors) > 1:
        say(f"\n{len(error.errors)} mistakes")


def describe_error(error: ParenError) -> dict[str, object]:
    """A single mistake as data: code, message, place (path, line, column, from 1), notes with places, fix."""
    return {
        "code": error.code,
        "message": error.message,
        "place": _describe_place(error.span),
        "notes": [_describe_note(note) for note in error.notes],
        "fix": error.fix,
    }


def report_fault(error: BaseException, *, as_json: bool) -> None:
    """Shows an error that is paren's own fault, with its traceback."""
    kind = type(error).__name__
    text = str(error) if kind == "InternalError" else f"{kind}: {error}"
    if as_json:
        print_result(
            json.dumps({"code": None, "message": text, "place": None, "notes": [], "fix": None}, ensure_ascii=False)
        )
    say("".join(traceback.format_exception(error)).rstrip("\n"))
    say(f"\n{text}\nThis is a fault of paren, not of your file. Please report it with the lines above.")


def _colours() -> Literal["auto"] | None:
    """rich's choice of colours; with NO_COLOR none, and no bold either."""
    return "auto" if wants_colour() else None


def _describe_note(note: Note) -> dict[str, object]:
    return {"message": note.message, "place": _describe_place(note.span)}


def _describe_place(span: Span | None) -> dict[str, object] | None:
    if span is None:
        return None
    line, column = span.source.position(span.start)
    return {"path": span.source.name, "line": line, "column": column}


def _error_styles(code: str) -> dict[str, str]:
    """The parts of a rendered error that have a style."""
    return {
        rf"^.*?(?={code})": "bold",
        rf"(?<!\w){code}:": "bold red",
        r"(?m)^\s+\^+$": "red",
        r"(?m)^  note:": "cyan",
        r"(?m)^  fix:": "green",
    }


@contextmanager
def _naming(stream: TextIO) -> Iterator[None]:
    """Lets an error of the system say which stream it refused."""
    try:
        yield
    except OSError as error:
        error.filename = "stdout" if stream is sys.stdout else "stderr"
        raise


def _write(text: str, styles: Mapping[str, str], stream: TextIO, *, coloured: bool) -> None:
    """Writes text as it is or, `coloured`, what each pattern of `styles` matches in its style.

    Without colours nothing is loaded for it: an error may have to be told when there is no memory for anything.
    """
    if not styles or not coloured or not wants_colour():
        with _naming(stream):
            stream.write(text)
        return
    from rich.console import Console  # see print_table
    from rich.text import Text

    painted = Text(text)
    for pattern, style in styles.items():
        painted.highlight_regex(pattern, style)
    Console(file=stream, highlight=False, soft_wrap=True).print(painted, end="")
