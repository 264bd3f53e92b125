"""Random experiments: two files of constants, functions and tables that use each other."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from experiment.python_files import pieces, write
from hypothesis import given, settings
from hypothesis import strategies as st


@st.composite
def experiments(draw: st.DrawFn) -> list[list[str]]:
    """Statements of `helper.py` and of `main.py`. A name is used only below its place, so every function ends."""
    files = []
    known: list[str] = []
    for file in ("helper", "main"):
        statements = []
        usable = [f"helper.{name}" if file == "main" else name for name in known]
        for number in range(draw(st.integers(2, 6))):
            name = f"{file[0]}{number}"
            used = draw(st.lists(st.sampled_from(usable), max_size=3)) if usable else []
            terms = " + ".join([str(draw(st.integers(0, 9))), *(f"value({each})" for each in used)])
            kind = draw(st.sampled_from(["constant", "function", "list", "method", "append", "decorated"]))
            match kind:
                case "constant":
                    statements.append(f"{name} = {draw(st.integers(0, 9))}")
                case "function":
                    statements.append(f"def {name}():\n    return {terms}")
                case "list":
                    statements.append(f"{name} = [{', '.join(['1', *used])}]")
                case "method":
                    statements.append(f"class {name}:\n    def run(self):\n        return {terms}")
                case "append":
                    statements.append(f"{name} = []\n{name}.append({draw(st.integers(0, 9))})")
                case "decorated":
                    statements.append(f"@keep\ndef {name}():\n    return {terms}")
            usable.append(name)
            if file == "helper":
                known.append(name)
        files.append(statements)
    return files


SHARED = """
KEPT = []
def keep(function):
    KEPT.append(function)
    return function
def value(x):
    if isinstance(x, list):
        return sum(value(each) for each in x)
    if isinstance(x, type):
        return x().run()
    return x() if callable(x) else x
"""


def computed(folder: Path, files: list[list[str]], function: str) -> tuple[object, dict[str, str]]:
    helper = "\n".join([SHARED, *files[0]])
    main = "\n".join(["import helper", "from helper import keep, value", *files[1]])
    main += "\ndef f():\n    return value(" + function + ")\n"
    path = write(folder, main=main, helper=helper)
    for name in ("main", "helper"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    sys.dont_write_bytecode, wrote = True, sys.dont_write_bytecode
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("main").f(), pieces(path, "f")
    finally:
        sys.path.remove(str(folder))
        sys.dont_write_bytecode = wrote
        for name in ("main", "helper"):
            sys.modules.pop(name, None)


@given(experiments(), st.data())
@settings(max_examples=60)
def test_a_changed_result_has_a_changed_identity(tmp_path_factory: pytest.TempPathFactory, files, data) -> None:
    """And comments, blank lines and changed brackets change neither."""
    folder = tmp_path_factory.mktemp("sources")
    name = f"m{data.draw(st.integers(0, len(files[1]) - 1))}"
    result, identity = computed(folder / "1", files, name)
    spaced = [[f"# comment\n\n{statement}  # end" for statement in statements] for statements in files]
    assert computed(folder / "2", spaced, name) == (result, identity)
    file = data.draw(st.integers(0, 1))
    number = data.draw(st.integers(0, len(files[file]) - 1))
    digits = [place for place, each in enumerate(files[file][number]) if each.isdigit()]
    place = digits[-1] if data.draw(st.booleans()) else data.draw(st.sampled_from(digits))
    statement = files[file][number]
    if statement[place - 1] in "hm":
        return  # part of a name
    changed = [list(statements) for statements in files]
    changed[file][number] = statement[:place] + str((int(statement[place]) + 1) % 10) + statement[place + 1 :]
    after, other = computed(folder / "3", changed, name)
    if after != result:
        assert other != identity
