"""docs/experiments.md: its study runs as it says, writes the folders that it lists, and computes again what it says."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import paren
from paren.text.errors import ParenError

PAGE = Path(__file__).parents[2] / "docs" / "experiments.md"
BLOCKS = dict(re.findall(r"```(paren|python)\n(.*?)```", PAGE.read_text(), re.DOTALL))
JOBS = ["replica 0", "replica 1", "width 4, replica 0", "width 4, replica 1"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the page's two files after `paren run waves.paren --variant smoke`, into `out`."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "waves.paren").write_text(BLOCKS["paren"].replace(":steps          400", ":steps 20"))
    (folder / "waves.py").write_text(BLOCKS["python"])
    ended = paren.load(folder / "waves.paren", "smoke").run(out=folder / "out", threads=1)
    assert ended.exit_code == 0
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy, elsewhere, that a test may change."""
    return shutil.copytree(finished, tmp_path / "moved")


def waiting(folder: Path, **settings: object) -> dict[str, list[str]]:
    """What a launch would compute: for each job `data`, `model` and names of analyses."""
    planned = paren.load(folder / "waves.paren", "smoke", settings).plan(out=folder / "out", threads=1)
    found = {}
    for job in planned.jobs:
        parts = [part for part, state in (("data", job.data), ("model", job.model)) if state == "to make"]
        found[job.name] = [*parts, *job.analyses]
    return found


def edit(folder: Path, name: str, before: str, after: str) -> None:
    text = (folder / name).read_text()
    assert before in text
    (folder / name).write_text(text.replace(before, after))


def test_the_whole_study_has_the_jobs_that_the_page_says(finished: Path) -> None:
    jobs = paren.load(finished / "waves.paren").plan(out=finished / "other").jobs
    further = ["width 64, replica 0", "width 64, replica 1", "rate 0.001, replica 0", "rate 0.001, replica 1"]
    assert [job.name for job in jobs] == JOBS + further
    assert all(job.costs == {"evaluations": 201} for job in jobs)
    assert not (finished / "other").exists()


def test_it_writes_the_folders_that_the_page_lists(finished: Path) -> None:
    out = finished / "out"
    places = [re.sub(r"-[0-9a-f]{12}$", "-DIGEST", path.name) for path in sorted((out / "runs").iterdir())]
    assert places == ["baseline-DIGEST", "width-4-DIGEST"]
    for configuration in (out / "runs").iterdir():
        assert sorted(path.name for path in configuration.iterdir()) == ["plots", "replica-0", "replica-1"]
        assert (configuration / "plots" / "replicas" / "replicas.png").is_file()
        for job in configuration.glob("replica-*"):
            assert {path.name for path in job.iterdir()} >= {"job.json", "status.json", "metrics.json", "plots"}
            assert (job / "plots" / "fit" / "fit.pdf").is_file()
            assert json.loads((job / "status.json").read_bytes())["state"] == "done"
            error = json.loads((job / "metrics.json").read_bytes())["error"]
            assert list(error) == ["rms", "spread", "largest", "above"]
    assert (out / "plots" / "widths" / "widths.png").is_file()
    stored = {path.name: len([each for each in path.iterdir() if each.is_dir()]) for path in (out / "store").iterdir()}
    assert stored == {"data": 1, "model": 4, "curve": 4, "misses": 4}


def test_a_finished_study_has_nothing_left_to_do_wherever_it_lies(folder: Path) -> None:
    assert waiting(folder) == {job: [] for job in JOBS}
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.p*") if path.suffix in (".png", ".npy")}
    paren.load(folder / "waves.paren", "smoke").run(out=folder / "out", threads=1)
    assert {path: path.stat().st_mtime_ns for path in before} == before


ANALYSES = ["curve", "misses", "error", "fit"]
MORE = '(defmetric more (python "waves.py" error :above 1.0) :needs (curve misses))\n'
CHANGES = [
    ("a comment", "waves.paren", "; both", "; two", []),
    ("a comment in Python", "waves.py", "def curve", "# dense\ndef curve", []),
    ("a function that nothing reaches", "waves.py", "def curve", "def unused():\n    1\n\ndef curve", []),
    ("one metric more", "waves.paren", "(defplot fit", MORE + "(defplot fit", ["more"]),
    ("a keyword", "waves.paren", ":above 0.1", ":above 0.2", ["error"]),
    ("a function", "waves.py", "1000, len", "999, len", ["misses", "error", "fit"]),
    ("a function of the data", "waves.py", "6 * x", "5 * x", ["data", "model", *ANALYSES]),
    ("a plot", "waves.py", "upper.legend()", "lower.grid()", ["fit"]),
    ("the learning rate", "waves.paren", "rate 0.01)", "rate 0.02)", ["model", *ANALYSES]),
    ("the steps", "waves.paren", ":steps 20", ":steps 21", ["model", *ANALYSES]),
    ("the seed", "waves.paren", "(+ 100 replica)", "(+ 200 replica)", ["model", *ANALYSES]),
    ("a setting of the analysis", "waves.paren", "points 201", "points 99", ["curve", "error", "fit"]),
]


@pytest.mark.parametrize(
    ("file", "before", "after", "wanted"), [each[1:] for each in CHANGES], ids=[each[0] for each in CHANGES]
)
def test_what_is_computed_again(folder: Path, file: str, before: str, after: str, wanted: list[str]) -> None:
    edit(folder, file, before, after)
    assert list(waiting(folder).values()) == [wanted] * len(JOBS)


def test_analysis_that_is_added_later_trains_nothing(folder: Path) -> None:
    edit(folder, "waves.paren", "(defplot fit", MORE + "(defplot fit")
    models = sorted(path.name for path in (folder / "out" / "store" / "model").iterdir())
    paren.load(folder / "waves.paren", "smoke").analyze(out=folder / "out", threads=1)
    assert sorted(path.name for path in (folder / "out" / "store" / "model").iterdir()) == models
    for metrics in (folder / "out").glob("runs/*/*/metrics.json"):
        assert list(json.loads(metrics.read_bytes())) == ["error", "more"]
    with pytest.raises(ParenError) as caught:
        paren.load(folder / "waves.paren", "smoke", {"rate": 0.5}).analyze(out=folder / "out", threads=1)
    assert caught.value.code.startswith("E-JOB-")
    assert "replica 0" in str(caught.value)
    assert sorted(path.name for path in (folder / "out" / "store" / "model").iterdir()) == models


def test_limits_refuse_before_anything_is_written(folder: Path) -> None:
    with pytest.raises(ParenError) as caught:
        paren.load(folder / "waves.paren", set={"points": 2_000_000}).run(out=folder / "new")
    assert caught.value.code == "E-STUDY-009"
    assert caught.value.fix == "reduce points (now 2000000), or raise the limit"
    assert not (folder / "new").exists()


def test_wrong_functions_are_refused_before_anything_is_written(folder: Path) -> None:
    edit(folder, "waves.py", "def misses(model, data, rng)", "def misses(model, rng)")
    edit(folder, "waves.py", "def draw_fit(curve, misses)", "def draw(curve, misses)")
    for act in ("check", "plan", "run", "analyze"):
        experiment = paren.load(folder / "waves.paren", "smoke")
        places = {"check": {}, "analyze": {"out": folder / "out"}}  # analyze: where there are models
        with pytest.raises(ParenError) as caught:
            getattr(experiment, act)(**places.get(act, {"out": folder / "new"}))
        assert [error.code for error in caught.value.errors] == ["E-STUDY-006", "E-STORE-005"], act
    assert not (folder / "new").exists()


def test_looking_loads_neither_the_functions_nor_what_they_import(folder: Path) -> None:
    edit(folder, "waves.paren", ":cost cost-of-curve", "")
    edit(folder, "waves.paren", "(deflimits (evaluations 1e6))", "")
    edit(folder, "waves.py", "import matplotlib", "print('run')\nimport matplotlib")
    code = "import sys, paren; e = paren.load(sys.argv[1]); e.check(); {}; "
    code += "print([each for each in ('torch', 'llvmlite', 'matplotlib') if each in sys.modules])"
    for act, loaded in (("1", "[]"), ("e.plan(out='none')", "['llvmlite']")):
        command = [sys.executable, "-c", code.format(act), str(folder / "waves.paren")]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
        assert (done.stdout, done.stderr) == (loaded + "\n", "")


def test_an_exception_fails_only_its_job(folder: Path) -> None:
    edit(folder, "waves.py", "    distance =", "    assert len(misses) < 9 and curve['x'][0] < above\n    distance =")
    edit(folder, "waves.paren", ":above 0.1", ":above (if (and (= width 4) (= replica 1)) -2 0.1)")
    with pytest.raises(ParenError) as caught:
        paren.load(folder / "waves.paren", "smoke").run(out=folder / "out", threads=1)
    assert caught.value.code == "E-JOB-001"
    assert [note.message.partition(" (")[0] for note in caught.value.notes] == [
        "width 4, replica 1: E-STUDY-007: error in waves.py raised AssertionError"
    ]
    states = {}
    for path in (folder / "out").glob("runs/*/*/status.json"):
        status = json.loads(path.read_bytes())
        states[path.parent.parent.name.rpartition("-")[0] + " " + path.parent.name] = status["state"]
        if status["state"] == "failed":
            assert status["code"] == "E-STUDY-007"
            assert 'waves.py", line' in status["traceback"]
            assert caught.value.notes[0].message.endswith(f"/status.json); {status['line']}")
            assert re.fullmatch(r"waves\.py:\d+, in error: assert len\(misses\) < 9 and .*", status["line"])
    assert sorted(states.items()) == [
        ("baseline replica-0", "done"),
        ("baseline replica-1", "done"),
        ("width-4 replica-0", "done"),
        ("width-4 replica-1", "failed"),
    ]


def test_a_moved_study_is_restored_and_told(folder: Path) -> None:
    (job,) = (folder / "out").glob("runs/width-4-*/replica-1")
    model = paren.restore(job)
    assert isinstance(model, paren.RestoredJob)
    curve = model.products["curve"]
    assert np.array_equal(model(np.asarray(curve["x"])), curve["prediction"])
    assert (model.settings["width"], model.member, model.changed) == (4, {"replica": 1}, {"width": 4})
    assert model.results["error"]["rms"] > 0  # type: ignore[index, call-overload, operator]
    assert len(paren.results(folder / "out").rows) == 4
    assert paren.report(folder / "out").stat().st_size > 10_000


def products(out: Path) -> dict[str, str]:
    """SHA-256 of each file of each product, by its path in the store."""
    files = [path for name in ("curve", "misses") for path in (out / "store" / name).rglob("*") if path.is_file()]
    return {
        path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.name != "artifact.json"
    }


def test_products_have_the_same_bits_whichever_worker_makes_them(folder: Path) -> None:
    experiment = paren.load(folder / "waves.paren", "smoke")
    assert experiment.run(out=folder / "again", workers=2).exit_code == 0
    assert products(folder / "again") == products(folder / "out")


def test_a_damaged_product_is_made_again(folder: Path) -> None:
    before = products(folder / "out")
    (path,) = list((folder / "out" / "store" / "curve").rglob("prediction.npy"))[:1]
    path.write_bytes(path.read_bytes()[:-1])
    assert sorted(waiting(folder).values()) == [[], [], [], ["curve"]]
    paren.load(folder / "waves.paren", "smoke").analyze(out=folder / "out", threads=1)
    left = {path: digest for path, digest in products(folder / "out").items() if ".damaged" not in path}
    assert left == before


def test_models_are_analysed_on_another_device(folder: Path) -> None:
    """Whatever device trained them; results agree to rounding."""
    edit(folder, "waves.py", "np.linspace(-1, 1, points)", "np.linspace(-1.0, 1.0, points)")
    old = {path.parent: np.load(path) for path in (folder / "out" / "store" / "curve").rglob("prediction.npy")}
    paren.load(folder / "waves.paren", "smoke").analyze(out=folder / "out", device="reference")
    new = [
        np.load(path) for path in (folder / "out" / "store" / "curve").rglob("prediction.npy") if path.parent not in old
    ]
    assert len(new) == len(old) == 4
    for each in new:
        assert min(np.abs(each - other).max() for other in old.values()) < 1e-5
    assert len(list((folder / "out" / "store" / "model").iterdir())) == 4
