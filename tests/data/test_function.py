"""Python data functions: how they are called, what they may return, and how their mistakes are shown."""

from __future__ import annotations

import importlib
import os
import sys

import numpy as np
import pytest
from data_forms import Opener, data_form, field, read_all, refusal

from paren.ir.program import DataForm, Value
from paren.text.errors import ParenError

FIELDS = (field("x", "float32", 2), field("y", "int32"))
PAIRS = """
import numpy as np

def make_pairs(rows, prior="uniform", hidden=(), seed=7):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(rows, 2)), "y": np.arange(rows)}
"""


def python(function: str = "make-pairs", file: str = "f.py", **more: Value) -> DataForm:
    options = {key: more.pop(key) for key in ("split",) if key in more}
    keywords = tuple((name.replace("_", "-"), value) for name, value in more.items())
    return data_form("python", file, function, fields=FIELDS, keywords=keywords, **options)


def test_a_function_gives_the_fields_in_their_types(opened: Opener) -> None:
    opened.write("f.py", PAIRS)
    read = read_all(opened(python(rows=5), seed=3))
    assert read["x"].tolist() == np.random.default_rng(3).normal(size=(5, 2)).astype(np.float32).tolist()
    assert read["x"].dtype == np.float32
    assert read["y"].tolist() == list(range(5))


def test_the_seed_of_the_form_wins_over_that_of_the_run(opened: Opener) -> None:
    opened.write("f.py", PAIRS)
    assert opened(python(rows=5, seed=4), seed=3).identity == opened(python(rows=5), seed=4).identity
    assert opened(python(rows=5), seed=3).identity != opened(python(rows=5), seed=4).identity


def test_a_function_without_seed_gets_none(opened: Opener) -> None:
    opened.write("f.py", "import numpy as np\ndef f(n):\n    return {'x': np.zeros((n, 2)), 'y': np.zeros(n, int)}\n")
    assert opened(python("f", n=4), seed=1).identity == opened(python("f", n=4), seed=2).identity


def test_keywords_have_underscores_and_lists_are_tuples(opened: Opener) -> None:
    opened.write(
        "f.py",
        "import numpy as np\n"
        "def f(layer_sizes, name, on):\n"
        "    assert layer_sizes == (3, (4, 5)) and name == 'a' and on is True\n"
        "    return {'x': np.zeros((1, 2)), 'y': np.zeros(1, int)}\n",
    )
    assert opened(python("f", layer_sizes=(3, (4, 5)), name="a", on=True)).splits["train"].count == 1


def test_one_mapping_is_cut_by_split(opened: Opener) -> None:
    opened.write("f.py", PAIRS)
    dataset = opened(python(rows=10, split=(("train", 0.8), ("validation", 0.2))))
    held = [*read_all(dataset)["y"].tolist(), *read_all(dataset, "validation")["y"].tolist()]
    assert sorted(held) == list(range(10))


SPLITS = """
import numpy as np
def f(train=4):
    return {name: {"x": np.ones((n, 2)), "y": [0] * n} for name, n in (("train", train), ("validation", 2))}
"""


def test_a_function_may_return_splits(opened: Opener) -> None:
    opened.write("f.py", SPLITS)
    dataset = opened(python("f"))
    assert {name: split.count for name, split in dataset.splits.items()} == {"train": 4, "validation": 2}
    assert refusal(lambda: opened(python("f", split=(("train", 1.0),)))) == (
        "E-DATA-013",
        "f in f.py returns the splits train, validation itself, so :split has no meaning",
    )
    assert refusal(lambda: opened(python("f", train=0))) == (
        "E-DATA-008",
        "field y is int32, but y from split train of f in f.py holds float64",
    )


def test_what_is_printed_goes_to_stderr(opened: Opener, capsys: pytest.CaptureFixture[str]) -> None:
    opened.write("f.py", "print('loading')\n" + PAIRS)
    opened(python(rows=2))
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "loading\n")


def test_files_next_to_it_can_be_imported_and_are_forgotten(opened: Opener) -> None:
    source = "import numpy as np\nimport nearby\ndef f():\n    import nearby_late\n"
    source += "    return {'x': np.zeros((nearby.ROWS, 2)), 'y': np.arange(nearby_late.ROWS)}\n"
    before, path = set(sys.modules), list(sys.path)
    for folder, rows in (("a", 2), ("b", 3)):
        opened.write(f"{folder}/f.py", source)
        opened.write(f"{folder}/nearby.py", f"ROWS = {rows}\n")
        opened.write(f"{folder}/nearby_late.py", f"ROWS = {rows}\n")
        assert opened(python("f", f"{folder}/f.py")).splits["train"].count == rows
    assert set(sys.modules) == before
    assert sys.path == path


def test_files_of_the_process_with_the_same_name_are_other_files(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook in the folder of the file may have imported the helper already, before it was edited."""
    nearby = opened.write("nearby.py", "ROWS = 2\n")
    monkeypatch.syspath_prepend(nearby.parent)
    module = importlib.import_module("nearby")
    monkeypatch.setitem(sys.modules, "nearby", module)
    opened.write("nearby.py", "ROWS = 30\n")
    source = "import numpy as np\nfrom nearby import ROWS\n"
    opened.write("f.py", source + "def f():\n    return {'x': np.zeros((ROWS, 2)), 'y': [1] * ROWS}\n")
    assert opened(python("f")).splits["train"].count == 30
    assert sys.modules["nearby"] is module


def test_a_changed_helper_is_read_anew_even_with_its_old_size_and_time(opened: Opener) -> None:
    source = "import numpy as np\nfrom nearby import ROWS\n"
    opened.write("f.py", source + "def f():\n    return {'x': np.zeros((ROWS, 2)), 'y': [1] * ROWS}\n")
    for rows in (2, 3):
        nearby = opened.write("nearby.py", f"ROWS = {rows}\n")
        os.utime(nearby, (1e9, 1e9))
        assert opened(python("f")).splits["train"].count == rows
    assert not (nearby.parent / "__pycache__").exists()


def test_a_changed_file_is_read_anew_even_with_its_old_size_and_time(opened: Opener) -> None:
    path = opened.write("f.py", PAIRS.replace("np.arange(rows)", "np.arange(rows) * 1"))
    first, times = opened(python(rows=5)).identity, os.stat(path)
    opened.write("f.py", PAIRS.replace("np.arange(rows)", "np.arange(rows) * 2"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert os.stat(path).st_size == times.st_size
    assert opened(python(rows=5)).identity != first


def test_a_function_that_goes_to_another_folder_takes_nobody_along(opened: Opener) -> None:
    opened.write(
        "f.py",
        "import os\nimport numpy as np\ndef f():\n    os.chdir('/')\n"
        "    return {'x': np.zeros((3, 2)), 'y': np.zeros(3, int)}\n",
    )
    before = os.getcwd()
    assert opened(python("f")).splits["train"].count == 3
    assert os.getcwd() == before


def test_dataclasses_in_the_file_work(opened: Opener) -> None:
    opened.write(
        "f.py",
        "from __future__ import annotations\nfrom dataclasses import dataclass\nimport numpy as np\n"
        "@dataclass\nclass A:\n    n: int\n"
        "def f():\n    return {'x': np.zeros((A(3).n, 2)), 'y': np.zeros(3, int)}\n",
    )
    assert opened(python("f")).splits["train"].count == 3


def test_an_exception_is_shown_with_the_users_lines_only(opened: Opener) -> None:
    opened.write("f.py", "def inner(n):\n    return 1 / n\n\ndef f():\n    return inner(0)\n")
    with pytest.raises(ParenError) as caught:
        opened(python("f"))
    error = caught.value
    assert (error.code, error.message) == ("E-DATA-012", "f in f.py raised ZeroDivisionError: division by zero")
    assert [note.message for note in error.notes] == ["f.py:5, in f: return inner(0)", "f.py:2, in inner: return 1 / n"]


@pytest.mark.parametrize(
    ("source", "code", "message"),
    [
        ("def f(:\n", "E-DATA-011", "f.py:1: invalid syntax"),
        ("x = 1\0", "E-DATA-011", "f.py: source code string cannot contain null bytes"),
        ("raise KeyError('a')", "E-DATA-012", "loading f.py raised KeyError: 'a'"),
        ("import sys\nsys.exit(3)", "E-DATA-012", "loading f.py raised SystemExit: 3"),
        ("import asyncio\nraise asyncio.CancelledError", "E-DATA-012", "loading f.py raised CancelledError"),
        (
            "import no_such_library",
            "E-DATA-012",
            "loading f.py raised ModuleNotFoundError: No module named 'no_such_library'",
        ),
        ("def g(): pass", "E-DATA-011", "f.py has no function f"),
        ("f = 3", "E-DATA-011", "f.py has no function f"),
        (
            "def f(a): pass",
            "E-DATA-011",
            "f in f.py cannot be called with the keywords of the form: missing a required argument: 'a'",
        ),
        ("def f(): pass", "E-DATA-013", "f in f.py returns nothing (None)"),
        ("def f(): return [1]", "E-DATA-013", "f in f.py returns a value of type list"),
        ("def f(): return {1: 2}", "E-DATA-013", "f in f.py returns a mapping whose keys are not all strings"),
        ("def f(): return {'train': {}, 'x': 1}", "E-DATA-013", "f in f.py returns splits (train) beside arrays (x)"),
        (
            "def f(): return {'x': [[0, 0]], 'yy': [0]}",
            "E-DATA-013",
            "f in f.py returns yy, which is no declared field (did you mean y?): the fields are x, y",
        ),
        ("def f(): return {'x': [[0, 0]]}", "E-DATA-007", "no data for field y: there is x"),
        ("def f(): return {}", "E-DATA-007", "no data for field x: there is nothing"),
        (
            "def f(): return {'x': [[0, 0]], 'y': [0, 1]}",
            "E-DATA-010",
            "the fields differ in their number of samples: x from f in f.py has 1, y from f in f.py has 2",
        ),
        ("def f(): return {'x': [[0, 0], [1]], 'y': [0, 1]}", "E-DATA-013", "x from f in f.py is no array"),
        (
            "def f(): return {'x': 0, 'y': [0]}",
            "E-DATA-009",
            "field x is float32[2] for each sample, but x from f in f.py has shape []",
        ),
    ],
)
def test_mistakes_of_the_file(opened: Opener, source: str, code: str, message: str) -> None:
    opened.write("f.py", source)
    with pytest.raises(ParenError) as caught:
        opened(python("f"))
    error = caught.value.errors[0]
    assert (error.code, error.message) == (code, message)


def test_mistakes_of_the_form(opened: Opener) -> None:
    opened.write("f.py", PAIRS)
    assert refusal(lambda: opened(python(file="g.py"))) == ("E-DATA-001", "the file 'g.py' does not exist")
    assert refusal(lambda: opened(python("make-pears"))) == (
        "E-DATA-011",
        "f.py has no function make_pears (did you mean make_pairs?)",
    )
    with pytest.raises(ParenError) as caught:
        opened(python(rows=1, priors="normal"))
    assert (caught.value.code, caught.value.message) == (
        "E-DATA-011",
        "make_pairs in f.py cannot be called with the keywords of the form: "
        "got an unexpected keyword argument 'priors'",
    )
    assert [note.message for note in caught.value.notes] == [
        "its signature is make_pairs(rows, prior='uniform', hidden=(), seed=7)"
    ]
