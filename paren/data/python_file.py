"""A Python file of the user's: loaded, its functions looked up, its exceptions shown with the user's lines."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from paren.data.digest import digest_of
from paren.text.errors import Note, ParenError, did_you_mean
from paren.text.source import Span

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_END_FRAMES = 8  # of a deep stack, so many of the outermost and innermost calls are shown


@dataclass(frozen=True)
class PythonFile:
    """`place` is its name in messages; `unfit` and `raised` are the codes for a file or a function that cannot be
    called, and for an exception in the user's code."""

    path: Path
    place: str
    unfit: str
    raised: str

    def load(self, span: Span) -> ModuleType:
        """Runs the file as a module, inside `importing_from`. The source is compiled here, so no stale byte code on
        disk can stand in for it. Raises `unfit` and `raised`."""
        module = ModuleType(f"paren_file_{digest_of(str(self.path))[:12]}")
        module.__file__ = str(self.path)
        sys.modules[module.__name__] = module
        try:
            code = compile(self.path.read_bytes(), str(self.path), "exec")
        except (SyntaxError, ValueError, OSError) as error:
            raise self.unreadable(error, span) from None
        with self.errors(f"loading {self.place}", span):
            exec(code, module.__dict__)
        return module

    def unreadable(self, error: Exception, span: Span) -> ParenError:
        """The error for a file that is no Python."""
        if isinstance(error, SyntaxError):
            where = self.place if error.lineno is None else f"{self.place}:{error.lineno}"
            return ParenError(self.unfit, f"{where}: {error.msg}", span)
        return ParenError(self.unfit, f"{self.place} cannot be read as Python: {error}", span)

    def find(self, module: ModuleType, name: str, span: Span) -> Callable[..., object]:
        """A function of the loaded file. Raises `unfit`."""
        function = getattr(module, name, None)
        if not callable(function):
            known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
            raise self.unknown(name, known, span)
        return function  # type: ignore[no-any-return]

    def unknown(self, name: str, known: list[str], span: Span) -> ParenError:
        """The error for a function that the file has not."""
        return ParenError(self.unfit, f"{self.place} has no function {name}{did_you_mean(name, known)}", span)

    @contextlib.contextmanager
    def errors(self, what: str, span: Span) -> Iterator[None]:
        """Reports an exception of the user's code with the user's lines; frames of paren are left out."""
        try:
            yield
        except (Exception, SystemExit) as error:
            frames = traceback.extract_tb(error.__traceback__)
            notes = [
                Note(f"{self._named(frame.filename)}:{frame.lineno}, in {frame.name}: {frame.line or ''}".rstrip(": "))
                for frame in frames
                if not frame.filename.startswith(_PACKAGE) and not frame.filename.endswith("contextlib.py")
            ]
            if len(notes) > 2 * _END_FRAMES:
                left_out = Note(f"{len(notes) - 2 * _END_FRAMES} further calls between")
                notes = [*notes[:_END_FRAMES], left_out, *notes[-_END_FRAMES:]]
            said = f"{error.code}: {error.message}" if isinstance(error, ParenError) else error
            text = f"{type(error).__name__}: {said}".rstrip(": ")
            raise ParenError(self.raised, f"{what} raised {text}", span, notes=notes) from error

    def _named(self, filename: str) -> str:
        return self.place if filename == str(self.path) else filename


@contextlib.contextmanager
def importing_from(folder: Path, kept: dict[str, ModuleType]) -> Iterator[None]:
    """Lets the user's file import files next to it. Afterwards they are in `kept`, from where the next block has them
    again, and no longer among the modules of the process: files of the same name next to another experiment, or in
    the folder of a notebook, are other files."""
    hidden = _take_modules(folder)
    sys.modules.update(kept)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        kept |= _take_modules(folder)
        sys.modules.update(hidden)


def _take_modules(folder: Path) -> dict[str, ModuleType]:
    """Takes the modules that lie below a folder out of those of the process."""
    below = str(folder.absolute()) + os.sep
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if not isinstance(file, str) or not os.path.abspath(file).startswith(below):
            continue
        if "site-packages" in Path(file).parts or name == "__main__" or name.partition(".")[0] == "paren":
            continue
        found[name] = sys.modules.pop(name)
    return found
