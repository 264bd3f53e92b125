"""`paren format`: lays files out, or says which are not."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from paren.cli.output import print_result, say
from paren.text.errors import ParenError, Report
from paren.text.format import format_source
from paren.text.reader import load_source
from paren.text.size import count_of

Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="paren files.", show_default=False)]
Check = Annotated[bool, typer.Option("--check", help="Change nothing; exit 1 if a file is not laid out.")]


def register(app: typer.Typer) -> None:
    """Adds the command of this file."""
    app.command("format")(format_files)


def format_files(files: Files, check: Check = False) -> None:
    """Lay files out in one style.

    Forms and comments stay; a file with mistakes is not touched.
    """
    report = Report()
    unlike: list[Path] = []
    for path in files:
        with report.collect():
            if _format_file(path, write=not check):
                unlike.append(path)
    for path in unlike:
        if check:
            print_result(str(path))
        else:
            say(f"{path}: laid out")
    report.finish()
    if check and unlike:
        raise ParenError(
            "E-CLI-003",
            f"{count_of(len(unlike), 'file is', 'files are')} not laid out",
            fix="paren format FILE... does it",
        )


def _format_file(path: Path, *, write: bool) -> bool:
    """Whether the file's bytes differ from its layout; if so and asked to, replaces it as a whole."""
    content = format_source(load_source(path)).encode()
    if path.read_bytes() == content:
        return False
    if write:
        _replace(path.resolve(), content)
    return True


def _replace(path: Path, content: bytes) -> None:
    """Writes next to the file and renames, so that no interruption leaves half a file; permissions stay."""
    number, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(number, "wb") as stream:
            stream.write(content)
        temporary.chmod(path.stat().st_mode & 0o7777)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
