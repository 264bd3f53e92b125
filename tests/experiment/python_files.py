"""Python files of an experiment, and what a function of theirs reaches."""

from __future__ import annotations

from pathlib import Path

from paren.experiment.python.sources import Reach, Sources


def write(folder: Path, **files: str) -> Path:
    """Writes files by the names of their modules, `package__module` for one in a package; gives `main.py`."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/') if not name.startswith('__') else name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "main.py"


def reach(path: Path, function: str = "make_pairs") -> Reach:
    """What a function of a file reaches, as the files are now."""
    return Sources(path.parent).reach(path, function)


def pieces(path: Path, function: str = "make_pairs") -> dict[str, str]:
    """The digests of what it reaches, by name."""
    return dict(reach(path, function).pieces)
