"""Fixtures of the tests of data."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_forms import Opener


@pytest.fixture
def opened(tmp_path: Path) -> Opener:
    """Opens data forms below a fresh folder."""
    return Opener(tmp_path)
