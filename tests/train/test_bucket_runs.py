"""Runs whose checkpoints are in a bucket: as on a disk, whatever the store does in between."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from metric_lines import without_measured
from stores import BUCKET, BUSY, CUT, LOST, PASS, Proxy, Seen
from training_fakes import Trial, engine_at, run_form, save

from paren.text.errors import ParenError
from paren.train.checkpoint import CheckpointStore
from paren.train.manifest import Manifest
from paren.train.places import lease, transfer
from paren.train.places.bucket import BucketFolder
from paren.train.places.object_store import Bucket
from paren.train.places.open import open_place
from paren.train.read_run import read_metrics, read_weights
from paren.train.resume import find_checkpoints, restore_newest

PLACE = f"s3://{BUCKET}/a run/ä"


def keys() -> list[str]:
    return [key.removeprefix("a run/ä/") for key in Bucket(BUCKET).keys("")]


def folder(place: str = PLACE) -> BucketFolder:
    opened = open_place(place)
    assert isinstance(opened, BucketFolder)
    return opened


def make_store(root: BucketFolder | None = None, **changes: object) -> CheckpointStore:
    values = {"run": "r", "program": "p" * 64, "identity": {}, "versions": {"paren": "0"}, "keep": 100}
    return CheckpointStore(root or folder(), **{**values, **changes})  # type: ignore[arg-type]


def lines(out: Path) -> list[dict[str, object]]:
    text = (out / "metrics.jsonl").read_text().splitlines()
    return [without_measured(line) for line in text if '"annotation"' not in line]


@pytest.mark.parametrize("copies", [False, True])
def test_a_run_is_the_same_as_with_a_disk(store: int, tmp_path: Path, copies: bool) -> None:
    """Tensor files byte for byte, the manifest but for names; it is resumed, and its best parameters are there too."""
    there, here = (Trial(tmp_path / name, copies_state=copies) for name in ("there", "here"))
    there.start(steps=7, checkpoints=PLACE)
    there.start(resume="latest", checkpoints=PLACE)
    here.start()
    assert there.state_bytes() == here.state_bytes()
    assert lines(there.out) == lines(here.out)
    for name in ("000008", "000012"):
        kept = here.out / "checkpoints" / name
        ours = Manifest.read(folder().child(name))
        theirs = json.loads((kept / "manifest.json").read_bytes())
        assert ours.loop.to_json() == theirs["loop"]
        for file, stored in ours.files.items():
            other = f"{file.partition('-')[0]}.safetensors"
            assert folder().child(name).read(file) == (kept / other).read_bytes()
            assert (stored.size, stored.digest) == tuple(theirs["files"][other].values())
    assert not (there.out / "checkpoints").exists()
    assert not (there.out / "best").exists()
    for best in (False, True):
        ours_read = read_weights(there.out, best=best, checkpoints=PLACE)
        theirs_read = read_weights(here.out, best=best)
        assert ours_read.step == theirs_read.step
        for name, array in theirs_read.parameters.items():
            np.testing.assert_array_equal(ours_read.parameters[name], array)


@pytest.mark.parametrize("wanted", ["auto", "8", f"{PLACE}/000008"])
def test_a_run_whose_directory_was_lost_goes_on_in_another(store: int, tmp_path: Path, wanted: str) -> None:
    first = Trial(tmp_path / "first")
    first.start(steps=8, checkpoints=PLACE)
    run = json.loads((first.out / "run.json").read_bytes())["run"]
    shutil.rmtree(first.out)
    second = Trial(tmp_path / "second")
    second.start(resume=wanted, checkpoints=PLACE, steps=10)
    assert json.loads((second.out / "run.json").read_bytes())["run"] == run
    second.start(resume="latest", checkpoints=PLACE)
    whole = Trial(tmp_path / "whole")
    whole.start()
    assert second.state_bytes() == whole.state_bytes()
    assert lines(second.out) == [line for line in lines(whole.out) if line["step"] > 8]  # type: ignore[operator]
    best = [read_weights(each.out, best=True, checkpoints=at) for each, at in ((second, PLACE), (whole, None))]
    assert best[0].step == best[1].step


def test_a_directory_that_a_run_comes_back_to(store: int, tmp_path: Path) -> None:
    """Two machines in turn: metrics after the step that the other went on from are dropped, and a gap is told."""
    one, other = Trial(tmp_path / "one"), Trial(tmp_path / "other")
    one.start(steps=4, checkpoints=PLACE)
    other.start(resume="auto", checkpoints=PLACE, steps=8)
    one.start(resume="auto", checkpoints=PLACE, steps=10)
    assert read_metrics(one.out)["step"].tolist() == [1, 2, 3, 4, 9, 10]
    other.start(resume="8", checkpoints=PLACE)
    assert read_metrics(other.out)["step"].tolist() == [5, 6, 7, 8, 9, 10, 11, 12]
    whole = Trial(tmp_path / "whole")
    whole.start()
    assert other.state_bytes() == whole.state_bytes()


def test_a_place_that_is_empty_or_another_experiments(store: int, tmp_path: Path) -> None:
    with pytest.raises(ParenError) as caught:
        Trial(tmp_path / "a").start(resume="latest", checkpoints=PLACE)
    assert (caught.value.code, caught.value.message) == (
        "E-CKPT-001",
        f"{PLACE} holds no checkpoint to resume from",
    )
    shutil.rmtree(tmp_path / "a")
    Trial(tmp_path / "a").start(resume="auto", checkpoints=PLACE, steps=2)
    with pytest.raises(ParenError) as caught:
        Trial(tmp_path / "b").start(checkpoints=PLACE)
    assert caught.value.code == "E-RUN-015"
    with pytest.raises(ParenError) as caught:
        Trial(tmp_path / "b", digest="e" * 64).start(resume="auto", checkpoints=PLACE)
    assert (caught.value.code, caught.value.message) == (
        "E-CKPT-004",
        f"the checkpoint {PLACE}/000002 is of another experiment (dddddddddddd instead of eeeeeeeeeeee)",
    )


def test_old_checkpoints_go(store: int, tmp_path: Path) -> None:
    trial = Trial(tmp_path / "run", run_form(keep_checkpoints=2, checkpoint_every=1, keep_best=None))
    trial.start(checkpoints=PLACE)
    assert sorted({key.partition("/")[0] for key in keys()}) == ["000011", "000012", "latest"]
    assert len(keys()) == 7


@pytest.mark.parametrize("harm", [BUSY, CUT, LOST])
def test_a_store_that_fails_every_third_time(
    store: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    trial = Trial(tmp_path / "run")
    with Proxy(store, lambda seen: harm if seen.number % 3 == 2 else PASS) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        trial.start(checkpoints=PLACE, steps=9)
        trial.start(checkpoints=PLACE, resume="latest")
        assert len(proxy.harmed) > 30
    whole = Trial(tmp_path / "whole")
    whole.start()
    assert trial.state_bytes() == whole.state_bytes()


def test_damage_is_found_and_the_one_before_is_taken(store: int, tmp_path: Path) -> None:
    trial = Trial(tmp_path / "run")
    trial.start(checkpoints=PLACE, steps=9)
    bucket = Bucket(BUCKET)
    (name,) = (key for key in bucket.keys("a run/ä/000009/") if "optimizer" in key)
    content = bytearray(bucket.get(name))
    content[-1] ^= 1
    bucket.put(name, bytes(content))
    trial.start(checkpoints=PLACE, resume="latest")
    assert trial.listener.notices[0].startswith("checkpoint 000009 is damaged (the bytes of tensor '")
    assert trial.listener.notices[0].endswith("do not match their SHA-256), going back to 000008")
    whole = Trial(tmp_path / "whole")
    whole.start()
    assert trial.state_bytes() == whole.state_bytes()


def test_a_store_that_does_not_answer_is_no_damage(store: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Going back to an older checkpoint because of it would throw steps away."""
    monkeypatch.setattr(lease, "IN_RUN", 0.1)
    trial = Trial(tmp_path / "run")
    trial.start(checkpoints=PLACE, steps=9)
    for wanted in ("manifest.json", "optimizer"):

        def harm(seen: Seen, wanted: str = wanted) -> str:
            return BUSY if seen.name == "GetObject" and f"000009/{wanted}" in seen.path else PASS

        with Proxy(store, harm) as proxy:
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
            with pytest.raises(ParenError) as caught:
                trial.start(checkpoints=PLACE, resume="latest")
        assert caught.value.code == "E-S3-006"


def test_a_save_that_fails_leaves_the_one_before(store: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "IN_RUN", 0.1)
    trial = Trial(tmp_path / "run", run_form(keep_best=None))
    with Proxy(store, lambda seen: BUSY if seen.method == "PUT" and "000008" in seen.path else PASS) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        with pytest.raises(ParenError) as caught:
            trial.start(checkpoints=PLACE)
        port = proxy.port
    assert caught.value.code == "E-S3-006"
    told, _, rest = caught.value.message.partition(": PutObject of ")
    assert told == f"the checkpoint {PLACE}/000008 was not saved"
    assert rest.startswith(f"{PLACE}/000008/parameters-")
    assert rest.endswith(f".safetensors failed: http://127.0.0.1:{port} answers SlowDown (503)")
    assert [note.message for note in caught.value.notes] == [f"the checkpoint before it, {PLACE}/000004, is intact"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{store}")
    assert folder().published() == ["000004"]
    trial.start(checkpoints=PLACE, resume="latest")
    whole = Trial(tmp_path / "whole")
    whole.start()
    assert trial.state_bytes() == whole.state_bytes()


class Gone(BaseException):
    """Stands for SIGKILL: nothing of paren may catch it."""


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.long)])
def test_a_kill_at_every_request_of_a_save_leaves_a_whole_checkpoint(
    store: int, monkeypatch: pytest.MonkeyPatch, replaces: bool, stride: int
) -> None:
    """Before and after the store has done it; in parts, and where the name was taken by an abandoned branch."""
    monkeypatch.setattr(transfer, "Upload", SmallParts)
    original, number, done = Bucket._try, 0, False
    there = folder()
    bucket = there.bucket
    while not done:
        there.remove()
        first = save(make_store(there), 1)
        if replaces:
            save(make_store(there, head=first), 2, engine_at(22))
            make_store(there).follow(first)
        asked = 0

        def killing(self: Bucket, *given: object, at: int = number) -> object:
            nonlocal asked
            asked += 1
            if asked == at // 2 + 1:
                if at % 2:
                    original(self, *given)  # type: ignore[arg-type]
                raise Gone
            return original(self, *given)  # type: ignore[arg-type]

        monkeypatch.setattr(Bucket, "_try", killing)
        try:
            save(make_store(there, head=first, keep=1), 2)
            done = True
        except Gone:
            number += stride
        monkeypatch.setattr(Bucket, "_try", original)
        again = make_store(there)
        again.root.clean()
        assert bucket.uploads("a run") == []
        named = {f"{name}/{file}" for name in there.published() for file in Manifest.read(there.child(name)).files}
        assert {key for key in there._names() if key.endswith(".safetensors")} == named
        engine = engine_at(9)
        found = restore_newest(again, find_checkpoints(again, "latest", False), engine.slots(), engine.roles)
        step = found.manifest.step
        assert step in (1, 2)
        assert engine.state["linear.weight"].tobytes() in {
            engine_at(seed).state["linear.weight"].tobytes() for seed in (step, *((22,) if step == 2 else ()))
        }
        if replaces:
            assert there.published() in (["000001", "000002"], ["000002"])
    assert number > 20


class SmallParts(transfer.Upload):
    """Every file goes in parts, on the thread that writes: stores want the last part only to be short."""

    def __init__(self, bucket: Bucket, key: str, size: int) -> None:
        super().__init__(bucket, key, size)
        self._id = bucket.begin(key)

    def _send(self) -> None:
        self._number += 1
        self._tags.append(self._bucket.upload(self._key, str(self._id), self._number, self._part))


def test_what_is_not_ours_is_left_alone(store: int) -> None:
    bucket = Bucket(BUCKET)
    other = [
        "a run/ä/notes.txt",
        "a run/ä/000001/mine.safetensors",
        "a run/ä/x/a-01234567.safetensors",
        "a run/b/.probe-1",
    ]
    for key in other:
        bucket.put(key, b"1")
    bucket.put("a run/ä/.probe-0123", b"1")
    bucket.put("a run/ä/000007/parameters-01234567.safetensors", b"1")
    upload = bucket.begin("elsewhere/a-01234567.safetensors")
    bucket.begin("a run/ä/000007/optimizer-01234567.safetensors")
    save(make_store(), 1)
    make_store().root.clean()
    assert set(other) <= set(bucket.keys(""))
    assert [key for key in keys() if key.startswith((".probe", "000007"))] == []
    assert bucket.uploads("") == [("elsewhere/a-01234567.safetensors", upload)]


def test_a_store_that_does_not_tell_of_uploads(store: int, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = b"<Error><Code>AccessDenied</Code></Error>"
    with Proxy(store, lambda seen: answer if seen.name == "ListMultipartUploads" else PASS) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        notices: list[str] = []
        there = folder()
        there.bucket.notice = notices.append
        there.clean()
    assert notices == [
        f"uploads that killed runs left in {PLACE} stay: ListMultipartUploads of {PLACE}/ failed: access is denied"
    ]


def test_two_runs_in_one_place(store: int, tmp_path: Path) -> None:
    with folder().lock(lambda text: None), pytest.raises(ParenError) as caught:
        Trial(tmp_path / "run").start(checkpoints=PLACE)
    assert caught.value.code == "E-RUN-004"
    assert caught.value.message.startswith(f"{PLACE} is in use by process ")
