"""What no job of a study could be trained with is told before the first one, and before anything is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from experiment.studies import PLAIN, Shown, read_from_arrays, write_study

from paren import api
from paren.data.checks import check_data
from paren.experiment import training
from paren.text.errors import ParenError

pytestmark = pytest.mark.usefixtures("own_cache")

TEXT = PLAIN.replace(":batch 8", ":batch batch :microbatches parts") + "(def batch 8)(def parts 2)"


def write(folder: Path, forms: str, rows: int = 40, text: str = TEXT) -> Path:
    path = write_study(folder, forms, text)
    read_from_arrays(path, "x.npy", "y.npy")
    x = np.random.default_rng(0).normal(size=(rows, 2)).astype(np.float32)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", x.sum(1))
    return path


def refused(path: Path, **options: int) -> ParenError:
    out = path.parent / "out"
    with pytest.raises(ParenError) as raised:
        api.load(path).run(out, **options)
    assert not out.exists()
    return raised.value


def test_batches_that_the_data_do_not_fill(tmp_path: Path) -> None:
    path = write(tmp_path, "(defsweep (batch 41 100 40) (rate 1e-3))")
    found = refused(path).errors
    assert [(each.code, each.message, [note.message for note in each.notes]) for each in found] == [
        (
            "E-DATA-018",
            f"split train has 40 samples, fewer than one batch of {batch}",
            [f"in the configuration batch {batch}"],
        )
        for batch in (41, 100)
    ]
    path.write_text(path.read_text().replace("(batch 41 100 40)", "(batch 40)"))
    assert api.load(path).run(tmp_path / "out").done == 3


def test_data_that_no_job_can_take(tmp_path: Path) -> None:
    path = write(tmp_path, "(defsweep (rate 1e-3))")
    np.save(tmp_path / "y.npy", np.full(40, np.nan, np.float32))
    (error,) = refused(path).errors
    assert (error.code, error.message) == (
        "E-DATA-017",
        "sample 0 of array y in y.npy is nan, which is not finite: y must be finite",
    )
    assert [note.message for note in error.notes] == ["in the configuration baseline and 1 more"]


def test_first_weights_that_are_not_there_or_do_not_fit(tmp_path: Path) -> None:
    text = TEXT.replace(":seed replica", ":seed replica :from weights") + '(def weights "w.safetensors")'
    path = write(tmp_path, '(defsweep (weights "v.safetensors") (hidden [5]))', text=text)
    found = refused(path).errors
    place, system = "the weights {} cannot be read (no such file or directory)", tmp_path
    assert [(each.code, each.message, each.notes[-1].message) for each in found] == [
        ("E-START-001", place.format(system / "w.safetensors"), "in the configuration baseline and 1 more"),
        ("E-START-001", place.format(system / "v.safetensors"), 'in the configuration weights "v.safetensors"'),
    ]
    plain = write(tmp_path / "plain", "")
    made = api.load(plain).run(tmp_path / "made").out
    (best,) = made.glob("checkpoints/0*/parameters.safetensors")
    for name in ("w", "v"):
        (tmp_path / f"{name}.safetensors").write_bytes(best.read_bytes())
    found = refused(path).errors
    assert {each.code for each in found} == {"E-START-002"}
    assert {note.message for each in found for note in each.notes} == {"in the configuration hidden [5]"}
    path.write_text(path.read_text().replace("(hidden [5])", ""))
    assert api.load(path).run(tmp_path / "out").done == 2


def test_a_stacking_that_does_not_divide(tmp_path: Path) -> None:
    path = write(tmp_path, "(defsweep (parts 3))")
    error = refused(path, stacking=3)
    assert (error.code, error.message, error.fix) == (
        "E-MEM-003",
        "--stacking 3 does not divide the 2 microbatches of a batch",
        "use 1 or 2, or leave it out",
    )
    assert [note.message for note in error.notes] == ["in the configuration baseline"]


def test_finished_jobs_are_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, checked = write(tmp_path, "(defsweep (rate 1e-3))"), []
    monkeypatch.setattr(training, "check_data", lambda *given, **named: checked.append(check_data(*given, **named)))
    view = Shown()
    assert api.load(path).run(tmp_path / "out", progress=view).done == 2
    assert len(checked) == 4  # before the first job, and in each
    assert api.load(path).run(tmp_path / "out").done == 2
    assert len(checked) == 4


def test_what_is_noted_of_data_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some words of a text\n" * 40)
    (tmp_path / "b.txt").write_text("x")
    path = tmp_path / "study.paren"
    path.write_text(
        '(def rate 1e-2) (defdata text (text-files "*.txt" :tokenizer bytes :length 8 :boundary separate))\n'
        "(defmodel next ((x int32 [8])) (linear (embedding x 256 4) 256))\n"
        "(defrun :data text :loss (cross-entropy (next tokens) targets) :optimizer (adam :rate rate)\n"
        "  :batch 4 :steps 2)\n"
        "(defsweep (rate 1e-3))\n"
    )
    view = Shown()
    assert api.load(path).run(tmp_path / "out", progress=view).done == 2
    told = view.notices + [event.text for event in view.events if event.kind == "notice"]
    note = "1 of 2 documents in split train have fewer than 9 tokens, and are left out"
    assert told.count(note) == 1
