"""A store for checkpoints in a bucket, one for each process of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import stores

from paren.train.places import object_store


@pytest.fixture(scope="session")
def server() -> Iterator[int]:
    """The port of a store."""
    with stores.serving() as port:
        yield port


@pytest.fixture
def store(server: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """The port of an empty store with one bucket, which this process finds; failures are tried again soon."""
    assert stores.call(server, "POST", "/moto-api/reset")[0] == 200
    assert stores.call(server, "PUT", f"/{stores.BUCKET}")[0] == 200
    for name, value in stores.variables(server).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(object_store, "FIRST_PAUSE", 0.01)
    return server
