"""Checkpoints that a thread writes from a copy while training goes on: the same bytes, and no fault is lost."""

from __future__ import annotations

import errno
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from metric_lines import without_measured
from training_fakes import FaultyFiles, Killed, LinearEngine, Trial, engine_at, make_store, run_form
from warm import LIMIT

from paren.text.errors import ParenError
from paren.train.best import BestStore
from paren.train.checkpoint import CheckpointStore
from paren.train.files import Files
from paren.train.manifest import Manifest
from paren.train.places.disk import DiskFolder
from paren.train.resume import find_checkpoints, restore_newest
from paren.train.saving import Saver
from paren.train.state import LoopState
from paren.train.status import read_status


@dataclass
class Gate(Files):
    """Files whose first write of a checkpoint waits until the test opens the gate."""

    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def write(self, file, data):
        self.reached.set()
        assert self.opened.wait(LIMIT)
        super().write(file, data)


def make_saver(store: CheckpointStore, engine: LinearEngine, state: LoopState, notices: list[str]) -> Saver:
    best = BestStore(store.root.child("best"))
    return Saver(store, best, state, engine.slots(), engine.roles, notices.append, copies=True)


def checkpoint_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


def trained(out: Path, *, copies: bool, **changes) -> Trial:
    trial = Trial(out, run_form(**changes), copies_state=copies)
    trial.start()
    return trial


def test_what_is_written_is_the_state_of_its_step_although_training_has_gone_on(tmp_path):
    gate = Gate()
    store = make_store(tmp_path / "aside", files=gate)
    engine, state = engine_at(3), LoopState(step=1, samples=8)
    with make_saver(store, engine, state, []) as saver:
        saver.save(10, lambda: None, goes_on=True)
        assert gate.reached.wait(LIMIT)
        for array in engine.slots().values():
            array += 1
        state.step, state.samples = 2, 16
        assert not list(store.root.path.glob("0*"))
        saver.settle()
        gate.opened.set()
    expected = make_store(tmp_path / "between").save(
        engine_at(3).slots(), engine.roles, LoopState(step=1, samples=8), 10
    )
    manifest = Manifest.read(store.root.child("000001"))
    assert checkpoint_files(store.root.path / "000001") == checkpoint_files(expected.folder.path)
    assert (manifest.slots, manifest.files, manifest.loop) == (
        expected.manifest.slots,
        expected.manifest.files,
        expected.manifest.loop,
    )
    assert (manifest.metrics_bytes, manifest.step, manifest.samples) == (10, 1, 8)


def test_a_run_writes_the_same_aside_as_between_steps(tmp_path):
    aside, between = (trained(tmp_path / str(copies), copies=copies, checkpoint_every=2) for copies in (True, False))
    for step in range(2, 13, 2):
        name = f"checkpoints/{step:06d}"
        assert checkpoint_files(aside.out / name) == checkpoint_files(between.out / name)
        one, other = (Manifest.read(DiskFolder(each.out / name)) for each in (aside, between))
        assert (one.loop, one.slots, one.step, one.sequence) == (other.loop, other.slots, other.step, other.sequence)
        lines = (aside.out / "metrics.jsonl").read_bytes()[: one.metrics_bytes].decode().splitlines()
        expected = (between.out / "metrics.jsonl").read_bytes()[: other.metrics_bytes].decode().splitlines()
        said, also_said = (without_measured(each.pop(0)) for each in (lines, expected))
        assert (said.pop("saves_while_training"), also_said.pop("saves_while_training")) == (True, False)
        assert said == also_said
        assert [without_measured(line) for line in lines] == [without_measured(line) for line in expected]
        assert without_measured(lines[-1])["step"] == step
    assert {path.name for path in (aside.out / "best").iterdir()} == {
        path.name for path in (between.out / "best").iterdir()
    }
    assert "checkpoints: 5 written while training went on, 1 between steps" in aside.listener.notices
    assert "checkpoints: 6 written between steps" in between.listener.notices


def test_a_save_waits_for_the_one_before(tmp_path):
    gate = Gate()
    store = make_store(tmp_path, files=gate)
    engine, state = engine_at(1), LoopState(step=1)
    with make_saver(store, engine, state, []) as saver:
        saver.save(0, lambda: None, goes_on=True)
        state.step = 2
        threading.Timer(0.05, gate.opened.set).start()
        saver.save(0, lambda: None, goes_on=True)
        assert (tmp_path / "000001").is_dir()
    first, second = (Manifest.read(DiskFolder(tmp_path / name)) for name in ("000001", "000002"))
    assert (second.parent, second.sequence) == (first.id, 2)


def test_the_metrics_are_on_the_disk_before_the_checkpoint(tmp_path):
    order: list[str] = []

    class Noting(Files):
        def write(self, file, data):
            order.append("write")
            super().write(file, data)

    with make_saver(make_store(tmp_path, files=Noting()), engine_at(1), LoopState(step=1), []) as saver:
        saver.save(0, lambda: order.append("ready"), goes_on=True)
    assert order[:2] == ["ready", "write"]


def failing(code: int, after: int = 0) -> FaultyFiles:
    """Refuses every write of a tensor file or manifest of a checkpoint after the first `after` operations."""
    return FaultyFiles(fails=lambda number, name: OSError(code, "No luck") if number >= after else None)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("how", ["settle", "save", "end"])
def test_an_error_of_the_disk_is_raised_at_the_next_border(tmp_path, code, how):
    state = LoopState(step=1)
    saver = make_saver(make_store(tmp_path, files=failing(code)), engine_at(1), state, [])

    def train() -> None:
        with saver:
            saver.save(0, lambda: None, goes_on=True)
            state.step = 2
            if how == "settle":
                while True:
                    saver.settle()
            elif how == "save":
                saver.save(0, lambda: None, goes_on=True)

    with pytest.raises(ParenError) as caught:
        train()
    assert caught.value.code == "E-CKPT-008"
    assert caught.value.message.startswith(f"the checkpoint {tmp_path / '000001'} could not be written (no luck)")
    assert not list(tmp_path.iterdir())


def test_an_error_of_the_disk_is_told_when_the_run_ends_with_another(tmp_path):
    notices: list[str] = []
    saver = make_saver(make_store(tmp_path, files=failing(errno.EROFS)), engine_at(1), LoopState(step=1), notices)

    def train() -> None:
        with saver:
            saver.save(0, lambda: None, goes_on=True)
            raise KeyError("training")

    with pytest.raises(KeyError, match="training"):
        train()
    assert len(notices) == 1
    assert f"E-CKPT-008: the checkpoint {tmp_path / '000001'} could not be written (no luck)" in notices[0]


def test_a_parameter_that_is_not_finite_is_not_published_aside(tmp_path):
    engine = engine_at(1)
    store = make_store(tmp_path)
    engine.state["linear.weight"][2] = float("nan")
    saver = make_saver(store, engine, LoopState(step=1), [])
    saver.save(0, lambda: None, goes_on=True)
    engine.state["linear.weight"][2] = 0
    with pytest.raises(ParenError, match="E-CKPT-009"):
        saver.settle(wait=True)
    assert not list(tmp_path.glob("0*"))


def test_a_run_whose_disk_fails_meanwhile_stops_with_the_code_and_goes_on_later(tmp_path):
    def fails(number: int, name: str):
        saving = threading.current_thread().name.startswith("paren-saving")
        return OSError(errno.ENOSPC, "No space left on device") if saving and armed and name == "write" else None

    armed: list[int] = []
    trial = Trial(tmp_path / "run", copies_state=True, files=FaultyFiles(fails=fails))

    def before(name: str, number: int) -> None:
        if name == "update" and number == 7:
            while not (trial.out / "checkpoints" / "latest").exists():
                time.sleep(0.001)
            armed.append(1)

    trial.before = before
    with pytest.raises(ParenError) as caught:
        trial.start()
    assert caught.value.code == "E-CKPT-008"
    status = read_status(trial.out)
    assert status is not None
    assert (status.state, status.code) == ("failed", "E-CKPT-008")
    assert [path.name for path in (trial.out / "checkpoints").glob("0*")] == ["000004"]
    trial.files, trial.before = Files(), lambda name, step: None
    trial.start(resume="latest")
    whole = trained(tmp_path / "whole", copies=False)
    assert trial.state_bytes() == whole.state_bytes()
    assert checkpoint_files(trial.out / "checkpoints/000012") == checkpoint_files(whole.out / "checkpoints/000012")


def test_a_kill_at_every_operation_of_a_write_aside_leaves_a_whole_checkpoint(tmp_path):
    def run_until(place: int, root: Path) -> bool:
        def fails(number: int, name: str):
            return Killed() if number >= place else None

        state = LoopState(step=1)
        store = make_store(root, keep=1)
        engine = engine_at(1)
        store.save(engine.slots(), engine.roles, state, 0)
        dying = make_store(root, keep=1, head=store.head, files=FaultyFiles(fails=fails))
        state = LoopState(step=2)
        try:
            with make_saver(dying, engine_at(2), state, []) as saver:
                saver.save(0, lambda: None, goes_on=True)
        except Killed:
            return True
        return False

    place = 0
    while run_until(place, root := tmp_path / str(place)):
        again = make_store(root)
        again.root.clean()
        engine = engine_at(9)
        found = restore_newest(again, find_checkpoints(again, "latest", False), engine.slots(), engine.roles)
        step = found.manifest.step
        assert step in (1, 2)
        assert engine.state["linear.weight"].tobytes() == engine_at(step).state["linear.weight"].tobytes()
        place += 1
    assert place >= 20


def test_the_best_of_a_checkpoint_that_is_being_written_is_kept(tmp_path):
    """A better evaluation comes while a checkpoint is written whose manifest names the best before it."""
    gate = Gate()
    store = make_store(tmp_path / "checkpoints", files=gate)
    engine, state = engine_at(1), LoopState(step=1)
    best = BestStore(DiskFolder(tmp_path / "best"))
    state.best = best.save(engine.slots(), engine.roles, 1, "loss", 2.0)
    with Saver(store, best, state, engine.slots(), engine.roles, [].append, copies=True) as saver:
        saver.save(0, lambda: None, goes_on=True)
        state.best = best.save(engine.slots(), engine.roles, 2, "loss", 1.0)
        saver.settle()
        gate.opened.set()
    assert sorted(path.name for path in best.folder.path.glob("p*")) == [
        "parameters-000001.safetensors",
        "parameters-000002.safetensors",
    ]


def test_a_signal_waits_for_the_write(tmp_path):
    trial = Trial(tmp_path / "run", copies_state=True)

    def before(name: str, number: int) -> None:
        if name == "update" and number == 5:
            trial.signals.request()

    trial.before = before
    outcome = trial.start()
    assert (outcome.ended, outcome.step) == ("signal", 5)
    assert sorted(path.name for path in (trial.out / "checkpoints").glob("0*")) == ["000004", "000005"]
    assert not list(trial.out.rglob(".temporary*"))


def test_the_copy_is_not_used_where_training_ends(tmp_path):
    """The last checkpoint is written from the state itself: nothing goes on meanwhile."""
    seen: list[str] = []

    class Watching(Files):
        def write(self, file, data):
            if file.name.endswith(".safetensors"):
                seen.append(threading.current_thread().name.split("_")[0])
            super().write(file, data)

    trial = Trial(tmp_path / "run", run_form(steps=8, keep_best=None), copies_state=True, files=Watching())
    trial.start()
    assert set(seen[: len(seen) // 2]) == {"paren-saving"}
    assert set(seen[len(seen) // 2 :]) == {"MainThread"}
