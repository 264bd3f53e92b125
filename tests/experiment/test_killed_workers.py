"""Workers started by hand share an output root; some are killed at any time, and every job is still done just once."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from experiment.studies import Shown, states, weights, write_study
from warm import Command

from paren import api
from paren.experiment.store.claims import holders
from paren.experiment.store.verify import verify

PATIENCE = 600.0  # seconds; a machine that is busy with other things is slow


class HandWorker:
    """A process that a user starts in a shell."""

    def __init__(self, path: Path, out: Path) -> None:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PAREN_")}
        variables["PAREN_CACHE"] = os.environ["PAREN_CACHE"]
        self.process = Command(["train", path, "--out", out, "--threads", "1"], variables)

    def kill(self) -> str:
        """What it said."""
        self.process.kill()
        return "".join(self.process.communicate())


def published(out: Path) -> dict[str, tuple[int, int]]:
    """Each artifact with the identity of its manifest's file."""
    found = {}
    for path in out.glob("store/*/*/artifact.json"):
        if path.parent.suffix != ".partial" and not path.parent.name.startswith("."):
            state = path.stat()
            found[str(path)] = (state.st_ino, state.st_size)
    return found


@pytest.mark.parametrize(("jobs", "workers", "kills"), [(5, 2, 4), pytest.param(30, 4, 60, marks=pytest.mark.long)])
def test_killed_workers_leave_every_job_done_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int, workers: int, kills: int
) -> None:
    monkeypatch.setenv("PAREN_CACHE", str(tmp_path / "cache"))
    path = write_study(tmp_path / "s", f"(defcohort (replica {' '.join(map(str, range(jobs)))}))")
    path.write_text(path.read_text().replace(":steps 4", ":steps 4000 :checkpoint-every 400 :log-every 400"))
    out, log, draw = tmp_path / "out", "", random.Random(0)
    api.load(path).train(tmp_path / "whole")
    started = [HandWorker(path, out) for _ in range(workers)]
    seen: dict[str, tuple[int, int]] = {}
    end = time.monotonic() + PATIENCE
    try:
        while any(worker.process.poll() is None for worker in started):
            assert time.monotonic() < end, log.read_text()
            time.sleep(draw.uniform(0.02, 0.3))
            now = published(out)
            assert seen.items() <= now.items(), "a published artifact was published again"
            seen = now
            working = {holder.pid for holder in holders(out)}
            victims = [number for number, worker in enumerate(started) if worker.process.pid in working]
            if kills and victims:
                kills -= 1
                number = draw.choice(victims)
                log += started[number].kill()
                started[number] = HandWorker(path, out)
    finally:
        for worker in started:
            log += worker.kill()
    assert [worker.process.returncode for worker in started] == [0] * workers, log
    assert "Traceback" not in log
    assert sorted(states(out).values()) == ["done"] * jobs
    assert seen.items() <= published(out).items()
    assert len(list((out / "store" / "model").iterdir())) == jobs
    assert verify(out).faults == ()
    view = Shown()
    api.load(path).train(out, progress=view)
    assert view.events == []
    assert not list((out / "locks").iterdir())
    assert weights(out) == weights(tmp_path / "whole")
