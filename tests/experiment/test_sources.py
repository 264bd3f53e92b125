"""What a Python function depends on: nothing that does not matter changes its identity, all that may matter does."""

from __future__ import annotations

from pathlib import Path

import pytest
from experiment.python_files import pieces, reach, write

from paren.experiment.python.sources import Sources
from paren.text.errors import ParenError

MAIN = '''
"""A problem."""
import math
import numpy as np
import helper
from helper import scale as factor
from package import deep

ROWS = 10
UNUSED = 3
SHAPES = {"small": (2, 3), "large": (4, 5)}
GRID = np.linspace(0.0, 1.0, ROWS)


class Prior:
    """A prior."""

    def draw(self, rng):
        return rng.normal()


def make_pairs(rows, prior="uniform", seed=0):
    """Pairs."""
    # a comment
    rng = np.random.default_rng(seed)
    return inner(rows) * factor(2) + helper.shift(1) + GRID.sum()


def inner(rows):
    return rows * ROWS


def other():
    return UNUSED + helper.apart() + deep.sink() + Prior().draw(None) + math.pi
'''
HELPER = """
SCALE = 3
def scale(x):
    return SCALE * x
def shift(x):
    return x + amount()
def amount():
    return 1
def apart():
    return 5
"""
DEEP = "from ..package.sibling import lowest\ndef sink():\n    return lowest()\ndef drain():\n    return 1\n"
SIBLING = "def lowest():\n    return 9\n"


def start(folder: Path) -> Path:
    (folder / "package").mkdir(parents=True)
    (folder / "package" / "__init__.py").write_text("")
    return write(folder, main=MAIN, helper=HELPER, package__deep=DEEP, package__sibling=SIBLING)


def test_what_is_reached_has_a_name(tmp_path: Path) -> None:
    found = reach(start(tmp_path))
    assert found.entry == "main.py:make_pairs"
    assert set(found.pieces) == {
        "helper.py SCALE",
        "helper.py",
        "helper.py amount",
        "helper.py scale",
        "helper.py shift",
        "main.py",
        "main.py GRID",
        "main.py ROWS",
        "main.py factor",
        "main.py helper",
        "main.py inner",
        "main.py make_pairs",
        "main.py np",
    }
    assert found.packages == ("numpy",)
    assert (found.takes("seed"), found.takes("rng")) == (True, False)
    assert "package/sibling.py lowest" in pieces(tmp_path / "main.py", "other")
    assert reach(tmp_path / "main.py", "other").packages == ("math",)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("main.py", "    # a comment\n", "\n\n\n    # another\n"),
        ("main.py", '"""Pairs."""', '"""Pairs of\n    numbers."""'),
        ("main.py", '"""A problem."""', '"""A nice problem."""\n'),
        ("main.py", "rows * ROWS", "(rows\n            * ROWS)"),
        ("main.py", 'prior="uniform"', "prior='uniform'"),
        ("main.py", "ROWS = 10", "ROWS = 1_0"),
        ("main.py", "UNUSED = 3", "UNUSED = 4"),
        ("main.py", "import math", "import math, json"),
        ("main.py", "math.pi", "math.e"),
        ("main.py", '"small": (2, 3)', '"small": (2, 4)'),
        ("main.py", "return rng.normal()", "return rng.uniform()"),
        ("main.py", "from helper import scale as factor", "from helper import apart, scale as factor"),
        ("main.py", "\n", "\r\n"),
        ("main.py", "def other():", "def another():"),
        ("helper.py", "return 5", "return 6"),
        ("package/sibling.py", "return 9", "return 8"),
    ],
)
def test_what_does_not_matter_changes_nothing(tmp_path: Path, file: str, old: str, new: str) -> None:
    main = start(tmp_path)
    before, text = pieces(main), (tmp_path / file).read_text()
    assert old in text
    (tmp_path / file).write_bytes(text.replace(old, new).encode())
    assert pieces(main) == before
    assert pieces(main) == pieces(main.parent / ".." / main.parent.name / "main.py")


@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    [
        ("main.py", "ROWS = 10", "ROWS = 11", {"main.py ROWS"}),
        ("main.py", "rows * ROWS", "ROWS * rows", {"main.py inner"}),
        ("main.py", "seed=0", "seed=1", {"main.py make_pairs"}),
        ("main.py", "0.0, 1.0", "0.0, 2.0", {"main.py GRID"}),
        ("main.py", "import numpy as np", "import numpy.ma as np", {"main.py np"}),
        (
            "main.py",
            "import scale as factor",
            "import shift as factor",
            {"main.py factor", "helper.py scale", "helper.py SCALE", "helper.py"},
        ),
        ("helper.py", "SCALE = 3", "SCALE = 3.0", {"helper.py SCALE"}),
        ("helper.py", "return 1\n", "return True\n", {"helper.py amount"}),
        ("helper.py", "SCALE = 3", "SCALE = 3\nprint()", {"helper.py"}),
        ("package/deep.py", "def sink", "print(3)\ndef sink", {"package/deep.py"}),
        (
            "package/__init__.py",
            "",
            "import helper\nhelper.SCALE = 4",
            {"package/__init__.py", "package/__init__.py helper"},
        ),
    ],
)
def test_what_matters_changes_just_its_piece(tmp_path: Path, file: str, old: str, new: str, changed: set[str]) -> None:
    main = start(tmp_path)
    before, text = pieces(main), (tmp_path / file).read_text()
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new, 1))
    after = pieces(main)
    told = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert told == changed


SUBTLE = {
    "a registering call": ("T = {}\ndef put(k):\n    T['k'] = k\nput(1)\ndef f():\n    return T\n", "put(1)", "put(2)"),
    "a registering decorator": (
        "T = []\ndef put(g):\n    T.append(g)\n@put\ndef g():\n    return 1\ndef f():\n    return T[0]()\n",
        "return 1",
        "return 2",
    ),
    "a call whose result gets a name": (
        "T = []\ndef put(x):\n    T.append(x)\n_ = put(1)\ndef f():\n    return T\n",
        "put(1)",
        "put(2)",
    ),
    "a method of an own object": ("T = []\n_ = T.append(1)\ndef f():\n    return T\n", "append(1)", "append(2)"),
    "a loop": ("T = []\nfor i in range(3):\n    T.append(i)\ndef f():\n    return T\n", "range(3)", "range(4)"),
    "a default": ("X = 1\ndef g(x=X):\n    return x\ndef f():\n    return g()\n", "X = 1", "X = 2"),
    "a base class": ("class A:\n    x = 1\nclass B(A):\n    pass\ndef f():\n    return B.x\n", "x = 1", "x = 2"),
    "a class made by hand": (
        "T = []\nclass A:\n    def __init_subclass__(cls):\n        T.append(cls.x)\nclass B(A):\n    x = 1\n"
        "def f():\n    return T\n",
        "x = 1",
        "x = 2",
    ),
    "a registering instance": (
        "T = []\nclass A:\n    def __init__(self, x):\n        T.append(x)\nA_ONE = A(1)\ndef f():\n    return T\n",
        "A(1)",
        "A(2)",
    ),
    "a name bound twice": ("X = 1\nY = X\nX = 3\ndef f():\n    return Y\n", "X = 1", "X = 2"),
    "the order of assignments": ("X = 1\nY = X\nX = 2\ndef f():\n    return Y\n", "Y = X\nX = 2", "X = 2\nY = X"),
    "globals": ("X = 1\ndef f():\n    return globals()['X']\n", "X = 1", "X = 2"),
    "eval": ("X = 1\ndef f():\n    return eval('X')\n", "X = 1", "X = 2"),
    "a branch": ("import sys\nif sys.maxsize:\n    X = 1\ndef f():\n    return X\n", "X = 1", "X = 2"),
    "a fallback": ("try:\n    import none\nexcept ImportError:\n    X = 1\ndef f():\n    return X\n", "X = 1", "X = 2"),
    "a walrus": ("Y = (X := 1)\ndef f():\n    return X\n", "X := 1", "X := 2"),
    "a dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 1\ndef f():\n    return A()\n",
        "int = 1",
        "int = 2",
    ),
    "a table of functions": ("def g():\n    return 1\nT = [g]\ndef f():\n    return T[0]()\n", "return 1", "return 2"),
    "an alias": ("def g():\n    return 1\nf = g\n", "return 1", "return 2"),
    "a lambda": ("X = 1\nf = lambda: X\n", "X = 1", "X = 2"),
    "a docstring that is read": ('def f():\n    "one"\n    return f.__doc__\n', "one", "two"),
    "the docstring of the file": ('"one"\ndef f():\n    return __doc__\n', "one", "two"),
    "a global of a function": (
        "def g():\n    global X\n    X = 1\ndef f():\n    g()\n    return X\n",
        "X = 1",
        "X = 2",
    ),
    "a partial": (
        "import functools\ndef g(x):\n    return x\nh = functools.partial(g, 1)\ndef f():\n    return h()\n",
        "g, 1",
        "g, 2",
    ),
    "an attribute set from outside": (
        "import functools\ndef g():\n    return g.x\ng.x = 1\ndef f():\n    return g()\n",
        "x = 1",
        "x = 2",
    ),
    "a state of a package that is set": (
        "import numpy as np\nold = np.seterr(over='raise')\ndef g():\n    return old\ndef f():\n    return 1\n",
        "raise",
        "ignore",
    ),
    "a state that a default sets": (
        "from torch import manual_seed\ndef g(x=manual_seed(1)):\n    return x\ndef f():\n    return 1\n",
        "(1)",
        "(2)",
    ),
    "a variable of the environment": (
        "import os\nclass A:\n    x = os.environ.setdefault('X', '1')\ndef f():\n    return 1\n",
        "'1'",
        "'2'",
    ),
    "subclasses found by their base": (
        "class A:\n    x = 0\nclass B(A):\n    x = 1\ndef f():\n    return [c.x for c in A.__subclasses__()]\n",
        "x = 1",
        "x = 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SUBTLE)
def test_subtle_ways_to_matter_are_seen(tmp_path: Path, case: str) -> None:
    text, old, new = SUBTLE[case]
    assert old in text
    first, second = write(tmp_path / "1", main=text), write(tmp_path / "2", main=text.replace(old, new, 1))
    assert pieces(first, "f") != pieces(second, "f")


IMPORTED = {
    "a star": ("from helper import *\ndef f():\n    return x()\n", {}),
    "a module as a value": ("import helper\ndef f():\n    return getattr(helper, 'x')()\n", {}),
    "a module in a list": ("import helper\ndef f():\n    return [m.x() for m in [helper]]\n", {}),
    "inside a function": ("def f():\n    from helper import x\n    return x()\n", {}),
    "inside a function, whole": ("def f():\n    import helper as h\n    return h.x()\n", {}),
    "by importlib": ("import importlib\ndef f():\n    return importlib.import_module('helper').x()\n", {}),
    "by importlib, renamed": ("from importlib import import_module as m\ndef f():\n    return m('helper').x()\n", {}),
    "by __import__": ("def f():\n    return __import__('helper').x()\n", {}),
    "by builtins": ("import builtins\ndef f():\n    return builtins.__import__('helper').x()\n", {}),
    "by a process": ("import subprocess\ndef f():\n    return subprocess.check_output(['python', 'helper.py'])\n", {}),
    "by sys.modules": ("import sys, helper\ndef f():\n    return sys.modules['helper'].x()\n", {}),
    "handed on": ("from middle import x\ndef f():\n    return x()\n", {"middle": "from helper import x\n"}),
    "handed on as a module": (
        "from middle import helper\ndef f():\n    return helper.x()\n",
        {"middle": "import helper\n"},
    ),
    "handed on by a star": ("from middle import x\ndef f():\n    return x()\n", {"middle": "from helper import *\n"}),
    "for what it does": (
        "import table, middle\ndef f():\n    return table.T\n",
        {"table": "T = []\n", "middle": "import table, helper\ntable.T.append(helper.x())\n"},
    ),
    "where it can": (
        "try:\n    from helper import x\nexcept ImportError:\n    x = None\ndef f():\n    return x()\n",
        {},
    ),
    "as a base": ("import helper\nclass A(helper.A):\n    pass\ndef f():\n    return A().a()\n", {}),
    "as a decorator": ("from helper import d\n@d\ndef f():\n    return 1\n", {}),
}


@pytest.mark.parametrize("case", IMPORTED)
def test_helpers_are_followed_however_they_are_imported(tmp_path: Path, case: str) -> None:
    text, more = IMPORTED[case]
    helper = "def x():\n    return 1\nclass A:\n    def a(self):\n        return x()\ndef d(g):\n    return x\n"
    first = write(tmp_path / "1", main=text, helper=helper, **more)
    second = write(tmp_path / "2", main=text, helper=helper.replace("return 1", "return 2"), **more)
    assert pieces(first, "f") != pieces(second, "f")
    assert pieces(first, "f") == pieces(
        write(tmp_path / "1", helper=helper.replace("return 1", "return (1)")).parent / "main.py", "f"
    )


PACKAGES = {
    "import pkg.low\ndef f():\n    return pkg.low.x()\n": {},
    "import pkg.low as low\ndef f():\n    return low.x()\n": {},
    "from pkg import low\ndef f():\n    return low.x()\n": {},
    "from pkg.low import x\ndef f():\n    return x()\n": {},
    "import pkg\ndef f():\n    return pkg.x()\n": {"__init__": "from .low import x\n"},
    "import pkg.mid\ndef f():\n    return pkg.mid.y()\n": {"mid": "from . import low\ndef y():\n    return low.x()\n"},
    "from pkg.mid import y\ndef f():\n    return y()\n": {"mid": "from .low import x as y\n"},
    "from pkg.sub.deep import y\ndef f():\n    return y()\n": {"sub/deep": "from ..low import x as y\n"},
    "import pkg\ndef f():\n    return vars(pkg)\n": {"__init__": "from . import low\n"},
}


@pytest.mark.parametrize("text", PACKAGES)
@pytest.mark.parametrize("regular", [True, False])
def test_packages_are_followed(tmp_path: Path, text: str, regular: bool) -> None:
    found = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        files = {"low": f"def x():\n    return {number}\n", "unused": "def z():\n    return 1\n", **PACKAGES[text]}
        if regular:
            files.setdefault("__init__", "")
        for name, content in files.items():
            path = folder / "pkg" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        found.append(pieces(write(folder, main=text), "f"))
    assert found[0] != found[1]
    if "vars" not in text:
        assert not any("unused" in name for name in found[0])


def test_compiled_modules_count_by_their_bytes(tmp_path: Path) -> None:
    main = write(tmp_path, main="import fast\ndef f():\n    return fast.x()\n")
    found = []
    for content in (b"one", b"two"):
        (tmp_path / "fast.cpython-311.so").write_bytes(content)
        found.append(pieces(main, "f"))
    assert found[0] != found[1]
    assert "fast.cpython-311.so" in found[0]


def test_a_file_that_is_a_program_as_well(tmp_path: Path) -> None:
    text = "def f():\n    return 1\nif __name__ == '__main__':\n    print(f())\n"
    first, second = write(tmp_path / "1", main=text), write(tmp_path / "2", main=text.replace("print", "repr"))
    assert pieces(first, "f") == pieces(second, "f")


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("def g():\n    pass\n", "E-STORE-005", "main.py has no function f"),
        ("def fi():\n    pass\n", "E-STORE-005", "main.py has no function f (did you mean fi?)"),
        ("def f(:\n", "E-STORE-004", "main.py:1: invalid syntax"),
        (
            f"def f():\n    return {'+'.join('1' * 5000)}\n",
            "E-STORE-004",
            "main.py cannot be read as Python: maximum recursion depth exceeded during ast construction",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, text: str, code: str, message: str) -> None:
    with pytest.raises(ParenError) as caught:
        reach(write(tmp_path, main=text), "f")
    assert (caught.value.code, caught.value.message) == (code, message)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParenError) as caught:
        reach(tmp_path / "absent.py", "f")
    assert (caught.value.code, caught.value.message) == ("E-STORE-004", "absent.py cannot be read as Python: not found")
    (tmp_path / "study.py").touch()
    with pytest.raises(ParenError) as caught:
        reach(tmp_path / "stduy.py", "f")
    assert caught.value.message == "stduy.py cannot be read as Python: not found (did you mean study.py?)"
    with pytest.raises(ParenError) as caught:
        Sources(tmp_path).reach(tmp_path / "stduy.py", "f")
    assert caught.value.message == "stduy.py cannot be read as Python: not found (did you mean study.py?)"


def test_a_function_that_a_star_or_exec_may_define_is_allowed(tmp_path: Path) -> None:
    reach(write(tmp_path, main="from helper import *\n", helper="def f():\n    pass\n"), "f")
    reach(write(tmp_path, main="exec('def f(): pass')\n"), "f")


def test_deep_expressions_are_no_trouble(tmp_path: Path) -> None:
    text = f"def f():\n    return {'+'.join('1' * 600)}\n"
    assert pieces(write(tmp_path, main=text), "f") != pieces(write(tmp_path, main=text.replace("1\n", "2\n")), "f")


def test_files_are_read_once(tmp_path: Path) -> None:
    sources = Sources(tmp_path)
    main = write(tmp_path, main="def f():\n    return 1\ndef g():\n    return 2\n")
    before = sources.reach(main, "f")
    main.write_text("def f():\n    return 3\ndef g():\n    return 4\n")
    assert sources.reach(main, "f") is before
    assert sources.reach(main, "g").pieces != pieces(main, "g")
