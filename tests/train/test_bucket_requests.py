"""What is asked of a store: tried again while it may pass, then refused with a code, and no secret in any text."""

from __future__ import annotations

import builtins
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import stores
from stores import BUCKET, BUSY, CUT, KEY, LOST, PASS, SECRET, STALL, Proxy, Seen

from paren.inspect.examination import FAIL as FAILS
from paren.inspect.examination import PASS as PASSES
from paren.inspect.examination import Row
from paren.inspect.machine import check_place
from paren.text.errors import ParenError
from paren.train.places import object_store, transfer
from paren.train.places.bucket import BucketFolder
from paren.train.places.object_store import Bucket, Conflict, Stat
from paren.train.places.open import open_place
from paren.train.places.place import Place


def place(prefix: str = "a/b") -> BucketFolder:
    opened = open_place(f"s3://{BUCKET}/{prefix}")
    assert isinstance(opened, BucketFolder)
    return opened


def refused(action: Callable[[], object]) -> ParenError:
    """The error of an action; nothing that is shown of it, a traceback included, holds a secret."""
    with pytest.raises(ParenError) as caught:
        action()
    shown = "".join(traceback.format_exception(caught.value)) + str(caught.value)
    assert SECRET not in shown
    assert KEY not in shown
    return caught.value


def test_a_file_comes_back_as_it_was(store: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts, the last one short, and as a whole; read in odd pieces."""
    content = bytes(range(256)) * (12 << 12) + b"end"
    for count in (len(content), 0, 1, 4096):
        with place().create("x", count) as sink:
            for begin in range(0, count, 100_001):
                sink.write(content[begin : min(begin + 100_001, count)])
        with place().open("x") as found:
            assert found.size == count
            pieces = iter(lambda: found.read(333_333), b"")
            assert b"".join(pieces) == content[:count]
        assert place().read("x") == content[:count]


def test_a_bounded_number_of_parts_is_in_memory(store: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither way more than the plan counts, however slow the store is."""
    monkeypatch.setattr(transfer, "PART", 5 << 20)
    most, busy, lock = 0, 0, threading.Lock()

    def counted(method: Callable[..., object]) -> Callable[..., object]:
        def count(*arguments: object) -> object:
            nonlocal most, busy
            with lock:
                busy += 1
                most = max(most, busy)
            try:
                return method(*arguments)
            finally:
                with lock:
                    busy -= 1

        return count

    monkeypatch.setattr(Bucket, "upload", counted(Bucket.upload))
    monkeypatch.setattr(Bucket, "part", counted(Bucket.part))
    with place().create("x", 60 << 20) as sink:
        for _ in range(60):
            sink.write(bytes(1 << 20))
    assert most <= transfer.THREADS
    most = 0
    with place().open("x") as found:
        assert sum(len(piece) for piece in iter(lambda: found.read(1 << 20), b"")) == 60 << 20
    assert most <= transfer.THREADS


def test_names_with_spaces_and_other_letters(store: int) -> None:
    there = open_place(f"s3://{BUCKET}/a b/ä+c%41&d=e?#/日本/")
    assert str(there) == f"s3://{BUCKET}/a b/ä+c%41&d=e?#/日本"
    assert there.name == "日本"
    there.probe()
    there.child("000001").write("manifest.json", b"{}")
    assert (there.published(), there.child("000001").exists()) == (["000001"], True)
    there.child("000001").remove()
    assert there.published() == []


def test_a_store_that_keeps_something_else(store: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bucket, "get", lambda bucket, key: b"other")
    error = refused(place().probe)
    assert (error.code, error.message) == (
        "E-S3-007",
        f"s3://{BUCKET}/a/b gives back something else than was written",
    )
    monkeypatch.setattr(Bucket, "stat", lambda bucket, key: Stat(3, "tag", 0.0))

    def write() -> None:
        with place().create("x", 5) as sink:
            sink.write(b"12345")

    error = refused(write)
    assert (error.code, error.message, error.fix) == (
        "E-S3-007",
        f"s3://{BUCKET}/a/b/x has 3 bytes instead of the 5 that were sent",
        "see that nothing else writes there, then go on with --resume auto",
    )


@pytest.mark.parametrize("harm", [BUSY, CUT, LOST])
def test_every_third_request_fails(store: int, monkeypatch: pytest.MonkeyPatch, harm: str) -> None:
    """An upload in parts, its reading, and all small verbs."""
    content = bytes(range(256)) * (10 << 12)
    with Proxy(store, lambda seen: harm if seen.number % 3 == 2 else PASS) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        there = place()
        there.probe()
        for _ in range(3):
            with there.create("x.safetensors", len(content)) as sink:
                sink.write(content)
            with there.open("x.safetensors") as found:
                assert found.read(len(content)) == content
        there.write("small", b"1")
        assert there.read("small") == b"1"
        there.delete("x.safetensors")
        assert there.files() == ["small"]
        there.clean()  # an upload whose id was lost on its way was begun again
        assert there.bucket.uploads("a/b/") == []
        assert len(proxy.harmed) >= 10


def test_an_answer_that_was_lost_is_no_failure(store: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store completed the upload, and does not know it any more when it is asked again."""
    lost = []

    def harm(seen: Seen) -> str:
        if seen.name == "CompleteMultipartUpload" and not lost:
            lost.append(seen)
            return LOST
        return PASS

    with Proxy(store, harm) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        with place().create("x", 9 << 20) as sink:
            sink.write(bytes(9 << 20))
        assert [seen.name for seen in proxy.seen].count("CompleteMultipartUpload") == 2
        assert place().bucket.stat("a/b/x").size == 9 << 20


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (BUSY, "answers SlowDown (503)"),
        (CUT, "ends connections"),
        (LOST, "ends connections"),
        (STALL, "does not answer in time"),
    ],
)
def test_a_store_that_keeps_failing(store: int, monkeypatch: pytest.MonkeyPatch, harm: str, reason: str) -> None:
    """By a clock that only the pauses between tries turn: how fast this machine is decides nothing."""
    pauses: list[float] = []
    monkeypatch.setattr(object_store, "time", SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append))
    if harm == STALL:
        monkeypatch.setattr(object_store, "ANSWER", 0.3)
    with Proxy(store, lambda seen: harm) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{KEY}:password@127.0.0.1:{proxy.port}")
        bucket = Bucket(BUCKET, patience=1.0)
        error = refused(lambda: bucket.put("a/x", b"12345678"))
    assert pauses
    assert sum(pauses) < 1
    assert (error.code, error.message) == (
        "E-S3-006",
        f"PutObject of s3://{BUCKET}/a/x failed: http://127.0.0.1:{proxy.port} {reason}",
    )
    assert error.fix == "see to the network and AWS_ENDPOINT_URL, then go on with --resume auto"


@pytest.mark.parametrize("endpoint", [f"http://user:{SECRET}@127.0.0.1:1", SECRET, "http://[::1"])
def test_an_endpoint_that_is_no_address(store: int, monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    error = refused(lambda: Bucket(BUCKET, patience=0.05).get("x"))
    assert error.code in ("E-S3-006", "E-S3-007")


def test_an_endpoint_that_is_not_there(store: int, monkeypatch: pytest.MonkeyPatch) -> None:
    port = stores.free_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    error = refused(lambda: Bucket(BUCKET, patience=0.05).get("x"))
    assert (error.code, error.message) == (
        "E-S3-006",
        f"GetObject of s3://{BUCKET}/x failed: http://127.0.0.1:{port} cannot be reached",
    )


def test_a_long_wait_is_told(store: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "TELLING", 0.04)
    notices: list[str] = []
    with Proxy(store, lambda seen: BUSY if seen.number < 3 else PASS) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        Bucket(BUCKET, notice=notices.append).put("x", b"1")
    assert notices == [
        f"PutObject of s3://{BUCKET}/x: http://127.0.0.1:{proxy.port} answers SlowDown (503); trying again"
    ]


def probe_error(there: Place) -> tuple[str, str]:
    error = refused(there.probe)
    operation, _, rest = error.message.partition(" of ")
    key, _, reason = rest.partition(" failed: ")
    assert key.startswith(str(there))
    return error.code, f"{operation}: {reason}"


def test_a_bucket_that_does_not_exist(store: int) -> None:
    error = probe_error(open_place("s3://no-such-bucket/x"))
    assert error == ("E-S3-004", "PutObject: the bucket does not exist")


def test_credentials_that_the_store_does_not_know(store: int) -> None:
    stores.call(store, "POST", "/moto-api/reset-auth", b"0")
    try:
        error = probe_error(place())
    finally:
        stores.call(store, "POST", "/moto-api/reset-auth", b"inf")
    assert error == ("E-S3-003", "PutObject: the credentials are not accepted (InvalidAccessKeyId)")


def test_a_wrong_secret(store: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's answer repeats what was signed, and the key."""
    answer = f"<Error><Code>SignatureDoesNotMatch</Code><Message>{KEY} {SECRET}</Message></Error>".encode()
    with Proxy(store, lambda seen: answer) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        error = probe_error(place())
    assert error == ("E-S3-003", "PutObject: the credentials are not accepted (SignatureDoesNotMatch)")


@pytest.mark.parametrize(
    ("said", "reason", "fix"),
    [
        (
            "RequestTimeTooSkewed",
            "this machine's clock is far from the store's (RequestTimeTooSkewed)",
            "set the clock",
        ),
        (
            "AuthorizationHeaderMalformed",
            "the bucket is not in the region that was asked (AuthorizationHeaderMalformed)",
            "set AWS_DEFAULT_REGION to the region of the bucket, or AWS_ENDPOINT_URL to its address",
        ),
    ],
)
def test_a_clock_or_a_region_that_is_wrong(
    store: int, monkeypatch: pytest.MonkeyPatch, said: str, reason: str, fix: str
) -> None:
    answer = f"<Error><Code>{said}</Code><Message>{KEY}</Message><Region>eu-west-3</Region></Error>".encode()
    with Proxy(store, lambda seen: answer) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        error = refused(place().probe)
    assert (error.code, error.message.partition(" failed: ")[2], error.fix) == ("E-S3-007", reason, fix)


def test_the_region_is_found_as_the_library_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the variables that docs/object-storage.md names."""
    page = (Path(__file__).parents[2] / "docs" / "object-storage.md").read_text()
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-3")
    assert "`AWS_DEFAULT_REGION`" in page
    assert Bucket(BUCKET)._client.meta.region_name == "eu-west-3"


def test_a_store_that_does_not_know_ranges(store: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(BUCKET)
    bucket.put("a/b/ranges", bytes(100))
    monkeypatch.setattr(transfer, "PART", 60)
    whole = bucket.get("a/b/ranges")
    monkeypatch.setattr(Bucket, "part", lambda *given: whole)
    with place().open("ranges") as found:
        error = refused(lambda: found.read(100))
    said = f"GetObject of s3://{BUCKET}/a/b/ranges gave 100 bytes instead of 60"
    assert (error.code, error.message) == ("E-S3-007", said)


def test_lists_come_in_pages(store: int) -> None:
    bucket = Bucket(BUCKET)
    keys = [f"pages/{number:03d}" for number in range(8)]
    for key in keys:
        bucket.put(key, b"")
    events = bucket._client.meta.events
    asked = []

    def shorten(params: dict[str, object], **_: object) -> dict[str, object]:
        asked.append(params)
        return {**params, "MaxKeys": 3}

    events.register("provide-client-params.s3.ListObjectsV2", shorten)
    assert bucket.keys("pages/") == keys
    assert len(asked) == 3


def test_no_credentials(store: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    error = refused(place().probe)
    assert (error.code, error.message) == (
        "E-S3-003",
        f"the configuration of s3://{BUCKET}/ failed: the credentials are not complete",
    )
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert probe_error(place()) == ("E-S3-003", "PutObject: no credentials were found")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    error = refused(place().probe)
    assert (error.code, error.message) == (
        "E-S3-003",
        f"the configuration of s3://{BUCKET}/ failed: the profile does not exist",
    )
    file = tmp_path / "credentials"
    file.write_text(f"[nobody]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    place().probe()


@pytest.mark.parametrize("operation", ["PutObject", "GetObject", "ListObjectsV2", "DeleteObject"])
def test_a_right_that_is_missing(store: int, monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    answer = f"<Error><Code>AccessDenied</Code><Message>{KEY} may not</Message></Error>".encode()
    with Proxy(store, lambda seen: answer if seen.name == operation else PASS) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        assert probe_error(place()) == ("E-S3-005", f"{operation}: access is denied")


def test_conditions(store: int) -> None:
    bucket = Bucket(BUCKET)
    first = bucket.put("x", b"1", new=True)
    with pytest.raises(Conflict):
        bucket.put("x", b"2", new=True)
    second = bucket.put("x", b"2", replaces=first)
    with pytest.raises(Conflict):
        bucket.put("x", b"3", replaces=first)
    assert bucket.look("x")[0] == b"2"
    assert bucket.stat("x").tag == second
    assert 0 <= bucket.stat("x").age < 60
    with pytest.raises(FileNotFoundError):
        bucket.get("y")


def test_an_object_that_changes_while_it_is_read(store: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PART", 10)
    bucket = Bucket(BUCKET)
    bucket.put("a/b/x", bytes(100))
    with place().open("x") as found:
        found.read(10)
        bucket.put("a/b/x", bytes(range(100)))
        with pytest.raises(OSError, match=f"s3://{BUCKET}/a/b/x changed while it was read"):
            found.read(90)


BUCKETS = "a bucket's name has two or more letters and digits, with . _ - after the first"
ADDRESSES = "of addresses, only s3:// is known"


@pytest.mark.parametrize(
    ("called", "shown", "why"),
    [
        ("s3://", "'s3://'", "it names no bucket"),
        ("s3://x/y", "'s3://x/y'", BUCKETS),
        ("s3:/bucket/x", "'s3:/bucket/x'", ADDRESSES),  # what a Path makes of it
        ("gs://bucket/x", "'gs://bucket/x'", ADDRESSES),
        ("s3://bucket/a/../b", "'s3://bucket/a/../b'", "the parts of its prefix cannot be . or .."),
        ("s3://bucket/a\nb", r"'s3://bucket/a\nb'", "it has characters that cannot be printed"),
        (f"s3://{KEY}:{SECRET}@bucket/x", "what was given", BUCKETS),
        (f"https://bucket.host/x?X-Amz-Credential={KEY}&X-Amz-Signature={SECRET}", "what was given", ADDRESSES),
    ],
)
def test_what_is_no_place(called: str, shown: str, why: str) -> None:
    error = refused(lambda: open_place(called))
    assert (error.code, error.message) == ("E-S3-002", f"{shown} is no place for checkpoints: {why}")
    assert error.fix == (
        "write a folder, or s3://BUCKET/PREFIX as text; credentials come from AWS_* variables or a profile"
    )


def test_folders_are_places_whatever_their_name(tmp_path: Path) -> None:
    assert str(open_place("c:/x")) == "c:/x"
    assert str(open_place("s3/x y")) == "s3/x y"


def test_the_package_is_asked_for_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *arguments: object) -> object:
        if name.startswith("botocore"):
            raise ImportError(name)
        return original(name, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    for name in [each for each in sys.modules if each.startswith("botocore")]:
        monkeypatch.delitem(sys.modules, name)
    error = refused(place().probe)
    assert (error.code, error.message, error.fix) == (
        "E-S3-001",
        f"s3://{BUCKET} needs the package botocore, which is not installed",
        "pip install 'paren[s3]'",
    )


def test_the_doctor_looks_at_a_place(store: int) -> None:
    there = f"s3://{BUCKET}/a"
    assert check_place(there) == Row("checkpoints", PASSES, f"{there} can be written, read, listed and deleted")
    row = check_place("s3://no-such-bucket/x")
    assert (row.state, row.code) == (FAILS, "E-S3-004")
