"""Tables of the places of examples: they are those of single batches, and making them holds what the plan counts."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from data_forms import run_form

from paren.data.fields import ArraySplit
from paren.data.loader import Schedule
from paren.data.resident import ResidentBatches, block_steps, making_bytes
from paren.runtime.device import open_device


@pytest.mark.parametrize("walks", [False, True])
@pytest.mark.parametrize(
    ("count", "batch"),
    [(3687, 128), (100_000, 128), (5_000, 1), (50_000, 10_000), (200, 7), (65_500, 40_000), (2_000_000, 128)],
)
def test_making_a_table_holds_what_is_counted(count: int, batch: int, *, walks: bool) -> None:
    walk = open_device("cpu", 1).walk if walks else None
    split = ArraySplit("train", (), {}, 3, count, count + 100, shuffled=True, digest="", walk=walk)
    block = block_steps(batch)
    tracemalloc.start()
    try:
        with ResidentBatches(split, run_form(batch), batch, 4 * block, walk) as batches:
            batches.table(0, 1)
            batches.table(block, 1)  # the one of the next block is made meanwhile
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        with ResidentBatches(split, run_form(batch), batch, 4 * block, walk) as batches:
            places = batches.table(0, block).places.copy()
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    table = block * (8 * batch + 4)
    assert peak < 3 * table + making_bytes(batch, walks=walks) + (64 << 10)  # the copy; the thread
    schedule = Schedule(count, batch, seed=1)
    for position in range(block):
        _, indices = schedule.batch_at(position)
        expected = split.places(indices)
        np.testing.assert_array_equal(places[position, : len(indices)], expected)
        assert np.all(places[position, len(indices) :] == expected[-1])
