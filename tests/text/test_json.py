"""JSON that was written by others: whatever is damaged is damaged, also what is nested too deeply to be read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import paren
from paren.data.tokenizer import load_tokenizer
from paren.experiment.analysis.analyze import recorded_metrics
from paren.experiment.job_files import read_job_status
from paren.experiment.store.artifact import read_artifact
from paren.text.errors import ParenError
from paren.text.json import parse_json
from paren.train.files import read_object
from paren.train.manifest import Damaged, Manifest
from paren.train.metrics import length
from paren.train.places.disk import DiskFolder
from paren.train.read_run import read_metrics, read_weights
from paren.train.run_directory import read_run_file
from paren.train.status import read_status
from paren.train.tensor_file import MalformedFile, read_header

DEEP = "[" * 100_000 + "]" * 100_000
LISTS = '{"step": ' + DEEP + "}"
# What a process of paren tells another, over a pipe or the store of ranks, and what it wrote itself just before.
OWN_WORDS = {
    "paren/experiment/events.py",
    "paren/experiment/job_files.py",
    "paren/experiment/worker_pool.py",
    "paren/parallel/cards.py",
    "paren/parallel/failure.py",
    "paren/parallel/meet.py",
    "paren/parallel/ranks.py",
    "paren/parallel/sign.py",
    "paren/train/loop.py",
}


def test_json_is_parsed_and_all_else_is_a_value_error() -> None:
    assert parse_json('{"a": [1, 2.5, null, "\\u00e9"]}') == {"a": [1, 2.5, None, "é"]}
    assert parse_json(b"[true]") == [True]
    with pytest.raises(ValueError, match="Expecting"):
        parse_json("{")
    for text in (DEEP, LISTS, LISTS.encode(), '{"a":' * 100_000 + "1" + "}" * 100_000):
        with pytest.raises(ValueError, match=r"^it is nested too deeply$"):
            parse_json(text)


def test_files_are_read_in_one_way() -> None:
    root = Path(paren.__file__).parents[1]
    found = {
        path.relative_to(root).as_posix()
        for path in (root / "paren").rglob("*.py")
        if re.search(r"\bjson\.loads?\(", path.read_text())
    }
    assert found == {"paren/text/json.py", *OWN_WORDS}


@pytest.mark.parametrize(
    ("file", "read"),
    [
        ("status.json", read_status),
        ("status.json", read_job_status),
        ("job.json", lambda folder: read_object(folder / "job.json")),
        ("metrics.jsonl", lambda folder: length(folder / "metrics.jsonl", 5) or None),
        ("analysis.json", lambda folder: recorded_metrics(folder) or None),
    ],
)
def test_what_counts_as_not_there(tmp_path: Path, file: str, read: Callable[[Path], object]) -> None:
    (tmp_path / file).write_text(LISTS + "\n")
    assert read(tmp_path) is None


@pytest.mark.parametrize(
    ("file", "read", "code", "message"),
    [
        ("run.json", read_run_file, "E-RUN-010", "{}/run.json is damaged"),
        ("run.json", paren.restore, "E-RUN-010", "{}/run.json is damaged"),
        ("job.json", paren.restore, "E-RUN-014", "{}/job.json cannot be read"),
        ("metrics.jsonl", read_metrics, "E-RUN-014", "line 1 of {}/metrics.jsonl is damaged"),
        (
            "artifact.json",
            read_artifact,
            "E-STORE-002",
            "the artifact {} is damaged: artifact.json is not what was written",
        ),
        (
            "tokenizer.json",
            lambda folder: load_tokenizer(folder / "tokenizer.json"),
            "E-DATA-015",
            "{}/tokenizer.json is not a tokenizer file: it is nested too deeply",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, file: str, read: Callable[[Path], object], code: str, message: str) -> None:
    (tmp_path / file).write_text(LISTS + "\n")
    with pytest.raises(ParenError) as caught:
        read(tmp_path)
    assert (caught.value.code, caught.value.message) == (code, message.format(tmp_path))


def test_the_best_weights_of_a_damaged_manifest_are_refused(tmp_path: Path) -> None:
    run = {"run": "r", "directory": "d", "experiment": "e"}
    (tmp_path / "run.json").write_text(json.dumps(run))
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "manifest.json").write_text(LISTS)
    with pytest.raises(ParenError) as caught:
        read_weights(tmp_path, best=True)
    assert caught.value.message == f"the checkpoint {tmp_path / 'best'} is damaged: manifest.json is not readable"


def test_a_checkpoint_of_a_damaged_manifest_or_header_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(LISTS)
    with pytest.raises(Damaged, match=r"^manifest.json is not readable$"):
        Manifest.read(DiskFolder(tmp_path))
    content = LISTS.encode()
    (tmp_path / "tensors").write_bytes(len(content).to_bytes(8, "little") + content)
    with (tmp_path / "tensors").open("rb") as file, pytest.raises(MalformedFile, match=r"^the header is not readable$"):
        read_header(file, 8 + len(content))
