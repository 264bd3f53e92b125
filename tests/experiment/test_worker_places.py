"""Which device each worker takes, what workers on one device share, and ranks that take jobs or train each together."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from experiment.studies import Shown, states, weights, write_study
from warm import Command

from paren import api
from paren.experiment.launch import Launch
from paren.experiment.python.functions import Functions
from paren.experiment.store.store import Store
from paren.experiment.training import Trainer
from paren.experiment.worker_places import WorkerPlace, own_place, place_workers
from paren.parallel.topology import Visible, find_topology
from paren.run import How
from paren.text.errors import ParenError

SWEEP = "(defsweep (rate 1e-3 1e-4))"
CARDS = Visible("cuda", 4, "")
TORCHRUN = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29577"}


pytestmark = pytest.mark.usefixtures("own_cache")


def rank(number: int) -> dict[str, str]:
    return TORCHRUN | {"RANK": str(number), "LOCAL_RANK": str(number)}


@pytest.mark.parametrize(
    ("variables", "device", "workers", "places"),
    [
        ({}, "cuda", None, [("cuda:0", 1), ("cuda:1", 1), ("cuda:2", 1), ("cuda:3", 1)]),
        ({"PAREN_DEVICES": "1,3"}, "cuda", None, [("cuda:1", 1), ("cuda:3", 1)]),
        ({"PAREN_DEVICES": "1,3"}, "cuda", 5, [("cuda:1", 3), ("cuda:3", 2)] * 2 + [("cuda:1", 3)]),
        ({}, "cuda:2", 4, [("cuda:2", 4)] * 4),
        ({}, "cpu", 3, [("cpu", 3)] * 3),
        ({"PAREN_DEVICES": "0,1"}, "cpu", None, [("cpu", 2)] * 2),
    ],
)
def test_places_of_workers(
    variables: dict[str, str], device: str, workers: int | None, places: list[tuple[str, int]]
) -> None:
    visible = CARDS if device.startswith("cuda") else Visible("cpu", 4, "")
    ordinal = 2 if device == "cuda:2" else None
    found = place_workers(device, find_topology(variables, visible, ordinal), workers)
    assert [(place.device, place.share) for place in found] == places


def test_the_place_of_a_rank() -> None:
    assert own_place("cuda", find_topology(rank(1), CARDS)) == WorkerPlace("cuda:1", 1)
    assert own_place("cpu", find_topology(rank(1), Visible("cpu", 4, ""))) == WorkerPlace("cpu", 2)


def test_workers_on_one_device_share_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAREN_MEMORY", "400MiB")
    trainer = Trainer(Store(tmp_path), Functions.of(tmp_path), How("cpu"), share=4)
    assert trainer.free.bytes == 100 << 20
    whole = Trainer(Store(tmp_path), Functions.of(tmp_path), How("cpu", memory=50 << 20), share=4)
    assert whole.free.bytes == 50 << 20


def test_what_does_not_fit_into_a_part_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of the large network fits into the memory, and not into a half of it."""
    path, out = write_study(tmp_path / "s", "(defsweep (hidden [900 900]))"), tmp_path / "out"
    needed = max(job.memory or 0 for job in api.load(path).plan(out).jobs)
    monkeypatch.setenv("PAREN_MEMORY", str(3 * needed // 2))
    with pytest.raises(ParenError) as raised:
        api.load(path).train(out, workers=2)
    assert "E-MEM-001" in raised.value.notes[0].message
    assert states(out)["baseline/all"] == "done"
    api.load(path).train(out)
    assert set(states(out).values()) == {"done"}


def test_a_worker_for_each_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_study(tmp_path / "s", SWEEP)
    api.load(path).train(tmp_path / "one")
    monkeypatch.setenv("PAREN_DEVICES", "0,1")
    view = Shown()
    assert api.load(path).train(tmp_path / "out", progress=view, parallel="jobs").done == 3
    assert weights(tmp_path / "out") == weights(tmp_path / "one")
    workers = {json.loads(path.read_bytes())["worker"] for path in (tmp_path / "out").glob("runs/*/*/status.json")}
    assert f"process {os.getpid()} " not in " ".join(workers)


def test_processes_of_torchrun_take_jobs(tmp_path: Path) -> None:
    """No process group is made: nobody listens at the port."""
    path, out = write_study(tmp_path / "s", SWEEP + "(defcohort (replica 0 1))"), tmp_path / "out"
    command = ["train", path, "--out", out, "--parallel", "jobs"]
    ranks = [Command(command, os.environ | rank(number)) for number in range(2)]
    said = [process.communicate()[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], said
    assert set(states(out).values()) == {"done"}
    api.load(path).train(tmp_path / "one")
    assert weights(out) == weights(tmp_path / "one")


def test_a_failed_job_does_not_end_another_rank(tmp_path: Path) -> None:
    """torchrun ends all processes when one fails, so none does before the last job is done."""
    path, out = write_study(tmp_path / "s", "(defsweep (rows 4 80 90 100))"), tmp_path / "out"
    command = ["train", path, "--out", out, "--parallel", "jobs"]
    ranks = [Command(command, os.environ | rank(number)) for number in range(2)]
    said = [process.communicate()[1] for process in ranks]
    assert [process.returncode for process in ranks] == [1, 1], said
    assert all("E-JOB-001: 1 of 5 jobs failed" in text for text in said)
    assert sorted(states(out).values()) == ["done"] * 4 + ["failed"]


def test_several_devices_train_each_model_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = write_study(tmp_path / "s", "(defcohort (replica 3))"), tmp_path / "out"
    monkeypatch.setenv("PAREN_DEVICES", "0,1")
    assert api.load(path).train(out).done == 1
    for job in out.glob("runs/*/*/job.json"):
        run = json.loads((job.parent / json.loads(job.read_bytes())["model"] / "run.json").read_bytes())
        assert run["identity"]["ranks"] == 2
    view = Shown()
    assert api.load(path).train(out, progress=view).done == 1
    assert view.events == []


def test_processes_of_torchrun_train_each_model_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first starts the ranks, of which the store is its own: nobody listens at torchrun's port."""
    product = '(defproduct total (python "total.py" total) :needs (model))'
    path, out = write_study(tmp_path / "s", "(defcohort (replica 3 4))" + product), tmp_path / "out"
    (tmp_path / "s" / "total.py").write_text(
        "def total(model):\n    return {'total': sum(float(each.sum()) for each in model.parameters().values())}\n"
    )
    ranks = [Command(["run", path, "--out", out], os.environ | rank(number)) for number in range(2)]
    said = [process.communicate() for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], said
    assert [text for text, _ in said] == [f"{out}\n", ""]
    assert set(states(out).values()) == {"done"}
    monkeypatch.setenv("PAREN_DEVICES", "0,1")
    api.load(path).run(tmp_path / "listed")
    assert weights(out) == weights(tmp_path / "listed")
    view = Shown()
    assert api.load(path).run(out, progress=view).done == 2
    assert view.events == []


def test_what_processes_of_torchrun_cannot_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (rank(0) | {"WORLD_SIZE": "4"}).items():
        monkeypatch.setenv(name, value)
    how = How("cpu")
    with pytest.raises(ParenError) as raised:
        _ = Launch(tmp_path, how).topology
    assert str(raised.value) == (
        "E-JOB-005: torchrun's processes on 2 nodes cannot share each training of a study\n"
        "  fix: give --parallel jobs, or start torchrun on one node"
    )
    with pytest.raises(ParenError) as raised:
        _ = Launch(tmp_path, how, workers=2, parallel="jobs").topology
    assert str(raised.value) == (
        "E-JOB-003: --workers starts processes, and torchrun has started them already\n"
        "  fix: leave out --workers, and give --parallel jobs"
    )
