"""Data that cannot be trained on: refused before step 1, with the place in the data and in the file, exit code 1."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from paren_command import SMALL, paren, write_small, write_table

import paren as library

TOKENS = """(defdata text (token-file "d.bin" :dtype uint16 :length 8 :split ((train 0.8) (validation 0.2))))
(defmodel net ((tokens int32 [8])) (linear (take (param e [256 4] :init (normal 0.1)) tokens) 256))
(defrun :data text :loss (cross-entropy (net tokens) targets) :optimizer (sgd :rate 0.1) :batch 4 :steps 2)
"""
TEXTS = """(defdata text (text-files "*.txt" :tokenizer bytes :length 8 :split ((train 0.8) (validation 0.2))))
(defmodel net ((tokens int32 [8])) (linear (take (param e [256 4] :init (normal 0.1)) tokens) 256))
(defrun :data text :loss (cross-entropy (net tokens) targets) :optimizer (sgd :rate 0.1) :batch 4 :steps 2)
"""


def refused(path: Path) -> list[tuple[str, str]]:
    """The codes and messages with which a run is refused; nothing was trained."""
    with pytest.raises(library.ParenError) as caught:
        library.load(path).run(out=path.parent / "out")
    assert not (path.parent / "out" / "metrics.jsonl").exists()
    assert all(error.span is not None for error in caught.value.errors)
    return [(error.code, error.message) for error in caught.value.errors]


@pytest.mark.parametrize(("rows", "split", "held"), [(3, "(train 1)", 3), (7, "(train 1)", 7), (8, "(train 0.5)", 4)])
def test_fewer_examples_than_a_batch(tmp_path: Path, rows: int, split: str, held: int) -> None:
    whole = "((train 0.5) (validation 0.5))"
    text = SMALL.replace(whole, f"({split} (validation 0.5))" if "0.5" in split else f"({split})")
    path = write_small(tmp_path, text.replace(" :evaluate-every 2", ""))
    write_table(tmp_path, rows=rows)
    assert refused(path) == [("E-DATA-018", f"split train has {held} samples, fewer than one batch of 8")]


@pytest.mark.parametrize("steps", ["0", "-3", "1.5", "none"])
def test_no_steps_are_no_training(tmp_path: Path, steps: str) -> None:
    write_small(tmp_path, SMALL.replace(":steps 4", f":steps {steps}"))
    ended = paren(tmp_path, "run", "f.paren")
    assert (ended.code, ended.out) == (1, "")
    assert "E-FORM-006: :steps is an integer of at least 1, not" in ended.err


@pytest.mark.parametrize("label", [4, -1, -100])
@pytest.mark.parametrize("at", [3, 31])
def test_a_label_out_of_range(tmp_path: Path, label: int, at: int) -> None:
    labels = np.arange(32, dtype=np.int32) % 4
    labels[at] = label
    path = write_small(tmp_path)
    write_table(tmp_path, labels)
    expected = f"sample {at} of array label in d.npz is {label}, but label must be in 0 .. 3"
    assert refused(path) == [("E-DATA-016", expected)]


@pytest.mark.parametrize(("at", "value"), [(1999, 256), (0, 300), (1000, 65535)])
def test_a_token_out_of_range_anywhere_in_a_file(tmp_path: Path, at: int, value: int) -> None:
    tokens = (np.arange(2000) % 256).astype(np.uint16)
    tokens[at] = value
    tokens.tofile(tmp_path / "d.bin")
    path = tmp_path / "f.paren"
    path.write_text(TOKENS)
    assert refused(path) == [("E-DATA-016", f"token {at} of d.bin is {value}, but tokens must be in 0 .. 255")]


def test_the_reference_device_refuses_the_same_with_the_same_words(tmp_path: Path) -> None:
    write_small(tmp_path)
    write_table(tmp_path, np.full(32, 9, np.int32))
    cpu, reference = (paren(tmp_path, "run", "f.paren", "--device", device) for device in ("cpu", "reference"))
    assert (cpu.code, cpu.out, cpu.err) == (reference.code, reference.out, reference.err)
    assert "is 9, but label must be in 0 .. 3" in cpu.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"plain text\nwith \xff in it\n" * 9, "a.txt:2:6: the byte 0xff is not UTF-8 (invalid start byte)"),
        ("sixteen".encode("utf-16"), "a.txt:1:1: the byte 0xff is not UTF-8"),
        (b"", "there is no text in the documents"),
        (b"short", "split train has 4 tokens, but one example of length 8 needs 9"),
    ],
)
def test_a_text_that_is_none(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    path = tmp_path / "f.paren"
    path.write_text(TEXTS)
    ((_, said),) = refused(path)
    assert said.startswith(message)


def test_every_way_to_write_a_file_is_the_same_experiment(tmp_path: Path) -> None:
    """A byte-order mark, other line ends, a comment, another name and folder give the same losses and digest."""
    seen = set()
    for folder, name, change in (
        ("plain", "f.paren", lambda text: text),
        ("marked", "f.paren", lambda text: "\ufeff" + text),
        ("windows", "f.paren", lambda text: text.replace("\n", "\r\n")),
        ("old mac", "f.paren", lambda text: text.replace("\n", "\r")),
        ("größe 日本", "ñandú netz.paren", lambda text: "; größe 日本\n" + text),
    ):
        place = tmp_path / folder
        place.mkdir()
        write_table(place)
        path = place / name
        path.write_bytes(change(SMALL).encode())
        run = library.load(path).run(out=place / "out")
        digest = json.loads((place / "out" / "run.json").read_bytes())["experiment"]
        seen.add((digest, tuple(run.metrics()["loss"].tolist())))
    assert len(seen) == 1


@pytest.mark.parametrize("mode", ["0", "1"])
def test_the_locale_does_not_matter(tmp_path: Path, mode: str) -> None:
    """A C locale with and without Python's UTF-8 mode: the path is not ASCII, the run goes on where it stopped."""
    place = tmp_path / "größe 日本"
    place.mkdir()
    write_small(place)
    locale = {"LC_ALL": "C", "PYTHONUTF8": mode, "PYTHONCOERCECLOCALE": "0"}
    file = str(place / "f.paren")
    first = paren(tmp_path, "run", file, "--out", "läuft", "--steps", "2", **locale)
    assert first.code == 0, first.err
    second = paren(tmp_path, "run", file, "--out", "läuft", "--resume", "latest", **locale)
    assert second.code == 0, second.err
    assert len((tmp_path / "läuft" / "metrics.jsonl").read_bytes().splitlines()) >= 4
    if mode == "1":
        assert library.restore(tmp_path / "läuft").step == 4


@pytest.mark.parametrize("content", [b"(def x 1)\n; caf\xe9\n", b"\xff\xfe(\x00", b"(def x \xc3)"])
def test_bytes_that_are_no_text_have_a_place(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f.paren").write_bytes(content)
    ended = paren(tmp_path, "check", "f.paren")
    assert ended.code == 1
    assert "E-TXT-002" in ended.err
    assert ended.err.startswith("f.paren:")


def test_a_function_that_calls_itself_for_ever_is_shown_in_few_lines(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("def make():\n    return make()\n")
    path = tmp_path / "f.paren"
    form = '(defdata table (python "f.py" make :fields ((x float32 [3]) (label int32 [])) :split ((train 1))))\n'
    start = SMALL.index("(defdata")
    text = SMALL[:start] + form + SMALL[SMALL.index("(defmodel") :]
    path.write_text(text.replace(" :evaluate-every 2", ""))
    with pytest.raises(library.ParenError) as caught:
        library.load(path).run(out=tmp_path / "out")
    assert caught.value.message == "make in f.py raised RecursionError: maximum recursion depth exceeded"
    assert len(caught.value.notes) == 17
    assert caught.value.notes[8].message.endswith("further calls between")


def test_a_run_folder_that_cannot_be_written(tmp_path: Path) -> None:
    write_small(tmp_path)
    (tmp_path / "taken").write_text("a file")
    for out, reason in (("taken", "file exists"), (os.path.join("taken", "below"), "not a directory")):
        ended = paren(tmp_path, "run", "f.paren", "--out", out)
        assert ended.code == 1
        assert ended.err.startswith(f"E-RUN-005: {out} is not writable ({reason})\n")
