"""Real processes with checkpoints in a bucket: killed while they upload, and as several ranks whose folder is lost."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import rank_runs
import stores
from rank_runs import LIMIT, finish, start, train, train_on_ranks, write_experiment
from stores import BUCKET, KEY, PASS, SECRET, STALL, Proxy, Seen

import paren
from paren.train.checkpoint import checkpoints_in
from paren.train.places.bucket import BucketFolder
from paren.train.places.object_store import Bucket
from paren.train.read_run import read_weights

PLACE = f"s3://{BUCKET}/runs/großes Netz"
FOLDER = "runs/großes Netz/"


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    with stores.serving() as port:
        yield port


@pytest.fixture
def store(server: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """The port of an empty store with one bucket, which asks nobody for credentials."""
    assert stores.call(server, "POST", "/moto-api/reset-auth", b"inf")[0] == 200
    assert stores.call(server, "POST", "/moto-api/reset")[0] == 200
    assert stores.call(server, "PUT", f"/{BUCKET}")[0] == 200
    for name, value in stores.variables(server).items():
        monkeypatch.setenv(name, value)
    return server


def write_large(folder: Path) -> Path:
    """The same with files that are uploaded in parts."""
    file = write_experiment(folder)
    file.write_text(file.read_text().replace("(linear x 16)", "(linear x 280000)"))
    return file


def parameters(out: Path, place: str | None = None) -> dict[str, bytes]:
    found = read_weights(out, checkpoints=place)
    return {name: np.asarray(value).tobytes() for name, value in found.parameters.items()}


@pytest.mark.parametrize(
    "at",
    [
        "UploadPart",
        pytest.param("CompleteMultipartUpload", marks=pytest.mark.long),
        pytest.param("manifest.json", marks=pytest.mark.long),
    ],
)
def test_a_run_that_is_killed_while_it_uploads(store: int, tmp_path: Path, at: str) -> None:
    """Nothing half-published; the next start, in a new folder, deletes what was left and goes on to the same bits."""
    file = write_large(tmp_path)
    whole = train(file, tmp_path / "whole", "--steps", "5")

    def harm(seen: Seen) -> str:
        wanted = at in (seen.name, seen.path.rpartition("/")[2].partition("?")[0]) and seen.method != "GET"
        return STALL if wanted and "/000004/" in seen.path else PASS

    with Proxy(store, harm) as proxy:
        endpoint = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}"}
        process = start(file, tmp_path / "killed", "--steps", "5", "--checkpoints", PLACE, variables=endpoint)
        end = time.monotonic() + LIMIT
        while not proxy.harmed and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        process.kill()
        code, said = finish(process)
    assert proxy.harmed, said
    assert code == -9
    bucket = Bucket(BUCKET)
    assert checkpoints_in(BucketFolder(bucket, FOLDER)) == ["000002"]
    left = [key for key in bucket.keys(f"{FOLDER}000004/") if key.endswith(".safetensors")]
    assert left or bucket.uploads(FOLDER)
    shutil.rmtree(tmp_path / "killed")
    out = tmp_path / "next"
    code, said = finish(start(file, out, "--steps", "5", "--checkpoints", PLACE, "--resume", "auto"))
    assert code == 0, said
    assert bucket.uploads(FOLDER) == []
    assert not set(left) & set(bucket.keys(FOLDER))
    assert f"{FOLDER}holder.json" not in bucket.keys(FOLDER)
    assert parameters(out, PLACE) == parameters(whole)


def test_ranks_whose_folder_is_lost_go_on_from_the_bucket(store: int, tmp_path: Path) -> None:
    file = write_experiment(tmp_path)
    whole = train_on_ranks(2, file, tmp_path / "whole")
    train_on_ranks(2, file, tmp_path / "first", "--steps", "3", "--checkpoints", PLACE)
    shutil.rmtree(tmp_path / "first")
    out = train(file, tmp_path / "second", "--checkpoints", PLACE, "--resume", "latest", variables=rank_runs.TWO)
    assert parameters(out, PLACE) == rank_runs.parameters(whole)
    model = paren.restore(out, checkpoints=PLACE)
    kept = paren.restore(whole)
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(2, 6)
    np.testing.assert_array_equal(model(x), kept(x))


def test_what_is_wrong_is_said_before_the_first_step_and_no_secret(store: int, tmp_path: Path) -> None:
    file = write_experiment(tmp_path)
    stores.call(store, "POST", "/moto-api/reset-auth", b"0")
    code, said = finish(start(file, tmp_path / "out", "--checkpoints", PLACE))
    assert code == 1
    assert "E-S3-003: PutObject of s3://paren-test/runs/großes Netz/.probe-" in said
    assert "failed: the credentials are not accepted (InvalidAccessKeyId)\n" in said
    assert KEY not in said
    assert SECRET not in said
    assert not (tmp_path / "out" / "metrics.jsonl").exists()
