"""Faults while artifacts are built: full disks, kills at any moment, many who ask at once. None leaves half of one."""

from __future__ import annotations

import errno
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paren.experiment.store import prune as prune_module
from paren.experiment.store.artifact import Writer, read_artifact
from paren.experiment.store.claims import Claim, sweep
from paren.experiment.store.launches import record_launch
from paren.experiment.store.prune import prune
from paren.experiment.store.recipe import Recipe
from paren.experiment.store.store import Store
from paren.experiment.store.verify import verify
from paren.text.errors import ParenError
from paren.train.files import Files

PRODUCT = Recipe("product", "posterior", {"rows": 3})
MODEL = Recipe("model", "model", {"rows": 3})


class Killed(BaseException):
    pass


@dataclass
class Faulty(Files):
    """Fails at one operation, by its number from 0. A `kill` does nothing more, so that nothing is tidied up."""

    place: int
    error: BaseException
    count: int = 0

    def step(self) -> None:
        self.count += 1
        if self.count > self.place:
            raise self.error

    def write(self, file: Any, data: Any) -> None:
        self.step()
        super().write(file, data)

    def reserve(self, file: Any, size: int) -> None:
        self.step()
        super().reserve(file, size)

    def sync(self, file: Any) -> None:
        self.step()
        super().sync(file)

    def rename(self, source: Path, target: Path) -> None:
        self.step()
        super().rename(source, target)

    def sync_folder(self, folder: Path) -> None:
        self.step()
        super().sync_folder(folder)


def fill(writer: Writer) -> None:
    writer.allocate("large", (100,), "float64")[...] = 2.0
    writer.array("small", np.arange(3))
    writer.json("note", "text")


def train(folder: Path, held: Claim) -> str:
    (folder / "weights").write_text("trained")
    return "done"


def attempt(store: Store, recipe: Recipe) -> None:
    if recipe.kind == "model":
        store.train(recipe, train)
    else:
        store.build(recipe, fill)


def refusal(store: Store, recipe: Recipe) -> ParenError | None:
    try:
        attempt(store, recipe)
    except ParenError as error:
        return error
    return None


@pytest.mark.parametrize("recipe", [PRODUCT, MODEL], ids=["build", "train"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_refuses_any_operation_is_told_of(tmp_path: Path, recipe: Recipe, code: int) -> None:
    place = 0
    while True:
        root = tmp_path / str(place)
        faulty = Faulty(place, OSError(code, "No luck"))
        told = refusal(Store(root, faulty), recipe)
        if told is None:
            break
        assert told.code == "E-STORE-003"
        assert told.message.startswith(str(root))
        assert told.message.endswith("cannot be written (no luck)")
        assert list(root.rglob(".temporary*")) == []
        assert list((root / "locks").iterdir()) == []
        attempt(Store(root), recipe)
        assert verify(root).faults == ()
        place += 1
    assert place >= 4


@pytest.mark.parametrize("recipe", [PRODUCT, MODEL], ids=["build", "train"])
def test_a_kill_at_any_operation_leaves_a_whole_artifact_or_none(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, killed = 0, True
    while killed:
        root = tmp_path / str(place)
        with monkeypatch.context() as patch:
            patch.setattr("paren.experiment.store.store._delete", lambda folder: None)  # the dead do not tidy up
            try:
                attempt(Store(root, Faulty(place, Killed())), recipe)
                killed = False
            except Killed:
                pass
        found = Store(root).find(recipe)
        assert found is None or verify(root).faults == ()
        attempt(Store(root), recipe)
        assert verify(root).faults == ()
        assert [path.name for path in (root / "store" / recipe.folder).iterdir()] == [recipe.key]
        place += 1


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "make",
    [
        lambda writer: writer.allocate("x", (1 << 20,), "float64"),
        lambda writer: writer.array("x", np.ones(1 << 20)),
        lambda writer: writer.json("x", "a" * (1 << 23)),
    ],
    ids=["allocate", "array", "json"],
)
def test_what_does_not_fit_is_refused_by_the_real_system(tmp_path: Path, make) -> None:
    """An allocated array is refused when it is asked for: later a full disk would kill the process."""
    with largest_file(1 << 20), pytest.raises(ParenError) as caught:
        Store(tmp_path).build(PRODUCT, make)
    assert caught.value.code == "E-STORE-003"
    assert caught.value.message.endswith("cannot be written (file too large)")
    assert list((tmp_path / "store" / "posterior").iterdir()) == []


def test_a_prune_that_is_killed_goes_on_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rmtree, place, killed = prune_module.shutil.rmtree, 0, True
    count = 0

    def dying(folder: Path) -> None:
        nonlocal count
        count += 1
        if count > place:
            raise Killed
        rmtree(folder)

    while killed:
        root = tmp_path / str(place)
        for number in range(3):
            Store(root).build(Recipe("product", "posterior", {"number": number}), fill)
        job = root / "runs" / "a-0" / "all"
        job.mkdir(parents=True)
        (job / "job.json").write_text("{}")
        record_launch(root, "study.paren", None, [], {})
        count = 0
        with monkeypatch.context() as patch:
            patch.setattr(prune_module.shutil, "rmtree", dying)
            try:
                prune(root, 1)
                killed = False
            except Killed:
                pass
        for key in Store(root).keys("posterior"):
            assert read_artifact(Store(root).folder / "posterior" / key).names == ("large", "note", "small")
        prune(root, 1)
        assert [path for path in (root / "store").rglob("*") if path.is_file()] == []
        assert list((root / "runs").iterdir()) == []
        place += 1
    assert place >= 5


WORK = """
import random, secrets, sys, time
from pathlib import Path
from paren.experiment.store.recipe import Recipe
from paren.experiment.store.store import Store

root, seed, pause = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
chance = random.Random(seed)
store = Store(root)
(root / "made").mkdir(parents=True, exist_ok=True)


def note(name, text):
    with open(root / "made" / name, "a") as file:  # one write of a line at the end
        file.write(text + "\\n")


def fill(recipe):
    def make(writer):
        token = secrets.token_hex(8)
        note(f"begun-{recipe.key}", token)
        for part in range(3):
            writer.allocate(f"part-{part}", (1000,), "int64")[...] = part
            time.sleep(chance.random() * pause)
        writer.json("token", token)
    return make


def train(recipe):
    def make(folder, held):
        steps = folder / "steps"
        begun = int(steps.read_text()) if steps.exists() else 0
        note(f"resumed-{recipe.key}", str(begun))
        for step in range(begun, 5):
            time.sleep(chance.random() * pause / 3)
            part = folder / ".temporary-step"
            part.write_text(str(step + 1))
            part.replace(steps)
        (folder / "token").write_text(secrets.token_hex(8))
    return make


recipes = [Recipe("product", "posterior", {"number": n}) for n in range(6)]
recipes += [Recipe("model", "model", {"number": n}) for n in range(3)]
chance.shuffle(recipes)
for recipe in recipes:
    if recipe.kind == "model":
        token = (store.train(recipe, train(recipe)).folder / "token").read_text()
    else:
        token = store.build(recipe, fill(recipe)).json("token")
    note(f"got-{recipe.key}", token)
"""


def start(root: Path, seed: int, pause: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WORK, str(root), str(seed), str(pause)])


def lines(root: Path, name: str) -> list[list[str]]:
    return [path.read_text().splitlines() for path in (root / "made").glob(f"{name}-*")]


def check(root: Path) -> None:
    """Everything is there, once and whole, and nothing else is."""
    sweep(root)
    assert list((root / "locks").iterdir()) == []
    found = verify(root)
    assert (found.artifacts, found.faults) == (9, ())
    assert all(len(set(tokens)) == 1 for tokens in lines(root, "got"))
    assert {path.name for kind in ("model", "posterior") for path in (root / "store" / kind).iterdir()} == (
        Store(root).keys("posterior") | Store(root).keys("model")
    )


def test_many_who_ask_at_once_get_one(tmp_path: Path) -> None:
    workers = [start(tmp_path, seed, 0.01) for seed in range(6)]
    assert [worker.wait() for worker in workers] == [0] * 6
    check(tmp_path)
    assert [len(each) for each in lines(tmp_path, "begun")] == [1] * 6
    assert [len(each) for each in lines(tmp_path, "resumed")] == [1] * 3
    assert [len(each) for each in lines(tmp_path, "got")] == [6] * 9


@pytest.mark.parametrize("rounds", [1, pytest.param(12, marks=pytest.mark.long)])
def test_killed_workers_leave_no_harm(tmp_path: Path, rounds: int) -> None:
    """Workers are killed at random moments and started again, until all is built."""
    chance = random.Random(rounds)
    for number in range(rounds):
        root = tmp_path / str(number)
        workers = [start(root, seed, 0.2) for seed in range(4)]
        try:
            for seed in range(4, 10):
                time.sleep(chance.uniform(0.1, 0.8))
                place = chance.randrange(len(workers))
                workers[place].send_signal(signal.SIGKILL)
                workers[place].wait()
                workers[place] = start(root, seed, 0.2)
            assert [worker.wait() for worker in workers] == [0] * 4
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        check(root)
