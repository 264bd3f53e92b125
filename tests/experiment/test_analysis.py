"""The analysis of one job: what functions get, what they may return, what is computed again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from analysed import Study, refusal

from paren.experiment.analysis.analyze import analyze_job, plan_analysis
from paren.experiment.analysis.products import Product
from paren.experiment.job_data import Splits
from paren.ir.identity import program_identity
from paren.run import open_program_data
from paren.text.errors import ParenError
from paren.train.progress import Silent

ANALYSES = """
(defproduct scores (python "f.py" score :cases cases) :needs (model data))
(defproduct noise (python "f.py" noise :cases cases))
(defmetric spread (python "f.py" spread) :needs (scores noise))
(defmetric known (python "f.py" known))
(defplot curve (python "f.py" draw) :needs (scores))
"""
PYTHON = """
import matplotlib.pyplot as plt

FACTOR = 2

def score(model, data, cases):
    return {"values": FACTOR * model(data["train"]["x"]), "cases": cases, "words": ["a", None], "none": None}

def noise(rng, cases, seed):
    return {"values": rng.normal(size=cases), "seed": seed}

def spread(scores, noise):
    return {"largest": scores["values"].max(), "mean": noise["values"].mean(), "list": np.arange(3), "undefined": None}

def known(settings):
    return [settings["rate"], sorted(settings)]

def draw(scores):
    figure, axes = plt.subplots()
    plt.figure()
    axes.plot(scores["values"])
    return figure
"""


@pytest.fixture
def study(tmp_path: Path) -> Study:
    made = Study(tmp_path)
    made.write(ANALYSES, PYTHON)
    return made


def values(study: Study) -> dict[str, object]:
    found: dict[str, object] = json.loads((study.job() / "metrics.json").read_bytes())
    return found


def test_products_metrics_and_plots_are_made(study: Study) -> None:
    assert study.missing() == ["scores", "noise", "spread", "known", "curve"]
    products = study.analyze()
    assert study.told == ["scores", "noise", "spread", "known", "curve"]
    assert study.brought == ["model", "data"]
    assert study.missing() == []
    scores = Product(products["scores"])
    assert list(scores) == ["cases", "none", "values", "words"]
    others = {name: scores[name] for name in scores if name != "values"}
    assert others == {
        "cases": 4,
        "none": None,
        "words": ["a", None],
    }
    assert isinstance(scores["values"], np.memmap)
    assert scores["values"].tolist() == [[8.0]] * 3
    with pytest.raises(ValueError, match="read-only"):
        scores["values"][0] = 1
    scores["words"].append("more")  # type: ignore[union-attr]
    assert scores["words"] == ["a", None]
    with pytest.raises(KeyError, match="the product has no 'value', it has cases, none, values, words"):
        _ = scores["value"]
    noise = Product(products["noise"])
    expected = np.random.default_rng([7, *b"noise"]).normal(size=4)
    assert (noise["values"].tolist(), noise["seed"]) == (expected.tolist(), 7)
    assert values(study) == {
        "spread": {"largest": 8.0, "mean": expected.mean(), "list": [0, 1, 2], "undefined": None},
        "known": [0.5, ["cases", "rate"]],
    }
    drawn = study.job() / "plots" / "curve"
    assert sorted(path.name for path in drawn.iterdir()) == ["curve.pdf", "curve.png", "plot.json"]
    assert (drawn / "curve.png").read_bytes()[:4] == b"\x89PNG"
    assert (drawn / "curve.pdf").read_bytes()[:5] == b"%PDF-"
    assert plt.get_fignums() == []


def test_nothing_is_computed_twice(study: Study) -> None:
    first = study.analyze()
    again = study.analyze()
    assert {name: each.key for name, each in again.items()} == {name: each.key for name, each in first.items()}
    assert (study.told, study.brought) == ([], [])


@pytest.mark.parametrize(
    ("before", "after", "computed"),
    [
        ("FACTOR = 2", "FACTOR = 2  # twice", []),
        ("FACTOR = 2", "FACTOR = 3", ["scores", "spread", "curve"]),
        ("size=cases", "size=(cases)", []),
        ("rng.normal", "rng.uniform", ["noise", "spread"]),
        ("return [settings", "return [1 * settings", ["known"]),
        ("axes.plot(", "axes.plot(-", ["curve"]),
    ],
)
def test_an_edit_of_the_python_file_changes_what_depends_on_it(
    study: Study, before: str, after: str, computed: list[str]
) -> None:
    study.analyze()
    study.write(ANALYSES, PYTHON.replace(before, after))
    assert study.missing() == computed
    study.analyze()
    assert study.told == computed


@pytest.mark.parametrize(
    ("before", "after", "computed"),
    [
        ("(defmetric known", '(defmetric more (python "f.py" known))\n(defmetric known', ["more"]),
        ("score :cases cases", "score :cases (+ 0 cases)", []),
        ("score :cases cases", "score :cases 5", ["scores", "spread", "curve"]),
        ("noise :cases cases", "noise :cases cases :seed 8", ["noise", "spread"]),
        ("(defmetric known", "(def other 3) (defmetric known", ["known"]),
    ],
)
def test_an_edit_of_the_form_changes_what_depends_on_it(
    study: Study, before: str, after: str, computed: list[str]
) -> None:
    study.analyze()
    study.write(ANALYSES.replace(before, after), PYTHON)
    study.analyze()
    assert study.told == computed


def test_settings_and_seeds_change_what_takes_them(study: Study) -> None:
    study.analyze()
    study.analyze(rate=0.25)
    assert study.told == ["known"]
    study.analyze(cases=5, rate=0.25)
    assert study.told == ["scores", "noise", "spread", "known", "curve"]


def test_a_metric_that_the_file_no_longer_has_vanishes(study: Study) -> None:
    study.analyze()
    study.write(ANALYSES.replace('(defmetric known (python "f.py" known))', ""), PYTHON)
    study.analyze()
    assert (study.told, list(values(study))) == ([], ["spread"])


def test_declared_files_count_by_their_content(study: Study) -> None:
    form = '(defmetric rows (python "f.py" rows :files ("rows.txt")))'
    study.write(
        form,
        "from pathlib import Path\ndef rows():\n    return len(Path(__file__).with_name('rows.txt').read_text())\n",
    )
    (study.folder / "rows.txt").write_text("abc")
    study.analyze()
    study.analyze()
    assert study.told == []
    (study.folder / "rows.txt").write_text("abcd")
    study.analyze()
    assert (study.told, values(study)) == (["rows"], {"rows": 4})


def test_a_declared_file_that_goes_while_it_is_read_is_told(study: Study) -> None:
    study.write(
        '(defmetric rows (python "f.py" rows :files ("rows.txt")))',
        "from pathlib import Path\ndef rows():\n    Path(__file__).with_name('rows.txt').unlink()\n    return 1\n",
    )
    (study.folder / "rows.txt").write_text("abc")
    assert refusal(study.analyze) == ["E-STORE-007: rows.txt changed while it was read"]


def test_a_model_that_is_called_differently_is_another_one(study: Study) -> None:
    """Though it is trained alike: the order of its inputs is the function's business."""
    study.write(
        '(defproduct a (python "f.py" f) :needs (model)) (defproduct b (python "f.py" f))', "def f(**needs): 1\n"
    )
    text = (
        (study.folder / "study.paren").read_text().replace("((x float32 [4])))", "((x float32 [4]) (y float32 [4])))")
    )
    keys, identities = [], set()
    for inputs, call in (
        ("(x float32 [4]) (y float32 [4])", "(m x y)"),
        ("(y float32 [4]) (x float32 [4])", "(m y x)"),
    ):
        model = f"(defmodel m ({inputs}) (linear (- x y) 1))"
        whole = text.replace("(defmodel m ((x float32 [4])) (linear x 1))", model).replace("(m x)", call)
        (study.folder / "study.paren").write_text(whole)
        planned = plan_analysis(study.program(), study.functions, "a" * 24, "d" * 24)
        keys.append([each.recipe.key for each in planned])
        identities.add(program_identity(study.program()))
    assert len(identities) == 1
    assert keys[0][0] != keys[1][0]
    assert keys[0][1] == keys[1][1]


def test_large_arrays_are_written_where_they_stay(study: Study) -> None:
    python = """
def table(writer, rng):
    out = writer.allocate("table", (1000, 3), "float32")
    for row in range(0, 1000, 100):
        out[row : row + 100] = row
"""
    study.write('(defproduct table (python "f.py" table))', python)
    table = Product(study.analyze()["table"])
    assert list(table) == ["table"]
    assert np.array_equal(table["table"][:, 0], np.arange(1000) // 100 * 100)


def test_a_plot_may_be_several_figures_and_replaces_the_earlier_one(study: Study) -> None:
    form = '(defplot curves (python "f.py" draw))'
    python = "from matplotlib.figure import Figure\ndef draw():\n    return {name: Figure() for name in NAMES}\n"
    study.write(form, python + "NAMES = ('left', 'right')\n")
    study.analyze()
    drawn = study.job() / "plots" / "curves"
    names = sorted(path.name for path in drawn.iterdir())
    assert names == ["left.pdf", "left.png", "plot.json", "right.pdf", "right.png"]
    first = (drawn / "right.pdf").read_bytes()
    study.write(form, python + "NAMES = ('right', 'third')\n")
    study.analyze()
    assert sorted(path.name for path in drawn.glob("*.png")) == ["right.png", "third.png"]
    assert (drawn / "right.pdf").read_bytes() == first
    (drawn / "right.png").unlink()
    study.analyze()
    assert study.told == ["curves"]


def test_files_beside_are_imported_once_and_what_is_printed_goes_to_stderr(
    study: Study, capsys: pytest.CaptureFixture[str]
) -> None:
    (study.folder / "beside.py").write_text("print('beside')\n")
    late = "def {0}():\n    import beside\n    print('{0}')\n    return 1\n"
    forms = '(defmetric a (python "f.py" a)) (defmetric b (python "f.py" b))'
    study.write(forms, "print('loading')\n" + late.format("a") + late.format("b"))
    study.analyze()
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "loading\nbeside\na\nb\n")
    assert "beside" not in sys.modules


def test_what_runs_is_what_was_looked_at(study: Study) -> None:
    """Also if files are edited while a launch goes on: a result must not stand under the digest of another code."""
    study.write(
        '(defmetric a (python "f.py" f))',
        "from beside import ROWS\ndef f():\n    import late\n    return [ROWS, late.ROWS]\n",
    )
    for name in ("beside", "late"):
        (study.folder / f"{name}.py").write_text("ROWS = 2\n")
    functions, subject = study.functions, study.subject()
    plan_analysis(subject.program, functions, subject.model_key, subject.data_key)
    study.write('(defmetric a (python "f.py" f))', "def f():\n    return 4\n")
    for name in ("beside", "late"):
        (study.folder / f"{name}.py").write_text("ROWS = 3\n")
    analyze_job(subject, functions, study.store, lambda name: None)
    assert values(study) == {"a": [2, 2]}
    assert study.missing() == ["a"]
    study.analyze()
    assert values(study) == {"a": 4}


RESULTS = [
    ("product", "None", "E-STUDY-008: f in f.py returns nothing (None)"),
    ("product", "[1, 2]", "E-STUDY-008: f in f.py returns a value of type list"),
    ("product", "{1: 2}", "E-STUDY-008: f in f.py returns the name 1, which is no string"),
    ("product", "{'a/b': 2}", "E-STORE-001: 'a/b' cannot be the name of an array or value of an artifact: letters, "
     "digits, - and _ only, at most 100 of them (f in f.py)"),
    ("product", "{'a': np.array([{}, 1])}", "E-STUDY-008: a from f in f.py is an array of objects, which only pickles "
     "could keep"),
    ("product", "{'a': np.ma.array([1.0], mask=[1])}", "E-STUDY-008: a from f in f.py is a masked array, which has a "
     "mask that would be lost"),
    ("product", "{'a': {'b': [1, float('inf')]}}", "E-STUDY-008: a['b'][1] from f in f.py is inf"),
    ("product", "{'a': {3}}", "E-STUDY-008: a from f in f.py is a value of type set"),
    ("metric", "float('nan')", "E-STUDY-008: each from f in f.py is nan"),
    ("metric", "{'x': np.array([1, np.nan])}", "E-STUDY-008: each['x'][1] from f in f.py is nan"),
    ("metric", "{'x': {1: 2}}", "E-STUDY-008: each['x'] from f in f.py is a mapping with the key 1, which is no "
     "string"),
    ("metric", "np.zeros(20000)", "E-STUDY-008: each from f in f.py is an array of 20,000 elements, at most 10,000 are "
     "kept as text"),
    ("metric", "{1, 2}", "E-STUDY-008: each from f in f.py is a value of type set"),
    ("plot", "None", "E-STUDY-008: f in f.py returns nothing (None)"),
    ("plot", "{}", "E-STUDY-008: f in f.py returns no figures"),
    ("plot", "{'a': 3}", "E-STUDY-008: f in f.py returns a value of type int under 'a'"),
    ("plot", "{'../a': __import__('matplotlib.figure').figure.Figure()}", "E-STORE-001: '../a' cannot be the name of a "
     "figure: letters, digits, - and _ only, at most 100 of them"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "message"), RESULTS)
def test_what_a_function_may_not_return(study: Study, kind: str, value: str, message: str) -> None:
    study.write(f'(def{kind} each (python "f.py" f))', f"def f():\n    return {value}\n")
    assert refusal(study.analyze) == [message]
    assert study.missing() == ["each"]


KEPT = ["np.zeros((0, 3))", "np.zeros((2, 3), order='F')", "np.array(['ab', 'c'])", "np.array(True)", "np.float32(2)"]
KEPT += ["np.array(['2020-01-01'], 'datetime64[D]')", "np.zeros(3, '>i4')"]


@pytest.mark.parametrize("value", KEPT)
def test_what_a_product_may_hold(study: Study, value: str) -> None:
    study.write('(defproduct each (python "f.py" f))', f"def f():\n    return {{'a': {value}}}\n")
    found = Product(study.analyze()["each"])["a"]
    expected = eval(value, {"np": np})
    assert np.array_equal(found, expected)
    assert np.shape(found) == expected.shape


def test_an_exception_shows_the_users_lines_and_what_was_done_stays(study: Study) -> None:
    study.write(ANALYSES, PYTHON.replace("return [settings", "return [missing(settings)[1 / 0], settings"))
    with pytest.raises(ParenError) as caught:
        study.analyze()
    error = caught.value
    assert (error.code, error.message) == (
        "E-STUDY-007",
        "known in f.py raised NameError: name 'missing' is not defined",
    )
    assert [note.message for note in error.notes] == [
        'f.py:17, in known: return [missing(settings)[1 / 0], settings["rate"], sorted(settings)]'
    ]
    assert str(error.span).endswith("study.paren:10:33")
    assert isinstance(error.__cause__, NameError)
    assert study.missing() == ["known", "curve"]
    study.write(ANALYSES, PYTHON)
    study.analyze()
    assert study.told == ["known", "curve"]


def test_an_error_of_paren_in_a_function_keeps_its_code(study: Study) -> None:
    study.write(
        '(defmetric each (python "f.py" f))',
        "def f():\n    import paren\n    return paren.load('nowhere.paren')\n",
    )
    (message,) = refusal(study.analyze)
    assert message.startswith("E-STUDY-007: f in f.py raised ParenError: E-")


def test_a_figure_that_cannot_be_drawn(study: Study) -> None:
    python = """
from matplotlib.figure import Figure
def f():
    figure = Figure()
    figure.suptitle("$wrong{$")
    return figure
"""
    study.write('(defplot each (python "f.py" f))', python)
    (message,) = refusal(study.analyze)
    assert message.startswith("E-STUDY-007: saving each of f in f.py raised ValueError: ")


def test_products_are_the_same_in_every_process(study: Study) -> None:
    products = study.analyze()
    code = "import sys; sys.path.insert(0, sys.argv[2]); from pathlib import Path; from analysed import Study; "
    code += "s = Study(Path(sys.argv[1])); print(*[each.key for each in s.analyze().values()], s.told)"
    again = study.folder / "again"
    again.mkdir()
    for name in ("study.paren", "f.py"):
        (again / name).write_bytes((study.folder / name).read_bytes())
    command = [sys.executable, "-c", code, str(again), str(Path(__file__).parent)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    keys = [each.key for each in products.values()]
    assert said == f"{' '.join(keys)} ['scores', 'noise', 'spread', 'known', 'curve']\n"
    for each in products.values():
        for name in each.files:
            other = again / "out" / each.folder.relative_to(study.folder / "out") / name
            assert other.read_bytes() == (each.folder / name).read_bytes()


def test_an_analysis_without_a_screen_does_not_ask_for_one(study: Study) -> None:
    """A process that has not chosen a backend draws with Agg, and is left as it was."""
    code = (
        "import sys, os; sys.path.insert(0, sys.argv[2]); from pathlib import Path; from analysed import Study; "
        "os.environ['DISPLAY'] = ':99'; os.environ.pop('MPLBACKEND', None); Study(Path(sys.argv[1])).analyze(); "
        "import matplotlib; print(matplotlib.get_backend(), 'MPLBACKEND' in os.environ)"
    )
    command = [sys.executable, "-c", code, str(study.folder), str(Path(__file__).parent)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.lower() == "agg false\n"


def test_the_data_are_read_split_by_split_and_cannot_be_changed(study: Study) -> None:
    (study.folder / "data.py").write_text(
        "import numpy as np\ndef make():\n"
        "    return {name: {'x': np.full((n, 4), n)} for name, n in (('train', 3), ('test', 2))}\n"
    )
    splits = Splits(open_program_data(study.program(), None, Silent()))
    assert list(splits) == ["train", "test"]
    assert splits["test"]["x"].tolist() == [[2.0] * 4] * 2
    assert splits["test"]["x"].dtype == np.float32
    with pytest.raises(ValueError, match="read-only"):
        splits["train"]["x"][0] = 1
    with pytest.raises(KeyError, match="the data have no split 'validation', they have train, test"):
        _ = splits["validation"]
