"""`paren.restore` of a job: its model, wherever the output root lies, with the job's own settings and results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import paren
from paren.experiment.store.claims import Claim
from paren.experiment.store.recipe import Recipe
from paren.experiment.store.store import Store
from paren.text.errors import ParenError
from paren.text.json import Json

FILE = """
(def width 3) (def cases 4)
(defdata d (python "data.py" make :fields ((x float32 [5]) (y float32 []))))
(defmodel m ((x float32 [5])) (reshape (linear (linear x width) 1) []))
(defrun :data d :loss (mean-squared-error (m x) y) :optimizer (adam) :batch 4 :steps 3)
"""
DATA = """
import numpy as np
def make(seed):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(20, 5)), "y": rng.normal(size=20)}
"""
X = np.random.default_rng(3).normal(size=(37, 5))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """An output root with one job, trained before under other settings, and the model's results on `X`."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "study.paren").write_text(FILE)
    (folder / "data.py").write_text(DATA)
    root = folder / "out"
    store = Store(root)

    def train(place: Path, held: Claim) -> Json:
        paren.load(folder / "study.paren").run(out=place)
        return None

    model = store.train(Recipe("model", "model", {"any": 1}), train)
    scores = store.build(Recipe("product", "scores", {}), lambda writer: writer.array("a", np.arange(3)))
    job = root / "runs" / "cases-5" / "replica-0"
    job.mkdir(parents=True)
    content = {
        "settings": {"width": 3, "cases": [5, 6]},
        "member": {"replica": 0},
        "changed": {"cases": [5, 6]},
        "model": f"../../../store/model/{model.key}",
        "data": None,
        "products": {"scores": f"../../../store/scores/{scores.key}", "later": "../../../store/later/" + 24 * "0"},
    }
    (job / "job.json").write_text(json.dumps(content))
    (job / "metrics.json").write_text('{"accuracy": 0.5}')
    expected = paren.restore(model.folder)(X)
    shutil.rmtree(folder / "out" / "locks", ignore_errors=True)
    return root, expected


def test_the_model_of_a_job_with_its_own_settings_and_results(trained: tuple[Path, np.ndarray]) -> None:
    root, expected = trained
    model = paren.restore(root / "runs" / "cases-5" / "replica-0")
    assert isinstance(model, paren.RestoredJob)
    assert np.array_equal(model(X), expected)
    assert model.settings == {"width": 3, "cases": (5, 6)}
    assert (model.member, model.changed, model.results) == ({"replica": 0}, {"cases": (5, 6)}, {"accuracy": 0.5})
    assert {name: product["a"].tolist() for name, product in model.products.items()} == {"scores": [0, 1, 2]}  # type: ignore[union-attr]
    assert len(model.metrics()["loss"]) == 3
    assert type(paren.restore(model.out)) is paren.RestoredModel


def test_twice_and_after_a_move_the_same_bits(trained: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    root, expected = trained
    moved = tmp_path / "elsewhere" / "results"
    shutil.copytree(root, moved)
    for _ in range(2):
        assert np.array_equal(paren.restore(moved / "runs" / "cases-5" / "replica-0")(X), expected)
    reference = paren.restore(moved / "runs" / "cases-5" / "replica-0", device="reference")
    np.testing.assert_allclose(reference(X), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model": None}, "the job {} has no trained model yet"),
        ({"model": "../../../store/model/none"}, "the model of the job {} is not at ../../../store/model/none"),
        ({"other": {}}, "{}/job.json cannot be read"),
        ([], "{}/job.json cannot be read"),
    ],
)
def test_a_job_that_cannot_be_restored(tmp_path: Path, content: object, message: str) -> None:
    whole = {"settings": {}, "member": {}, "changed": {}, "products": {}}
    (tmp_path / "job.json").write_text(json.dumps({**whole, **content} if isinstance(content, dict) else content))
    with pytest.raises(ParenError) as caught:
        paren.restore(tmp_path)
    assert (caught.value.code, caught.value.message) == ("E-RUN-014", message.format(tmp_path))


@pytest.mark.parametrize("content", ["", "[]", "[" * 100_000])
def test_results_that_are_damaged(trained: tuple[Path, np.ndarray], tmp_path: Path, content: str) -> None:
    root = shutil.copytree(trained[0], tmp_path / "copy")
    job = root / "runs" / "cases-5" / "replica-0"
    (job / "metrics.json").write_text(content)
    model = paren.restore(job)
    assert isinstance(model, paren.RestoredJob)
    with pytest.raises(ParenError) as caught:
        _ = model.results
    assert (caught.value.code, caught.value.message) == ("E-RUN-014", f"{job / 'metrics.json'} cannot be read")
    assert caught.value.fix == "run the study again"
    (job / "metrics.json").unlink()
    assert model.results == {}


def test_a_study_is_no_job(trained: tuple[Path, np.ndarray]) -> None:
    root, _ = trained
    (root / "study.json").write_text("{}")
    with pytest.raises(ParenError) as caught:
        paren.restore(root)
    assert (caught.value.code, caught.value.message) == (
        "E-RUN-014",
        f"{root} holds a study, which has a model for each job",
    )
    assert caught.value.fix == f"give the folder of a job: {root}/runs/cases-5/replica-0"
    for place in (root / "runs", next(root.glob("runs/*"))):
        with pytest.raises(ParenError) as caught:
            paren.restore(place)
        assert caught.value.message == f"{place} is a folder of the study in {root}, which has a model for each job"
        assert caught.value.fix == f"give the folder of a job: {root}/runs/cases-5/replica-0"
    (root / "empty").mkdir()
    (root / "empty/study.json").write_text("{}")
    with pytest.raises(ParenError) as caught:
        paren.restore(root / "empty")
    assert caught.value.fix == f"give the folder of a job: {root / 'empty'}/runs/CONFIGURATION/MEMBER"
