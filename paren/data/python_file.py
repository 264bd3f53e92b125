"""A Python file of the user's: loaded, its functions looked up, its exceptions shown with the user's lines."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

from paren.data.digest import digest_of
from paren.text.errors import Note, ParenError, did_you_mean
from paren.text.size import count_of
from paren.text.source import Span

Read = Callable[[Path], bytes]

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_OWN_LINE = re.compile(r"[^/]\S*\.py:[0-9]+, in ")  # other files are named by their whole paths
_END_FRAMES = 8  # of a deep stack, so many of the outermost and innermost calls are shown


@dataclass(frozen=True)
class PythonFile:
    """`place` is its name in messages; `unfit` and `raised` are the codes for a file or a function that cannot be
    called, and for an exception in the user's code. `read` gives the bytes of Python files."""

    path: Path
    place: str
    unfit: str
    raised: str
    read: Read = Path.read_bytes

    def load(self, span: Span) -> ModuleType:
        """Runs the file as a module, inside `importing_from`. The source is compiled here, so no stale byte code on
        disk can stand in for it. Raises `unfit` and `raised`."""
        module = ModuleType(f"paren_file_{digest_of(str(self.path))[:12]}")
        module.__file__ = str(self.path.absolute())
        sys.modules[module.__name__] = module
        try:
            code = compile(self.read(self.path), str(self.path), "exec")
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
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also what is meant to pass by others' `except Exception`, as asyncio's is
            frames = traceback.extract_tb(error.__traceback__)
            notes = [
                Note(f"{self._named(frame.filename)}:{frame.lineno}, in {frame.name}: {frame.line or ''}".rstrip(": "))
                for frame in frames
                if not frame.filename.startswith(_PACKAGE) and not frame.filename.endswith("contextlib.py")
            ]
            if len(notes) > 2 * _END_FRAMES:
                left_out = Note(f"{count_of(len(notes) - 2 * _END_FRAMES, 'further call')} between")
                notes = [*notes[:_END_FRAMES], left_out, *notes[-_END_FRAMES:]]
            said = f"{error.code}: {error.message}" if isinstance(error, ParenError) else error
            text = f"{type(error).__name__}: {said}".rstrip(": ")
            raise ParenError(self.raised, f"{what} raised {text}", span, notes=notes) from error

    def _named(self, filename: str) -> str:
        return self.place if filename == str(self.path) else filename


def last_line(error: ParenError) -> str | None:
    """Of the notes of what `errors` raised, the last that is of the user's own file: `FILE:LINE, in FUNCTION: TEXT`."""
    return next((note.message for note in reversed(error.notes) if _OWN_LINE.match(note.message)), None)


@contextlib.contextmanager
def importing_from(folder: Path, kept: dict[str, ModuleType], read: Read) -> Iterator[None]:
    """Lets the user's file import files next to it, whose bytes `read` gives.

    Afterwards they are in `kept`, from where the next block has them again, and no longer among the modules of the
    process: files of the same name next to another experiment, or imported by a notebook before they were edited, are
    other files.
    """
    folder = folder.absolute()
    names = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    hidden = _take_modules(folder, names - sys.stdlib_module_names)
    sys.modules.update(kept)
    sys.path.insert(0, str(folder))
    finder = _Finder(folder, read)
    sys.meta_path.insert(0, finder)
    importlib.invalidate_caches()
    try:
        with contextlib.chdir(
            os.curdir
        ):  # the user's code may go elsewhere: relative paths of the run mean what they did
            yield
    finally:
        sys.meta_path.remove(finder)
        sys.path.remove(str(folder))
        kept |= _take_modules(folder, frozenset())
        sys.modules.update(hidden)


def _take_modules(folder: Path, names: Collection[str]) -> dict[str, ModuleType]:
    """Takes modules out of those of the process: the user's that lie below a folder, or have one of these names."""
    below = str(folder) + os.sep
    found = {}
    for name, module in list(sys.modules.items()):
        file = str(getattr(module, "__dict__", {}).get("__file__"))
        if (file.startswith(below) or name.partition(".")[0] in names) and _is_users(name, file):
            found[name] = sys.modules.pop(name)
    return found


def _is_users(name: str, file: str) -> bool:
    """Whether a module is neither the program, nor installed, nor a part of paren."""
    return name != "__main__" and name.partition(".")[0] != "paren" and "site-packages" not in Path(file).parts


@dataclass(frozen=True, eq=False)
class _Finder:
    """Finds the user's modules below a folder, and has them compiled from their text: byte code on disk is known by
    size and second, which an edit may leave as they were."""

    folder: Path
    read: Read

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or not isinstance(spec.loader, SourceFileLoader):
            return None
        if not _is_users(name, spec.loader.path) or not Path(spec.loader.path).is_relative_to(self.folder):
            return None
        spec.loader = _FromText(spec.loader.name, spec.loader.path, self.read)
        return spec


class _FromText(SourceFileLoader):
    def __init__(self, name: str, path: str, read: Read) -> None:
        super().__init__(name, path)
        self._read = read

    def get_data(self, path: str) -> bytes:
        return self._read(Path(path))

    def path_stats(self, path: object) -> dict[str, float]:  # without them byte code is neither read nor written
        raise OSError
