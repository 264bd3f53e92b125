"""All that `test_cuda.py` runs, under the checks of `emulation/checks.h`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from emulation.checks import checked
from test_cuda import *  # noqa: F403

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def watched() -> Iterator[None]:
    with checked():
        yield
