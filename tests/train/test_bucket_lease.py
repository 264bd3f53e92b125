"""One process at a time under a prefix: others are refused and told the holder, the dead are found dead."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace

import pytest
import stores
from stores import BUCKET, LOST, PASS, Proxy, Seen

from paren.text.errors import ParenError
from paren.train.places import lease
from paren.train.places.lease import HOLDER, Holder, Lease
from paren.train.places.object_store import Bucket

PLACE = f"s3://{BUCKET}/run"


def hold(notices: list[str] | None = None) -> Lease:
    return Lease(Bucket(BUCKET), "run/", (notices if notices is not None else []).append)


def leave(holder: Holder) -> None:
    """As a process that is killed does."""
    Bucket(BUCKET).put(f"run/{HOLDER}", json.dumps(asdict(holder)).encode())


def elsewhere() -> Holder:
    return replace(Holder.here(), host="other", pid=7, machine="another", started="then", token="t")


def refused(action: Callable[[], object]) -> ParenError:
    with pytest.raises(ParenError) as caught:
        action()
    assert caught.value.code == "E-RUN-004"
    return caught.value


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "LOOKING", 0.02)


def test_a_second_one_is_refused_and_told_the_holder(store: int) -> None:
    with hold() as first:
        holder = json.loads(Bucket(BUCKET).get(f"run/{HOLDER}"))
        error = refused(hold().__enter__)
        first.prove()
    assert error.message == (
        f"{PLACE} is in use by process {holder['pid']} on {holder['host']}, since {holder['started']}"
    )
    assert error.fix == "wait until it ends, stop it, or take another folder"
    with hold():
        pass
    assert Bucket(BUCKET).keys("run/") == []


def test_two_that_start_at_once(store: int) -> None:
    """One of them holds it, whoever is first."""
    started = [hold() for _ in range(4)]
    held, told = [], []
    for each in started:
        try:
            held.append(each.__enter__())
        except ParenError as error:
            told.append(error.code)
    assert (len(held), told) == (1, ["E-RUN-004"] * 3)
    held[0].__exit__(None, None, None)


def test_a_holder_that_was_killed_here_is_taken_over_at_once(store: int) -> None:
    program = (
        "from paren.train.places.lease import Lease; from paren.train.places.object_store import Bucket; import os\n"
        f"with Lease(Bucket({BUCKET!r}), 'run/', print): os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == -9
    assert Bucket(BUCKET).exists(f"run/{HOLDER}")
    notices: list[str] = []
    with hold(notices):
        assert notices == []


def test_a_holder_elsewhere_that_renews_is_alive(store: int, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(elsewhere())
    looks = 0
    original = Lease._look

    def look(self: Lease) -> object:
        nonlocal looks
        looks += 1
        if looks == 3:
            leave(replace(elsewhere(), renewed=1))
        return original(self)

    monkeypatch.setattr(Lease, "_look", look)
    notices: list[str] = []
    error = refused(hold(notices).__enter__)
    assert error.message == f"{PLACE} is in use by process 7 on other, since then"
    assert notices == [
        f"{PLACE} was in use by process 7 on other, since then: waiting up to 60 s to see whether it lives"
    ]


def test_a_holder_elsewhere_that_does_not_renew_is_dead(store: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "LEASE", 1.0)
    leave(elsewhere())
    notices: list[str] = []
    with hold(notices) as own:
        own.prove()
    assert len(notices) <= 1  # none if it was dead by the first look


def test_who_was_taken_to_be_dead_publishes_nothing_more(store: int) -> None:
    with hold() as first:
        leave(elsewhere())
        error = refused(first.prove)
        assert error.message == f"{PLACE} is in use by process 7 on other, since then"
        assert refused(first.prove).message == error.message
    assert Bucket(BUCKET).exists(f"run/{HOLDER}")  # which is the other's


def test_it_is_renewed(store: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEWAL", 0.01)
    with hold():
        while json.loads(Bucket(BUCKET).get(f"run/{HOLDER}"))["renewed"] < 3:
            pass


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_an_answer_that_is_lost(store: int, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The store has done it, and a second try finds that the condition no longer holds."""
    lost = []

    def harm(seen: Seen) -> str:
        if seen.name == "PutObject" and sum(each.name == "PutObject" for each in proxy.seen) == number + 1:
            lost.append(seen)
            return LOST
        return PASS

    with Proxy(store, harm) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        with hold() as own:
            own.prove()
            own.prove()
        assert Bucket(BUCKET).keys("run/") == []
    assert len(lost) == 1


def test_a_store_without_conditional_writes(store: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that knows nothing of them, and one that says so."""
    put = Bucket.put
    told = f"{PLACE}: the store has no conditional writes, so two runs that start at once both go on"

    def ignoring(self: Bucket, key: str, content: bytes, **condition: object) -> str:
        return put(self, key, content)

    monkeypatch.setattr(Bucket, "put", ignoring)
    notices: list[str] = []
    with hold(notices) as own:
        own.prove()
        leave(elsewhere())
        refused(own.prove)
    assert notices == [told]
    Bucket(BUCKET).delete(f"run/{HOLDER}")
    monkeypatch.setattr(Bucket, "put", put)
    answer = b"<Error><Code>NotImplemented</Code></Error>"
    conditional = []

    def harm(seen: Seen) -> str | bytes:
        if seen.name == "PutObject" and not conditional:
            conditional.append(seen)
            return answer
        return PASS

    with Proxy(store, harm) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        notices = []
        with hold(notices) as own:
            own.prove()
        assert notices == [told]


def test_an_object_that_says_nothing(store: int) -> None:
    Bucket(BUCKET).put(f"run/{HOLDER}", b"{")
    with pytest.raises(ParenError) as caught:
        hold().__enter__()
    assert (caught.value.code, caught.value.message, caught.value.fix) == (
        "E-S3-007",
        f"{PLACE}/{HOLDER} does not say who uses the place",
        "delete that object if no run does",
    )


def test_a_store_that_is_gone_at_the_end_is_told(store: int, monkeypatch: pytest.MonkeyPatch) -> None:
    notices: list[str] = []
    with Proxy(store, lambda seen: stores.BUSY if gone else PASS) as proxy:
        gone: list[int] = []
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        with hold(notices):
            gone.append(1)
    assert notices == [
        f"{PLACE} stays locked for 60 s: GetObject of {PLACE}/{HOLDER} failed: "
        f"http://127.0.0.1:{proxy.port} answers SlowDown (503)"
    ]
