"""Pruning and verifying an output root: what launches need stays, what is damaged is found."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from paren.cli.app import main
from paren.experiment.store import prune as prune_module
from paren.experiment.store.artifact import read_artifact
from paren.experiment.store.claims import Claim, claim
from paren.experiment.store.launches import read_launches, record_launch
from paren.experiment.store.prune import prune
from paren.experiment.store.recipe import Recipe
from paren.experiment.store.store import Store
from paren.experiment.store.verify import verify
from paren.text.errors import ParenError


def recipe(kind: str, number: int) -> Recipe:
    return Recipe("product" if kind == "posterior" else kind, kind, {"number": number})


def job(root: Path, number: int, *, data: int = 0, state: str = "done") -> str:
    """A job with a model and a product of its own, and data that it may share."""
    store, name = Store(root), f"runs/rows-{number}-0123456789ab/all"
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    made = {
        "data": store.build(recipe("data", data), lambda writer: writer.array("x", np.zeros(100))),
        "model": store.train(recipe("model", number), lambda folder, _: (folder / "run.json").write_text("{}")),
        "posterior": store.build(recipe("posterior", number), lambda writer: writer.json("mean", 1.0)),
    }
    paths = {kind: Path(os.path.relpath(artifact.folder, folder)).as_posix() for kind, artifact in made.items()}
    content = {"data": paths["data"], "model": paths["model"], "products": {"posterior": paths["posterior"]}}
    (folder / "job.json").write_text(json.dumps(content))
    (folder / "status.json").write_text(json.dumps({"state": state}))
    (folder.parent / "plots").mkdir(exist_ok=True)
    return name


def stored(root: Path) -> dict[str, set[int]]:
    """The numbers of the recipes that are there, by kind."""
    store = Store(root)
    return {
        kind: {n for n in range(20) if recipe(kind, n).key in store.keys(kind)}
        for kind in ("data", "model", "posterior")
    }


def make_old(root: Path, *folders: Path) -> None:
    for path in [each for folder in folders or [root] for each in (folder, *folder.rglob("*"))]:
        os.utime(path, (1e9, 1e9))


def snapshot(root: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(root.rglob("*"))}


def test_the_last_launches_keep_what_they_need(tmp_path: Path) -> None:
    for number in range(5):
        record_launch(tmp_path, "study.paren", None, [job(tmp_path, number, data=number // 3)], {})
    before = snapshot(tmp_path)
    told = prune(tmp_path, 2, dry=True)
    assert snapshot(tmp_path) == before
    assert prune(tmp_path, 2) == told
    assert stored(tmp_path) == {"data": {1}, "model": {3, 4}, "posterior": {3, 4}}
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [f"rows-{n}-0123456789ab" for n in (3, 4)]
    assert [(each.path, each.why) for each in told[:4]] == [
        ("runs/rows-0-0123456789ab/all", "of an older launch"),
        ("runs/rows-1-0123456789ab/all", "of an older launch"),
        ("runs/rows-2-0123456789ab/all", "of an older launch"),
        (f"store/data/{recipe('data', 0).key}", "no kept job refers to it"),
    ]
    assert told[3].size > 800
    assert prune(tmp_path, 2) == []
    assert verify(tmp_path).faults == ()


def test_the_same_launch_again_counts_once(tmp_path: Path) -> None:
    for jobs in (["runs/a/all"], ["runs/a/all"], ["runs/a/all", "runs/b/all"], ["runs/a/all"]):
        record_launch(tmp_path, "some/study.paren", None, jobs, {})
    record_launch(tmp_path, "study.paren", "smoke", ["runs/a/all"], {})
    assert [(each.study, each.variant, len(each.jobs)) for each in read_launches(tmp_path)] == [
        ("study.paren", None, 1),
        ("study.paren", None, 2),
        ("study.paren", None, 1),
        ("study.paren", "smoke", 1),
    ]
    assert sorted(path.name for path in (tmp_path / "launches").iterdir()) == [f"00000{n}.json" for n in range(1, 5)]


DAMAGES = [
    b"half", b"", b"[]", b'{"study": "study.paren"}', b'{"jobs": {"a": 1}}', b'{"jobs": ["../../other/job"]}',
    b'{"jobs": [5]}', b'{"created": "yesterday"}', b'{"created": 5}', b'{"variant": 1}', b'{"plots": -1}',
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=bytes.decode)
def test_prune_deletes_nothing_where_a_launch_cannot_be_read(tmp_path: Path, damage: bytes) -> None:
    """Nobody knows which jobs it had."""
    names = [job(tmp_path, number) for number in range(3)]
    for name in names:
        record_launch(tmp_path, "study.paren", None, [name], {})
    path = tmp_path / "launches" / "000003.json"
    whole = json.loads(path.read_bytes())
    changed = json.loads(damage) if damage.startswith(b"{") else None
    path.write_bytes(damage if changed is None or "study" in changed else json.dumps(whole | changed).encode())
    make_old(tmp_path)
    for dry in (True, False):
        with pytest.raises(ParenError) as caught:
            prune(tmp_path, 1, dry=dry)
        assert caught.value.code == "E-STORE-002"
        assert caught.value.message == f"{path} is damaged: which jobs that launch had is not known"
        fix = "delete the file if nothing of that launch is needed; else launch its study again before"
        assert caught.value.fix == fix
    assert stored(tmp_path) == {"data": {0}, "model": {0, 1, 2}, "posterior": {0, 1, 2}}
    record_launch(tmp_path, "study.paren", None, [names[2]], {})  # as the study launched again does
    path.unlink()
    assert [each.jobs for each in read_launches(tmp_path)] == [(name,) for name in names]


def test_each_study_keeps_its_own(tmp_path: Path) -> None:
    """Two studies that share a root do not count each other's launches."""
    record_launch(tmp_path, "one.paren", None, [job(tmp_path, 0)], {})
    for number in range(1, 5):
        record_launch(tmp_path, "two.paren", None, [job(tmp_path, number)], {})
    prune(tmp_path, 1)
    assert stored(tmp_path) == {"data": {0}, "model": {0, 4}, "posterior": {0, 4}}


def test_what_is_worked_on_stays(tmp_path: Path) -> None:
    names = [job(tmp_path, number, data=number) for number in range(4)]
    record_launch(tmp_path, "study.paren", None, names[:3], {})
    record_launch(tmp_path, "study.paren", None, names[3:], {})
    make_old(tmp_path)
    running, building = claim(tmp_path, names[0]), claim(tmp_path, f"store/model/{recipe('model', 1).key}")
    assert running is not None
    assert building is not None
    told = prune(tmp_path, 1, dry=True)
    assert prune(tmp_path, 1) == told
    assert stored(tmp_path) == {"data": {0, 3}, "model": {0, 1, 3}, "posterior": {0, 3}}
    assert (tmp_path / names[0]).is_dir()
    running.release()
    building.release()
    prune(tmp_path, 1)
    assert stored(tmp_path) == {"data": {3}, "model": {3}, "posterior": {3}}


def add_plot(root: Path, holder: str, name: str) -> None:
    folder = root / holder / "plots" / name
    folder.mkdir(parents=True)
    (folder / f"{name}.png").write_bytes(b"points")


def test_plots_that_no_kept_launch_has_are_deleted(tmp_path: Path) -> None:
    names = [job(tmp_path, number) for number in range(3)]
    holders = [*names, *(name.rpartition("/")[0] for name in names), ""]
    for holder in holders:
        for name in ("one", "of-cohort", "of-sweep", "gone"):
            add_plot(tmp_path, holder, name)
    record_launch(tmp_path, "study.paren", None, names[:2], {"gone": None})
    record_launch(tmp_path, "study.paren", None, names[:2], {"one": None, "of-cohort": "cohort", "of-sweep": "sweep"})
    (launch,) = read_launches(tmp_path)
    assert launch.plots == {"one": None, "of-cohort": "cohort", "of-sweep": "sweep"}
    with claim(tmp_path, names[2]) or pytest.fail("it is free"):  # somebody works on a job of no kept launch
        would = prune(tmp_path, 1, dry=True)
        assert prune(tmp_path, 1) == would
    assert {each.why for each in would if "/plots/" in each.path} == {"of a plot that its study no longer has"}
    assert [each.size for each in would if each.path == "plots/gone"] == [6]
    left = sorted(path.parent.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.png"))
    of_job = [f"{names[number]}/plots/one" for number in range(2)]
    of_cohort = [f"{names[number].rpartition('/')[0]}/plots/of-cohort" for number in range(2)]
    of_other = [
        f"{holder}/plots/{name}"
        for holder in (names[2], names[2].rpartition("/")[0])
        for name in ("one", "of-cohort", "of-sweep", "gone")
    ]
    assert left == sorted([*of_job, *of_cohort, *of_other, "plots/of-sweep"])


def test_plots_of_launches_that_do_not_name_theirs_stay(tmp_path: Path) -> None:
    name = job(tmp_path, 0)
    add_plot(tmp_path, name, "one")
    record_launch(tmp_path, "study.paren", None, [name], {})
    (record,) = (tmp_path / "launches").iterdir()
    content = json.loads(record.read_text())
    del content["plots"]
    record.write_text(json.dumps(content))
    assert prune(tmp_path, 1) == []


@pytest.mark.parametrize("state", ["waiting", "running", "failed"])
def test_what_an_unfinished_job_has_got_so_far_stays(tmp_path: Path, state: str) -> None:
    """Artifacts that its job.json does not name yet, and the training that was interrupted."""
    store = Store(tmp_path)
    store.build(recipe("posterior", 9), lambda writer: writer.json("mean", 1.0))
    make_old(tmp_path)
    record_launch(tmp_path, "study.paren", None, [job(tmp_path, 0), job(tmp_path, 1, state=state)], {})
    store.build(recipe("posterior", 10), lambda writer: writer.json("mean", 1.0))
    for number in (10, 11):
        with pytest.raises(KeyboardInterrupt):
            store.train(recipe("model", number), interrupted)
    make_old(tmp_path, store.partial(recipe("model", 11)))
    prune(tmp_path, 1)
    assert stored(tmp_path) == {"data": {0}, "model": {0, 1}, "posterior": {0, 1, 10}}
    assert store.partial(recipe("model", 10)).is_dir()
    assert not store.partial(recipe("model", 11)).exists()
    job(tmp_path, 1)
    prune(tmp_path, 1)
    assert stored(tmp_path) == {"data": {0}, "model": {0, 1}, "posterior": {0, 1}}
    assert not store.partial(recipe("model", 10)).exists()


def interrupted(folder: Path, held: Claim) -> None:
    (folder / "checkpoint").write_text("half")
    raise KeyboardInterrupt


def test_leftovers_go(tmp_path: Path) -> None:
    record_launch(tmp_path, "study.paren", None, [job(tmp_path, 0)], {})
    key = recipe("posterior", 0).key
    for name in (f".temporary-{key}-01234567", f".damaged-{key}", f".damaged-{key}-1"):
        shutil.copytree(tmp_path / "store" / "posterior" / key, tmp_path / "store" / "posterior" / name)
    assert [(Path(each.path).name, each.why) for each in prune(tmp_path, 1)] == [
        (f".damaged-{key}", "damaged, and built again since"),
        (f".damaged-{key}-1", "damaged, and built again since"),
        (f".temporary-{key}-01234567", "left by a build that was killed"),
    ]
    assert os.listdir(tmp_path / "store" / "posterior") == [key]


def test_an_artifact_that_is_found_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process finds it after it was judged: the mark of its use is seen when it was moved aside."""
    record_launch(tmp_path, "study.paren", None, [job(tmp_path, 0)], {})
    record_launch(tmp_path, "study.paren", None, [job(tmp_path, 1)], {})
    make_old(tmp_path)
    rename, found = os.rename, []

    def find_first(source: Path, target: Path) -> None:
        if "posterior" in str(source) and not found:
            found.append(Store(tmp_path).build(recipe("posterior", 0), lambda writer: None))
        rename(source, target)

    monkeypatch.setattr(prune_module.os, "rename", find_first)
    prune(tmp_path, 1)
    assert stored(tmp_path) == {"data": {0}, "model": {1}, "posterior": {0, 1}}
    assert found[0].json("mean") == 1.0


def test_a_root_without_a_study_is_refused(tmp_path: Path) -> None:
    for act, message in (
        (lambda: prune(tmp_path, 1), f"{tmp_path} holds no study"),
        (lambda: verify(tmp_path), f"{tmp_path} holds no artifacts"),
    ):
        with pytest.raises(ParenError) as caught:
            act()
        assert (caught.value.code, caught.value.message) == ("E-STORE-006", message)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_flipped_byte_is_found(tmp_path: Path) -> None:
    job(tmp_path, 0)
    store = Store(tmp_path)
    path = store.place(recipe("data", 0)) / "x.npy"
    times = os.stat(path)
    flip(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert store.find(recipe("data", 0)) is not None
    found = verify(tmp_path)
    assert (found.artifacts, [fault.code for fault in found.faults]) == (3, ["E-STORE-002"])
    assert found.faults[0].message == (
        f"the artifact {path.parent} is damaged: x.npy has other bytes than were published"
    )


def test_every_file_of_an_artifact_is_looked_at(tmp_path: Path) -> None:
    name = job(tmp_path, 0)
    data, model, posterior = (Store(tmp_path).place(recipe(kind, 0)) for kind in ("data", "model", "posterior"))
    flip(data / "artifact.json")
    (model / "run.json").unlink()
    posterior.rename(posterior.with_name("0" * 24))
    assert [fault.message for fault in verify(tmp_path).faults] == [
        f"the artifact {data} is damaged: artifact.json is not what was written",
        f"the artifact {model} is damaged: run.json is missing",
        f"the artifact {posterior.with_name('0' * 24)} is damaged: "
        f"it is the artifact {posterior.name} under another name",
        f"{tmp_path / name} refers to the artifact {posterior}, which is not there",
    ]


def test_progress_of_verifying_is_announced(tmp_path: Path) -> None:
    job(tmp_path, 0)
    told: list[tuple[int, int]] = []
    verify(tmp_path, lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_a_moved_root_is_whole_and_can_be_pruned(tmp_path: Path) -> None:
    for number in range(2):
        record_launch(tmp_path / "first", "study.paren", None, [job(tmp_path / "first", number)], {})
    (tmp_path / "first").rename(tmp_path / "second")
    assert verify(tmp_path / "second").faults == ()
    prune(tmp_path / "second", 1)
    assert stored(tmp_path / "second") == {"data": {0}, "model": {1}, "posterior": {1}}


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        record_launch(tmp_path, "study.paren", None, [job(tmp_path, number)], {})
    assert main(["verify", str(tmp_path)]) == 0
    size = sum(
        file.size
        for kind in Store(tmp_path).kinds()
        for key in Store(tmp_path).keys(kind)
        for file in read_artifact(Store(tmp_path).folder / kind / key).files.values()
    )
    assert capsys.readouterr().out == f"5 artifacts of {size} bytes: every byte is as it was published\n"
    assert main(["verify", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"artifacts": 5, "bytes": size}
    assert main(["prune", str(tmp_path), "--keep", "1", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("runs/rows-0-0123456789ab/all  ")
    assert lines[0].endswith(" bytes, of an older launch")
    assert lines[-1].endswith(" could be deleted in 3 folders")
    assert main(["prune", str(tmp_path), "--keep", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["deleted"], len(told["removed"])) == (True, 3)
    flip(Store(tmp_path).place(recipe("data", 0)) / "x.npy")
    assert main(["verify", str(tmp_path)]) == 1
    assert "E-STORE-002: the artifact" in capsys.readouterr().err
    assert main(["prune", str(tmp_path), "--keep", "0"]) == 2
    assert main(["verify", str(tmp_path / "absent")]) == 1
    assert f"E-STORE-006: {tmp_path / 'absent'} holds no artifacts\n" in capsys.readouterr().err
