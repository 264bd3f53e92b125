"""The Python functions that a study's analyses name: looked up and bound before anything is computed, then called."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Self

from paren.data.python_file import PythonFile, importing_from
from paren.environment import drawing_without_screen
from paren.experiment.python.signature import check_call, names_for_cost, names_given, written_signature
from paren.experiment.python.sources import Reach, Sources
from paren.ir.program import Analysis, Program
from paren.lang.analysis import python_name
from paren.text.errors import ParenError, Report, did_you_mean


@dataclass
class Functions:
    """The functions of the files below `base`, the folder of the paren file. A file is read once, and imported once
    when the first of its functions is called: what one launch computes with is of one moment."""

    base: Path
    sources: Sources
    _modules: dict[Path, ModuleType] = field(default_factory=dict)
    _beside: dict[Path, dict[str, ModuleType]] = field(default_factory=dict)

    @classmethod
    def of(cls, base: Path) -> Self:
        """The functions of the files below a folder, none of which is read yet."""
        return cls(base.absolute(), Sources(base.absolute()))

    def file(self, analysis: Analysis) -> PythonFile:
        """The Python file of an analysis."""
        return PythonFile(self.base / analysis.file, analysis.file, "E-STUDY-006", "E-STUDY-007", self.sources.text)

    def reach(self, analysis: Analysis) -> Reach:
        """What the results of an analysis depend on. Nothing is run. Raises E-STORE-004 and E-STORE-005."""
        path, function = self.base / analysis.file, python_name(analysis.function)
        return self.sources.reach(path, function, analysis.spans["function"])

    def takes(self, analysis: Analysis, parameter: str) -> bool:
        """Whether the function of an analysis gets that, or may get it: the file is not run to see."""
        return self.reach(analysis).takes(parameter)

    def written(self, analysis: Analysis, function: str) -> inspect.Signature | None:
        """The signature of a function of the file, None where only running the file could tell."""
        path = self.base / analysis.file
        node = self.sources.read(path, path.parent, analysis.spans["file"]).definition(function)
        return written_signature(node) if node is not None else None

    def function(self, analysis: Analysis, name: str, key: str) -> Callable[..., object]:
        """A function of the file, which is imported for it; `key` names the part of the form that asks for it. Raises
        E-STUDY-006 and E-STUDY-007."""
        file = self.file(analysis)
        with self._running(file):
            if file.path not in self._modules:
                self._modules[file.path] = file.load(analysis.spans["file"])
            return file.find(self._modules[file.path], name, analysis.spans[key])

    def call(self, analysis: Analysis, given: Mapping[str, object]) -> object:
        """What the function of an analysis returns; of `given` it gets what it is called with. What it prints goes to
        stderr. Raises E-STUDY-006 and E-STUDY-007."""
        name = python_name(analysis.function)
        function = self.function(analysis, name, "function")
        names = names_given(analysis, _signature(function))
        return self._call(analysis, function, name, "function", {each: given[each] for each in names})

    def call_cost(self, analysis: Analysis, given: Mapping[str, object]) -> object:
        """What the function of `:cost` returns."""
        name = python_name(analysis.cost or "")
        function = self.function(analysis, name, "cost")
        names = names_for_cost(analysis, _signature(function))
        return self._call(analysis, function, name, "cost", {each: given[each] for each in names})

    def _call(
        self, analysis: Analysis, function: Callable[..., object], name: str, key: str, given: Mapping[str, object]
    ) -> object:
        file = self.file(analysis)
        with self._running(file), file.errors(f"{name} in {file.place}", analysis.spans[key]):
            return function(**given)

    @contextlib.contextmanager
    def _running(self, file: PythonFile) -> Iterator[None]:
        """Lets a file import those beside it, print to stderr and draw without a screen."""
        folder = file.path.parent
        beside = self._beside.setdefault(folder, {})
        with (
            importing_from(folder, beside, file.read),
            contextlib.redirect_stdout(sys.stderr),
            drawing_without_screen(),
        ):
            yield


def check_functions(program: Program, functions: Functions, load: bool) -> None:
    """Raises all that is wrong with the functions of a program's analyses at once: E-STORE-004 and E-STORE-005 for
    files and functions that are not there, E-STUDY-006 for signatures that do not take what they are given.

    With `load` the files are imported, which finds what cannot be seen in their text (also E-STUDY-007).
    """
    report = Report()
    for analysis in program.study.analyses:
        with report.collect():
            functions.reach(analysis)
            _check(functions, analysis, analysis.function, "function", load)
            if analysis.cost is not None:
                _check(functions, analysis, analysis.cost, "cost", load)
            for each in analysis.files:
                place = functions.base / each
                if not place.is_file():
                    beside = [str(Path(each).with_name(other.name)) for other in place.parent.glob("*")]
                    message = f"the file {each!r} of :files does not exist{did_you_mean(each, beside)}"
                    raise ParenError("E-STUDY-006", message, analysis.span, fix=f"paths start from {functions.base}")
    report.finish()


def _check(functions: Functions, analysis: Analysis, written: str, key: str, load: bool) -> None:
    name = python_name(written)
    if key == "cost":
        functions.sources.reach(functions.base / analysis.file, name, analysis.spans[key])
    signature = functions.written(analysis, name)
    if load:
        signature = _signature(functions.function(analysis, name, key))
    if signature is not None:
        names = names_given if key == "function" else names_for_cost
        what = f"{name} in {analysis.file}"
        check_call(analysis, signature, names(analysis, signature), what, analysis.spans[key])


def _signature(function: Callable[..., object]) -> inspect.Signature | None:
    """The signature of a function; None for one that does not say, such as some that are written in C."""
    try:
        return inspect.signature(function)
    except ValueError:
        return None
