"""A limit for every test: one that waits for what never comes fails, and its traceback shows what it waits for. No
limit for one example of a property, which a busy machine may need long for, and the same examples each time: a change
is not judged by luck. And no plan from an earlier test, or an earlier time."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import pytest
from hypothesis import HealthCheck, settings

from paren.runtime import stored_plans

settings.register_profile("drawn anew", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("as before", settings.get_profile("drawn anew"), derandomize=True)
settings.load_profile("as before")  # `make test-long` takes the other
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell lets what it starts in the background ignore
LIMIT = 900  # seconds, of which none takes more than a few on a machine that has time


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    def fail(number: int, frame: FrameType | None) -> None:
        pytest.fail(f"it took longer than {LIMIT} s")

    if item.get_closest_marker("long") is not None:
        return (yield)
    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(LIMIT)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session", autouse=True)
def _own_plans() -> Iterator[None]:
    """Tests change what planning goes by, which the digest of paren's files does not show."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_plans, "own_digest", lambda *_: None)
        yield
