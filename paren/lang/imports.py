"""The files of a program: the one that is named and what it imports, each once, in the order of the text."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from paren.text.errors import ParenError, Report
from paren.text.forms import Form, List, String, Symbol
from paren.text.reader import decode, load_source, read
from paren.text.source import Source, Span

ReadFile = Callable[[Path], bytes]


@dataclass(eq=False)
class Files:
    """`forms` are the top-level forms of all files without the imports; `texts` maps each path to its text."""

    read_file: ReadFile | None
    report: Report = field(default_factory=Report)
    forms: list[Form] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    open: list[tuple[str, str]] = field(default_factory=list)  # (identity, shown name) of the files being read

    def load(self, path: Path, place: Span | None = None) -> None:
        """Reads a file and what it imports. Mistakes are collected; a cycle is E-IMP-001, another path E-IMP-002."""
        identity, shown = os.path.realpath(path), str(path)
        if any(identity == other for other, _ in self.open):
            names = [name for _, name in self.open]
            start = [other for other, _ in self.open].index(identity)
            cycle = " -> ".join([*names[start:], shown])
            raise ParenError("E-IMP-001", f"the imports go in a circle: {cycle}", place)
        if identity in self.done:
            return
        source = self._source(path, place)
        self.done.add(identity)
        self.texts[shown] = source.text
        forms: tuple[Form, ...] = ()
        with self.report.collect():
            forms = read(source)
        self.open.append((identity, shown))
        for form in forms:
            if isinstance(form, List) and form.items and _is_import(form.items[0]):
                with self.report.collect():
                    self._import(form, path)
            else:
                self.forms.append(form)
        self.open.pop()

    def _source(self, path: Path, place: Span | None) -> Source:
        try:
            if self.read_file is None:
                return load_source(path)
            return decode(self.read_file(path), str(path))
        except ParenError as error:
            if place is None or error.span is not None:
                raise
            raise ParenError(error.code, error.message, place, fix=error.fix) from None
        except OSError as error:
            raise ParenError("E-TXT-001", f"{path} cannot be read: {error}", place) from error

    def _import(self, form: List, path: Path) -> None:
        if len(form.items) != 2 or not isinstance(form.items[1], String):
            raise ParenError("E-FORM-001", 'the form is (import "file.paren")', form.span)
        target = form.items[1]
        if not target.value.endswith(".paren"):
            raise ParenError(
                "E-IMP-002",
                f"{target.value} is not a .paren file",
                target.span,
                fix='Python functions are named where they are used: (python "file.py" function)',
            )
        self.load(Path(os.path.normpath(path.parent / target.value)), target.span)


def _is_import(head: Form) -> bool:
    return isinstance(head, Symbol) and head.name == "import"
