"""What a Python function's result depends on, as far as the code of its experiment goes.

From the function on, names are followed through its file, and through imports to other files beside it. What is
reached counts, statement by statement, and so does what runs whenever a reached file is imported. Where names cannot be
followed (star imports, a module used as a value, `eval`, `importlib`), the whole file counts, or all of the folder.
What lies elsewhere counts as `packages.py` says, and data files where the form lists them under `:files`.
"""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from paren.experiment.python.statements import REACHES_FILE, Import, Statement, read_statements
from paren.text.errors import ParenError, did_you_mean, first_line
from paren.text.source import Span

# Mentioning these means that any file of the folder may be run.
_IMPORTERS = (
    *("importlib", "runpy", "pkgutil", "imp", "zipimport", "pydoc", "builtins.__import__"),
    *("sys.path", "sys.modules", "sys.meta_path", "subprocess", "os.system", "os.popen"),
)
_HARMLESS = ("importlib.metadata",)
# Attributes through which any name of the file may be reached.
_REACHES_FILE = {"__globals__", "f_globals", "__subclasses__", "__builtins__"}
_READS_TEXT = {"__doc__", "getdoc"}
_COMPILED = (".so", ".pyd")


@dataclass(frozen=True)
class Reach:
    """What decides about a function's results.

    `entry` is `FILE:FUNCTION`. `pieces`: digest (24 hexadecimal digits) by `FILE NAME` for what is reached by name, and
    by `FILE` for what runs at its import, in order. `packages`: imported names of other packages that are used.
    `parameters` are those of the signature; None where they are not known without running the file.
    """

    entry: str
    pieces: Mapping[str, str]
    packages: tuple[str, ...]
    parameters: frozenset[str] | None

    def takes(self, parameter: str) -> bool:
        """Whether the function has a parameter of that name, or may have it."""
        return self.parameters is None or parameter in self.parameters


@dataclass(frozen=True)
class SourceFile:
    """The statements of a Python file; `places`: name -> the numbers of those that bind it."""

    statements: tuple[Statement, ...]
    places: Mapping[str, tuple[int, ...]]

    def definition(self, function: str) -> ast.FunctionDef | None:
        """The `def` that a name stands for; None where only running the file could tell."""
        numbers = self.places.get(function, ())
        node = self.statements[numbers[0]].node if len(numbers) == 1 else None
        return node if isinstance(node, ast.FunctionDef) and not node.decorator_list else None


@dataclass
class Sources:
    """The Python files of an experiment, each read once: what one launch sees, and runs, is of one moment.

    `root` is the folder that shown paths are relative to.
    """

    root: Path
    _texts: dict[Path, bytes] = field(default_factory=dict)
    _files: dict[tuple[Path, Path], SourceFile] = field(default_factory=dict)
    _reaches: dict[tuple[Path, str], Reach] = field(default_factory=dict)

    def reach(self, path: Path, function: str, span: Span | None = None) -> Reach:
        """What the function of a file reaches. Modules are looked for in the folder of the file, as when it is run.

        Raises E-STORE-004 for a file that cannot be read as Python, E-STORE-005 if it has no such function.
        """
        key = (path.absolute(), function)
        if key not in self._reaches:
            self._reaches[key] = _Walk(self, key[0], span).reach(function)
        return self._reaches[key]

    @property
    def texts(self) -> dict[str, str]:
        """The texts of the files that were read so far, by the names that messages have for them."""
        return {self.shown(path): text.decode("utf-8", "replace") for path, text in sorted(self._texts.items())}

    def shown(self, path: Path) -> str:
        """A path as recipes and messages name it."""
        return Path(os.path.relpath(path, self.root)).as_posix()

    def text(self, path: Path) -> bytes:
        """The bytes of a file as they were when it was first asked for. Raises OSError."""
        path = path.absolute()
        if path not in self._texts:
            self._texts[path] = path.read_bytes()
        return self._texts[path]

    def read(self, path: Path, folder: Path, span: Span | None) -> SourceFile:
        """The statements of a file that finds its modules in `folder`."""
        if (path, folder) not in self._files:
            self._files[path, folder] = self._parse(path, folder, span)
        return self._files[path, folder]

    def _parse(self, path: Path, folder: Path, span: Span | None) -> SourceFile:
        try:
            statements = read_statements(self.text(path), lambda each: _base(each, path, folder) is not None)
        except SyntaxError as error:
            where = self.shown(path) if error.lineno is None else f"{self.shown(path)}:{error.lineno}"
            raise ParenError("E-STORE-004", f"{where}: {error.msg}", span) from None
        except (ValueError, OSError, RecursionError) as error:
            beside = [self.shown(each) for each in path.parent.glob("*.py")]
            missing = f"not found{did_you_mean(self.shown(path), beside)}"
            said = missing if isinstance(error, FileNotFoundError) else first_line(error)
            raise ParenError("E-STORE-004", f"{self.shown(path)} cannot be read as Python: {said}", span) from None
        places: dict[str, tuple[int, ...]] = {}
        for number, statement in enumerate(statements):
            for name in statement.names:
                places[name] = (*places.get(name, ()), number)
        return SourceFile(statements, places)


@dataclass
class _Walk:
    """One search from a function. `taken` are the statements that count, by file."""

    sources: Sources
    start: Path
    span: Span | None
    taken: dict[Path, set[int]] = field(default_factory=dict)
    compiled: set[Path] = field(default_factory=set)
    packages: set[str] = field(default_factory=set)
    seen: set[tuple[Path, str, tuple[str, ...]]] = field(default_factory=set)
    whole: set[Path] = field(default_factory=set)
    waiting: list[tuple[Path, int]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.start.parent

    def reach(self, function: str) -> Reach:
        self._load(self.start)
        file = self._read(self.start)
        self._run()
        if function not in file.places and self.start not in self.whole and not self._takes_star(file):
            known = [name for name, numbers in file.places.items() if _defines(file.statements[numbers[-1]])]
            raise ParenError(
                "E-STORE-005",
                f"{self.sources.shown(self.start)} has no function {function}{did_you_mean(function, known)}",
                self.span,
            )
        self._take(self.start, function, ())
        self._run()
        entry = f"{self.sources.shown(self.start)}:{function}"
        parameters = _parameters(file.definition(function))
        return Reach(entry, self._pieces(), tuple(sorted(self.packages)), parameters)

    def _read(self, path: Path) -> SourceFile:
        return self.sources.read(path, self.folder, self.span)

    def _takes_star(self, file: SourceFile) -> bool:
        return any(each.bound == "*" for statement in file.statements for each in statement.imports)

    def _run(self) -> None:
        while self.waiting:
            self._visit(*self.waiting.pop())

    def _load(self, path: Path) -> None:
        """Counts what runs when a file is imported, and what that imports."""
        if path.suffix != ".py":
            self.compiled.add(path)
            return
        if path in self.taken:
            return
        self.taken[path] = set()
        for number, statement in enumerate(self._read(path).statements):
            if not statement.still:
                self._mark(path, number)
            if isinstance(statement.node, ast.Import | ast.ImportFrom):
                for each in statement.imports:
                    self._load_import(path, each)

    def _load_import(self, path: Path, each: Import) -> None:
        for file in _files_of(each.loads, each.level, path, self.folder):
            self._load(file)
        if each.path and each.path != ("*",):
            below = f"{each.module}.{each.path[0]}" if each.module else each.path[0]
            for file in _files_of(below, each.level, path, self.folder):
                self._load(file)
        if each.path == ("*",):
            self._follow(path, each, ())

    def _mark(self, path: Path, number: int) -> None:
        if number not in self.taken[path]:
            self.taken[path].add(number)
            self.waiting.append((path, number))

    def _visit(self, path: Path, number: int) -> None:
        """Follows what a statement mentions."""
        file = self._read(path)
        statement = file.statements[number]
        inner = {} if isinstance(statement.node, ast.Import | ast.ImportFrom) else _by_name(statement.imports)
        for imports in inner.values():
            for each in imports:
                self._load_import(path, each)
        for chain in statement.mentions:
            for each in inner.get(chain[0], ()):
                self._follow(path, each, chain[1:])
            if chain[0] in file.places:
                self._take(path, chain[0], chain[1:])
            elif chain[0] == "__import__":
                self._take_folder()
            elif chain[0] in REACHES_FILE:
                self._take_file(path)
        if statement.attributes & _REACHES_FILE:
            self._take_file(path)

    def _take(self, path: Path, name: str, rest: tuple[str, ...]) -> None:
        """Counts what binds a name, and follows it if it is imported; `rest` are the attributes behind it."""
        if (path, name, rest) in self.seen:
            return
        self.seen.add((path, name, rest))
        file = self._read(path)
        for number in file.places.get(name, ()):
            self._mark(path, number)
            for each in file.statements[number].imports:
                if each.bound == name:
                    self._follow(path, each, rest)

    def _follow(self, path: Path, each: Import, rest: tuple[str, ...]) -> None:
        """Counts what an import in a file and the attributes behind its name lead to."""
        base = _base(each, path, self.folder)
        if base is None:
            full = ".".join((each.module, *each.path, *rest))
            self.packages.add(full.partition(".")[0])
            if _is_below(full, _IMPORTERS) and not _is_below(full, _HARMLESS):
                self._take_folder()
            elif _is_below(full, ("builtins",)):
                self._take_file(path)
            return
        self._descend(base, (*each.path, *rest))

    def _descend(self, module: Path, rest: tuple[str, ...]) -> None:
        """Counts what attributes of a module (its path without a suffix) lead to. Without any, or where they are not
        to be found, the module is used as a value, and all of it counts."""
        files = _module_files(module)
        for file in files:
            self._load(file)
        name = rest[0] if rest else "*"
        below = module / name
        is_module = bool(_module_files(below)) or (below.is_dir() and _holds_python(below))
        binding = [file for file in files if file.suffix == ".py" and name in self._read(file).places]
        if name != "*" and (binding or is_module):
            for file in binding:
                self._take(file, name, rest[1:])
            if is_module:
                self._descend(below, rest[1:])
            return
        for file in files:
            self._take_file(file)
        if name == "*" and module.is_dir():
            for file in _python_files(module):
                self._take_file(file)

    def _take_file(self, path: Path) -> None:
        self._load(path)
        if path.suffix != ".py" or path in self.whole:
            return
        self.whole.add(path)
        file = self._read(path)
        for number in range(len(file.statements)):
            self._mark(path, number)
        for name in file.places:
            self._take(path, name, ())

    def _take_folder(self) -> None:
        for path in _python_files(self.folder):
            self._take_file(path)

    def _pieces(self) -> dict[str, str]:
        taken = [(path, self._read(path).statements, numbers) for path, numbers in self.taken.items()]
        documented = any(
            statements[each].attributes & _READS_TEXT for _, statements, numbers in taken for each in numbers
        )
        pieces: dict[str, list[str]] = {}
        for path, statements, numbers in taken:
            shown = self.sources.shown(path)
            for number in sorted(numbers):
                statement = statements[number]
                if statement.still:
                    name = f"{shown} {', '.join(statement.names)}"
                    pieces.setdefault(name, []).append(statement.digest(documented))
                    if statement.ordered:
                        pieces.setdefault(shown, []).append(name)
                else:
                    pieces.setdefault(shown, []).append(statement.digest(documented))
        found = {name: _joined(parts) for name, parts in pieces.items()}
        for path in self.compiled:
            found[self.sources.shown(path)] = hashlib.sha256(path.read_bytes()).hexdigest()[:24]
        return dict(sorted(found.items()))


def _joined(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:24]


def _defines(statement: Statement) -> bool:
    return isinstance(statement.node, ast.FunctionDef)


def _is_below(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _parameters(node: ast.FunctionDef | None) -> frozenset[str] | None:
    if node is None:
        return None
    return frozenset(each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs))


def _by_name(imports: tuple[Import, ...]) -> dict[str, list[Import]]:
    found: dict[str, list[Import]] = {}
    for each in imports:
        found.setdefault(each.bound, []).append(each)
    return found


# Where modules lie. A module is meant by its path without a suffix. ------------------------------------------------


def _start(level: int, path: Path, folder: Path) -> Path:
    """The folder that a module's name counts from, in a file at `path`."""
    return folder if level == 0 else path.parents[min(level, len(path.parents)) - 1]


def _base(each: Import, path: Path, folder: Path) -> Path | None:
    """The experiment's own module that an import's name counts from, or None for one of another package."""
    start = _start(each.level, path, folder)
    if not each.module:
        return start
    full = start.joinpath(*each.loads.split("."))
    first = start / each.module.partition(".")[0]
    own = _module_files(first) or _module_files(full) or (full.is_dir() and _holds_python(full))
    return start.joinpath(*each.module.split(".")) if own else None


def _files_of(name: str, level: int, path: Path, folder: Path) -> Iterator[Path]:
    """The files that importing a module by its dotted name runs: those of the packages it lies in, and its own."""
    module = _start(level, path, folder)
    for part in name.split(".") if name else ():
        module = module / part
        yield from _module_files(module)


def _module_files(module: Path) -> list[Path]:
    """The files of a module: `module/__init__.py`, `module.py`, or what was compiled."""
    found = [path for path in (module / "__init__.py", module.with_name(f"{module.name}.py")) if path.is_file()]
    if not found and module.parent.is_dir():
        compiled = sorted(module.parent.glob(f"{module.name}.*"))
        found = [path for path in compiled if path.suffix in _COMPILED and path.is_file()]
    return found


def _holds_python(folder: Path) -> bool:
    return any(True for _ in folder.glob("*.py"))


def _python_files(folder: Path) -> list[Path]:
    """All Python files below a folder, but for those of hidden folders and of virtual environments."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(
            each
            for each in folders
            if not each.startswith(".") and each != "__pycache__" and not Path(place, each, "pyvenv.cfg").exists()
        )
        found += [Path(place, name) for name in sorted(names) if name.endswith(".py")]
    return found
