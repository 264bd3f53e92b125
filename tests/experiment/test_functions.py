"""Functions of analyses are looked up and bound before anything is computed; costs are compared with limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from analysed import Study, refusal

from paren.experiment.analysis.costs import check_limits, costs
from paren.experiment.python.functions import check_functions
from paren.text.errors import ParenError


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study(tmp_path)


def check(study: Study, load: bool) -> list[str]:
    return refusal(lambda: check_functions(study.program(), study.functions, load))


METRIC = '(defmetric a (python "f.py" f :cases cases) :needs (model))'
UNFIT = "E-STUDY-006: f in f.py cannot be called with what a gives: "
WRONG = [
    ("def g(): pass", "E-STORE-005: f.py has no function f"),
    ("def f(model): pass", UNFIT + "got an unexpected keyword argument 'cases'"),
    ("def f(model, cases, factor): pass", UNFIT + "missing a required argument: 'factor'"),
    (
        "def f(model, /, cases): pass",
        UNFIT + "'model' parameter is positional only, but was passed as a keyword",
    ),
    ("def f(model, cases, writer): pass", UNFIT + "missing a required argument: 'writer'"),
    ("def f(model) pass", "E-STORE-004: f.py:2: expected ':'"),
]


@pytest.mark.parametrize(("python", "message"), WRONG)
@pytest.mark.parametrize("load", [False, True])
def test_what_cannot_be_called_is_found_beforehand(study: Study, python: str, message: str, load: bool) -> None:
    study.write(METRIC, python)
    assert check(study, load) == [message]


@pytest.mark.parametrize(
    "python",
    [
        "def f(model, cases): pass",
        "def f(*, cases, model, seed, rng, settings): pass",
        "def f(cases, **others): pass",
        "def f(model, cases=3, factor=[2, 3], *more, k={}): pass",
        "f = lambda model, cases: None",
        "import functools\n@functools.cache\ndef f(model, cases): pass",
    ],
)
@pytest.mark.parametrize("load", [False, True])
def test_what_can_be_called(study: Study, python: str, load: bool) -> None:
    study.write(METRIC, python)
    assert check(study, load) == []


def test_the_message_shows_form_signature_and_remedy(study: Study) -> None:
    study.write(METRIC.replace(":needs (model)", ""), "def f(model, cases, width={'a': 2}): pass")
    with pytest.raises(ParenError) as caught:
        check_functions(study.program(), study.functions, False)
    lines = str(caught.value).splitlines()
    assert lines[0].endswith(
        "study.paren:6:29: E-STUDY-006: f in f.py cannot be called with what a gives: missing a required argument: "
        "'model'"
    )
    assert lines[1:] == [
        '  (defmetric a (python "f.py" f :cases cases) )',
        "                              ^",
        "  note: it is called with cases; its signature is (model, cases, width={'a': 2})",
        "  fix: name it among the needs: :needs (model)",
    ]


@pytest.mark.parametrize(
    ("form", "python", "fix"),
    [
        ("defmetric", "def f(writer): pass", "only a defproduct has a writer"),
        ("defplot", "def f(jobs): pass", "only a defplot with :over has jobs"),
        (
            "defplot",
            "def f(some): pass",
            "give it as a keyword of the form, or name the product that it is under :needs",
        ),
    ],
)
def test_remedies(study: Study, form: str, python: str, fix: str) -> None:
    study.write(f'({form} a (python "f.py" f))', python)
    with pytest.raises(ParenError) as caught:
        check_functions(study.program(), study.functions, False)
    assert caught.value.fix == fix


def test_a_file_that_is_not_there_is_told_with_where_it_was_looked_for(study: Study) -> None:
    study.write('(defmetric a (python "f.py" f :files ("d.csv")))', "def f(): pass\n")
    with pytest.raises(ParenError) as caught:
        check_functions(study.program(), study.functions, False)
    assert caught.value.fix == f"paths start from {study.folder}"


def test_names_that_are_nearly_right(study: Study) -> None:
    forms = '(defmetric a (python "g.py" f)) (defmetric b (python "f.py" f :number 2 :files ("tabel.csv")))'
    forms += '(defmetric c (python "f.py" g :files ("tabel.csv")))'
    study.write(forms, "def f(nubmer): pass\ndef g(): pass\n")
    (study.folder / "table.csv").write_text("1")
    assert check(study, False) == [
        "E-STORE-004: g.py cannot be read as Python: not found (did you mean f.py?)",
        f"{UNFIT.replace('what a', 'what b')}missing a required argument: 'nubmer' (did you mean nubmer?)",
        "E-STUDY-006: the file 'tabel.csv' of :files does not exist (did you mean table.csv?)",
    ]


def test_all_mistakes_are_told_at_once(study: Study) -> None:
    forms = '(defmetric a (python "f.py" f)) (defmetric b (python "none.py" f)) (defmetric c (python "f.py" c))'
    forms += '(defmetric d (python "f.py" g :files ("d.csv"))) (defmetric e (python "f.py" g) :cost h)'
    study.write(forms, "def f(x): pass\ndef g(): pass\n")
    assert check(study, False) == [
        "E-STUDY-006: f in f.py cannot be called with what a gives: missing a required argument: 'x'",
        "E-STORE-004: none.py cannot be read as Python: not found",
        "E-STORE-005: f.py has no function c",
        "E-STUDY-006: the file 'd.csv' of :files does not exist",
        "E-STORE-005: f.py has no function h",
    ]


def test_looking_runs_nothing_and_loading_finds_what_only_running_shows(study: Study) -> None:
    study.write(METRIC, "from pathlib import Path\nPath(__file__).with_name('ran').touch()\nf = 3\n")
    assert check(study, False) == []
    assert not (study.folder / "ran").exists()
    assert check(study, True) == ["E-STUDY-006: f.py has no function f"]
    assert (study.folder / "ran").exists()
    study.write(METRIC, "def f(model, cases): pass\n1 / 0\n")
    assert check(study, False) == []
    assert check(study, True) == ["E-STUDY-007: loading f.py raised ZeroDivisionError: division by zero"]


# Costs ---------------------------------------------------------------------------------------------------------------

COSTS = """
(def side 10) (def points (* side side))
(deflimits (evaluations 1000) (bytes 8e9))
(defproduct a (python "f.py" f :cases cases :points points) :cost cost-of-a)
(defproduct b (python "f.py" f :points 3) :cost cost-of-b)
(defproduct c (python "f.py" f))
"""
FORETOLD = """
def f(**keywords): raise AssertionError
def cost_of_a(cases, points): return {"evaluations": cases * points, "bytes": 4 * np.float32(points)}
def cost_of_b(settings, points): return {"evaluations": points / settings["rate"]}
"""


def limits(study: Study, **settings: object) -> list[str]:
    return refusal(lambda: check_limits(study.program(**settings), study.functions))


def test_costs_are_foretold_and_limited(study: Study) -> None:
    study.write(COSTS, FORETOLD)
    assert costs(study.program(), study.functions) == {
        "a": {"evaluations": 400.0, "bytes": 400.0},
        "b": {"evaluations": 6.0},
    }
    assert limits(study) == []
    assert limits(study, side=15) == [], "906 in all"
    over = ["E-STUDY-009: the analysis of one model costs 1006 evaluations, the limit is 1000"]
    assert limits(study, cases=10) == over
    assert limits(study, cases=10, side=1000000000) == [
        "E-STUDY-009: the analysis of one model costs 1e+19 evaluations, the limit is 1000",
        "E-STUDY-009: the analysis of one model costs 4e+18 bytes, the limit is 8e+09",
    ]
    assert not (study.folder / "out").exists()


def test_a_limit_names_the_settings_to_reduce(study: Study) -> None:
    study.write(COSTS, FORETOLD)
    with pytest.raises(ParenError) as caught:
        check_limits(study.program(cases=10), study.functions)
    lines = str(caught.value).splitlines()
    assert lines[1:] == [
        "  (deflimits (evaluations 1000) (bytes 8e9))",
        "             ^^^^^^^^^^^^^^^^^^",
        f"  note: a: 1000 evaluations ({study.folder}/study.paren:9:1)",
        f"  note: b: 6 evaluations ({study.folder}/study.paren:10:1)",
        "  fix: reduce cases (now 10), rate (now 0.5) or side (now 10), or raise the limit",
    ]


NUMBER = "E-STUDY-008: the cost bytes from cost_of_a in f.py is {}, a number of at least 0 is needed"
NO_COSTS = [
    ("return 3", "E-STUDY-008: cost_of_a in f.py returns a value of type int"),
    ("return {'bytes': -1}", NUMBER.format("-1")),
    ("return {'bytes': float('inf')}", NUMBER.format("inf")),
    ("return {'bytes': '3'}", NUMBER.format("'3'")),
    ("return undefined", "E-STUDY-007: cost_of_a in f.py raised NameError: name 'undefined' is not defined"),
]


@pytest.mark.parametrize(("python", "message"), NO_COSTS)
def test_costs_that_are_none(study: Study, python: str, message: str) -> None:
    study.write(COSTS, FORETOLD.split("def cost_of_a")[0] + f"def cost_of_a(): {python}\ndef cost_of_b(): return {{}}")
    assert limits(study) == [message]
