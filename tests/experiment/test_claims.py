"""Claims: one holder at a time, on one host by the system's lock, across hosts by a lease."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from paren.experiment.store import claims
from paren.experiment.store.claims import claim, holders, sweep, waiting_for
from paren.text.errors import ParenError

HOLD = """
import sys, time
from pathlib import Path
from paren.experiment.store.claims import claim
held = claim(Path(sys.argv[1]), "job")
print("held" if held else "taken", flush=True)
time.sleep(600)
"""


def left(root: Path) -> list[str]:
    return [path.name for path in (root / "locks").iterdir()]


def hold_elsewhere(root: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(root)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def age(root: Path, seconds: float) -> None:
    for lease in (root / "locks").glob("*.lease"):
        stamp = time.time() - seconds
        os.utime(lease, (stamp, stamp))


def test_one_holds_it_at_a_time(tmp_path: Path) -> None:
    held = claim(tmp_path, "runs/a/b")
    assert held is not None
    assert claim(tmp_path, "runs/a/b") is None
    other = claim(tmp_path, "runs/a_b")
    assert other is not None
    (first, second) = holders(tmp_path)
    assert (first.claim, first.pid) == ("runs/a/b", os.getpid())
    assert str(second) == f"process {os.getpid()} on {second.host}, since {second.started}"
    held.release()
    held.release()
    other.release()
    assert left(tmp_path) == []
    assert holders(tmp_path) == []
    with waiting_for(tmp_path, "runs/a/b"):
        assert claim(tmp_path, "runs/a/b") is None
    assert left(tmp_path) == []


def test_a_killed_holder_frees_it_at_once(tmp_path: Path) -> None:
    process = hold_elsewhere(tmp_path)
    try:
        assert claim(tmp_path, "job") is None
        (holder,) = holders(tmp_path)
        assert holder.pid == process.pid
        sweep(tmp_path)
        assert holders(tmp_path) == [holder]
    finally:
        end(process)
    assert holders(tmp_path) == []
    held = claim(tmp_path, "job")
    assert held is not None
    held.release()
    assert left(tmp_path) == []


def test_what_killed_holders_left_is_swept(tmp_path: Path) -> None:
    end(hold_elsewhere(tmp_path))
    held = claim(tmp_path, "other")
    assert held is not None
    machine = held.holder.machine
    (tmp_path / "locks" / f".x-0.{machine}-0123").touch()  # killed while it took a claim
    assert len(left(tmp_path)) == 5
    sweep(tmp_path)
    assert len(left(tmp_path)) == 2
    held.release()
    assert left(tmp_path) == []


def test_a_child_of_a_dead_holder_does_not_hold_on(tmp_path: Path) -> None:
    """A forked child shares its parent's locks, and a pool of workers outlives a killed parent."""
    text = HOLD.replace(
        "time.sleep(600)",
        'import os\nif os.fork() == 0:\n    time.sleep(600)\nprint("forked", flush=True)\ntime.sleep(600)',
    )
    process = subprocess.Popen(
        [sys.executable, "-c", text, str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    try:
        assert [process.stdout.readline() for _ in range(2)] == ["held\n", "forked\n"]
        assert claim(tmp_path, "job") is None
        process.kill()
        process.wait()
        held = claim(tmp_path, "job")
        assert held is not None
        held.release()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()


def test_another_host_waits_for_the_lease(tmp_path: Path) -> None:
    """The hosts are one by name only, so the system's lock is no help between them."""
    held = claim(tmp_path, "job", host="one")
    assert held is not None
    assert claim(tmp_path, "job", host="two") is None
    assert [holder.host for holder in holders(tmp_path, host="two")] == ["one"]
    sweep(tmp_path, host="two")
    age(tmp_path, claims.LEASE + 1)
    taken = claim(tmp_path, "job", host="two")
    assert taken is not None
    assert claim(tmp_path, "job", host="three") is None
    assert [holder.host for holder in holders(tmp_path, host="three")] == ["two"]
    held.release()  # it is no longer its own
    assert [holder.host for holder in holders(tmp_path, host="three")] == ["two"]
    taken.release()
    assert left(tmp_path) == []


def test_the_lease_of_a_dead_host_is_swept(tmp_path: Path) -> None:
    held = claim(tmp_path, "job", host="one")
    assert held is not None
    age(tmp_path, claims.LEASE + 1)
    sweep(tmp_path, host="two")
    assert holders(tmp_path, host="two") == []
    held.release()
    assert left(tmp_path) == []


def test_a_holder_gives_signs_and_sees_that_it_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "INTERVAL", 0.01)
    held = claim(tmp_path, "job", host="one")
    assert held is not None
    (lease,) = (tmp_path / "locks").glob("*.lease")
    age(tmp_path, 1000)
    while time.time() - lease.stat().st_mtime > 500:
        time.sleep(0.01)
    lease.unlink()  # somebody tidied up: it is put there again
    while not lease.exists():
        time.sleep(0.01)
    assert not held.is_lost()
    taken = None
    while taken is None:  # the holder may give a sign between the two lines
        age(tmp_path, 1000)
        taken = claim(tmp_path, "job", host="two")
    while not held.is_lost():
        time.sleep(0.01)
    held.release()
    assert not taken.is_lost()
    taken.release()
    assert left(tmp_path) == []


def test_threads_of_many_hosts_never_hold_it_together(tmp_path: Path) -> None:
    inside: list[str] = []
    most: list[int] = []

    def work(host: str) -> None:
        done = 0
        while done < 10:
            held = claim(tmp_path, "job", host=host)
            if held is not None:
                with held:
                    inside.append(host)
                    most.append(len(inside))
                    time.sleep(0.001)
                    inside.remove(host)
                done += 1

    threads = [threading.Thread(target=work, args=(host,)) for host in ("one", "one", "two", "three")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(most) == {1}
    assert len(most) == 40
    assert left(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ParenError) as caught:
        claim(tmp_path, "job")
    assert caught.value.code == "E-STORE-003"


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "locks").write_text("a file in its place")
    with pytest.raises(ParenError) as caught:
        claim(tmp_path, "job")
    assert (caught.value.code, caught.value.message) == (
        "E-STORE-003",
        f"{tmp_path / 'locks'} cannot be written (file exists)",
    )


def test_names_of_any_length_and_character(tmp_path: Path) -> None:
    names = ["a" * 300, "a" * 301, "a/b", "a_b", "a b", "ü", "..", ""]
    held = [claim(tmp_path, name) for name in names]
    assert all(held)
    assert sorted(holder.claim for holder in holders(tmp_path)) == sorted(names)
    for each in held:
        assert each is not None
        each.release()
