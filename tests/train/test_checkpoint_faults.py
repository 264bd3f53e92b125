"""Faults while a checkpoint is saved: kills, full and read-only disks; the one before always stands."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
from training_fakes import FaultyFiles, Killed, Trial, engine_at, make_store, run_form, save

from paren.text.errors import ParenError
from paren.train.files import Files
from paren.train.places import direct, disk
from paren.train.places.disk import DiskFolder
from paren.train.resume import find_checkpoints, restore_newest


def operations_of_a_save(tmp_path: Path) -> int:
    files = FaultyFiles()
    store = make_store(tmp_path / "count", files=files, keep=1)
    save(store, 1)
    before = files.count
    save(store, 2)
    return files.count - before


@pytest.fixture(params=["cached", "past the cache"], autouse=True)
def writing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are written as small ones, and as large ones."""
    if request.param == "past the cache":
        monkeypatch.setattr(disk, "LARGE", 0)
        monkeypatch.setattr(direct, "BUFFER", 4096)


@pytest.mark.parametrize("replaces", [False, True])
def test_a_kill_at_every_operation_of_a_save_leaves_a_whole_checkpoint(tmp_path, replaces):
    """Every write (half done), sync and rename; also where the name was taken by an abandoned branch."""
    count = operations_of_a_save(tmp_path) + 1
    for place in range(count):
        root = tmp_path / f"kill-{place}-{replaces}"
        store = make_store(root, keep=1 if not replaces else 9)
        first = save(store, 1)
        if replaces:
            save(store, 2, engine_at(22))
            store.follow(first)
        files = FaultyFiles(fails=lambda number, name, place=place: Killed() if number == place else None)
        dying = make_store(root, keep=store.keep, files=files, head=store.head)
        try:
            save(dying, 2)
        except Killed:
            pass
        else:
            assert place >= count - 2
        again = make_store(root)
        again.root.clean()
        assert not list(root.glob(".temporary*"))
        engine = engine_at(9)
        found = restore_newest(again, find_checkpoints(again, "latest", False), engine.slots(), engine.roles)
        assert found.manifest.step in (1, 2)
        assert (
            engine.state["linear.weight"].tobytes() == engine_at(found.manifest.step).state["linear.weight"].tobytes()
        )


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("operation", ["write", "sync", "rename", "sync_folder"])
def test_a_fault_that_passes_is_tried_again(tmp_path, code, operation):
    notices, failed = [], []

    def fails(number: int, name: str):
        if name == operation and not failed:
            failed.append(name)
            return OSError(code, "Passing trouble")
        return None

    store = make_store(tmp_path, files=FaultyFiles(fails=fails), notice=notices.append)
    save(store, 1)
    assert notices == [f"saving {tmp_path / '000001'} failed (passing trouble), trying once more"]
    engine = engine_at(2)
    restore_newest(store, find_checkpoints(store, "latest", False), engine.slots(), engine.roles)
    assert not list(tmp_path.glob(".temporary*"))


@pytest.mark.parametrize(
    ("code", "attempts"), [(errno.ENOSPC, 2), (errno.EROFS, 1), (errno.EACCES, 1), (errno.EPERM, 1)]
)
@pytest.mark.parametrize("operation", ["write", "rename"])
def test_a_fault_that_stays_is_an_error_with_path_and_bytes(tmp_path, code, attempts, operation, monkeypatch):
    store = make_store(tmp_path)
    save(store, 1)
    before = {path: path.read_bytes() for path in (tmp_path / "000001").iterdir()}
    tried = []

    def fails(number: int, name: str):
        if name != operation:
            return None
        tried.append(name)
        return OSError(code, "No luck")

    store.root = DiskFolder(tmp_path, FaultyFiles(fails=fails))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 58, 42))
    with pytest.raises(ParenError) as caught:
        save(store, 2)
    assert caught.value.code == "E-CKPT-008"
    assert caught.value.message == (
        f"the checkpoint {tmp_path / '000002'} could not be written (no luck): it needs 60 bytes, and 42 bytes are free"
    )
    assert [note.message for note in caught.value.notes] == [
        f"the checkpoint before it, {tmp_path / '000001'}, is intact"
    ]
    assert len(tried) == attempts
    assert {path: path.read_bytes() for path in (tmp_path / "000001").iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000001", "latest"]


def test_a_first_save_that_fails_says_that_there_is_none_before(tmp_path):
    store = make_store(tmp_path, files=FaultyFiles(fails=lambda number, name: OSError(errno.EROFS, "Read-only")))
    with pytest.raises(ParenError) as caught:
        save(store, 1)
    assert [note.message for note in caught.value.notes] == ["there is no earlier checkpoint"]


def test_a_run_whose_save_fails_stops_with_the_code_and_goes_on_later(tmp_path):
    trial = Trial(tmp_path / "run")

    def fails(number: int, name: str):
        return OSError(errno.ENOSPC, "No space left on device") if armed and name == "write" else None

    armed: list[int] = []
    trial.files = FaultyFiles(fails=fails)
    trial.before = lambda name, number: armed.append(1) if name == "update" and number == 8 else None
    with pytest.raises(ParenError) as caught:
        trial.start()
    assert caught.value.code == "E-CKPT-008"
    trial.files, trial.before = Files(), lambda name, step: None
    trial.start(resume="latest")
    whole = Trial(tmp_path / "whole")
    whole.start()
    assert trial.state_bytes() == whole.state_bytes()


def test_leftovers_of_a_killed_save_are_cleaned_at_the_next_start(tmp_path):
    trial = Trial(tmp_path / "run", run_form(steps=4))
    trial.start(steps=2)
    left = trial.out / "checkpoints" / ".temporary-000004-ab"
    left.mkdir()
    (left / "parameters.safetensors").write_bytes(b"half")
    (trial.out / ".temporary-status.json-cd").write_bytes(b"{")
    (trial.out / "best").mkdir(exist_ok=True)
    (trial.out / "best" / ".temporary-x").write_bytes(b"{")
    trial.start(resume="latest")
    assert not list(trial.out.rglob(".temporary*"))


def failing_at(name: str, code: int = errno.EACCES) -> FaultyFiles:
    """Refuses every rename that concerns a file or folder of this name."""

    class Failing(FaultyFiles):
        def rename(self, source: Path, target: Path) -> None:
            if name in (source.name, target.name):
                raise OSError(code, "Permission denied")
            super().rename(source, target)

    return Failing()


def test_a_pointer_that_cannot_be_written_is_told_and_no_loss(tmp_path):
    notices = []
    store = make_store(tmp_path, files=failing_at("latest"), notice=notices.append)
    save(store, 1), save(store, 2)
    assert notices == [f"{tmp_path / 'latest'} could not be written (permission denied)"] * 2
    assert [each.manifest.step for each in make_store(tmp_path).lineage()[0]] == [2, 1]


def test_an_old_checkpoint_that_cannot_be_deleted_is_told_and_no_failure(tmp_path):
    notices = []
    store = make_store(tmp_path, files=failing_at("000001"), notice=notices.append, keep=1)
    save(make_store(tmp_path), 1)
    save(store, 2)
    assert notices == [f"the old checkpoint {tmp_path / '000001'} could not be deleted (permission denied)"]


def test_a_publication_that_fails_puts_the_replaced_one_back(tmp_path):
    """The second rename fails: what stood under the name is there again."""
    store = make_store(tmp_path)
    first = save(store, 1)
    save(store, 2)
    store.follow(first)
    renames = []

    def fails(number: int, name: str):
        if name == "rename":
            renames.append(number)
            if len(renames) == 2:
                return OSError(errno.EACCES, "Permission denied")
        return None

    store.root = DiskFolder(tmp_path, FaultyFiles(fails=fails))
    with pytest.raises(ParenError, match="E-CKPT-008"):
        save(store, 2, engine_at(22))
    engine = engine_at(9)
    restore_newest(store, find_checkpoints(store, "2", False), engine.slots(), engine.roles)
    assert engine.state["linear.weight"].tobytes() == engine_at(2).state["linear.weight"].tobytes()


def test_a_fallback_to_another_layout_is_refused_too(tmp_path):
    first = save(make_store(tmp_path, identity={"threads": 1}), 1)
    store = make_store(tmp_path, identity={"threads": 2}, head=first)
    save(store, 2)
    (tmp_path / "000002" / "parameters.safetensors").unlink()
    engine = engine_at(9)
    with pytest.raises(ParenError) as caught:
        restore_newest(store, find_checkpoints(store, "latest", False), engine.slots(), engine.roles)
    assert caught.value.code == "E-CKPT-007"
    assert restore_newest(store, find_checkpoints(store, "latest", True), engine.slots(), engine.roles)


def test_best_parameters_that_are_gone_are_told(tmp_path):
    trial = Trial(tmp_path / "run")
    trial.start(steps=5)
    (trial.out / "best" / "parameters-000005.safetensors").unlink()
    trial.start(resume="latest")
    assert trial.listener.notices[0] == ("the best parameters of step 5 are gone; the next better ones will be kept")
