"""Artifacts: what is stored is what is read, built once, found by recipe, and damage is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from paren.experiment.store.artifact import Writer
from paren.experiment.store.claims import Claim
from paren.experiment.store.recipe import Recipe, as_json, differences
from paren.experiment.store.store import Store
from paren.text.errors import ParenError

ROWS = Recipe("product", "posterior", {"keywords": {"rows": 3}, "function": "f.py:draw"})


def fill(writer: Writer) -> dict[str, int]:
    writer.allocate("large", (5, 3), "float64")[...] = 1.5
    writer.array("small", np.arange(12, dtype=np.int16).reshape(3, 4).T)
    writer.json("note", {"text": "ä", "numbers": [1, 2.5, None]})
    return {"rows": 3}


def test_what_is_stored_is_what_is_read(tmp_path: Path) -> None:
    built = Store(tmp_path).build(ROWS, fill)
    found = Store(tmp_path).find(ROWS)
    assert found == built
    assert found.names == ("large", "note", "small")
    assert found.array("large").tolist() == [[1.5] * 3] * 5
    assert found.array("small").tolist() == np.arange(12).reshape(3, 4).T.tolist()
    assert found.array("small").dtype == np.int16
    assert not found.array("small").flags.writeable
    assert isinstance(found.array("small"), np.memmap)
    assert found.json("note") == {"text": "ä", "numbers": [1, 2.5, None]}
    assert found.metadata == {"rows": 3}
    assert found.files["small.npy"].shape == (4, 3)
    assert Store(tmp_path).keys("posterior") == {ROWS.key}
    assert Store(tmp_path).kinds() == ["posterior"]


@pytest.mark.parametrize(
    "values",
    [
        np.array(3.5),
        np.zeros((0, 4), np.float32),
        np.array(["a", "öß"]),
        np.array([True, False]),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(["2026-11-30"], "datetime64[D]"),
        np.array([1 + 2j]),
    ],
    ids=lambda values: str(values.dtype),
)
def test_arrays_of_every_kind(tmp_path: Path, values: np.ndarray) -> None:
    def make(writer: Writer) -> None:
        writer.array("written", values)
        if values.flags.c_contiguous:
            writer.allocate("allocated", values.shape, values.dtype)[...] = values

    found = Store(tmp_path).build(ROWS, make)
    for name in found.names:
        assert found.array(name).dtype == values.dtype
        assert found.array(name).shape == values.shape
        assert (np.asarray(found.array(name)) == values).all()


def test_it_is_built_once(tmp_path: Path) -> None:
    calls = []
    for _ in range(3):
        Store(tmp_path).build(ROWS, lambda writer: calls.append(1))
    assert calls == [1]


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def make(writer: Writer) -> None:
        fill(writer)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Store(tmp_path).build(ROWS, make)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert Store(tmp_path).find(ROWS) is None
    assert Store(tmp_path).build(ROWS, fill).names == ("large", "note", "small")


def test_a_training_goes_on_in_its_folder(tmp_path: Path) -> None:
    store, recipe = Store(tmp_path), Recipe("model", "model", {"program": "p"})

    def interrupted(folder: Path, held: Claim) -> None:
        (folder / "checkpoint").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.train(recipe, interrupted)
    assert store.find(recipe) is None
    assert (store.partial(recipe) / "checkpoint").read_text() == "half"

    def go_on(folder: Path, held: Claim) -> dict[str, str]:
        assert (folder / "checkpoint").read_text() == "half"
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints" / "weights").write_text("whole")
        (folder / "lock").touch()
        return {"steps": "all"}

    assert set(store.train(recipe, go_on).files) == {"checkpoint", "checkpoints/weights"}
    assert not store.partial(recipe).exists()
    assert store.train(recipe, interrupted).metadata == {"steps": "all"}


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        (lambda folder: (folder / "small.npy").unlink(), "small.npy is missing"),
        (lambda folder: (folder / "small.npy").write_bytes(b"x"), "small.npy has 1 instead of 152 bytes"),
        (lambda folder: (folder / "artifact.json").unlink(), "artifact.json is missing"),
        (lambda folder: (folder / "artifact.json").write_text("{"), "artifact.json is not what was written"),
        (
            lambda folder: (folder / "artifact.json").write_text(
                (folder / "artifact.json").read_text().replace('"rows": 3', '"rows": 4')
            ),
            "artifact.json is not what was written",
        ),
    ],
)
def test_damage_is_named_on_read_and_built_again(tmp_path: Path, harm, text: str) -> None:
    notices: list[str] = []
    store = Store(tmp_path, notice=notices.append)
    folder = store.build(ROWS, fill).folder
    harm(folder)
    with pytest.raises(ParenError) as caught:
        store.find(ROWS)
    assert (caught.value.code, caught.value.message) == ("E-STORE-002", f"the artifact {folder} is damaged: {text}")
    assert store.build(ROWS, fill).array("small").shape == (4, 3)
    assert notices == [f"the artifact {folder} is damaged: {text}; it is built again"]
    harm(folder)
    store.build(ROWS, fill)
    assert sorted(path.name for path in folder.parent.iterdir()) == [
        f".damaged-{ROWS.key}",
        f".damaged-{ROWS.key}-1",
        ROWS.key,
    ]


@pytest.mark.parametrize("name", ["", "a/b", "..", "a.b", "a b", "x" * 101, "nul\0", "-\n"])
def test_names_that_cannot_be_files_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ParenError) as caught:
        Store(tmp_path).find(Recipe("product", name, {}))
    shown = name if len(name) <= 100 else f"{'x' * 97}..."
    rule = "letters, digits, - and _ only, at most 100 of them"
    assert caught.value.code == "E-STORE-001"
    assert caught.value.message == f"{shown!r} cannot be the name of a product: {rule}"
    with pytest.raises(ParenError) as caught:
        Store(tmp_path).build(ROWS, lambda writer: writer.array(name, np.zeros(1)))
    assert caught.value.message == f"{shown!r} cannot be the name of an array or value of an artifact: {rule}"


def test_content_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for make, message in [
        (
            lambda writer: writer.array("a", np.array([None])),
            "the array a has the dtype object, which a .npy file cannot keep without pickles",
        ),
        (
            lambda writer: writer.json("a", float("nan")),
            "the value a cannot be kept as JSON: Out of range float values are not JSON compliant",
        ),
        (lambda writer: [writer.json("a", 1), writer.array("a", np.zeros(1))], "a is stored twice"),
    ]:
        with pytest.raises(ParenError) as caught:
            store.build(ROWS, make)
        assert (caught.value.code, caught.value.message) == ("E-STORE-001", message)


def test_a_product_is_not_called_like_a_kind(tmp_path: Path) -> None:
    with pytest.raises(ParenError) as caught:
        Store(tmp_path).find(Recipe("product", "model", {}))
    assert str(caught.value) == (
        "E-STORE-001: a product cannot be called model, which is a kind of artifact\n  fix: give it another name"
    )


def test_a_key_tells_values_apart_and_not_their_order() -> None:
    values = [1, 1.0, True, "1", (1,), float("inf"), "inf", None, (), -0.0, 0.0, 0]
    keys = {Recipe("data", "d", {"keywords": {"x": as_json(value)}}).key for value in values}
    assert len(keys) == len(values)
    assert Recipe("data", "d", {"a": 1, "b": 2}).key == Recipe("data", "d", {"b": 2, "a": 1}, {"said": 1}).key
    assert Recipe("data", "d", {}).key != Recipe("product", "d", {}).key


def test_what_changed_is_said() -> None:
    before = Recipe(
        "model",
        "model",
        {"program": "a" * 64, "data": "b" * 24, "versions": {"numpy": "1.26"}},
        {"settings": {"rows": 50000}},
    )
    now = Recipe(
        "model",
        "model",
        {"program": "a" * 64, "data": "c" * 24, "versions": {"numpy": "2.0"}},
        {"settings": {"rows": 150000}},
    )
    assert differences(before, now) == ["rows: 50000 -> 150000", "data: changed", "numpy: 1.26 -> 2.0"]
    assert differences(before, Recipe("model", "model", before.parts, now.about)) == []
    sources = [
        Recipe("data", "d", {"keywords": {"n": 1, "old": [2]}, "sources": {"f.py draw": "0" * 24}}),
        Recipe("data", "d", {"keywords": {"n": 1, "new": True}, "sources": {"f.py draw": "1" * 24, "g.py": "2" * 24}}),
    ]
    assert differences(*sources) == ["old: gone, was [2]", "new: new, true", "f.py draw: changed", "g.py: new"]


def test_a_long_value_is_told_by_what_differs_in_it() -> None:
    target = f"znver5 {','.join(f'+feature{number}' for number in range(40))} LLVM 22"
    first, second, third = (
        Recipe("model", "model", {"device": {"device": "cpu", **more}})
        for more in ({"target": target}, {"target": target.replace("+feature7,", "-feature7,")}, {})
    )
    assert differences(first, second) == ["target: +feature7 -> -feature7"]
    assert differences(first, third) == [f"target: gone, was {target[:57]}..."]
    longer = Recipe("model", "model", {"device": {"device": "cpu", "target": f"{target} 22.1"}})
    assert differences(first, longer) == ["target: without -> 22.1"]


def test_a_moved_root_is_the_same_store(tmp_path: Path) -> None:
    Store(tmp_path / "first").build(ROWS, fill)
    (tmp_path / "first").rename(tmp_path / "second")
    assert Store(tmp_path / "second").find(ROWS).array("small").shape == (4, 3)
    content = (tmp_path / "second" / "store" / "posterior" / ROWS.key / "artifact.json").read_text()
    assert str(tmp_path) not in content
    assert json.loads(content)["key"] == ROWS.key
