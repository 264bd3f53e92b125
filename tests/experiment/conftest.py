"""What tests of studies share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of compiled kernels and of data that no other test fills."""
    monkeypatch.setenv("PAREN_CACHE", str(tmp_path / "cache"))
