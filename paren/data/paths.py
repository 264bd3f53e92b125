"""Paths in data forms: relative to the folder of the paren file, or to the data root that was asked for."""

from __future__ import annotations

import glob
import os
from pathlib import Path

from paren.ir.program import DataForm
from paren.text.errors import Note, ParenError


def find_file(form: DataForm, key: str, written: str, root: Path) -> Path:
    """The file that `written` (the argument or option `key` of `form`) names.

    Raises E-DATA-001 where there is none, E-DATA-021 where it may not be read.
    """
    path = root / written
    if path.is_file():
        if not os.access(path, os.R_OK):
            raise ParenError(
                "E-DATA-021", f"{written} cannot be read: permission denied", form.spans.get(key, form.span)
            )
        return path
    kind = "is a folder" if path.is_dir() else "does not exist"
    raise _absent(form, key, f"the file {written!r} {kind}", root)


def find_files(form: DataForm, key: str, pattern: str, root: Path) -> list[Path]:
    """The files that a glob pattern (`**` for folders at any depth) matches, sorted by path.

    Raises E-DATA-001 where it matches none.
    """
    names = glob.glob(pattern, root_dir=root, recursive=True)
    paths = sorted({root / name for name in names if (root / name).is_file()}, key=lambda path: path.as_posix())
    if not paths:
        raise _absent(form, key, f"no file matches {pattern!r}", root)
    return paths


def shown(path: Path, root: Path) -> str:
    """A path as messages show it: relative to the root where it lies in it."""
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()


def _absent(form: DataForm, key: str, message: str, root: Path) -> ParenError:
    return ParenError(
        "E-DATA-001",
        message,
        form.spans.get(key, form.span),
        notes=(Note(f"paths are relative to {root}"),),
        fix="correct the path, or give the folder of the data with --data-root",
    )
