"""Data of a Python function: made once for equal recipes, kept as arrays, mapped into memory, and the same data."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from experiment.studies import edit, write_study

from paren.data.fields import ArraySplit
from paren.experiment.job_data import data_recipe, make_data
from paren.experiment.python.sources import Sources
from paren.experiment.store.recipe import Recipe, differences
from paren.experiment.store.store import Store
from paren.lang.elaborate import elaborate
from paren.run import open_program_data
from paren.text.errors import ParenError
from paren.train.progress import Silent

pytestmark = pytest.mark.usefixtures("own_cache")


COUNTED = """import os
from pathlib import Path
import numpy as np
from helper import shift

SCALE = 1.0
UNUSED = 1


def pairs(rows, seed):
    with open(Path(__file__).parent / "calls", "a") as file:
        file.write("called\\n")
    offset = float((Path(__file__).parent / "offset.csv").read_text())
    x = np.random.default_rng(seed).normal(size=(rows, 2)) * SCALE + shift() + offset
    return {"x": x, "y": x.sum(1)}


def whole(rows):
    x = np.arange(rows * 2.0).reshape(rows, 2)
    return {"train": {"x": x, "y": x[:, 0]}, "validation": {"x": x[:4], "y": x[:4, 0]}}
"""


def write(folder: Path) -> Path:
    path = write_study(folder)
    path.write_text(path.read_text().replace(":rows rows", ':rows rows :files ("offset.csv")'))
    (folder / "data.py").write_text(COUNTED)
    (folder / "helper.py").write_text("def shift():\n    return 0.5\n\ndef other():\n    return 1\n")
    (folder / "offset.csv").write_text("0.25")
    return path


def recipe(path: Path) -> Recipe:
    found = data_recipe(elaborate(path), None, Sources(path.parent))
    assert found is not None
    return found


def calls(path: Path) -> int:
    file = path.parent / "calls"
    return len(file.read_text().splitlines()) if file.exists() else 0


def change_content_only(folder: Path) -> None:
    """Another content of the same size and time."""
    file = folder / "offset.csv"
    times = os.stat(file)
    file.write_text("0.75")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (edit("study.paren", "(def rows 40)", "(def rows 48)"), ["rows: 40 -> 48"]),
        (edit("study.paren", "(def replica 0)", "(def replica 1)"), ["seed: 0 -> 1"]),
        (
            edit("study.paren", "0.8", "0.7"),
            ['split: [["train", 0.8], ["validation", 0.2]] -> [["train", 0.7], ["validation", 0.2]]'],
        ),
        (edit("data.py", "SCALE = 1.0", "SCALE = 2.0"), ["data.py SCALE: changed"]),
        (edit("helper.py", "0.5", "0.75"), ["helper.py shift: changed"]),
        (change_content_only, ["files offset.csv: changed"]),
    ],
)
def test_what_changes_the_data(tmp_path: Path, change: Callable[[Path], None], said: list[str]) -> None:
    path = write(tmp_path)
    before = recipe(path)
    change(tmp_path)
    assert differences(before, recipe(path)) == said


@pytest.mark.parametrize(
    "change",
    [
        edit("study.paren", "(def rate 1e-2)", "(def rate 1e-3) ; slower"),
        edit("study.paren", ":steps 4", ":steps 5"),
        edit("data.py", "SCALE = 1.0", "SCALE = 1.0  # a comment"),
        edit("data.py", "UNUSED = 1", "UNUSED = 2"),
        edit("data.py", "def whole(rows):", "def whole(rows, more=1):"),
        edit("helper.py", "return 1", "return 2"),
        edit("data.py", "\n", "\r\n"),
    ],
)
def test_what_does_not_change_the_data(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = write(tmp_path)
    before = recipe(path)
    change(tmp_path)
    assert recipe(path).key == before.key
    (tmp_path / "elsewhere").mkdir()
    for name in ("study.paren", "data.py", "helper.py", "offset.csv"):
        (tmp_path / "elsewhere" / name).write_bytes((tmp_path / name).read_bytes())
    assert recipe(tmp_path / "elsewhere" / "study.paren").key == before.key


@pytest.mark.parametrize("function", ["pairs", "whole"])
def test_stored_data_are_the_data(tmp_path: Path, function: str) -> None:
    path = write(tmp_path)
    if function == "whole":
        text = path.read_text().replace("pairs", "whole").replace(":split ((train 0.8) (validation 0.2))", "")
        path.write_text(text)
    program, store = elaborate(path), Store(tmp_path / "out")
    direct = open_program_data(program, None, Silent())
    stored, again = (make_data(program, recipe(path), store, None, Sources(tmp_path)) for _ in range(2))
    assert store.keys("data") == {recipe(path).key}
    assert calls(path) == (2 if function == "pairs" else 0)  # directly, and for the store
    for data in (stored, again):
        assert data.identity == direct.identity
        assert data.splits.keys() == direct.splits.keys()
        for name, split in data.splits.items():
            expected = direct.splits[name]
            assert (split.count, split.digest) == (expected.count, expected.digest)
            places = np.arange(split.count)[::-1]
            for field, values in split.read(places).items():
                assert values.tobytes() == expected.read(places)[field].tobytes()
            assert isinstance(split, ArraySplit)
            assert isinstance(split.columns["x"].values.base, np.memmap)
            assert not split.columns["x"].values.flags.writeable


def test_a_function_that_fails_leaves_no_artifact(tmp_path: Path) -> None:
    path = write(tmp_path)
    edit("data.py", "x.sum(1)", "x.sum(7)")(tmp_path)
    store = Store(tmp_path / "out")
    with pytest.raises(ParenError) as caught:
        make_data(elaborate(path), recipe(path), store, None, Sources(tmp_path))
    assert caught.value.code == "E-DATA-012"
    assert [each for each in (tmp_path / "out").rglob("*") if each.is_file()] == []


OPEN = """
import sys
from pathlib import Path
from paren.experiment.job_data import data_recipe, make_data
from paren.experiment.python.sources import Sources
from paren.experiment.store.store import Store
from paren.lang.elaborate import elaborate

path = Path(sys.argv[1])
program, sources = elaborate(path), Sources(path.parent)
recipe = data_recipe(program, None, sources)
print(make_data(program, recipe, Store(path.parent / "out"), None, sources).identity)
"""


def test_processes_that_ask_at_once_make_them_once(tmp_path: Path) -> None:
    path = write(tmp_path)
    edit("data.py", "return {", "import time; time.sleep(0.5)\n    return {")(tmp_path)
    processes = [
        subprocess.Popen([sys.executable, "-c", OPEN, str(path)], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    told = [process.communicate()[0] for process in processes]
    assert len(set(told)) == 1
    assert told[0].strip()
    assert calls(path) == 1
