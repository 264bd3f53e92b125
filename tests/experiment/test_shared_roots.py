"""What one launch may not take from another: jobs of other files, files that change meanwhile, claims that are lost."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from experiment.studies import PLAIN, Shown, read_from_arrays, write_study

import paren
from paren import api
from paren.experiment.events import Event
from paren.experiment.jobs import Job
from paren.experiment.store.artifact import Writer
from paren.experiment.store.claims import Claim, claim
from paren.experiment.store.recipe import Recipe
from paren.experiment.store.store import Store
from paren.text.errors import ParenError
from paren.text.json import Json

pytestmark = pytest.mark.usefixtures("own_cache")


def test_a_job_that_another_file_has_done_meanwhile_is_done_too(tmp_path: Path) -> None:
    """Two files with the same settings have the same folders of jobs in one output root."""
    one, two = write_study(tmp_path / "one"), write_study(tmp_path / "two")
    two.write_text(two.read_text().replace("tanh", "relu"))
    out = tmp_path / "out"

    class Meanwhile(Shown):
        def begin(self, jobs: Sequence[Job], finished: int) -> None:
            api.load(one).train(out)

    view = Meanwhile()
    assert api.load(two).train(out, progress=view).done == 1
    assert any(event.stage == "training" for event in view.events), "the other file's model is not this one's"
    (job,) = out.glob("runs/*/*")
    assert "relu" in paren.restore(job).program.sources[str(two)]
    assert len(list((out / "store/model").iterdir())) == 2


def test_a_job_that_another_launch_has_done_meanwhile_is_not_done_again(tmp_path: Path) -> None:
    path, out = write_study(tmp_path / "s"), tmp_path / "out"

    class Meanwhile(Shown):
        def begin(self, jobs: Sequence[Job], finished: int) -> None:
            api.load(path).train(out)

    view = Meanwhile()
    assert api.load(path).train(out, progress=view).done == 1
    assert [event.kind for event in view.events] == ["done"]


CHANGES = """import numpy as np
from pathlib import Path


def pairs(rows, seed):
    place = Path(__file__).parent / "table.csv"
    x = np.full((rows, 2), float(place.read_text()), np.float32)
    place.write_text("2")
    return {"x": x, "y": x.sum(1)}


def metric(model):
    place = Path(__file__).parent / "table.csv"
    place.write_text("3")
    return 1
"""


def test_a_file_that_changes_while_a_function_reads_it(tmp_path: Path) -> None:
    text = PLAIN.replace(":rows rows", ':rows rows :files ("table.csv")')
    path, out = write_study(tmp_path, text=text), tmp_path / "o"
    path.write_text(path.read_text() + '(defmetric last (python "data.py" metric :files ("table.csv")) :needs (model))')
    (tmp_path / "data.py").write_text(CHANGES)
    (tmp_path / "table.csv").write_text("1")
    for stage in ("data", "last"):
        with pytest.raises(ParenError) as raised:
            api.load(path).run(out)
        assert raised.value.notes[0].message.startswith("baseline: E-STORE-007: table.csv changed while it was read")
        assert json.loads(next(out.glob("runs/*/*/status.json")).read_bytes())["stage"] == stage
        assert len(list(out.glob("store/data/*"))) == (stage == "last")
        assert not list(out.glob("runs/*/*/metrics.json"))


def test_an_array_that_changes_during_a_training(tmp_path: Path) -> None:
    path, out = write_study(tmp_path), tmp_path / "o"
    read_from_arrays(path, "x.npy", "y.npy")
    np.save(tmp_path / "x.npy", np.ones((40, 2), np.float32))
    np.save(tmp_path / "y.npy", np.ones(40, np.float32))

    class Meanwhile(Shown):
        def begin(self, jobs: Sequence[Job], finished: int) -> None:
            np.load(tmp_path / "x.npy", mmap_mode="r+")[:] = 5

    with pytest.raises(ParenError) as raised:
        api.load(path).train(out, progress=Meanwhile())
    assert raised.value.notes[0].message.startswith("baseline: E-STORE-007: x.npy or y.npy changed while it was read")
    assert not [each for each in out.glob("store/model/*") if not each.name.endswith(".partial")]
    assert api.load(path).train(out).done == 1


def test_an_interrupted_training_whose_data_are_gone_and_made_otherwise(tmp_path: Path) -> None:
    path, out = write_study(tmp_path / "s", "(defsweep (rate 1e-3))"), tmp_path / "out"
    (path.parent / "data.py").write_text(
        "import os\nimport numpy as np\n\n\ndef pairs(rows):\n"
        "    x = np.frombuffer(os.urandom(rows * 2), np.uint8).reshape(rows, 2) / np.float32(255)\n"
        '    return {"x": x, "y": x.sum(1)}\n'
    )
    path.write_text(path.read_text().replace(":steps 4", ":steps 20000 :log-every 1000"))
    program = api.load(path)

    class Stops(Shown):
        def show(self, event) -> None:
            super().show(event)
            if event.stage == "training" and event.step > 0:
                os.kill(os.getpid(), 15)

    assert program.train(out, progress=Stops()).exit_code == 143
    assert [each.suffix for each in out.glob("store/model/*")] == [".partial"]
    for each in out.glob("store/data/*"):
        each.rename(tmp_path / each.name)
    view = Shown()
    assert program.train(out, progress=view).done == 2
    told = [event.text for event in view.events if event.kind == "notice"]
    assert "baseline begins anew: its data are others than those of the interrupted training" in told


def take_over(root: Path, name: str) -> Claim:
    """Another host takes this process for dead, which sleeps for minutes."""
    while True:
        for lease in (root / "locks").glob("*.lease"):
            with contextlib.suppress(FileNotFoundError):
                if json.loads(lease.read_bytes())["claim"] == name:
                    os.utime(lease, (time.time() - 1000, time.time() - 1000))
        taken = claim(root, name, host="two")
        if taken is not None:
            return taken


def test_a_training_that_another_host_took_over_writes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paren.experiment.store.claims.INTERVAL", 0.05)
    path, out = write_study(tmp_path / "s"), tmp_path / "out"
    path.write_text(path.read_text().replace(":steps 4", ":steps 100000 :log-every 1000"))
    left: list[dict[str, Json]] = []
    others: list[threading.Thread] = []
    has_taken_over = threading.Event()

    def other() -> None:
        (partial,) = out.glob("store/model/*.partial")
        taken = take_over(out, f"store/model/{partial.stem}")
        has_taken_over.set()
        while (partial / "holder.json").exists():
            time.sleep(0.01)
        found = json.loads((partial / "status.json").read_bytes())
        left.append({**found, "saved": len(list(partial.glob("checkpoints/0*")))})
        taken.release()

    def at(event: Event) -> None:
        if event.stage == "training" and event.step > 0 and not others:
            others.append(threading.Thread(target=other))
            others[0].start()
            has_taken_over.wait()
        elif others:
            others[0].join(1)  # time to give a sign, by which this process finds that its claim is gone

    assert api.load(path).train(out, progress=Shown(at)).done == 1
    others[0].join()
    assert left[0]["state"] == "running", "that it failed is not for this process to say"
    assert left[0]["saved"] == 0
    (status,) = out.glob("store/model/*/status.json")
    assert json.loads(status.read_bytes())["state"] == "complete"


def test_a_job_that_another_host_took_over_is_left_to_it(tmp_path: Path) -> None:
    path, out = write_study(tmp_path / "s"), tmp_path / "out"
    seen: list[str] = []

    def at(event: Event) -> None:
        if event.stage == "training" and event.step > 0 and not seen:
            (status,) = out.glob("runs/*/*/status.json")
            taken = take_over(out, str(status.parent.relative_to(out)))
            status.write_text("the other's")
            seen.append("taken")
            view.release, view.status = taken.release, status
        elif event.kind == "notice" and seen == ["taken"]:
            seen.append(view.status.read_text())
            view.release()

    view = Shown(at)
    assert api.load(path).train(out, progress=view).done == 1
    assert seen == ["taken", "the other's"]
    told = [event.text for event in view.events if event.kind == "notice"]
    assert told == ["another host is at baseline now, as this process gave no sign for 60 s"]


def test_what_was_made_under_a_lost_claim_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, recipe = Store(tmp_path), Recipe("product", "grid", {"a": 1})
    made: list[int] = []

    def make(writer: Writer) -> Json:
        made.append(1)
        writer.json("by", len(made))
        if len(made) == 1:  # this process sleeps for minutes, and another host takes it for dead
            (lease,) = (tmp_path / "locks").glob("*.lease")
            taken = None
            while taken is None:
                os.utime(lease, (time.time() - 1000, time.time() - 1000))
                taken = claim(tmp_path, f"store/grid/{recipe.key}", host="two")
            look = Claim.is_lost

            def look_and_let_go(held: Claim) -> bool:
                lost = look(held)
                taken.release()
                return lost

            monkeypatch.setattr(Claim, "is_lost", look_and_let_go)
        return None

    artifact = store.build(recipe, make)
    assert (artifact.json("by"), len(made)) == (2, 2)
    assert [each.name for each in artifact.folder.parent.iterdir()] == [recipe.key]
