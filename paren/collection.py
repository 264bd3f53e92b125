"""The search for cycles of objects, held off where many small records are made that live on."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """No search for cycles inside: graphs and plans are trees of many small records that live on, which each search
    would look through again. It took a fifth of the time of planning. What was made counts as old when it ends."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.freeze()
            gc.unfreeze()  # into the oldest generation
            gc.enable()
