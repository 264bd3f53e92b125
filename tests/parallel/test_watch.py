"""Who is accused of what, by the signs of the ranks alone: with a store in memory, and a clock that tests turn."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import paren.parallel.watch
from paren.parallel.failure import read_failure
from paren.parallel.join import watched_by
from paren.parallel.sign import EVALUATING, NEVER, OVER, PREPARING, TRAINING, Place, Sign
from paren.parallel.topology import Patience
from paren.parallel.watch import Watch

RUNS = Sign(0, 4, 20, False, TRAINING)
WAITS = replace(RUNS, met=21, waits=True)


class Memory:
    """A store in this process."""

    port = 0

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str, /) -> None:
        self.values[key] = value.encode()

    def get(self, key: str, /) -> bytes:
        return self.values[key]

    def check(self, keys: list[str], /) -> bool:
        return all(key in self.values for key in keys)

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        return self.values.setdefault(key, desired.encode())

    def add(self, key: str, amount: int, /) -> int:
        raise NotImplementedError


class Scene:
    """Some ranks, what they tell each second, and who watches them."""

    def __init__(self, count: int = 3, says: bool = True) -> None:
        self.store, self.now, self.lines = Memory(), 0.0, list[str]()
        self.signs: dict[int, Sign] = dict.fromkeys(range(count), RUNS)
        self.silent: set[int] = set()
        for rank in range(count):
            Place(f"host-{rank}", 0, "").tell(self.store, rank)
        say = self.lines.append if says else None
        self.watch = Watch(self.store, range(count), Patience(50, 60, 90), say, True, lambda: self.now)

    def pass_seconds(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1
            for rank, sign in self.signs.items():
                if rank not in self.silent:
                    self.signs[rank] = replace(sign, count=sign.count + 1)
                    self.signs[rank].tell(self.store, rank)
            self.watch.look()

    @property
    def failure(self) -> str | None:
        found = read_failure(self.store)
        return None if found is None else found.error().message


def test_ranks_that_get_on_are_left_alone() -> None:
    scene = Scene()
    for step in range(200):
        scene.signs = {rank: replace(sign, step=step, met=20 + step) for rank, sign in scene.signs.items()}
        scene.pass_seconds(1)
    assert (scene.failure, scene.lines) == (None, [])


def test_a_long_step_of_all_ranks_is_none_that_is_stuck() -> None:
    scene = Scene()
    scene.pass_seconds(1000)
    assert (scene.failure, scene.lines) == (None, [])


def test_a_rank_without_signs_is_frozen() -> None:
    scene = Scene(says=False)
    scene.pass_seconds(2)
    scene.silent = {1}
    scene.pass_seconds(10)
    assert scene.failure is None
    scene.pass_seconds(1)
    assert scene.failure == "rank 1 on host-1 failed in step 5: it gave no sign of life for 10 s"


def test_a_frozen_rank_is_where_those_are_that_wait_for_it() -> None:
    scene = Scene(says=False)
    scene.pass_seconds(2)
    scene.silent = {1}
    scene.signs |= {rank: replace(WAITS, step=17) for rank in (0, 2)}
    scene.pass_seconds(11)
    assert scene.failure == "rank 1 on host-1 failed in step 18: it gave no sign of life for 10 s"


def test_a_rank_whose_process_ended_is_named_sooner() -> None:
    here = Place.here()
    if not here.machine:
        pytest.skip("this system does not tell processes of one machine apart")
    scene = Scene()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    replace(here, process=ended.pid).tell(scene.store, 2)
    scene.pass_seconds(2)
    scene.silent = {2}
    scene.pass_seconds(5)
    assert scene.failure == f"rank 2 on {here.host} failed in step 5: its process is gone"


@pytest.mark.parametrize(("ranks", "here"), [(2, 2), (4, 4), (4, 2), (6, 3), (3, 1), (2, 1)])
def test_ranks_without_a_launcher_look_after_each_other(ranks: int, here: int) -> None:
    """Each after the next one; and after each some rank of its node does, if it is not alone there: others do not see
    its process before it gave a sign."""
    watched = {rank: watched_by(rank, ranks, here) for rank in range(ranks)}
    for rank in range(ranks):
        assert (rank + 1) % ranks in watched[rank]
        near = [other for other in range(ranks) if other != rank and other // here == rank // here]
        assert not near or any(rank in watched[other] for other in near)
        assert rank == 0 or rank not in watched[rank]


def test_a_rank_that_is_frozen_before_its_first_sign_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent of torchrun says nothing of it."""
    scene = Scene()
    scene.signs[1], scene.silent = NEVER, {1}
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    monkeypatch.setattr(paren.parallel.watch, "stopped_sibling", {"RANK=1": sleeper.pid}.get)
    scene.pass_seconds(10)
    assert scene.failure is None
    scene.pass_seconds(1)
    host = Place.here().host
    assert scene.failure == f"rank 1 on {host} failed at the start (joining): it gave no sign of life for 10 s"
    assert sleeper.wait(60) == -signal.SIGKILL


def test_every_rank_waits_for_the_next_one_for_so_long_only() -> None:
    """The first rank, which looks after all, may be the one that does not come."""
    scene = Scene(says=False)
    scene.signs[0], scene.silent = NEVER, {0}
    scene.pass_seconds(50)
    assert scene.failure is None
    scene.pass_seconds(1)
    limit = "it did not join within 50 s, the limit of PAREN_RENDEZVOUS_TIMEOUT"
    assert scene.failure == f"rank 0 on host-0 failed at the start (joining): {limit}"


def test_a_stopped_process_of_the_same_parent_is_found() -> None:
    code = (
        "import os, signal, subprocess, sys\n"
        "started = subprocess.Popen(['sleep', '600'], env={**os.environ, 'RANK': '7'})\n"
        "os.kill(started.pid, signal.SIGSTOP)\n"
        "os.waitid(os.P_PID, started.pid, os.WSTOPPED)\n"
        'ask = \'from paren.runtime.host import stopped_sibling as find; print(find("RANK=7"), find("RANK=8"))\'\n'
        "said = subprocess.run([sys.executable, '-c', ask], capture_output=True, text=True, check=True).stdout\n"
        "started.kill()\n"
        "print(started.pid, said)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    process, found, other = said.split()
    assert (found, other) == (process if Path("/proc").is_dir() else "None", "None")


def test_a_rank_that_has_ended_in_order_is_not_missed() -> None:
    scene = Scene()
    scene.signs[1] = replace(RUNS, phase=OVER)
    scene.pass_seconds(2)
    scene.silent = {1}
    scene.pass_seconds(200)
    assert scene.failure is None


def test_a_rank_that_is_stuck_in_a_step_is_named_after_the_limit() -> None:
    scene = Scene()
    scene.signs |= {0: WAITS, 2: WAITS}
    scene.pass_seconds(60)
    assert scene.failure is None
    assert scene.lines == [f"waiting for rank 1 on host-1 (training), {each} s" for each in (30, 60)]
    scene.pass_seconds(2)
    assert scene.failure == (
        "rank 1 on host-1 failed in step 5: the others waited 60 s for it, the limit of PAREN_STEP_TIMEOUT"
    )


def test_a_rank_that_is_stuck_in_an_evaluation_is_named() -> None:
    scene = Scene()
    scene.signs |= {0: replace(WAITS, phase=EVALUATING), 1: replace(RUNS, phase=EVALUATING), 2: WAITS}
    scene.pass_seconds(63)
    assert scene.failure == (
        "rank 1 on host-1 failed after step 4 (evaluating): the others waited 60 s for it, the limit of "
        "PAREN_STEP_TIMEOUT"
    )


def test_long_work_of_one_rank_has_its_own_limit_and_lines_that_name_it() -> None:
    scene = Scene(2)
    scene.signs = {0: replace(RUNS, step=None, phase="compiling"), 1: replace(WAITS, step=None, phase=PREPARING)}
    scene.pass_seconds(17)
    assert scene.lines == [f"waiting for rank 0 on host-0 (compiling), {each} s" for each in (5, 10, 15)]
    scene.pass_seconds(80)
    assert scene.failure == (
        "rank 0 on host-0 failed at the start (compiling): the others waited 90 s for it, the limit of "
        "PAREN_WORK_TIMEOUT"
    )


def test_what_gets_on_begins_to_count_anew() -> None:
    scene = Scene()
    for step in range(10):
        scene.signs |= {0: replace(WAITS, met=21 + step), 1: replace(RUNS, met=20 + step), 2: WAITS}
        scene.pass_seconds(50)
    assert scene.failure is None


def test_a_rank_that_does_not_join_is_named() -> None:
    scene = Scene()
    scene.signs |= {0: replace(WAITS, met=1), 1: replace(WAITS, met=1)}
    scene.silent = {2}
    scene.pass_seconds(53)
    assert scene.failure == (
        "rank 2 on host-2 failed at the start (joining): the others waited 50 s for it, the limit of "
        "PAREN_RENDEZVOUS_TIMEOUT"
    )


def test_an_exchange_that_never_ends_has_a_limit_too() -> None:
    scene = Scene()
    scene.signs = dict.fromkeys(range(3), WAITS)
    scene.pass_seconds(63)
    assert scene.failure == (
        "rank 0 on host-0 failed in step 5: all ranks waited for each other in one exchange for 60 s, the limit of "
        "PAREN_STEP_TIMEOUT"
    )


def test_a_machine_that_slept_accuses_nobody() -> None:
    scene = Scene()
    scene.signs |= {0: WAITS}
    scene.pass_seconds(3)
    scene.now += 10_000
    scene.watch.look()
    assert scene.failure is None
    scene.pass_seconds(3)
    assert scene.failure is None


def test_the_first_failure_stands() -> None:
    scene = Scene(says=False)
    scene.pass_seconds(2)
    scene.silent = {1}
    scene.pass_seconds(11)
    scene.silent = {0, 1, 2}
    scene.pass_seconds(30)
    assert scene.failure == "rank 1 on host-1 failed in step 5: it gave no sign of life for 10 s"
