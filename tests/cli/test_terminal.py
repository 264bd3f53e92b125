"""What a terminal shows that a pipe does not: colours, and tables as wide as the window."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout

import pytest
from rich.table import Table

from paren.cli.output import print_painted, print_table, report_errors
from paren.cli.summary import SUMMARY_STYLES, write_summary
from paren.text.errors import ParenError
from paren.text.source import Source, Span


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.delenv("NO_COLOR", raising=False)


def shown(write: Callable[[], None]) -> str:
    """What a terminal gets of what `write` writes to both streams."""
    terminal = Terminal()
    with redirect_stdout(terminal), redirect_stderr(terminal):
        write()
    return terminal.getvalue()


def test_a_summary_is_painted() -> None:
    summary = write_summary("a.paren", {"steps": 5, "notes": ["x" * 60]})
    assert shown(lambda: print_painted(summary, SUMMARY_STYLES)) == (
        "a.paren: \x1b[1;32mok\x1b[0m\n\x1b[36m  steps:\x1b[0m 5\n\x1b[36m  notes:\x1b[0m\n    " + "x" * 60 + "\n"
    )


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(lambda: print_painted("a: ok\n", {"a": "red"})) == "a: ok\n"


def test_an_error_is_painted_and_not_wrapped() -> None:
    span = Span(Source("a.paren", "(def [red] " + "x" * 60 + ")"), 5, 10)
    error = ParenError("E-TXT-001", "a [bold]message[/bold]", span, fix=":smile: " + "y" * 60)
    assert shown(lambda: report_errors(error, as_json=False)) == (
        "\x1b[1ma.paren:1:6: \x1b[0m\x1b[1;31mE-TXT-001:\x1b[0m a [bold]message[/bold]\n"
        "  (def [red] " + "x" * 60 + ")\n"
        "\x1b[31m       ^^^^^\x1b[0m\n"
        "\x1b[32m  fix:\x1b[0m :smile: " + "y" * 60 + "\n"
    )


def test_a_table_fits_the_window() -> None:
    table = Table("name", box=None)
    table.add_row("word " * 20)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown(lambda: print_table(table))).splitlines()
    assert max(len(line) for line in lines) <= 40
